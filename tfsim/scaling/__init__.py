"""Scaling laws: published laws, compute-optimal allocation, and fits of the user's own runs."""
