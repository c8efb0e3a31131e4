"""Units: exact integers, arrays equal to scalars, and text that reads back as it was printed."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfsim import units
from tfsim.errors import InputError
from tfsim.units import as_number, ceil_div, common_shape, floor_div, maximum, minimum, parse_quantity, where

BIG = 2**53 + 1  # the first integer that a float cannot hold


def test_scalars_stay_exact_integers() -> None:
    assert ceil_div(10**30 + 1, 10) == 10**29 + 1
    assert floor_div(10**30 + 9, 10) == 10**29
    assert minimum(BIG, BIG + 1, 10**30) == BIG
    assert maximum(1, BIG - 1, BIG) == BIG
    assert where(True, BIG, 1.5) == BIG
    for value in (
        ceil_div(7, 2),
        floor_div(7, 2),
        minimum(1, 2),
        maximum(1, 2),
        where(False, 1, 2),
    ):
        assert type(value) is int


SIZES = st.integers(0, 2**52)
PARTS = st.integers(1, 2**20)


@given(st.lists(st.tuples(SIZES, PARTS), min_size=1, max_size=5))
def test_arrays_equal_scalars(pairs: list[tuple[int, int]]) -> None:
    a = np.array([p[0] for p in pairs])
    b = np.array([p[1] for p in pairs])
    for function in (ceil_div, floor_div, minimum, maximum):
        result = function(a, b)
        assert isinstance(result, np.ndarray)
        assert result.dtype == np.float64
        assert result.tolist() == [function(x, y) for x, y in pairs]
    chosen = where(a > b, a, b)
    assert isinstance(chosen, np.ndarray)
    assert chosen.dtype == np.float64
    assert chosen.tolist() == maximum(a, b).tolist()


@given(SIZES, PARTS)
def test_ceil_div_is_the_least_number_of_parts(a: int, b: int) -> None:
    parts = ceil_div(a, b)
    assert (parts - 1) * b < a <= parts * b or a == parts == 0


def test_helpers_broadcast() -> None:
    result = ceil_div(np.arange(3.0)[:, None], np.array([1.0, 2.0]))
    assert result.tolist() == [[0, 0], [1, 1], [2, 1]]
    assert maximum(np.array([1.0, 5.0]), 3, 10**30).tolist() == [1e30, 1e30]


@pytest.mark.parametrize(
    ("given_", "taken"),
    [
        (3, 3), (2.5, 2.5), (10**18, 10**18), (np.int32(3), 3), (np.float32(2.5), 2.5),
        (np.array(7), 7), ([1, 2], [1.0, 2.0]), ((1, 2.5), [1.0, 2.5]),
        (np.array([[1], [2]]), [[1.0], [2.0]]), ([10**18, 1], [1e18, 1.0]),
        (range(3), [0.0, 1.0, 2.0]),
    ],
)  # fmt: skip
def test_as_number_takes(given_: Any, taken: Any) -> None:
    number = as_number(given_, "batch")
    if isinstance(taken, list):
        assert isinstance(number, np.ndarray)
        assert number.dtype == np.float64
        assert number.tolist() == taken
    else:
        assert number == taken
        assert type(number) is type(taken)


@pytest.mark.parametrize(
    "bad",
    [
        True, np.True_, "3", b"3", None, {}, {1}, object(), 1j, math.nan, math.inf, -math.inf,
        10**400, [10**400], [10**5000], [True, 2], [1, "a"], [[1], [1, 2]], np.array(["a"]),
        np.array([1.0, np.nan]), np.array([True]), [None], np.datetime64("2024-01-01"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_as_number_refuses(bad: Any) -> None:
    with pytest.raises(InputError, match=r"^batch: ") as caught:
        as_number(bad, "batch")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("bad", [0, 0.5, [1, 0], np.array([0.0])])
def test_as_number_lower_bound(bad: Any) -> None:
    with pytest.raises(InputError, match=r"^tp: .* is below 1$"):
        as_number(bad, "tp", at_least=1)


def test_as_number_whole() -> None:
    two = as_number(2.0, "tp", whole=True)
    assert two == 2
    assert type(two) is int
    for bad in (2.5, [1, 2.5]):
        with pytest.raises(InputError, match="is not a whole number"):
            as_number(bad, "tp", whole=True)


READ = [
    ("80GB", "bytes", 80 * 10**9), ("80 GiB", "bytes", 80 * 2**30), ("512MB", "bytes", 512 * 10**6),
    ("1.5 TiB", "bytes", 3 * 2**39), ("12", "bytes", 12), ("0.1 kB", "bytes", 100),
    ("989 TFLOP/s", "flop_rate", 989e12), ("989.4TFLOPS", "flop_rate", 989.4e12),
    ("1.979 POPS", "flop_rate", 1.979e15), ("6e23", "flops", 6 * 10**23),
    ("3 EFLOPs", "flops", 3 * 10**18),
    ("3.35 TB/s", "bandwidth", 3.35e12), ("400 Gb/s", "bandwidth", 50e9),
    ("400Gbps", "bandwidth", 50e9),
    ("25 GB / s", "bandwidth", 25e9), ("1 GiB/s", "bandwidth", 2.0**30),
    ("15T tokens", "tokens", 15 * 10**12), ("15T", "tokens", 15 * 10**12),
    ("300B", "tokens", 300 * 10**9),
    ("2.4k", "tokens", 2400), ("8B", "count", 8 * 10**9), ("70.6B params", "count", 706 * 10**8),
    ("1,024", "count", 1024), ("1_024", "count", 1024), (8, "count", 8), (np.int64(8), "count", 8),
    ("$2M", "money", 2e6), ("$2.49", "money", 2.49), ("1,234.5 USD", "money", 1234.5),
    ("$2.49/h", "price", 2.49), ("2.49", "price", 2.49), ("2.49 USD/hour", "price", 2.49),
    ("$2.49 per hour", "price", 2.49), ("$24/day", "price", 1.0), ("$3/gpu-hour", "price", 3.0),
    ("700 W", "power", 700.0), ("1.2 kW", "power", 1200.0), ("20MW", "power", 20e6),
    ("8.2 ms", "time", 8.2e-3), ("5us", "time", 5e-6), ("5 µs", "time", 5e-6), ("90", "time", 90.0),
    ("3 days", "time", 259200.0), ("2h", "time", 7200.0), ("1 week", "time", 604800.0),
    ("21 MWh", "energy", 21 * 3.6e9), ("5 pJ", "energy", 5e-12), ("1 kWh", "energy", 3.6e6),
    ("350 g/kWh", "carbon", 0.35), ("0.35", "carbon", 0.35), ("350 kgCO2e/MWh", "carbon", 0.35),
]  # fmt: skip


@pytest.mark.parametrize(("text", "dimension", "value"), READ)
def test_parse(text: Any, dimension: str, value: float) -> None:
    parsed = parse_quantity(text, dimension)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "dimension", "why"),
    [
        ("-3", "count", "'-3' is negative"), ("-$3", "money", "negative"), (-1, "time", "negative"),
        ("nan", "time", "not a quantity: give a number of seconds"),
        ("", "bytes", "not a quantity"),
        ("inf", "bytes", "not a quantity"), ("1e400", "count", "implausibly large"),
        ("1e999999", "count", "unknown unit"), ("9" * 200, "count", "not a quantity"),
        (10**400, "count", "not a finite number"), (math.nan, "count", "not a finite number"),
        (True, "count", "is not a number"), ([1, 2], "count", "is not one number"),
        (None, "time", "not a number"),
        ("80 furlong", "bytes", "unknown unit 'furlong' in '80 furlong': use bytes, or"),
        ("80 Gb", "bytes", "unknown unit 'Gb'"), ("80 gb", "bytes", "unknown unit 'gb'"),
        ("$3", "time", "is money"), ("$3/s", "price", "unknown unit '/s'"),
        ("3 GB", "bandwidth", "unknown unit"),
        ("350", "carbon", "implausibly large"), ("1 2", "count", "unknown unit"),
        ("1\n2", "count", "unknown unit"),
    ],
)  # fmt: skip
def test_parse_refuses(text: Any, dimension: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_quantity(text, dimension, "my.field")
    assert str(caught.value).startswith("my.field: ")
    assert why in str(caught.value)


@given(st.text(max_size=30), st.sampled_from(sorted(units.DIMENSIONS)))
def test_any_text_parses_or_is_an_input_error(text: str, dimension: str) -> None:
    try:
        assert 0 <= parse_quantity(text, dimension) < math.inf
    except InputError as error:
        assert str(error).isprintable()


@given(
    st.decimals(0, 1000, places=3),
    st.sampled_from([(d, u) for d, k in units.DIMENSIONS.items() for u in k.units if d != "carbon"]),
)
def test_every_listed_unit_is_read(number: Any, unit: tuple[str, str]) -> None:
    dimension, spelling = unit
    size = units.DIMENSIONS[dimension].units[spelling]
    try:
        value = parse_quantity(f"{number} {spelling}", dimension)
    except InputError as error:
        assert "implausibly large" in str(error)
    else:
        assert value == pytest.approx(float(number) * float(size), rel=1e-12)


PRINTED = [
    (units.format_bytes, "bytes", 1e23), (units.format_count, "count", 1e23),
    (units.format_tokens, "tokens", 1e23), (units.format_flops, "flops", 1e39),
    (units.format_flop_rate, "flop_rate", 1e26), (units.format_bandwidth, "bandwidth", 1e17),
    (units.format_time, "time", 1e14), (units.format_money, "money", 1e14),
    (units.format_price, "price", 1e8), (units.format_power, "power", 1e14),
    (units.format_energy, "energy", 1e23),
]  # fmt: skip


@given(st.sampled_from(PRINTED), st.floats(1e-9, 1e39))
def test_what_is_printed_reads_back(printed: Any, value: float) -> None:
    show, dimension, limit = printed
    value = min(value, limit)
    digits = 2.0 if dimension in ("money", "price") else 3.0  # cents are cut
    back = parse_quantity(show(value), dimension)
    assert back == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@given(st.floats(0, 1e20))
def test_binary_bytes_read_back(value: float) -> None:
    text = units.format_bytes(value, binary=True)
    assert parse_quantity(text, "bytes") == pytest.approx(value, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(141.1e9), "141.1 GB"), (units.format_bytes(80e9), "80 GB"),
        (units.format_bytes(80 * 2**30, binary=True), "80 GiB"), (units.format_bytes(0), "0 B"),
        (units.format_bytes(999_999), "1 MB"), (units.format_count(70.6e9), "70.6B"),
        (units.format_tokens(15e12), "15T tokens"), (units.format_flops(6.3e24), "6.30e24 FLOP"),
        (units.format_flops(312e12), "312 TFLOP"),
        (units.format_flop_rate(989.4e12), "989 TFLOP/s"),
        (units.format_bandwidth(3.35e12), "3.35 TB/s"), (units.format_time(0.00821), "8.21 ms"),
        (units.format_time(3.2 * 86400), "3.2 days"), (units.format_time(0), "0 s"),
        (units.format_money(1_234_567), "$1,234,567"), (units.format_money(0.31), "$0.31"),
        (units.format_money(0.0031), "$0.0031"), (units.format_money(2), "$2.00"),
        (units.format_money(0), "$0"),
        (units.format_price(2.49), "$2.49/h"), (units.format_energy(21.5 * 3.6e9), "21.5 MWh"),
        (units.format_carbon(8300), "8.3 tCO2e"), (units.format_carbon(0.2), "200 gCO2e"),
        (units.format_power(700), "700 W"), (units.format_percent(0.4534), "45.3%"),
        (units.format_time(math.nan), "n/a"), (units.format_bytes(math.inf), "infinite"),
        (units.format_percent(math.nan), "n/a"),
    ],
)  # fmt: skip
def test_printed(text: str, expected: str) -> None:
    assert text == expected


def test_reading_and_printing_one_quantity_needs_no_numpy() -> None:
    code = (
        "import sys; from tfsim.units import *; parse_quantity('80GB', 'bytes'); format_time(1);"
        "as_number(3); ceil_div(7, 2); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("x", [10**19, 1e300, [1, 1e19], 10**400])
def test_as_number_refuses_what_nobody_means(x: object) -> None:
    with pytest.raises(InputError, match=r"field: .*(implausibly large|not a finite)"):
        as_number(x, "field")


def test_common_shape() -> None:
    assert common_shape(a=1, b=2.5, c=None) == ()
    assert common_shape(a=np.ones((2, 1)), b=np.ones(3), c=4) == (2, 3)
    with pytest.raises(InputError, match=r"do not broadcast: a \(2,\), b \(3,\)"):
        common_shape(a=np.ones(2), b=np.ones(3), c=1)
