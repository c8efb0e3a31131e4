"""One function per chart: numbers in, a matplotlib Figure out."""
