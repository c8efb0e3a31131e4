"""The roofline (Williams et al. 2009): how near each operator comes to what the device can do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tfsim.hardware import Device
from tfsim.palette import COLOURS
from tfsim.plots.points import COMPONENTS, ELEMENTWISE, Point
from tfsim.plots.style import INK, house_style
from tfsim.units import format_bandwidth, format_flop_rate

_MARKERS = ("o", "^", "s", "D")
_TERA = 1e12


def roofline(points: Sequence[Point], device: Device, title: str) -> Figure:
    """Operators over FLOPs per byte (log-log), under the device's ceilings for the formats they use.

    Solid: the published peaks; dashed: the fractions of them that large kernels reach. Area: share of the time.
    Raises InputError when the device profile lacks a peak or the bandwidth.
    """
    with house_style():
        figure = Figure(figsize=(8.4, 5.2), layout="constrained")
        axes = figure.subplots()
        low, high = _range(points, device)
        _ceilings(axes, points, device, low, high)
        _operators(axes, points)
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(low, high),
            title=title,
            xlabel="arithmetic intensity [FLOP per byte of memory traffic]",
            ylabel="achieved on one device [TFLOP/s]",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _range(points: Sequence[Point], device: Device) -> tuple[float, float]:
    ridge = max(_peaks(points, device).values()) / device.require("bandwidth")
    values = [p.intensity for p in points] or [ridge]
    return min(min(values), 1.0) / 2, max(max(values), ridge) * 6


def _peaks(points: Sequence[Point], device: Device) -> dict[str, float]:
    rates = [p.rate for p in points if p.rate] or ["bf16"]
    return {rate: device.matmul_peak(rate).flop_per_s for rate in dict.fromkeys(rates)}


def _ceilings(axes: Axes, points: Sequence[Point], device: Device, low: float, high: float) -> None:
    bandwidth = device.require("bandwidth")
    x = np.geomspace(low, high, 400)
    drawn: dict[float, str] = {}
    for rate, peak in _peaks(points, device).items():  # formats that run at one rate share a line
        drawn[peak] = f"{drawn[peak]}, {rate}" if peak in drawn else rate
    for peak, rates in drawn.items():
        reached = device.matmul_efficiency(rates.split(", ")[0])
        axes.plot(x, np.minimum(peak, x * bandwidth) / _TERA, color=INK, linewidth=1.4)
        lower = np.minimum(peak * reached, x * bandwidth * device.efficiency.memory)
        axes.plot(x, lower / _TERA, color=INK, linewidth=1, linestyle="--")
        words = f"{rates} {format_flop_rate(peak)}"
        axes.annotate(
            words,
            (high, peak / _TERA),
            xytext=(-4, 5),
            textcoords="offset points",
            ha="right",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    ridge = min(drawn) / bandwidth
    middle = float(np.sqrt(low * ridge))
    axes.annotate(
        f"memory {format_bandwidth(bandwidth)}",
        (middle, middle * bandwidth / _TERA),
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )


def _operators(axes: Axes, points: Sequence[Point]) -> None:
    names = [name for name in (*COMPONENTS.values(), ELEMENTWISE) if any(p.component == name for p in points)]
    colours = dict(zip(names, COLOURS, strict=False))
    phases = list(dict.fromkeys(p.phase for p in points))
    whole = {phase: sum(p.seconds for p in points if p.phase == phase) for phase in phases}
    for phase, marker in zip(phases, _MARKERS, strict=False):
        mine = [p for p in points if p.phase == phase]
        axes.scatter(
            [p.intensity for p in mine],
            [p.flop_per_s / _TERA for p in mine],
            s=[25 + 400 * p.seconds / whole[phase] for p in mine],
            c=[colours[p.component] for p in mine],
            marker=marker,
            alpha=0.8,
            edgecolors="white",
            linewidths=0.6,
            zorder=3,
        )
    kinds = [Line2D([], [], marker="s", linestyle="", color=colour, label=name) for name, colour in colours.items()]
    shapes = [
        Line2D([], [], marker=marker, linestyle="", color="#777777", label=phase)
        for phase, marker in zip(phases, _MARKERS, strict=False)
    ]
    lines = [
        Line2D([], [], color=INK, linewidth=1.4, label="published peak"),
        Line2D([], [], color=INK, linewidth=1, linestyle="--", label="reached by large kernels"),
    ]
    axes.legend(handles=[*kinds, *shapes, *lines], loc="lower right", fontsize=8.5)
