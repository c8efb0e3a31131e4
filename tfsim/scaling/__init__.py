"""Scaling laws: published laws, compute-optimal allocation, and fits of the user's own runs."""

from tfsim.scaling.fit_isoflop import envelope, isoflop, parabola_bias
from tfsim.scaling.fit_law import FORMS, extrapolate, fit
from tfsim.scaling.fit_runs import read_runs

__all__ = ["FORMS", "envelope", "extrapolate", "fit", "isoflop", "parabola_bias", "read_runs"]
