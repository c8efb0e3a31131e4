"""The spellings of units that tfsim reads, per dimension, with their exact sizes."""

from fractions import Fraction
from typing import NamedTuple


class Dimension(NamedTuple):
    base: str  # what a bare number means
    units: dict[str, Fraction]  # spelling -> size in the base unit
    accepted: str  # for the error message
    limit: float  # a larger value is surely a slip
    whole: bool  # give an int where the value is integral


def _prefixed(units: str, prefixes: dict[str, Fraction], size: Fraction | int = 1) -> dict[str, Fraction]:
    return {p + u: f * size for u in units.split() for p, f in prefixes.items()}


def _words(prefix: str, *words: str) -> list[str]:
    return [gap + word for word in words for gap in ("", " ") if prefix or not gap]


_SI = {p: Fraction(1000) ** i for i, p in enumerate(("", "k", "M", "G", "T", "P", "E", "Z", "Y"))}
_SI["K"] = _SI["k"]
_BINARY = {p + "i": Fraction(1024) ** (i + 1) for i, p in enumerate("KMGTPE")}
_SMALL = {
    "p": Fraction(1, 10**12),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
}
_SMALL["µ"] = _SMALL["μ"] = _SMALL["u"]  # the micro sign and the Greek letter
_SHORT = {
    "": Fraction(1),
    "k": _SI["k"],
    "K": _SI["k"],
    "M": _SI["M"],
    "B": _SI["G"],
    "T": _SI["T"],
}
_HOURS = {
    **dict.fromkeys(("h", "hr", "hour"), Fraction(1)),
    **dict.fromkeys(("d", "day"), Fraction(24)),
    **dict.fromkeys(("year", "yr"), Fraction(24 * 365)),
}
_SECONDS = {
    **_prefixed("s", {**_SMALL, "": Fraction(1)}),
    **dict.fromkeys(("sec", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("min", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("hours", "hrs"), Fraction(3600)),
    **dict.fromkeys(("days",), Fraction(86400)),
    **dict.fromkeys(("week", "weeks"), Fraction(7 * 86400)),
    **dict.fromkeys(("years",), Fraction(365 * 86400)),
    **{unit: hours * 3600 for unit, hours in _HOURS.items()},
}
DIMENSIONS = {
    "bytes": Dimension(
        "bytes",
        {**_prefixed("B bytes byte", _SI), **_prefixed("B", _BINARY)},
        "B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB", 1e24, True,
    ),
    "flops": Dimension(
        "FLOPs", _prefixed("FLOP FLOPs", _SI), "FLOP, GFLOP, TFLOP, PFLOP, EFLOP, ZFLOP", 1e40, True
    ),
    "flop_rate": Dimension(
        "FLOP/s",
        _prefixed("FLOP/s FLOPs/s FLOPS OP/s OPs/s OPS", _SI),
        "GFLOP/s, TFLOP/s, PFLOP/s, TFLOPS, TOPS", 1e27, False,
    ),
    "bandwidth": Dimension(
        "bytes/s",
        {
            **_prefixed("B/s Bps", _SI),
            **_prefixed("B/s", _BINARY),
            **_prefixed("b/s bit/s bps", _SI, Fraction(1, 8)),
        },
        "MB/s, GB/s, TB/s, GiB/s, Gb/s, Gbit/s", 1e18, False,
    ),
    "tokens": Dimension(
        "tokens",
        {p + w: size for p, size in _SHORT.items() for w in ("", *_words(p, "token", "tokens"))},
        "k, M, B, T (tokens)", 1e24, True,
    ),
    "count": Dimension(
        "items",
        {p + w: s for p, s in _SHORT.items() for w in ("", *_words(p, "parameters", "params"))},
        "k, M, B, T", 1e24, True,
    ),
    "money": Dimension("dollars", _SHORT, "$, k, M, B", 1e15, False),
    "price": Dimension(
        "dollars per hour",
        {per + unit: 1 / h for per in ("/", "/gpu-", "/GPU-") for unit, h in _HOURS.items()},
        "$/h, $/day, $/year", 1e9, False,
    ),
    "power": Dimension(
        "watts", _prefixed("W", {**_SI, "m": _SMALL["m"]}), "mW, W, kW, MW", 1e15, False
    ),
    "time": Dimension(
        "seconds", _SECONDS, "ns, us, ms, s, min, h, days, weeks, years", 1e15, False
    ),
    "energy": Dimension(
        "joules",
        {**_prefixed("J", {**_SI, **_SMALL}), **_prefixed("Wh", _SI, 3600)},
        "J, kJ, MJ, Wh, kWh, MWh, GWh", 1e24, False,
    ),
    "carbon": Dimension(
        "kg CO2e per kWh",
        {
            mass + gas + "/" + energy: size / per
            for mass, size in (("g", Fraction(1, 1000)), ("kg", Fraction(1)), ("t", Fraction(1000)))
            for gas in ("", "CO2", "CO2e", " CO2", " CO2e")
            for energy, per in (("kWh", 1), ("MWh", 1000))
        },
        "g/kWh, kg/kWh, kg/MWh", 10.0, False,
    ),
}  # fmt: skip
