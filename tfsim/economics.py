"""Device-hours to money, energy and carbon; and where the price, the power and the site's figures come from.

Pure arithmetic on numbers or arrays. Energy is the maximum power of the devices with their share of the node, times
PUE: an upper bound, since devices rarely draw their maximum. Money is a price per device-hour, whatever it includes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, get_args

from tfsim.errors import InputError, choice, quote
from tfsim.hardware import System
from tfsim.hardware.prices import Term
from tfsim.units import Number, as_number, parse_quantity

SECONDS_PER_HOUR = 3600
JOULES_PER_KWH = 3.6e6
MILLION = 1_000_000
GRAMS_PER_KG = 1000


def device_hours(devices: Number, seconds: Number) -> Number:
    """Device-hours of ``devices`` held for ``seconds``."""
    return devices * seconds / SECONDS_PER_HOUR


def money(hours: Number, price_usd_per_device_hour: Number) -> Number:
    """Dollars for so many device-hours."""
    return hours * price_usd_per_device_hour


def energy_kwh(devices: Number, seconds: Number, power_w_per_device: Number, pue: Number = 1.0) -> Number:
    """Energy at the meter of the site [kWh]: devices x power x time x PUE."""
    return devices * power_w_per_device * seconds * pue / JOULES_PER_KWH


def carbon_kg(kwh: Number, carbon_kg_per_kwh: Number) -> Number:
    """Emissions of the electricity [kg CO2e]; what making the machines emitted is not included."""
    return kwh * carbon_kg_per_kwh


@dataclass(frozen=True)
class Rates:
    """What a device-hour costs, draws and emits. None stands for a figure nobody published; its ``*_source`` then says
    why and which option gives it."""

    price_usd_per_device_hour: Number | None
    price_source: str
    power_w_per_device: Number | None
    power_source: str
    pue: Number | None
    pue_source: str
    carbon_kg_per_kwh: Number | None
    carbon_source: str

    @property
    def unknown(self) -> list[str]:
        """Why each unknown rate is unknown, and which option gives it."""
        known = (
            (self.price_usd_per_device_hour, self.price_source),
            (self.power_w_per_device, self.power_source),
            (self.pue, self.pue_source),
            (self.carbon_kg_per_kwh, self.carbon_source),
        )
        return [source for value, source in known if value is None]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(self.__dict__)


def rates(
    system: System,
    price: Any = None,
    power: Any = None,
    pue: Any = None,
    carbon: Any = None,
    provider: str | None = None,
    term: str = "on-demand",
) -> Rates:
    """Price, power, PUE and carbon intensity of ``system``: the values given, else those of its profile.

    price [$/device-hour], power [W per device, before PUE], pue, carbon [kg CO2e/kWh]: numbers, arrays, or text with a
    unit ("$2.49/h", "700 W", "350 g/kWh"). ``provider``, ``term``: which of the profile's quotes.

    Raises: InputError for a malformed value, a PUE below 1, or a provider or term asked for without a quote. A price
    that is merely unpublished is None.
    """
    choice("price term", term, get_args(Term))
    if provider is not None and not isinstance(provider, str):
        raise InputError(f"provider: {quote(provider)} is not a name")
    if term == "purchase":
        raise InputError("term: 'purchase' quotes are per device, not per hour: give --price")
    asked = provider is not None or term != "on-demand"

    def quoted() -> tuple[float, str]:
        return system.price(provider, cast(Term, term))

    usd, usd_source = _resolve(price, "price", "price", quoted, asked=asked)
    watts, watts_source = _resolve(power, "power", "power", system.power_per_device)
    overhead, overhead_source = _resolve(pue, "count", "pue", lambda: (system.pue, "site profile"), at_least=1)
    grams, grams_source = _resolve(carbon, "carbon", "carbon", lambda: (system.carbon_kg_per_kwh, "site profile"))
    return Rates(usd, usd_source, watts, watts_source, overhead, overhead_source, grams, grams_source)


def _resolve(
    value: Any, dimension: str, name: str, published: Any, *, asked: bool = False, at_least: float = 0
) -> tuple[Number | None, str]:
    if value is not None:
        number = as_number(value, name, at_least=at_least) if not isinstance(value, str) else None
        if number is None or isinstance(number, int | float):
            number = as_number(parse_quantity(value, dimension, name), name, at_least=at_least)
        return number, "given"
    try:
        return cast(tuple[float, str], published())
    except InputError as error:
        if asked:
            raise
        return None, str(error)


@dataclass(frozen=True)
class Cost:
    """What holding devices for a time costs; None where the rate is unknown (its source in Rates says why)."""

    device_hours: Number
    usd: Number | None
    energy_kwh: Number | None
    carbon_kg: Number | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(self.__dict__)


def cost(known: Rates, devices: Number, seconds: Number) -> Cost:
    """Device-hours, dollars, kWh and kg CO2e of ``devices`` held for ``seconds``."""
    hours = device_hours(devices, seconds)
    price, power, pue, carbon = (
        known.price_usd_per_device_hour, known.power_w_per_device, known.pue, known.carbon_kg_per_kwh,
    )  # fmt: skip
    kwh = None if power is None or pue is None else energy_kwh(devices, seconds, power, pue)
    return Cost(
        hours,
        None if price is None else money(hours, price),
        kwh,
        None if kwh is None or carbon is None else carbon_kg(kwh, carbon),
    )


@dataclass(frozen=True)
class TokenCost:
    """What tokens cost on devices that make them at a steady rate; None where the rate is unknown."""

    usd_per_million: Number | None
    joules_per_token: Number | None
    kwh_per_million: Number | None
    carbon_g_per_million: Number | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(self.__dict__)


def token_cost(known: Rates, devices: Number, tokens_per_s: Number) -> TokenCost:
    """Dollars, energy and carbon per token of ``devices`` that together make ``tokens_per_s``."""
    million = cost(known, devices, MILLION / tokens_per_s)
    kwh, carbon = million.energy_kwh, million.carbon_kg
    return TokenCost(
        million.usd,
        None if kwh is None else kwh * JOULES_PER_KWH / MILLION,
        kwh,
        None if carbon is None else carbon * GRAMS_PER_KG,
    )
