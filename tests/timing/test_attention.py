"""Attention's time: bounds that physics sets, monotone, the same for arrays and numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.hardware import load_device
from tfsim.timing.attention import (
    FLASH2,
    FLASH3,
    DecodeConstants,
    PrefillConstants,
    backward_seconds,
    decode_seconds,
    mixed_seconds,
    prefill_seconds,
)
from tfsim.timing.constants import constants
from tfsim.timing.machine import Machine, machine

DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm", "b200-sxm", "l40s")
GENERATION = {"a100-sxm-80gb": "flash2"}
sizes = st.integers(1, 4096)
heads = st.sampled_from([(1, 1), (8, 1), (32, 8), (64, 8), (16, 16), (128, 1)])
device_names = st.sampled_from(DEVICES)
head_sizes = st.sampled_from([64, 72, 128, 192, 256])


def chip(name: str) -> tuple[Machine, PrefillConstants, DecodeConstants]:
    device = load_device(name)
    return (
        machine(device),
        constants("prefill_attention", PrefillConstants, device, GENERATION.get(name, "bf16")).values,
        constants("decode_attention", DecodeConstants, device, "bf16").values,
    )


def scaled(m: Machine, *, cores: float = 1, clock: float = 1, bandwidth: float = 1) -> Machine:
    """More cores or a higher clock raise the peak with them."""
    matrix = {k: v * cores * clock for k, v in m.matrix.items()}
    return replace(m, cores=m.cores * cores, clock=m.clock * clock, bandwidth=m.bandwidth * bandwidth, matrix=matrix)


@settings(max_examples=60, deadline=None)
@given(device_names, sizes, heads, sizes, st.integers(0, 8192), head_sizes, st.booleans(), st.sampled_from([0, 128]))
def test_prefill_bounds_and_more_of_everything(
    name: str, batch: int, h: tuple[int, int], q: int, prefix: int, d: int, causal: bool, window: int
) -> None:
    m, c, _ = chip(name)
    keys = q + prefix
    call = partial(prefill_seconds, batch, *h, q, keys, d, d, c=c, dtype="bf16", causal=causal, window=window)
    time = float(call(machine=m))
    pairs = q * keys if not causal else q * prefix + q * (q + 1) / 2
    if window and causal:
        pairs = min(pairs, q * window) - min(q, window) ** 2 / 2  # the first queries see fewer keys
    assert time >= 0.999 * 4 * batch * h[0] * d * pairs / m.peak("bf16")
    moved = 2 * batch * d * (2 * q * h[0] + 2 * keys * h[1])
    assert time >= 0.999 * moved / (m.bandwidth * max(c.cache_speed, c.memory))
    for more in ({"cores": 1.5}, {"clock": 1.1}, {"bandwidth": 1.3}):
        assert float(call(machine=scaled(m, **more))) <= time * (1 + 1e-9)
    bigger = prefill_seconds(
        batch + 1, *h, q, keys + 64, d, d, machine=m, c=c, dtype="bf16", causal=causal, window=window
    )
    assert bigger >= time * (1 - 1e-9)
    assert prefill_seconds(batch, *h, q, keys, d, d, m, c, dtype="bf16", causal=causal, whole_call=True) > 0
    back = backward_seconds(batch, *h, q, keys, d, d, m, c, dtype="bf16", causal=causal, window=window)
    assert back > time


@settings(max_examples=60, deadline=None)
@given(
    device_names, sizes, heads, st.integers(1, 131072), head_sizes, st.sampled_from([0, 128]), st.sampled_from([1, 64])
)
def test_decode_bounds_and_more_of_everything(
    name: str, batch: int, h: tuple[int, int], keys: int, d: int, window: int, packed: int
) -> None:
    m, _, c = chip(name)
    call = partial(decode_seconds, d_qk=d, d_v=d, c=c, dtype="bf16", key_bytes=4 * d, packed=packed, window=window)
    time = float(call(batch, *h, keys, machine=m))
    seen = min(keys, window) if window else keys
    assert time >= 0.999 * batch * h[1] * seen * 4 * d / m.bandwidth
    assert time >= 0.999 * 4 * batch * h[0] * d * seen / m.peak("bf16")
    for more in ({"cores": 1.5}, {"clock": 1.1}, {"bandwidth": 1.3}):
        assert float(call(batch, *h, keys, machine=scaled(m, **more))) <= time * (1 + 1e-9)
    assert float(call(batch, *h, keys * 2, machine=m)) >= time * (1 - 1e-9)
    assert float(call(batch * 2, *h, keys, machine=m)) >= time * (1 - 1e-9)
    assert float(call(batch, *h, keys, machine=m, reuse=0)) <= time * (1 + 1e-9)  # a warm cache is no slower


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["a100-sxm-80gb", "h100-sxm-80gb", "rtx-4090", "rtx-a6000"]),
    st.integers(0, 2048),
    st.integers(0, 16384),
    st.integers(0, 256),
    st.integers(1, 16384),
    heads,
)
def test_mixed_bounds_and_more_of_everything(
    name: str, chunk: int, prefix: int, decodes: int, keys: int, h: tuple[int, int]
) -> None:
    device = load_device(name)
    m, c = machine(device), constants("prefill_attention", PrefillConstants, device, "flash2").values
    call = partial(mixed_seconds, heads=h[0], kv_heads=h[1], d=128, c=c, dtype="bf16")
    time = float(call(chunk, prefix, decodes, keys, machine=m))
    pairs = chunk * (prefix + chunk / 2) + decodes * keys
    assert time >= 0.999 * 4 * h[0] * 128 * pairs / m.peak("bf16")
    moved = 4 * h[1] * 128 * (decodes * keys + (chunk > 0) * (chunk + prefix))
    assert time >= 0.999 * moved / (m.bandwidth * max(c.cache_speed, c.memory))
    for more in ({"clock": 1.1}, {"bandwidth": 1.3}):
        assert float(call(chunk, prefix, decodes, keys, machine=scaled(m, **more))) <= time * (1 + 1e-9)
    assert float(call(chunk, prefix, decodes, keys + 64, machine=m)) >= time * (1 - 1e-9)
    assert float(call(chunk, prefix, 2 * decodes, keys, machine=m)) >= time * (1 - 1e-9)
    assert float(call(chunk + 64 * (chunk > 0), prefix, decodes, keys, machine=m)) >= time * (1 - 1e-9)


def test_query_heads_read_keys_again_where_the_cores_hold_one_head_at_a_time() -> None:
    """Measured: vLLM on RTX 4090 (LLMServingSim, MIT), Llama-3.1-8B, a chunk of 128 beside 128 or 64 decodes with
    16384 or 8192 keys: 953 GB/s when each of a group's four heads reads its keys, and half of them where two do."""
    device = load_device("rtx-4090")
    m, c = machine(device), constants("prefill_attention", PrefillConstants, device, "flash2").values
    times = mixed_seconds(128, 0, np.array([128.0, 64]), np.array([16384.0, 8192]), 32, 8, 128, m, c, dtype="bf16")
    assert times == pytest.approx([36.0e-3, 4.7e-3], rel=0.5)
    assert times[0] > 4 * 128 * 16384 * 8 * 512 / m.bandwidth


def test_a_tile_alone_overlaps_within_itself_only_from_flash3_on() -> None:
    m, c, _ = chip("h100-sxm-80gb")
    call = partial(prefill_seconds, 1, 1, 1, 64, 65536, 128, 128, m, c, dtype="bf16")
    assert float(call(kernel=FLASH2)) > 1.2 * float(call(kernel=FLASH3))


def test_arrays_equal_numbers() -> None:
    m, c, dc = chip("h100-sxm-80gb")
    q = np.array([1.0, 16, 129, 4096])
    together = prefill_seconds(2, 32, 8, q, q + 100, 128, 128, m, c, dtype="bf16", window=np.array([0, 8, 128, 0]))
    apart = [
        prefill_seconds(2, 32, 8, x, x + 100, 128, 128, m, c, dtype="bf16", window=w)
        for x, w in zip(q, (0, 8, 128, 0), strict=True)
    ]
    assert np.array_equal(together, apart)
    keys = np.array([[1.0], [300], [70000]])
    batch = np.array([1.0, 17])
    grid = decode_seconds(batch, 32, 8, keys, 128, 128, m, dc, dtype="bf16", key_bytes=512, packed=64)
    assert grid.shape == (3, 2)
    assert grid[1, 1] == decode_seconds(17, 32, 8, 300, 128, 128, m, dc, dtype="bf16", key_bytes=512, packed=64)


@pytest.mark.parametrize("window", [0, 128, 1000])
def test_tiles_walk_over_the_keys_that_their_rows_see(window: int) -> None:
    """Counted tile by tile, without edges (a stride of one tile's rows)."""
    from tfsim.timing.attention import _walked

    q, kv, rows = 1000.0, 1500.0, 128.0
    one = np.asarray
    keys, longest = _walked(one(q), one(kv), one(rows), one(64.0), one(True), one(float(window)))
    ends = [500 + (i + 1) * rows for i in range(8)]
    walks = [min(end, window + rows) if window else end for end in ends]
    assert keys == pytest.approx(sum(walks)) and longest == pytest.approx(min(walks[-1], 1536))


# Measured seconds: aiconfigurator (NVIDIA, Apache-2.0), TensorRT-LLM on H100 SXM, bf16, 32 query heads of size 128,
# under a captured graph; calls repeat on one cache.
def test_h100_examples() -> None:
    m, c, dc = chip("h100-sxm-80gb")
    prefill = partial(prefill_seconds, d_qk=128, d_v=128, machine=m, c=c, dtype="bf16", whole_call=True)
    assert prefill(1, 32, 8, 4096, 4096) == pytest.approx(339e-6, rel=0.15)
    assert prefill(4, 32, 8, 16384, 16384) == pytest.approx(16250e-6, rel=0.15)
    decode = partial(
        decode_seconds, d_qk=128, d_v=128, machine=m, c=dc, dtype="bf16", key_bytes=512, packed=64, reuse=0
    )
    assert decode(128, 32, 8, 4096) == pytest.approx(719e-6, rel=0.15)
    assert decode(1, 32, 8, 65536) == pytest.approx(113e-6, rel=0.15)
