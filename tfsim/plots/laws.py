"""Charts of several scaling laws: what each makes of one budget, and how they part as the budget grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from tfsim.palette import COLOURS
from tfsim.plots.style import INK, house_style
from tfsim.scaling import Allocation, Law, Range, compare_laws
from tfsim.units import Array, Number, format_count

_LEADER = {"arrowstyle": "-", "color": "#BBBBBB", "linewidth": 0.6, "relpos": (0, 0.5)}
OWN, ASKED, OTHER = COLOURS[2], COLOURS[5], "#8A8A8A"


@dataclass(frozen=True)
class Advice:
    """What a law advises for the budget: all parameters of the model, and tokens."""

    law: str
    parameters: float
    tokens: float


def law_comparison(
    default: Law,
    own: Advice,
    others: Sequence[Advice],
    compute: float,
    band: Range | None,
    title: str,
    facts: Mapping[str, Any] | None = None,
) -> Figure:
    """Left: parameters by law at this budget, the default's with its 80 % band. Right: over the budget, of the laws
    that count C as the default does; laws kept only for comparison with their own source are left out."""
    rows = sorted([own, *others], key=lambda advice: advice.parameters)
    with house_style():
        figure = Figure(figsize=(9.6, 1.6 + 0.2 * max(len(rows), 16)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.05))
        _dots(left, rows, own, band)
        _curves(right, default, compute, facts or {})
        left.set(xlabel="best N, all parameters")
        left.set_title("at this budget", fontsize=10)
        right.set(ylabel="best N, all parameters", xlabel=f"training FLOP C ({default.c.replace('6nd', '6ND')})")
        right.set_title("over the budget", fontsize=10)
        left.xaxis.set_major_formatter(lambda value, _: format_count(value))
        right.yaxis.set_major_formatter(lambda value, _: format_count(value))
        for axes in (left, right):
            axes.grid(True, color="#E6E6E6", linewidth=0.6)
            axes.set_axisbelow(True)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(handles=[
            Line2D([], [], color=OWN, marker="o", linewidth=2.4, markersize=6, label=f"{own.law}, with its 80 % band"
                   if band is not None else own.law),
            Line2D([], [], color=OTHER, marker="o", linewidth=1, markersize=4.5, label="other laws"),
            Line2D([], [], color=ASKED, linestyle="--", label="this budget"),
        ], loc="outside lower center", ncols=3, fontsize=8.5)  # fmt: skip
    return figure


def _dots(axes: Axes, rows: Sequence[Advice], own: Advice, band: Range | None) -> None:
    axes.set_xscale("log")
    if band is not None:
        axes.axvspan(float(band.low), float(band.high), color=OWN, alpha=0.15, linewidth=0)
    for row, advice in enumerate(rows):
        mine = advice is own
        axes.plot([advice.parameters], [row], marker="o", color=OWN if mine else OTHER, markersize=8 if mine else 5,
                  linestyle="", zorder=3)  # fmt: skip
        axes.annotate(format_count(advice.parameters), (advice.parameters, row), xytext=(7, 0), va="center",
                      textcoords="offset points", fontsize=7.5, color=INK if mine else "#555555")  # fmt: skip
    axes.set_yticks(range(len(rows)), [advice.law for advice in rows], fontsize=8)
    for label, advice in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if advice is own else "normal")
    axes.set_ylim(-0.7, len(rows) - 0.3)
    sizes = [advice.parameters for advice in rows]
    axes.set_xlim(min(sizes) / 1.5, max(sizes) * 4)


def _curves(axes: Axes, default: Law, compute: float, facts: Mapping[str, Any]) -> None:
    """A line per law that counts C as the default does, its name at its end."""
    budgets = np.geomspace(min(1e20, compute / 10), max(1e26, 10 * compute), 60)
    axes.set(xscale="log", yscale="log")
    known = {name: value for name, value in facts.items() if name != "unique_tokens"}
    found = compare_laws(budgets, default=default, c_means=default.c, **known)
    standing = [x for x in found.others if not x.law.instead]
    for x in standing:
        axes.plot(budgets, _total(x), color=OTHER, linewidth=0.9, zorder=2)
    axes.plot(budgets, _total(found.default), color=OWN, linewidth=2.4, zorder=4)
    axes.axvline(compute, color=ASKED, linestyle="--", linewidth=1.2, zorder=3)
    ends = sorted((float(np.asarray(_total(x))[-1]), x.law.name) for x in [*standing, found.default])
    starts = [float(np.asarray(_total(x))[0]) for x in [*standing, found.default]]
    low, high = np.log(min(starts)), np.log(ends[-1][0]) + 1.0
    wanted = np.log([n for n, _ in ends])
    places = _apart(wanted, (high - low) / 34)
    for (n, name), place in zip(ends, places.tolist(), strict=True):
        axes.annotate(name, (budgets[-1], n), xytext=(budgets[-1] * 4, float(np.exp(place))), fontsize=7, va="center",
                      color=OWN if name == default.name else INK, zorder=5, arrowprops=_LEADER)  # fmt: skip
    axes.set_xlim(budgets[0], budgets[-1] * 10 ** (0.75 * (np.log10(budgets[-1] / budgets[0]))))
    axes.set_xticks([10.0**k for k in range(20, 1 + round(np.log10(budgets[-1])), 2)], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(float(np.exp(low)), float(np.exp(max(high, places[-1] + 0.3))))


def _apart(wanted: Array, gap: float) -> Array:
    """Rising places, at least ``gap`` apart, as near to those wanted as pushing neighbours gets them."""
    places = wanted.copy()
    for _ in range(200):
        short = np.maximum(gap - np.diff(places), 0.0)
        if short.max(initial=0.0) < 1e-3 * gap:
            break
        places[:-1] -= short / 2
        places[1:] += short / 2
    return places


def _total(x: Allocation) -> Number:
    return x.parameters if x.total_parameters is None else x.total_parameters
