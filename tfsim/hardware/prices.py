"""Dated price quotes of a device, and which of them is the default."""

import statistics
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tfsim.errors import InputError, quote, unknown
from tfsim.hardware.figures import Strict, Text

Term = Literal["on-demand", "1-year", "3-year", "spot", "market", "purchase"]
TERMS: tuple[Term, ...] = ("on-demand", "1-year", "3-year", "spot", "market", "purchase")

_WINDOW_MONTHS = 18
_Usd = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Price(Strict):
    """One quote: USD per device-hour, or USD per device when the term is "purchase".

    "market" is a range or planning figure of a third party (the middle of the range), not the
    quote of a provider.
    """

    usd_per_device_hour: _Usd | None = None
    usd_per_device: _Usd | None = None
    term: Term
    provider: Text
    date: Annotated[str, Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")]
    source: Text
    superseded: bool = False  # the provider is known to have changed it since: no default
    note: Text | None = None

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        wanted = "usd_per_device" if self.term == "purchase" else "usd_per_device_hour"
        other = "usd_per_device_hour" if self.term == "purchase" else "usd_per_device"
        if getattr(self, wanted) is None or getattr(self, other) is not None:
            raise ValueError(f"a {self.term} price is given as {wanted} alone")
        return self

    @property
    def usd(self) -> float:
        """The amount [USD per device-hour, or USD per device for a purchase]."""
        amount = self.usd_per_device if self.term == "purchase" else self.usd_per_device_hour
        assert amount is not None
        return amount

    def describe(self) -> str:
        """Provider, term and date, as a report prints them."""
        return f"{self.provider}, {self.term}, {self.date}"


def default_price(prices: Sequence[Price], term: Term) -> tuple[float, str] | None:
    """The price that stands for `term` when no provider is named, and where it comes from.

    The rule: of each provider the newest quote that is not superseded; of these, the quotes within
    18 months of the newest; of these, the median. Without any on-demand quote, market figures
    stand in.
    Returns None when there is no such quote.
    """
    valid = [p for p in prices if not p.superseded]
    chosen = _recent([p for p in valid if p.term == term])
    if not chosen and term == "on-demand":
        chosen = _recent([p for p in valid if p.term == "market"])
    if not chosen:
        return None
    median = statistics.median(p.usd for p in chosen)
    if len(chosen) == 1:
        return median, chosen[0].describe()
    dates = sorted(p.date for p in chosen)
    names = ", ".join(p.provider for p in chosen)
    return (
        median,
        f"median of {len(chosen)} {chosen[0].term} quotes {dates[0]} to {dates[-1]}: {names}",
    )


def provider_price(prices: Sequence[Price], provider: str, term: Term, device: str) -> tuple[float, str]:
    """The newest quote of `provider` for `term`.

    Raises: InputError naming the providers, or the terms, that are known for the device.
    """
    wanted = provider.strip().lower()
    of_provider = [p for p in prices if p.provider.lower() == wanted]
    if not of_provider:
        raise unknown(f"provider of {device}", provider, sorted({p.provider for p in prices}))
    quotes = [p for p in of_provider if p.term == term]
    if not quotes:
        terms = ", ".join(sorted({p.term for p in of_provider}))
        raise InputError(
            f"no {term} price of {quote(of_provider[0].provider)} for {device} is known, only {terms}: give --price"
        )
    newest = max(quotes, key=lambda p: _month(p.date))
    return newest.usd, newest.describe()


def _recent(prices: list[Price]) -> list[Price]:
    newest: dict[str, Price] = {}
    for price in prices:
        known = newest.get(price.provider)
        if known is None or _month(price.date) > _month(known.date):
            newest[price.provider] = price
    latest = max((_month(p.date)[0] for p in newest.values()), default=0)
    return [p for p in newest.values() if latest - _month(p.date)[0] <= _WINDOW_MONTHS]


def _month(date: str) -> tuple[int, str]:
    """Months since year 0 (a bare year counts as its January), then the date to break ties."""
    year, _, rest = date.partition("-")
    return int(year) * 12 + int(rest[:2] or 1) - 1, date
