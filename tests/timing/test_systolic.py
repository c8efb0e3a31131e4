"""A TPU's formulas: bounds, padding, order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfsim.hardware import load_device
from tfsim.software import software
from tfsim.timing.host import HostConstants, exposed_dispatch, timed_seconds
from tfsim.timing.machine import machine
from tfsim.timing.systolic import OnChipConstants, SystolicConstants, on_chip_seconds, systolic_seconds
from tfsim.units import Array, Number

V6E, C = machine(load_device("tpu-v6e")), SystolicConstants()


def seconds(m: Number, n: Number, k: Number, device: object = V6E) -> Array:
    return systolic_seconds(m, n, k, device, C, dtype="bf16", weight_bytes=2)  # type: ignore[arg-type]


@given(st.integers(1, 8192), st.integers(1, 32768), st.integers(1, 32768))
def test_bounds_and_order(m: int, n: int, k: int) -> None:
    time = seconds(m, n, k)
    assert time >= 2 * m * n * k / V6E.peak("bf16")
    spilled = max(0.0, 2 * (m * k + m * n) - float(V6E.cache))  # activations that the scratchpad cannot hold
    assert time >= (2 * n * k + spilled) / V6E.bandwidth
    assert seconds(m + 1, n, k) >= time * (1 - 1e-12) and seconds(m, n + 1, k) >= time * (1 - 1e-12)
    faster = replace(V6E, bandwidth=2 * V6E.bandwidth, matrix={"bf16": 2 * V6E.peak("bf16")})
    assert seconds(m, n, k, faster) <= time


def test_rows_pad_to_sublanes_and_arrays() -> None:
    assert seconds(2047, 4096, 4096) <= seconds(2048, 4096, 4096)
    few, side = seconds(1, 65536, 65536), seconds(256, 65536, 65536)
    assert side < 1.05 * few  # memory-bound, and the array is loaded either way
    grid = np.array([1, 300, 2047])
    assert seconds(grid, 4096, 512).tolist() == [float(seconds(int(m), 4096, 512)) for m in grid]


def test_prefetched_weights_do_not_wait_for_memory() -> None:
    alone, ready = (
        systolic_seconds(64, 4096, 4096, V6E, C, dtype="bf16", weight_bytes=2, prefetched=p) for p in (False, True)
    )
    assert ready < 0.6 * alone
    assert on_chip_seconds(0, V6E, OnChipConstants()) == OnChipConstants().launch


def test_host_launch_hides_behind_long_kernels() -> None:
    """Eager launch shows where kernels are short, not where they are long; a graph has gaps only."""
    eager, graph = software("eager"), software("graph")
    assert exposed_dispatch(1e-4, 100, eager) == pytest.approx(100 * eager.dispatch_s - 1e-4)
    assert exposed_dispatch(1e-1, 100, eager) == 0
    assert exposed_dispatch(1e-4, 100, graph) == 0
    assert timed_seconds(1e-5, HostConstants(call=3e-5)) == 4e-5
