"""Quantities of a comparison against the context length."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfsim.palette import COLOURS
from tfsim.plots.style import INK, house_style
from tfsim.units import format_bytes

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")
_FITS = {"train_s": "train_fits", "train_memory_bytes": "train_fits"}  # the others need what serving needs


def by_context(table: pd.DataFrame, panels: Mapping[str, str], capacity: float, title: str) -> Figure:
    """One log-log panel per column of ``table`` (of ``tfsim.compare``) named in ``panels``, a line per model.

    A line is dotted where its memory is more than ``capacity`` [bytes], which panels of memory show.
    """
    rows = (len(panels) + 1) // 2
    with house_style():
        figure = Figure(figsize=(9.2, 0.9 + 3.1 * rows), layout="constrained")
        grid = figure.subplots(rows, 2, squeeze=False).flat
        for axes, (column, words) in zip(grid, panels.items(), strict=False):
            _panel(axes, table, column)
            memory = column.endswith("_bytes")
            scale = 1e-9 if memory else 1.0
            unit = "GB = 1e9 bytes" if memory else "s"
            axes.set(xscale="log", yscale="log", title=words, xlabel="context [tokens]", ylabel=f"[{unit}]")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.yaxis.set_major_formatter(lambda value, _, scale=scale: f"{value * scale:,g}")
            axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
            axes.set_axisbelow(True)
            if memory:
                axes.axhline(capacity, color=INK, linewidth=1, linestyle="--")
                axes.annotate(f"the device has {format_bytes(capacity, digits=3)}", (table["seq_len"].min(), capacity),
                              xytext=(0, 4), textcoords="offset points", fontsize=8.5)  # fmt: skip
        for axes in list(grid):
            axes.set_visible(False)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3), fontsize=9)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def _panel(axes: Axes, table: pd.DataFrame, column: str) -> None:
    for index, (model, case) in enumerate(table.groupby("model", sort=False)):
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        fits = case[_FITS.get(column, "infer_fits")]
        axes.plot(case["seq_len"], case[column], color=colour, linewidth=1.2, linestyle=":")
        axes.plot(case["seq_len"], case[column].where(fits), color=colour, linewidth=1.8, marker=marker, markersize=4.5,
                  label=str(model))  # fmt: skip
