"""What may be spent: a text such as "$5M", "200k GPU-hours", "100 PF-days" or "1e24flops", told apart by its unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tfsim.errors import InputError, quote
from tfsim.scaling import flops_from_pf_days
from tfsim.scaling.conventions import MOST, positive
from tfsim.units import format_count, format_flops, format_money, parse_quantity

Unit = Literal["flops", "dollars", "device_hours"]
_HOURS = re.compile(r"\s*(?:GPU|TPU|device|chip|accelerator)s?[- ]?(?:hours?|hrs?|h)\s*\Z", re.IGNORECASE)
_PF_DAYS = re.compile(r"\s*(?:PF(?:LOPS?|LOP/s)?|petaflops?(?:/s)?)[- ]?days?\s*\Z", re.IGNORECASE)
_FLOPS = re.compile(r"FLOPs?\s*\Z", re.IGNORECASE)
_DOLLARS = re.compile(r"\$|\bUSD\b|\bdollars?\b", re.IGNORECASE)
_EXAMPLES = "'$5M', '200k GPU-hours', '100 PF-days' or '1e24flops'"


@dataclass(frozen=True)
class Budget:
    """An amount in FLOPs (in the law's own count), dollars or device-hours."""

    amount: float
    unit: Unit

    def __str__(self) -> str:
        if self.unit == "dollars":
            return format_money(self.amount)
        if self.unit == "device_hours":
            return f"{format_count(self.amount)} device-hours"
        return format_flops(self.amount)


def read_budget(value: object) -> Budget:
    """A budget from text with its unit; a bare number is FLOPs.

    Raises: InputError for anything else, and for an amount that is not positive.
    """
    if isinstance(value, Budget):
        return value
    if not isinstance(value, str):
        number = positive(value, "budget")
        if not isinstance(number, int | float):
            raise InputError("budget: must be one amount")
        return Budget(float(number), "flops")
    amount, unit = _amount(value)
    if not amount > 0:
        raise InputError(f"budget: {quote(value)} is nothing to spend")
    return Budget(amount, unit)


def _amount(text: str) -> tuple[float, Unit]:
    if len(text) > 100:
        raise InputError(f"budget: {quote(text)} is not a budget such as {_EXAMPLES}")
    if hours := _HOURS.search(text):
        return float(_number(text[: hours.start()], text, "count")), "device_hours"
    if days := _PF_DAYS.search(text):
        number = _number(text[: days.start()], text, "count")
        return (float(flops_from_pf_days(number)) if number else 0.0), "flops"
    if _DOLLARS.search(text):
        return float(_number(text, text, "money")), "dollars"
    flops = float(_number(_FLOPS.sub("FLOP", text), text, "flops"))
    if flops > MOST:
        raise InputError(f"budget: {quote(text)} is implausibly large (above {MOST:g} FLOPs)")
    return flops, "flops"


def _number(part: str, whole: str, dimension: str) -> int | float:
    try:
        return parse_quantity(part, dimension, "budget")
    except InputError as error:
        if "negative" in str(error) or "implausibly" in str(error):
            raise InputError(str(error).replace(quote(part), quote(whole))) from None
        raise InputError(f"budget: {quote(whole)} is not a budget such as {_EXAMPLES}") from None
