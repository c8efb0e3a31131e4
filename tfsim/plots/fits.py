"""A fit of the user's runs: how well it predicts them, what is left over, and what size it would choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfsim.palette import COLOURS
from tfsim.plots.style import INK, house_style
from tfsim.units import Array, format_count

_FITTED, _HELD = COLOURS[0], COLOURS[5]
_GRID = "#DDDDDD"


@dataclass(frozen=True)
class IsoCurve:
    """Runs of one budget, the curve fitted to them over ``grid``, and its lowest point (None where it has none)."""

    label: str
    x: Array
    loss: Array
    grid: Array
    curve: Array
    optimum: tuple[float, float] | None


def predicted_against_measured(
    measured: Array, predicted: Array, held_measured: Array, held_predicted: Array, title: str
) -> Figure:
    """Predicted over measured loss; the held-out runs are those that a fit on the others predicts.

    The arrays of held-out runs may be empty.
    """
    with house_style():
        figure = Figure(figsize=(6.4, 5.6), layout="constrained")
        axes = figure.subplots()
        every = np.concatenate([measured, predicted, held_measured, held_predicted])
        low, high = float(every.min()), float(every.max())
        edge = 0.03 * (high - low) or 0.01
        axes.plot([low - edge, high + edge], [low - edge, high + edge], color=INK, linewidth=1)
        axes.scatter(measured, predicted, s=18, color=_FITTED, alpha=0.7, linewidths=0, label="runs fitted on")
        if len(held_measured):
            label = "largest runs, by the fit on the others"
            axes.scatter(held_measured, held_predicted, s=26, color=_HELD, marker="^", linewidths=0, label=label)
        axes.set(title=title, xlabel="measured loss", ylabel="predicted loss", aspect="equal")
        axes.set(xlim=(low - edge, high + edge), ylim=(low - edge, high + edge))
        _finish(axes)
        axes.legend(loc="upper left", fontsize=9)
    return figure


def residuals(budget: Array, residual: Array, held_budget: Array, held_residual: Array, title: str) -> Figure:
    """Predicted / measured loss - 1 [%] over training FLOPs: a trend here is a form that does not hold."""
    with house_style():
        figure = Figure(figsize=(8.4, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color=INK, linewidth=1)
        axes.scatter(budget, 100 * residual, s=18, color=_FITTED, alpha=0.7, linewidths=0, label="runs fitted on")
        if len(held_budget):
            label = "largest runs, by the fit on the others"
            axes.scatter(held_budget, 100 * held_residual, s=26, color=_HELD, marker="^", linewidths=0, label=label)
        axes.set(
            xscale="log", title=title, xlabel="training compute [FLOP]", ylabel="predicted / measured loss - 1 [%]"
        )
        _finish(axes)
        axes.legend(loc="best", fontsize=9)
    return figure


def isoflop_curves(curves: Sequence[IsoCurve], what: str, title: str) -> Figure:
    """Loss over ``what`` (N or D), a colour per budget from dark to light, a ring at each curve's lowest point."""
    import matplotlib

    with house_style():
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        axes = figure.subplots()
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(curves)))
        for curve, colour in zip(curves, colours, strict=True):
            axes.scatter(curve.x, curve.loss, s=16, color=colour, linewidths=0)
            axes.plot(curve.grid, curve.curve, color=colour, linewidth=1.4, label=curve.label)
            if curve.optimum is not None:
                axes.plot(*curve.optimum, marker="o", markersize=9, markerfacecolor="none", markeredgecolor=colour,
                          markeredgewidth=1.6)  # fmt: skip
        axes.set(xscale="log", title=title, xlabel=what, ylabel="loss")
        axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
        _finish(axes)
        figure.legend(loc="outside right upper", fontsize=9, title="training FLOP")
    return figure


def optimum_band(
    compute: Array,
    middle: Array,
    band: tuple[Array, Array] | None,
    points: tuple[Array, Array],
    largest: float,
    title: str,
) -> Figure:
    """N_opt over training FLOPs, its 80 % band over the bootstrap, and ``points`` (C, N) of groups' optima.

    Beyond ``largest``, the runs' largest budget, the law is extrapolated.
    """
    with house_style():
        figure = Figure(figsize=(8.4, 5.0), layout="constrained")
        axes = figure.subplots()
        if band is not None:
            axes.fill_between(compute, *band, color=_FITTED, alpha=0.2, linewidth=0, label="80 % of the bootstraps")
        axes.plot(compute, middle, color=_FITTED, linewidth=1.8, label="the fit")
        if len(points[0]):
            axes.scatter(*points, s=34, color=_HELD, zorder=3, linewidths=0, label="minima of isoFLOP parabolas")
        axes.axvline(largest, color=INK, linewidth=1, linestyle="--")
        axes.annotate("largest run", (largest, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0),
                      textcoords="offset points", fontsize=9)  # fmt: skip
        axes.set(
            xscale="log", yscale="log", title=title, xlabel="training compute [FLOP]", ylabel="best N [parameters]"
        )
        axes.yaxis.set_major_formatter(lambda value, _: format_count(value))
        _finish(axes)
        axes.legend(loc="upper left", fontsize=9)
    return figure


def _finish(axes: Axes) -> None:
    axes.grid(True, which="major", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
