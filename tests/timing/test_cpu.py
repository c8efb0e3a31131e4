"""A measured CPU's formulas: bounds, order, arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfsim.hardware import load_device
from tfsim.timing.cpu import (
    GRAIN,
    CpuAttentionConstants,
    CpuMatmulConstants,
    CpuMemoryConstants,
    cores_at_work,
    cpu_attention_seconds,
    cpu_matmul_seconds,
    cpu_memory_seconds,
)
from tfsim.timing.machine import Machine, machine
from tfsim.units import Array, Number

XEON = machine(load_device("cpu-spr-2s"))
SIZES = st.integers(1, 32768)


def product(m: Number, n: Number, k: Number, device: Machine = XEON) -> Array:
    return cpu_matmul_seconds(m, n, k, device, CpuMatmulConstants(), dtype="bf16")


def kernel(warm: Number, cold: Number = 0, device: Machine = XEON, elements: Number = 10**6) -> Array:
    return cpu_memory_seconds(warm, device, CpuMemoryConstants(), elements=elements, cold=cold)


@given(SIZES, SIZES, SIZES)
def test_products_stay_below_the_peak_and_grow(m: int, n: int, k: int) -> None:
    time = product(m, n, k)
    assert time >= 2 * m * n * k / XEON.peak("bf16")
    assert product(2 * m, n, k) >= time and product(m, n, 2 * k) >= time and product(m, 2 * n, k) >= time
    assert product(m, n, k, replace(XEON, matrix={"bf16": 2 * XEON.peak("bf16")})) <= time


@given(SIZES, SIZES, SIZES, st.integers(1, 64))
def test_a_batch_of_products_takes_no_longer_than_one_by_one(m: int, n: int, k: int, copies: int) -> None:
    def batch(of: int) -> Array:
        return cpu_matmul_seconds(m, n, k, XEON, CpuMatmulConstants(), dtype="bf16", copies=of)

    assert batch(1) <= batch(copies) <= copies * batch(1) * (1 + 1e-9)
    assert batch(copies) >= 2 * copies * m * n * k / XEON.peak("bf16")


@given(st.integers(1, 10**10), st.integers(0, 10**10))
def test_bytes_from_memory_never_beat_the_bandwidth_and_more_take_longer(warm: int, cold: int) -> None:
    assert kernel(0, cold) >= cold / XEON.bandwidth
    assert kernel(warm + 10**6, cold) >= kernel(warm, cold)
    assert kernel(warm, cold + 1) >= kernel(warm, cold)
    assert kernel(0, warm) >= kernel(warm)  # cold bytes are the slow ones
    far = 100 * int(XEON.cache)
    assert kernel(far + warm) >= 0.999 * (far + warm) / XEON.bandwidth


def test_threads_share_work_by_grains() -> None:
    assert cores_at_work(1, XEON) == cores_at_work(GRAIN, XEON) == 1
    assert cores_at_work(GRAIN + 1, XEON) == 2
    assert cores_at_work(1e12, XEON) == XEON.cores
    c = CpuMemoryConstants()
    alone = cpu_memory_seconds(0, XEON, c, elements=GRAIN, evaluations={"exp": GRAIN})
    assert alone == GRAIN * c.exp
    assert cpu_memory_seconds(0, XEON, c, elements=2 * GRAIN, evaluations={"exp": 2 * GRAIN}) == alone


@given(st.integers(1, 64), st.integers(1, 4096), st.sampled_from([32, 64, 128]))
def test_attention_stays_below_the_peak_and_a_mask_saves_at_most_half(heads: int, length: int, width: int) -> None:
    def seconds(n: int, masked: bool, backward: bool) -> Array:
        c = CpuAttentionConstants()
        return cpu_attention_seconds(heads, n, n, width, XEON, c, dtype="bf16", masked=masked, backward=backward)

    for backward, products in ((False, 2), (True, 5)):
        whole = seconds(length, False, backward)
        assert whole >= 2 * products * heads * length**2 * width / XEON.peak("bf16")
        assert whole / 2 <= seconds(length, True, backward) <= whole
        assert seconds(length + 1, False, backward) >= whole
        if length <= 512:  # one block of keys: nothing to leave out
            assert seconds(length, True, backward) == whole


def test_arrays_equal_each_alone() -> None:
    m = np.array([1, 33, 4096])
    assert product(m, 4096, 512).tolist() == [float(product(int(x), 4096, 512)) for x in m]
    assert kernel(m, m).tolist() == [float(kernel(int(x), int(x))) for x in m]
