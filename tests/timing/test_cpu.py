"""A CPU's matrix products: bounds and order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfsim.hardware import load_device
from tfsim.timing.cpu import CpuConstants, cpu_matmul_seconds
from tfsim.timing.machine import Machine, machine
from tfsim.units import Array, Number

XEON = machine(load_device("cpu-spr-2s"))


def seconds(m: Number, n: Number, k: Number, device: Machine = XEON) -> Array:
    return cpu_matmul_seconds(m, n, k, device, CpuConstants(), dtype="bf16", weight_bytes=2)


@given(st.integers(1, 8192), st.integers(1, 32768), st.integers(1, 32768))
def test_bounds_and_order(m: int, n: int, k: int) -> None:
    time = seconds(m, n, k)
    assert time >= 2 * m * n * k / XEON.peak("bf16")
    assert time >= 2 * n * k / XEON.bandwidth
    assert seconds(m + 1, n, k) >= time and seconds(m, n + 1, k) >= time and seconds(m, n, k + 1) >= time
    peak = XEON.peak("bf16")
    wider = replace(XEON, cores=2 * XEON.cores, matrix={"bf16": 2 * peak})
    assert seconds(m, n, k, wider) <= time
    assert seconds(m, n, k, replace(XEON, bandwidth=2 * XEON.bandwidth)) <= time


def test_arrays_equal_each_alone() -> None:
    m = np.array([1, 33, 4096])
    assert seconds(m, 4096, 512).tolist() == [float(seconds(int(x), 4096, 512)) for x in m]
