"""Scans and recurrences: bounds, order and shape of their times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfsim.hardware import load_device
from tfsim.timing.machine import Machine, machine
from tfsim.timing.scans import (
    ChunkedConstants,
    RaggedConstants,
    StreamConstants,
    UpdateConstants,
    chunked_delta_seconds,
    conv1d_seconds,
    conv1d_update_seconds,
    recurrent_delta_seconds,
    selective_scan_seconds,
    state_space_dual_seconds,
)
from tfsim.units import Array, Number

H100 = machine(load_device("h100-sxm-80gb"))
# batch, length -> seconds on a machine
KERNELS: dict[str, Callable[[Number, Number, Machine], Array]] = {
    "conv1d": lambda b, t, m: conv1d_seconds(b, t, 4096, m, RaggedConstants()),
    "update": lambda b, t, m: conv1d_update_seconds(b, 4096, 4, m, UpdateConstants()),
    "delta": lambda b, t, m: chunked_delta_seconds(b, t, 16, 32, 128, 128, m, ChunkedConstants()),
    "recurrent": lambda b, t, m: recurrent_delta_seconds(b, 32, 128, 128, m, StreamConstants()),
    "ssd": lambda b, t, m: state_space_dual_seconds(b, t, 64, 64, 8, 128, 128, m, RaggedConstants()),
    "scan": lambda b, t, m: selective_scan_seconds(b, t, 4096, 16, m, RaggedConstants()),
}
# bytes that must pass whatever the kernel: inputs and outputs once, states once
LEAST: dict[str, Callable[[float, float], float]] = {
    "conv1d": lambda b, t: b * t * 4096 * 4,
    "update": lambda b, t: b * 4096 * 16,
    "delta": lambda b, t: b * t * 2 * (2 * 16 * 128 + 2 * 32 * 128),
    "recurrent": lambda b, t: b * 32 * 128 * 128 * 6,
    "ssd": lambda b, t: b * t * 2 * 2 * 64 * 64,
    "scan": lambda b, t: b * t * 2 * 4 * 4096,
}
SIZES = st.integers(1, 128), st.integers(1, 4096)


@pytest.mark.parametrize("name", KERNELS)
@given(*SIZES)
def test_never_faster_than_its_bytes(name: str, batch: int, length: int) -> None:
    c = StreamConstants()
    fastest = max(H100.bandwidth, c.cache * H100.cores * H100.clock)
    moved = LEAST[name](batch, length)
    time = KERNELS[name](batch, length, H100)
    assert time >= moved / fastest
    if moved > 4 * H100.cache:
        assert time >= moved / H100.bandwidth * 0.99


@pytest.mark.parametrize("name", KERNELS)
@given(*SIZES)
def test_better_hardware_is_never_slower(name: str, batch: int, length: int) -> None:
    time = KERNELS[name](batch, length, H100)
    for better in (
        replace(H100, cores=H100.cores * 2),
        replace(H100, clock=H100.clock * 1.5),
        replace(H100, bandwidth=H100.bandwidth * 2),
    ):
        assert KERNELS[name](batch, length, better) <= time * (1 + 1e-9)


@pytest.mark.parametrize("name", KERNELS)
@given(*SIZES)
def test_more_sequences_never_take_less(name: str, batch: int, length: int) -> None:
    assert KERNELS[name](batch + 1, length, H100) >= KERNELS[name](batch, length, H100) * (1 - 1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_arrays_equal_each_alone(name: str) -> None:
    batch, length = np.array([1, 8, 64, 3]), np.array([1, 512, 4096, 77])
    together = KERNELS[name](batch, length, H100)
    alone = [float(KERNELS[name](int(b), int(t), H100)) for b, t in zip(batch, length, strict=True)]
    assert together.tolist() == alone


def test_a_long_sequence_waits_for_its_chunks() -> None:
    """One sequence of 32k tokens takes longer than 32 of 1k: the state passes through one after the other."""
    one = chunked_delta_seconds(1, 32768, 16, 16, 128, 128, H100, ChunkedConstants())
    many = chunked_delta_seconds(32, 1024, 16, 16, 128, 128, H100, ChunkedConstants())
    assert one > many
