"""Predicted against measured: step times and peak memory of real runs on one machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tfsim.palette import COLOURS
from tfsim.plots.style import INK, house_style
from tfsim.units import format_bytes, format_time

_PHASES = {"forward": ("forward pass", "o"), "train": ("training step", "s"), "decode": ("decode step", "^")}
_BAND = 0.4


def predicted_and_measured(lines: pd.DataFrame, title: str) -> Figure:
    """Two log-log charts of the lines of ``validate_measured``: times of steps and peak memory of training steps.

    A dot per case (open: held out), its bar from the lower to the upper quartile of the repeats; the line is equality,
    the band 40 % to either side.
    """
    with house_style():
        figure = Figure(figsize=(10.4, 5.2), layout="constrained")
        times, memory = figure.subplots(1, 2)
        _chart(times, _used(lines, "time_s"), format_time, "time of a step")
        _chart(memory, _used(lines, "peak_memory_bytes"), format_bytes, "peak memory of a training step")
        times.legend(loc="upper left", frameon=False)
        figure.suptitle(title)
    return figure


def _used(lines: pd.DataFrame, quantity: str) -> pd.DataFrame:
    return lines[(lines["quantity"] == quantity) & (lines["skipped"] == "")]


def _chart(axes: Axes, lines: pd.DataFrame, words: Callable[[float], str], title: str) -> None:
    values = lines[["measured", "predicted"]].to_numpy(float)
    low, high = values.min() / 1.5, values.max() * 1.5
    ends = np.array([low, high])
    axes.plot(ends, ends, color=INK, linewidth=1)
    axes.fill_between(ends, ends * (1 - _BAND), ends * (1 + _BAND), color="#000000", alpha=0.06, linewidth=0)
    for colour, (phase, (label, marker)) in zip(COLOURS, _PHASES.items(), strict=False):
        for held_out in (False, True):
            of = lines[(lines["phase"] == phase) & ((lines["set"] == "held_out") == held_out)]
            if not len(of):
                continue
            spread = of["measured"] * of["spread"].fillna(0) / 2 if title.startswith("time") else None
            axes.errorbar(
                of["measured"], of["predicted"], xerr=spread, fmt=marker, color=colour, markersize=5, alpha=0.8,
                elinewidth=0.8, label=f"{label}, held out" if held_out else label, markeredgewidth=0.9 * held_out,
                markerfacecolor="none" if held_out else colour,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), title=title)
    axes.set(xlabel="measured", ylabel="predicted", aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
