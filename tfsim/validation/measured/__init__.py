"""Runs measured on a machine against what tfsim counts and predicts for it."""
