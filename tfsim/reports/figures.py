"""Figures of hardware profiles in words: the value with its unit, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tfsim.hardware import Device, Figure, Source, System
from tfsim.hardware.figures import (
    Bytes,
    BytesPerSecond,
    FlopPerSecond,
    Hertz,
    KgPerKwh,
    Seconds,
    UsdPerKwh,
    Watts,
)
from tfsim.hardware.figures import Count as CountFigure
from tfsim.reports.words import two_units
from tfsim.units import (
    format_bandwidth,
    format_flop_rate,
    format_money,
    format_power,
    format_price,
    format_time,
)

if TYPE_CHECKING:
    from tfsim.scenario import ScenarioResult

_WORDS: dict[type[Figure], Callable[[float], str]] = {
    Bytes: two_units,
    BytesPerSecond: lambda x: format_bandwidth(x, 4),
    FlopPerSecond: lambda x: format_flop_rate(x, 4),
    Hertz: lambda x: f"{x / 1e6:,.4g} MHz",
    Watts: lambda x: format_power(x, 4),
    Seconds: format_time,
    CountFigure: lambda x: f"{x:,.0f}",
    UsdPerKwh: lambda x: f"${x:g}/kWh",
    KgPerKwh: lambda x: f"{1000 * x:.4g} g CO2e/kWh",
}


class FigureRow(NamedTuple):
    """A figure by its dotted name, its value in words, and its source or the reason why there is no value."""

    name: str
    value: str
    source: str


def figure_words(figure: Figure) -> str:
    """The value with its unit, or "not published"."""
    if figure.value is None:
        return "not published"
    words = _WORDS.get(type(figure), _plain)
    return words(float(figure.value))


def _plain(value: float) -> str:
    return f"{value:g}"


def source_words(figure: Figure, sources: Mapping[str, Source]) -> str:
    """Title and date of the source with the profile's note; for a null the reason."""
    if figure.value is None:
        return figure.reason or ""
    source = sources.get(figure.source or "")
    if source is None:
        return figure.note or ""
    words = source.title if source.date is None else f"{source.title}, {source.date}"
    return f"{words}; {figure.note}" if figure.note else words


def figure_rows(hardware: Device | System) -> list[FigureRow]:
    """Every figure of a device, or of a system without those of its device."""
    sources = hardware.profile.sources
    own = {name: figure for name, figure in hardware.figures.items() if not name.startswith("device.")}
    return [FigureRow(name, figure_words(figure), source_words(figure, sources)) for name, figure in own.items()]


def used_figures(result: ScenarioResult) -> dict[str, list[FigureRow]]:
    """The figures that the answers rest on most, by the device or system they belong to."""
    found: dict[str, list[FigureRow]] = {}
    answers = (result.train, result.serve, result.compare, result.size)
    for system in (None if answer is None else answer.system for answer in answers):
        if system is not None:
            found[system.device.name] = _pick(system.device, ("matrix_peak", "memory", "efficiency", "runtime", "nic"))
            found[system.name] = _pick(system, ("levels", "node_power", "site"))
    return found


def _pick(hardware: Device | System, starts: tuple[str, ...]) -> list[FigureRow]:
    return [row for row in figure_rows(hardware) if row.name.startswith(starts)]


def price_rows(hardware: Device | System) -> list[tuple[str, str, str, str, str]]:
    """Every quote: amount, term, provider, date, note."""
    return [
        (
            format_money(price.usd) if price.term == "purchase" else format_price(price.usd),
            price.term,
            price.provider,
            price.date,
            "; ".join(filter(None, ("superseded" if price.superseded else "", price.note or ""))),
        )
        for price in hardware.profile.prices
    ]
