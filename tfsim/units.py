"""Numbers with units: read "80 GiB" or "989 TFLOP/s", print 8.21 ms, and keep integers exact.

Inside tfsim everything is SI: seconds, bytes, FLOPs, watts, joules, dollars, kg CO2e. Two rates
keep the unit that everybody quotes: prices are $ per hour, carbon intensities kg CO2e per kWh.
1 GB is 1e9 bytes and 1 GiB is 2**30 bytes: never mixed.

A scalar stays a Python number (an int is exact at any size); an array is float64 (exact to 2**53).
int64 never holds FLOPs or bytes: it overflows silently.
"""

import math
import re
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from tfsim._unit_tables import DIMENSIONS, Dimension
from tfsim.errors import InputError, quote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    Number: TypeAlias = int | float | NDArray[np.float64]
else:  # reading and printing a single quantity must not wait for NumPy to load
    Array = Any
    Number = Any


# Arithmetic that keeps both: Python ints exact, arrays float64.


LARGEST = 1e18  # no count, length or rate a user means is larger, and products of several stay far from overflow


def as_number(
    x: object,
    name: str = "value",
    *,
    at_least: float | None = None,
    at_most: float = LARGEST,
    whole: bool = False,
) -> Number:
    """A user's number (or array of numbers) as the rest of tfsim takes it.

    Python ints and floats stay, NumPy scalars become Python numbers, lists and integer arrays
    become float64 arrays. With `at_least` smaller values, with `whole` fractions are refused, and
    always values above `at_most` (FLOPs of a whole training run need a higher one).

    Raises: InputError naming `name` for bools, text, NaN, infinities, empty arrays and anything else.
    """
    if isinstance(x, bool) or not isinstance(x, int | float) or type(x) not in (int, float):
        number = _from_numpy(x, name)
    else:
        number = x
    if isinstance(number, int | float):
        try:
            finite = math.isfinite(number)  # an int too large for a float overflows
        except OverflowError:
            finite = False
        fits = at_least is None or not number < at_least
        integral = not whole or not finite or number == math.floor(number)
        if whole and finite and integral:
            number = int(number)
    else:
        import numpy as np

        finite = bool(np.isfinite(number).all())
        if not number.size:
            raise InputError(f"{name}: an array without numbers")
        fits = at_least is None or not bool((number < at_least).any())
        integral = not whole or not finite or bool((number == np.floor(number)).all())
    if not finite:
        raise InputError(f"{name}: {quote(x)} is not a finite number")
    if not fits:
        raise InputError(f"{name}: {quote(x)} is below {at_least:g}")
    if not integral:
        raise InputError(f"{name}: {quote(x)} is not a whole number")
    if abs(number) > at_most if isinstance(number, int | float) else bool((abs(number) > at_most).any()):
        raise InputError(f"{name}: {quote(x)} is implausibly large (above {at_most:g})")
    return number


def common_shape(**numbers: object) -> tuple[int, ...]:
    """The shape that a user's numbers broadcast to; None stands for a number not given.

    Raises: InputError naming the arrays when they do not broadcast.
    """
    arrays = {name: x for name, x in numbers.items() if x is not None and not _all_scalar(x)}
    if not arrays:
        return ()
    import numpy as np

    shapes = {name: np.shape(x) for name, x in arrays.items()}  # type: ignore[call-overload]
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError:
        words = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"arrays of shapes that do not broadcast: {words}") from None


def _from_numpy(x: object, name: str) -> Number:
    import numpy as np

    refusal = InputError(f"{name}: {quote(x)} is not a number")
    if x is None or isinstance(x, bool | str | bytes | dict | set):
        raise refusal
    if isinstance(x, list | tuple) and any(isinstance(v, bool) for v in x):
        raise refusal  # asarray([True, 2]) would make it [1, 2]
    try:
        array = np.asarray(x)
        if array.dtype == object:  # such as a list of ints above 2**63
            if not all(type(v) in (int, float) for v in array.flat):
                raise refusal
        elif array.dtype.kind not in "iuf":
            raise refusal
        if array.ndim == 0:
            return _python_scalar(array.item(), refusal)
        return array.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        raise refusal from None


def _python_scalar(value: object, refusal: InputError) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise refusal


def _all_scalar(*numbers: object) -> bool:
    return all(isinstance(x, int | float) for x in numbers)


def _float_array(x: Number) -> Array:
    import numpy as np

    return np.asarray(x, dtype=np.float64)


def floor_div(a: Number, b: Number) -> Number:
    """a // b; of two ints exact at any size."""
    return a // b if _all_scalar(a, b) else _float_array(a) // _float_array(b)


def ceil_div(a: Number, b: Number) -> Number:
    """The smallest whole number of parts of size b that hold a; of two ints exact at any size."""
    return -floor_div(-a, b)


def minimum(*numbers: Number) -> Number:
    """Elementwise smallest; a Python number when all are."""
    if _all_scalar(*numbers):
        return min(numbers)
    import numpy as np

    return reduce(np.minimum, map(_float_array, numbers))


def maximum(*numbers: Number) -> Number:
    """Elementwise largest; a Python number when all are."""
    if _all_scalar(*numbers):
        return max(numbers)
    import numpy as np

    return reduce(np.maximum, map(_float_array, numbers))


def log2(x: Number) -> Number:
    """Logarithm to base 2, of a number or element by element."""
    if _all_scalar(x):
        return math.log2(x)
    import numpy as np

    return np.log2(_float_array(x))


def where(condition: Any, a: Number, b: Number) -> Number:
    """a where the condition holds, else b; a or b itself when the condition is one bool."""
    if getattr(condition, "ndim", 0) == 0:
        return a if condition else b
    import numpy as np

    return np.where(condition, _float_array(a), _float_array(b))


# Reading.


_QUANTITY = re.compile(
    r"\s*(?P<sign>[-+]?)\s*(?P<dollar>\$?)\s*"
    r"(?P<number>(?:[0-9][0-9,_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)"
    r"\s*(?P<unit>.*?)\s*\Z"
)


def parse_quantity(value: str | int | float, dimension: str, name: str | None = None) -> int | float:
    """The number that a text such as "80 GiB" stands for, in the base unit of its dimension.

    dimension: "bytes", "flops", "flop_rate" (FLOP/s), "bandwidth" (bytes/s), "tokens", "count",
    "money" (dollars), "price" (dollars per hour), "power" (W), "time" (s), "energy" (J) or
    "carbon" (kg CO2e per kWh). A number without a unit is in that base unit. Bytes, FLOPs, tokens
    and counts are ints where integral, without rounding on the way; the rest are floats.

    Raises: InputError, starting with `name` (the field; default the dimension), for a negative,
    NaN, infinite or implausibly large value, an unknown unit, or no number at all.

    >>> parse_quantity("80 GiB", "bytes"), parse_quantity("400 Gb/s", "bandwidth")
    (85899345920, 50000000000.0)
    """
    kind = DIMENSIONS[dimension]
    at = f"{name or dimension}: "
    if not isinstance(value, str):
        exact = _exact(as_number(value, name or dimension), at, value)
    else:
        match = _QUANTITY.match(value) if len(value) <= 100 else None
        if match is None:
            raise InputError(f"{at}{quote(value)} is not a quantity: give a number of {_units(kind)}")
        unit = match["unit"]
        if match["dollar"]:
            if dimension not in ("money", "price"):
                raise InputError(f"{at}{quote(value)} is money: give a number of {_units(kind)}")
        elif unit and dimension in ("money", "price"):
            unit = re.sub(r"\s*(USD|dollars?|\$)", "", unit, count=1)  # "2 USD/h" is "$2/h"
        exact = Fraction(match["number"].replace(",", "").replace("_", "")) * _size(kind, unit, at, value)
        if match["sign"] == "-":
            exact = -exact
    if exact < 0:
        raise InputError(f"{at}{quote(value)} is negative")
    if exact > kind.limit:
        raise InputError(f"{at}{quote(value)} is implausibly large (above {kind.limit:g} {kind.base})")
    return int(exact) if kind.whole and exact.denominator == 1 else float(exact)


def _exact(number: Number, at: str, value: object) -> Fraction:
    if isinstance(number, int | float):
        return Fraction(number)
    raise InputError(f"{at}{quote(value)} is not one number")


def _size(kind: Dimension, unit: str, at: str, value: str) -> Fraction:
    if unit == "":
        return Fraction(1)
    if unit not in kind.units:
        unit = re.sub(r"\bper\b", "/", unit)
        unit = re.sub(r"\s*/\s*", "/", re.sub(r"\s+", " ", unit)).strip()
    if unit not in kind.units:
        raise InputError(f"{at}unknown unit {quote(unit)} in {quote(value)}: use {_units(kind)}")
    return kind.units[unit]


def _units(kind: Dimension) -> str:
    return f"{kind.base}, or with a unit: {kind.accepted}"


# Printing.


def _digits(x: float, digits: int) -> str:
    """x with so many significant digits and no trailing zeros: 8.21, 141, 1,234, 1.2e-09."""
    if x == 0:
        return "0"
    if abs(x) < 1e-6:
        return f"{x:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(x))))
    text = f"{x:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(x: float, steps: list[tuple[float, str]], digits: int) -> str:
    """x in the largest unit of `steps` (ascending) in which it prints as at least 1."""
    if not math.isfinite(x):
        return "n/a" if math.isnan(x) else ("-" if x < 0 else "") + "infinite"
    size, unit = steps[0]
    for next_size, next_unit in steps[1:]:
        # What rounds up to the next unit is printed in it: 999.96 kB is 1 MB.
        if abs(x) * (1 + 0.5 * 10.0**-digits) < next_size:
            break
        size, unit = next_size, next_unit
    return _digits(x / size, digits) + unit


def _steps(unit: str, prefixes: str = "kMGTPEZ", factor: float = 1e3) -> list[tuple[float, str]]:
    return [(factor**i, " " + p + unit) for i, p in enumerate(["", *prefixes])]


_BINARY_STEPS = [(1.0, " B"), *((1024.0 ** (i + 1), f" {p}iB") for i, p in enumerate("KMGTPE"))]
_SHORT_STEPS = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T")]
_TIME_STEPS = [
    (1e-9, " ns"), (1e-6, " us"), (1e-3, " ms"), (1.0, " s"), (60.0, " min"), (3600.0, " h"),
    (86400.0, " days"), (365 * 86400.0, " years"),
]  # fmt: skip
_ENERGY_STEPS = [
    (1e-3, " mJ"),
    (1.0, " J"),
    (3.6e3, " Wh"),
    (3.6e6, " kWh"),
    (3.6e9, " MWh"),
    (3.6e12, " GWh"),
]
_CARBON_STEPS = [(1e-3, " gCO2e"), (1.0, " kgCO2e"), (1e3, " tCO2e")]
_CENTS = 100


def format_bytes(x: float, *, binary: bool = False, digits: int = 4) -> str:
    """Bytes as "141.1 GB", or with `binary` as "131.4 GiB"."""
    return _scaled(x, _BINARY_STEPS if binary else _steps("B"), digits)


def format_count(x: float, digits: int = 3) -> str:
    """A plain count as "70.6B", "2,048" as "2.05k"; the units are k, M, B (1e9), T (1e12)."""
    return _scaled(x, _SHORT_STEPS, digits)


def format_tokens(x: float, digits: int = 3) -> str:
    """Tokens as "15T tokens"."""
    return format_count(x, digits) + " tokens"


def format_flops(x: float, digits: int = 3) -> str:
    """FLOPs (a number of operations) as "312 TFLOP", and from 1e21 as "6.3e24 FLOP"."""
    if 1e21 <= abs(x) < math.inf:
        mantissa, exponent = f"{x:.{digits - 1}e}".split("e+")
        return f"{mantissa}e{exponent} FLOP"
    return _scaled(x, _steps("FLOP"), digits)


def format_flop_rate(x: float, digits: int = 3) -> str:
    """FLOP/s as "989 TFLOP/s"."""
    return _scaled(x, _steps("FLOP/s"), digits)


def format_bandwidth(x: float, digits: int = 3) -> str:
    """Bytes per second as "3.35 TB/s"."""
    return _scaled(x, _steps("B/s"), digits)


def format_time(x: float, digits: int = 3) -> str:
    """Seconds as "8.21 ms", "1.5 h" or "3.2 days" (a year has 365 days)."""
    return "0 s" if x == 0 else _scaled(x, _TIME_STEPS, digits)


def format_money(x: float) -> str:
    """Dollars as "$1,234,567", "$2.49", or below ten cents as "$0.0031"."""
    if not math.isfinite(x):
        return _scaled(x, _SHORT_STEPS, 3)
    size, sign = abs(x), "-" if x < 0 else ""
    if size == 0 or size >= _CENTS:
        return f"{sign}${size:,.0f}"
    return f"{sign}${size:.2f}" if size >= 0.1 else f"{sign}${_digits(size, 2)}"


def format_cost(x: float) -> str:
    """What a run costs, an estimate: "$26.6M" from a million on, else as ``format_money``."""
    return f"${format_count(x)}" if 1e6 <= x < math.inf else format_money(x)


def format_days(days: float) -> str:
    """Days of a run as a bare number: "1,234.5", and three digits below ten, such as "0.227"."""
    return f"{days:,.1f}" if days >= 9.995 else _digits(days, 3)


def format_price(x: float) -> str:
    """Dollars per hour as "$2.49/h"."""
    return format_money(x) + "/h"


def format_power(x: float, digits: int = 3) -> str:
    """Watts as "700 W" or "1.43 MW"."""
    return _scaled(x, _steps("W"), digits)


def format_energy(x: float, digits: int = 3) -> str:
    """Joules as "21.5 MWh" (small energies in Wh, J or mJ)."""
    return "0 Wh" if x == 0 else _scaled(x, _ENERGY_STEPS, digits)


def format_carbon(x: float, digits: int = 3) -> str:
    """Kilograms of CO2 equivalent as "8.3 tCO2e"."""
    return "0 kgCO2e" if x == 0 else _scaled(x, _CARBON_STEPS, digits)


def format_percent(fraction: float, decimals: int = 1) -> str:
    """A fraction as "45.3%"."""
    return f"{fraction:.{decimals}%}" if math.isfinite(fraction) else "n/a"
