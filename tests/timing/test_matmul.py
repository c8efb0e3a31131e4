"""The matmul's time: limits that no constant may break, what must not make it slower, and how smooth it is."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.errors import InputError
from tfsim.hardware import load_device
from tfsim.timing.constants import constants
from tfsim.timing.machine import Machine, machine
from tfsim.timing.matmul import MatmulConstants, QuantisedMatmulConstants, matmul_seconds, quantise_seconds
from tfsim.units import Array

H100 = machine(load_device("h100-sxm-80gb"))
MEASURED = ("h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm", "l40s")

any_constants = st.fixed_dictionaries(
    {f.name: st.floats(f.metadata["low"], f.metadata["high"]) for f in fields(MatmulConstants)}
).map(lambda values: MatmulConstants(**values))
fitted = st.sampled_from(MEASURED).map(
    lambda name: constants("matmul", MatmulConstants, load_device(name), "bfloat16").values
)
length = st.floats(0, 16).map(lambda power: float(round(2**power)))
sizes = st.tuples(length, length, length)


def seconds(
    m: float | Array, n: float | Array, k: float | Array, c: MatmulConstants, on: Machine = H100, **more: Any
) -> Array:
    return matmul_seconds(m, n, k, on, c, **{"dtype": "bf16", "weight_bytes": 2, "input_bytes": 2, **more})


def scaled(on: Machine, factor: float, *names: str) -> Machine:
    """``on`` with some figures ``factor`` times as large; the peaks are those of its cores and its clock."""
    figures: dict[str, Any] = {name: getattr(on, name) * factor for name in names}
    if "cores" in names or "clock" in names:
        figures["matrix"] = {dtype: peak * factor for dtype, peak in on.matrix.items()}
    return replace(on, **figures)


@settings(max_examples=100, deadline=None)
@given(sizes, any_constants, st.sampled_from([0.0, 1e6, 3e7, 1e9]))
def test_never_above_the_peak_nor_faster_than_the_level_the_bytes_come_from(
    size: tuple[float, float, float], c: MatmulConstants, reuse: float
) -> None:
    m, n, k = size
    time = float(seconds(m, n, k, c, reuse=reuse))
    assert time >= c.launch + 2 * m * n * k / H100.peak("bf16")
    moved = 2 * (m * n + n * k + m * k)
    rate = float(H100.bandwidth) * (c.cache_speed if reuse else 1)
    assert time >= moved / rate
    # far beyond the cache (a share of it at most twice its size may stay) the memory's bandwidth holds
    if reuse > 16 * float(H100.cache):
        assert time * 1.01 >= moved / float(H100.bandwidth)


@settings(max_examples=60, deadline=None)
@given(sizes, any_constants, st.floats(1, 4), st.sampled_from([0.0, 1e7]))
def test_more_clock_bandwidth_cache_or_power_is_never_slower(
    size: tuple[float, float, float], c: MatmulConstants, more: float, reuse: float
) -> None:
    base = float(seconds(*size, c, reuse=reuse))
    for name in ("clock", "bandwidth", "tdp", "cache"):
        better = float(seconds(*size, c, scaled(H100, more, name), reuse=reuse))
        assert better <= base * (1 + 1e-9), name


@settings(max_examples=100, deadline=None)
@given(sizes, fitted, st.floats(1, 4))
def test_more_cores_are_hardly_ever_slower(size: tuple[float, float, float], c: MatmulConstants, more: float) -> None:
    """Splits of k come from a menu that fills the cores once, twice or four times, so with more cores a product of a
    few tiles may be cut finer than is best: up to a tenth, in one case of thirty (the next test)."""
    assert seconds(*size, c, scaled(H100, more, "cores", "tdp")) <= 1.1 * seconds(*size, c)


def test_more_cores_are_rarely_slower_at_all() -> None:
    draw = np.random.default_rng(1)
    m, n, k = np.round(2.0 ** draw.uniform(0, 16, (3, 20_000)))
    c = constants("matmul", MatmulConstants, load_device("h100-sxm-80gb"), "bfloat16").values
    for more in (1.01, 1.25, 2, 3.7):
        ratio = seconds(m, n, k, c, scaled(H100, more, "cores", "tdp")) / seconds(m, n, k, c)
        assert np.mean(ratio > 1 + 1e-9) < 0.08
        assert np.median(ratio) <= 1


@settings(max_examples=150, deadline=None)
@given(sizes, fitted, st.integers(0, 2), st.floats(1, 4))
def test_more_work_is_never_faster_but_for_tiles(
    size: tuple[float, float, float], c: MatmulConstants, side: int, more: float
) -> None:
    """A second row of tiles draws on a second core's share of the bandwidth: that may save a product of one tile a
    fifth."""
    larger = [np.ceil(x * more) if i == side else x for i, x in enumerate(size)]
    assert seconds(larger[0], larger[1], larger[2], c) >= 0.8 * seconds(*size, c)


def test_large_products_grow_with_every_size() -> None:
    draw = np.random.default_rng(2)
    sides = np.round(2.0 ** draw.uniform(9, 15, (3, 20_000)))
    for name in MEASURED:
        device = load_device(name)
        c, on = constants("matmul", MatmulConstants, device, "bfloat16").values, machine(device)
        base = seconds(sides[0], sides[1], sides[2], c, on)
        for side in range(3):
            larger = sides * np.where(np.arange(3) == side, 1.3, 1)[:, None]
            assert (seconds(larger[0], larger[1], larger[2], c, on) >= 0.97 * base).all()


def test_a_further_row_is_smooth_but_where_a_row_of_tiles_begins() -> None:
    """There time jumps, on the chips too: at worst from one wave of tiles to two. Along k it is even."""
    draw = np.random.default_rng(3)
    m, n, k = np.round(2.0 ** draw.uniform(5, 14, (3, 20_000)))
    for name in MEASURED:
        device = load_device(name)
        c, on = constants("matmul", MatmulConstants, device, "bfloat16").values, machine(device)
        jump = seconds(m + 1, n, k, c, on) / seconds(m, n, k, c, on) - 1
        inside = m % 64 != 0
        assert (jump[inside] < 0.1).all()
        assert (jump < 1).all()
        assert (seconds(m, n, k + 1, c, on) / seconds(m, n, k, c, on) < 1.1).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=5), any_constants, st.booleans())
def test_an_array_is_its_elements(many: list[tuple[float, float, float]], c: MatmulConstants, again: bool) -> None:
    m, n, k = (np.array(x) for x in zip(*many, strict=True))
    reuse = n * k * 10 if again else 0 * n
    together = seconds(m, n, k, c, reuse=reuse)
    one_by_one = [float(seconds(*size, c, reuse=r)) for size, r in zip(many, reuse, strict=True)]
    assert together.tolist() == pytest.approx(one_by_one, rel=1e-12)


def test_sizes_broadcast_and_pieces_join() -> None:
    c = MatmulConstants()
    assert seconds(np.ones((3, 1)), np.ones(4), 64.0, c).shape == (3, 4)
    assert seconds(np.array([]), 64.0, 64.0, c).shape == (0,)
    rows = np.arange(1.0, 20_001)  # more than are timed at once
    assert seconds(rows, 512.0, 512.0, c)[[0, 9_000, -1]] == pytest.approx(
        [float(seconds(x, 512.0, 512.0, c)) for x in (1, 9_001, 20_000)]
    )


def test_a_format_the_device_lacks_is_refused_by_name() -> None:
    for dtype in ("fp5", "bf17"):
        with pytest.raises(InputError, match=f"h100-sxm-80gb has no published rate for {dtype} matrices"):
            seconds(64, 64, 64, MatmulConstants(), dtype=dtype)


def test_busy_units_slow_down_under_a_lower_power_limit() -> None:
    c = constants("matmul", MatmulConstants, load_device("h100-sxm-80gb"), "bfloat16").values
    half = replace(H100, tdp=float(H100.tdp) / 2)
    large, small = (float(seconds(x, x, x, c, half) / seconds(x, x, x, c)) for x in (8192, 128))
    assert 1.02 < large < 2  # half the power, at least half the rate
    assert small < 1.02


def test_weights_that_stay_in_the_cache_are_read_faster() -> None:
    c = MatmulConstants(resident=0.5, cache_speed=3)
    kept, fresh = (float(seconds(1, 2048, 2048, c, reuse=reuse)) for reuse in (8e6, 0))
    assert kept < fresh
    gone = float(seconds(1, 2048, 2048, c, reuse=1e9))
    assert gone == pytest.approx(fresh)


@settings(max_examples=40, deadline=None)
@given(length, length, st.floats(0.5, 2))
def test_quantising_reads_and_writes_the_activations(m: float, k: float, size: float) -> None:
    c = QuantisedMatmulConstants(prepare_speed=1)
    time = float(quantise_seconds(m, k, H100, c, bytes=size))
    assert time >= c.launch + m * k * (2 + size) / float(H100.bandwidth)
    faster = quantise_seconds(m, k, scaled(H100, 2, "bandwidth", "cores"), c, bytes=size)
    assert float(faster) <= time


@pytest.mark.parametrize("name", ["h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm", "gb200", "b300-sxm", "gb300", "l40s"])
@pytest.mark.parametrize(("dtype", "variant"), [("bf16", "bfloat16"), ("fp8", "fp8"), ("fp8", "fp8_block")])
def test_products_longer_than_any_measured_keep_what_large_ones_sustain(name: str, dtype: str, variant: str) -> None:
    """The power limit takes away a third of the rate at most; GB200's fp8 once fell to 18 % of the peak."""
    device = load_device(name)
    kind, cls = ("matmul", MatmulConstants) if dtype == "bf16" else ("quantised_matmul", QuantisedMatmulConstants)
    side, size = 2.0 ** np.arange(10, 20), 2 if dtype == "bf16" else 1
    c, on = constants(kind, cls, device, variant).values, machine(device)
    time = seconds(side, side, side, c, on, dtype=dtype, weight_bytes=size, input_bytes=size)
    reached = 2 * side**3 / time / on.peak(dtype)
    assert reached[-1] > 0.65 * reached.max()
    assert 0.2 < reached.max() < 1
