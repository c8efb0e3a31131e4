"""Stacked bars: what fills a device's memory, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfsim.palette import COLOURS
from tfsim.plots.style import FREE, INK, house_style

_GB = 1e9
_SLIVER = 0.0005  # a part below this share of the longest bar is left out


@dataclass(frozen=True)
class MemoryBar:
    """Bytes on the fullest device by part, and how many of them it has."""

    label: str
    parts: Mapping[str, float]
    capacity: float


def memory_bars(bars: list[MemoryBar], title: str) -> Figure:
    """One stacked bar per case [GB on the fullest device], with a line at its capacity."""
    with house_style():
        figure = Figure(figsize=(8.4, 1.5 + 0.85 * len(bars)), layout="constrained")
        axes = figure.subplots()
        _stack(axes, [(bar.label, {name: size / _GB for name, size in bar.parts.items()}) for bar in bars])
        for row, bar in enumerate(bars):
            capacity = bar.capacity / _GB
            used = sum(bar.parts.values()) / _GB
            axes.barh(row, max(0.0, capacity - used), left=used, height=0.55, color=FREE, zorder=1)
            axes.plot([capacity, capacity], [row - 0.38, row + 0.38], color="#D55E00", linewidth=2.2, zorder=4)
            axes.annotate(
                f"{capacity:,.1f} GB usable",
                (capacity, row - 0.38),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color="#B34A00",
            )
        axes.set(title=title, xlabel="memory of the fullest device [GB = 1e9 bytes]")
        axes.set_xlim(0, 1.08 * max(max(bar.capacity, sum(bar.parts.values())) for bar in bars) / _GB)
        axes.set_ylim(len(bars) - 0.45, -0.75)
    return figure


def time_breakdown(bars: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """One stacked bar per case: percent of its time by part."""
    with house_style():
        figure = Figure(figsize=(8.4, 1.5 + 0.7 * len(bars)), layout="constrained")
        axes = figure.subplots()
        rows = []
        for label, parts in bars.items():
            whole = sum(parts.values())
            rows.append((label, {name: 100 * size / whole for name, size in parts.items()}))
        _stack(axes, rows, unit="%")
        axes.set(title=title, xlabel="share of the time [%]", xlim=(0, 100))
        axes.set_ylim(len(rows) - 0.5, -0.5)
    return figure


def _stack(axes: Axes, rows: list[tuple[str, dict[str, float]]], unit: str = "") -> None:
    """Horizontal stacked bars; one colour per part, a number in each that has room for it."""
    widest = max(sum(parts.values()) for _, parts in rows)
    names = list(dict.fromkeys(name for _, parts in rows for name in parts if parts[name] > _SLIVER * widest))
    for index, name in enumerate(names):
        colour = COLOURS[index % len(COLOURS)]
        hatch = "//" if index >= len(COLOURS) else None
        for row, (_, parts) in enumerate(rows):
            size = parts.get(name, 0)
            left = sum(parts.get(n, 0) for n in names[:index])
            axes.barh(row, size, left=left, height=0.55, color=colour, hatch=hatch, zorder=2, edgecolor="white",
                      label=name.replace("_", " ") if row == 0 else None)  # fmt: skip
            if size > 0.055 * widest:
                axes.text(left + size / 2, row, f"{size:,.1f}{unit}", ha="center", va="center", fontsize=8.5,
                          color=_ink_on(colour), zorder=3)  # fmt: skip
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.tick_params(axis="y", length=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8.5)


def _ink_on(colour: str) -> str:
    """White on dark colours, dark on light ones."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK
