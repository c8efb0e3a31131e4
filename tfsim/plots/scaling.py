"""Charts of a scaling law: loss over size, the loss surface, the best size over budgets with its band.

N, D and C are the law's own counts. What lies outside the runs that a law was fitted on is dotted or left unshaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tfsim.palette import COLOURS
from tfsim.plots.labels import name_points
from tfsim.plots.style import FREE, INK, house_style
from tfsim.scaling import Allocation, Law, band, optimal, why_no_band
from tfsim.scaling.surface import Curve
from tfsim.scaling.trained import trained_models
from tfsim.units import Array, format_count

LINE, ASKED, OWN = COLOURS[0], COLOURS[5], COLOURS[2]  # budgets, the one that is asked, the law's best sizes
_BELOW = 4  # decades of budgets below the one that is asked
_WIDTH = 12.0  # an isoFLOP curve goes from the best N / this to N x this
_RUNS = "runs the law was fitted on"


@dataclass(frozen=True)
class Sized:
    """The model that is asked about, in the law's counts: N, D and training FLOPs."""

    parameters: float
    tokens: float
    compute: float


def isoflops(law: Law, curve: Curve, sized: Sized, title: str, facts: Mapping[str, Any] | None = None) -> Figure:
    """Loss over N, a curve per budget: decades below the one of ``sized``, and its own."""
    budgets = _budgets(law, sized.compute)
    best = optimal(law, compute=budgets, c_means=law.c, **(facts or {}))
    sizes, tokens = np.asarray(best.parameters), np.asarray(best.tokens)
    with house_style():
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        axes = figure.subplots()
        for i, compute in enumerate(budgets.tolist()):
            asked = i == len(budgets) - 1
            n = float(sizes[i]) * np.geomspace(1 / _WIDTH, _WIDTH, 200)
            loss = np.asarray(curve.loss(n, float(sizes[i] * tokens[i]) / n))
            inside = _within(law, "compute", compute)
            axes.plot(n, loss, color=ASKED if asked else LINE, linewidth=2.2 if asked else 1.4,
                      linestyle="-" if inside else (0, (4, 2)), zorder=4 if asked else 3)  # fmt: skip
            axes.annotate(_flops(compute), (n[0], loss[0]), xytext=(-4, 0), textcoords="offset points", ha="right",
                          va="center", fontsize=8.5, color=ASKED if asked else LINE)  # fmt: skip
        axes.plot(sizes, curve.loss(sizes, tokens), color=OWN, marker="o", markersize=4.5, linewidth=1.2, zorder=5)
        _star(axes, sized.parameters, float(curve.loss(sized.parameters, sized.tokens)))
        _shade(axes, law, "parameters")
        axes.set(xscale="log", title=title, xlabel=f"parameters N ({_words(law.n)})", ylabel=_loss_label(law))
        axes.set_xlim(left=float(sizes[0]) / _WIDTH / 6)
        _counts(axes, "x")
        axes.grid(True, color="#E6E6E6", linewidth=0.6)
        axes.legend(handles=[
            Line2D([], [], color=LINE, label="one budget [FLOP]"),
            Line2D([], [], color=ASKED, linewidth=2.2, label="the budget asked"),
            Line2D([], [], color=INK, linestyle=(0, (4, 2)), label="beyond the budgets of the fit"),
            Line2D([], [], color=OWN, marker="o", markersize=4.5, label="best N"),
            Line2D([], [], color=ASKED, marker="*", markersize=12, linestyle="", label="the model here"),
            *([Patch(color=FREE, label=f"N of the {_RUNS}")] if "parameters" in law.fitted else []),
        ], loc="upper right", fontsize=8.5)  # fmt: skip
    return figure


def loss_surface(law: Law, curve: Curve, sized: Sized, title: str, facts: Mapping[str, Any] | None = None) -> Figure:
    """Contours of the loss over N and D, with the budgets' lines, the best sizes along them and the model here."""
    budgets = _budgets(law, sized.compute)
    path = optimal(law, compute=np.geomspace(budgets[0], 10 * budgets[-1], 60), c_means=law.c, **(facts or {}))
    x = np.geomspace(float(np.min(path.parameters)) / 8, float(np.max(path.parameters)) * 4, 220)
    y = np.geomspace(float(np.min(path.tokens)) / 8, float(np.max(path.tokens)) * 4, 220)
    n, d = np.meshgrid(x, y)
    with house_style():
        figure = Figure(figsize=(8.4, 6.0), layout="constrained")
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(y[0], y[-1]), title=title)
        runs = _runs(law, n, d)
        if runs is not None:
            axes.contourf(n, d, runs, levels=[0.5, 1.5], colors=[FREE], zorder=1)
        levels = _levels(path)
        axes.contour(n, d, curve.loss(n, d), levels=levels, colors=LINE, linewidths=1, zorder=2)
        for level in levels.tolist():
            _name_contour(axes, curve, path, level)
        for i, compute in enumerate(budgets.tolist()):
            asked = i == len(budgets) - 1
            best = optimal(law, compute=compute, c_means=law.c, **(facts or {}))
            tokens = best.parameters * best.tokens / x
            shown = (tokens >= y[0]) & (tokens <= y[-1])
            axes.plot(x[shown], tokens[shown], color=ASKED if asked else "#777777", linewidth=1.6 if asked else 0.9,
                      linestyle="--", zorder=3)  # fmt: skip
            at = len(x[shown]) // 12  # on its line, off the frame
            axes.text(x[shown][at], tokens[shown][at], _flops(compute), fontsize=8.5, ha="center", va="center",
                      color=ASKED if asked else "#555555", zorder=6,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
        axes.plot(path.parameters, path.tokens, color=OWN, linewidth=2, zorder=4)
        _star(axes, sized.parameters, sized.tokens)
        axes.set(xlabel=f"parameters N ({_words(law.n)})", ylabel="training tokens D")
        _counts(axes, "x")
        _counts(axes, "y")
        figure.legend(handles=[
            Line2D([], [], color=LINE, linewidth=1, label=_loss_label(law)),
            Line2D([], [], color="#777777", linestyle="--", linewidth=0.9, label="one budget [FLOP]"),
            Line2D([], [], color=ASKED, linestyle="--", label="the budget asked"),
            Line2D([], [], color=OWN, linewidth=2, label="best N and D"),
            Line2D([], [], color=ASKED, marker="*", markersize=12, linestyle="", label="the model here"),
            *([Patch(color=FREE, label=_RUNS)] if runs is not None else []),
        ], loc="outside lower center", ncols=3, fontsize=8.5)  # fmt: skip
    return figure


def allocation(law: Law, sized: Sized, title: str, facts: Mapping[str, Any] | None = None) -> Figure:
    """The best N and D over the budget with the law's 80 % band, and what published models were trained on."""
    budgets = np.geomspace(min(1e21, sized.compute / 10), max(1e26, 10 * sized.compute), 80)
    best = optimal(law, compute=budgets, c_means=law.c, **(facts or {}))
    found = band(law, compute=budgets) if why_no_band(law) is None else None
    with house_style():
        figure = Figure(figsize=(9.2, 5.0), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, name in zip(panels, ("parameters", "tokens"), strict=True):
            if found is not None:
                ends = getattr(found, name)
                axes.fill_between(budgets, ends.low, ends.high, color=OWN, alpha=0.25, linewidth=0, zorder=2)
            axes.plot(budgets, getattr(best, name), color=OWN, linewidth=2, zorder=3)
            _shade(axes, law, "compute")
            _star(axes, sized.compute, getattr(sized, name))
            words = f"parameters N ({_words(law.n)})" if name == "parameters" else "training tokens D"
            axes.set(xscale="log", yscale="log", xlabel=f"training FLOP C ({_words(law.c)})", ylabel=words)
            _counts(axes, "y")
            axes.set_xlim(budgets[0], budgets[-1])
            axes.grid(True, color="#E6E6E6", linewidth=0.6)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(handles=[
            Line2D([], [], color=OWN, linewidth=2, label=f"best by {law.name}"),
            *([Patch(color=OWN, alpha=0.25, label="80 % band")] if found is not None else []),
            *([Patch(color=FREE, label=_RUNS)] if "compute" in law.fitted else []),
            Line2D([], [], color=ASKED, marker="*", markersize=12, linestyle="", label="the model here"),
            Line2D([], [], color=INK, marker="o", markersize=5, linestyle="", label="published models, C at 6ND"),
        ], loc="outside lower center", ncols=5, fontsize=8.5)  # fmt: skip
        for axes, name in zip(panels, ("parameters", "tokens"), strict=True):
            name_points(axes, [(m.compute, getattr(m, name), m.name) for m in trained_models()],
                        avoid=[(sized.compute, getattr(sized, name))])  # fmt: skip
    return figure


def _budgets(law: Law, compute: float) -> Array:
    """The decades below a budget, and it."""
    top = math.ceil(math.log10(compute)) - 1
    decades = [10.0**k for k in range(top - _BELOW, top + 1) if 10.0**k < 0.7 * compute]
    return np.array([*decades, compute])


def _within(law: Law, name: str, value: float) -> bool:
    low, high = law.fitted.get(name, (0.0, math.inf))
    return low <= value <= high


def _runs(law: Law, n: Array, d: Array) -> Array | None:
    """1 where the law's runs lie, by every range that it states; None when it states none."""
    values = {"parameters": n, "tokens": d, "compute": 6 * n * d, "tokens_per_parameter": d / n}
    known = [name for name in values if name in law.fitted]
    if not known:
        return None
    inside = [(values[name] >= law.fitted[name][0]) & (values[name] <= law.fitted[name][1]) for name in known]
    return np.asarray(np.logical_and.reduce(inside), dtype=np.float64)


def _levels(path: Allocation) -> Array:
    """Losses of about a dozen contours: those of budgets that rise by equal factors."""
    losses = np.asarray(path.loss)
    return np.unique(np.round(losses[:: max(1, len(losses) // 11)], 3))


def _name_contour(axes: Axes, curve: Curve, path: Allocation, level: float) -> None:
    """A contour's loss, on it, at a fixed distance from the best size of that loss."""
    losses, sizes = np.asarray(path.loss)[::-1], np.asarray(path.parameters)[::-1]
    n = 6 * float(np.interp(level, losses, sizes))
    d = float(curve.tokens_of_loss(n, level))
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    if left < n < 0.8 * right and 1.2 * low < d < high:
        axes.text(n, d, f"{level:.3f}", fontsize=8, color=LINE, ha="center", va="center", zorder=3,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip


def _star(axes: Axes, x: float, y: float) -> None:
    axes.plot([x], [y], marker="*", markersize=15, color=ASKED, markeredgecolor="white", linestyle="", zorder=7)


def _shade(axes: Axes, law: Law, name: str) -> None:
    if name in law.fitted:
        axes.axvspan(*law.fitted[name], color=FREE, zorder=0)


def _counts(axes: Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: format_count(value))


def _flops(compute: float) -> str:
    return f"{compute:.2e}".replace("e+", "e").replace(".00", "")


def _loss_label(law: Law) -> str:
    return "loss" if law.loss == "not stated" else f"loss [{law.loss}]"


def _words(count: str) -> str:
    return {"6nd": "6ND", "m_times_d": "M D"}.get(count, count.replace("_", " "))
