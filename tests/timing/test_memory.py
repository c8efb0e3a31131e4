"""Memory-bound kernels: bounds, order, and a few measured figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfsim.hardware import load_device
from tfsim.timing.machine import machine
from tfsim.timing.memory import (
    OPERATIONS,
    PUBLISHED,
    bytes_seconds,
    gather_seconds,
    kernels_seconds,
    layer_norm_seconds,
    published,
    softmax_seconds,
)

A100, H100, A40 = (machine(load_device(name)) for name in ("a100-sxm-80gb", "h100-sxm-80gb", "a40"))
SIZES = st.integers(1, 1 << 16), st.integers(1, 1 << 15)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@given(*SIZES)
def test_never_faster_than_bytes_and_never_slower_on_better_hardware(
    operation: tuple[str, str], rows: int, columns: int
) -> None:
    kernels = OPERATIONS[operation]
    time = kernels_seconds(kernels, rows, columns, A100)
    cache = max(PUBLISHED.cache * A100.cores * A100.clock, A100.bandwidth)
    assert time >= sum(k.bytes * rows * columns for k in kernels) / cache
    assert time >= sum(
        k.bytes * rows * columns / A100.bandwidth for k in kernels if k.bytes * rows * columns > 4 * A100.cache
    )
    for better in (
        replace(A100, cores=A100.cores * 2),
        replace(A100, clock=A100.clock * 1.5),
        replace(A100, bandwidth=A100.bandwidth * 2),
    ):
        assert kernels_seconds(kernels, rows, columns, better) <= time * (1 + 1e-9)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@given(st.integers(1, 1 << 15), st.integers(64, 1 << 14))
def test_more_rows_never_take_less(operation: tuple[str, str], rows: int, columns: int) -> None:
    less, more = (kernels_seconds(OPERATIONS[operation], r, columns, H100) for r in (rows, 2 * rows))
    assert more >= less * (1 - 1e-9)


def test_arrays_equal_each_alone() -> None:
    rows, columns = np.array([1, 100, 5000]), np.array([4096, 1024, 16384])
    for together, alone in (
        (
            softmax_seconds(rows, columns, H100),
            [softmax_seconds(r, c, H100) for r, c in zip(rows, columns, strict=True)],
        ),
        (gather_seconds(rows, columns, H100), [gather_seconds(r, c, H100) for r, c in zip(rows, columns, strict=True)]),
        (
            layer_norm_seconds(rows, columns, H100),
            [layer_norm_seconds(r, c, H100) for r, c in zip(rows, columns, strict=True)],
        ),
    ):
        assert together.tolist() == [float(x) for x in alone]


def test_fused_beats_eager() -> None:
    for name in ("norm", "rotary", "gated_activation"):
        fused, eager = (kernels_seconds(OPERATIONS[name, style], 2048, 4096, H100) for style in ("fused", "eager"))
        assert fused < eager


def test_bytes_alone() -> None:
    """An optimizer step of 1 GB is bound by memory; of nothing, by its launches."""
    assert bytes_seconds(1e9, A100) == pytest.approx(1e9 / (0.88 * A100.bandwidth), rel=0.01)
    assert bytes_seconds(0, A100, kernels=3) == pytest.approx(6e-6)


def test_large_caches_of_cards_are_slow() -> None:
    assert published(load_device("l40s")).cache < published(load_device("a100-sxm-80gb")).cache


# Profiled kernels of microsoft/vidur (data/profiling, 7d475133, MIT): operation, device, rows, columns, microseconds.
MEASURED = [
    ("add", "fused", A100, 4096, 8192, 113),
    ("add", "fused", A40, 4096, 8192, 350),
    ("gated_activation", "scalar", A100, 4096, 28672, 685),
    ("gated_activation", "scalar", H100, 2048, 28672, 180),
    ("gated_activation", "scalar", A40, 1024, 28672, 326),
    ("norm", "scalar", A100, 4096, 8192, 188),
    ("norm", "scalar", H100, 4096, 8192, 116.5),
    ("rotary", "scalar", A100, 4096, 9216, 172.8),
    ("rotary", "scalar", H100, 4096, 9216, 100),
]


@pytest.mark.parametrize(("name", "style", "device", "rows", "columns", "us"), MEASURED)
def test_measured(name: str, style: str, device: object, rows: int, columns: int, us: float) -> None:
    predicted = kernels_seconds(OPERATIONS[name, style], rows, columns, device)  # type: ignore[arg-type]
    assert predicted == pytest.approx(us * 1e-6, rel=0.25)
