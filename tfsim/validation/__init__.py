"""Published measurements against predictions: tables, error statistics, and the fits that use them."""
