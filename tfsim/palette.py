"""The colours of charts, pages and the terminal: told apart by colour-blind readers."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#AA4499")
"""Okabe and Ito 2008; the last is Tol's."""
