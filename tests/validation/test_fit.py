"""The fit: known constants come back, bounds hold, what no row depends on stays."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import numpy as np
import pytest
from numpy.typing import NDArray

from tfsim.hardware import load_device
from tfsim.timing.constants import constant
from tfsim.timing.fit import fit
from tfsim.timing.machine import machine
from tfsim.timing.matmul import MatmulConstants, matmul_seconds
from tfsim.units import Array

H100 = machine(load_device("h100-sxm-80gb"))
DRAW = np.random.default_rng(5)
SIDES = np.round(2.0 ** DRAW.uniform(0, 14, (3, 2000)))
NOISE = np.exp(0.05 * DRAW.standard_normal(2000))


@dataclass(frozen=True, slots=True)
class Line:
    """A made-up class: a start, a rate, and a constant of rows that may not be there."""

    start: float = constant(1e-5, 1e-7, 1e-4, unit="s")
    rate: float = constant(0.5, 0.1, 1)
    other: float = constant(3, 1, 9)


WORK = 10.0 ** DRAW.uniform(-7, -3, 2000)


def line(c: Line, rows: NDArray[np.int64]) -> Array:
    return np.asarray(c.start + WORK[rows] / c.rate)


def product(c: MatmulConstants, rows: NDArray[np.int64]) -> Array:
    m, n, k = SIDES[:, rows]
    return matmul_seconds(m, n, k, H100, c, dtype="bf16", weight_bytes=2, input_bytes=2, reuse=10 * n * k)


def test_known_constants_come_back() -> None:
    every = np.arange(2000)
    found = fit(Line, line, line(Line(4e-6, 0.8), every) * NOISE)
    assert found.start == pytest.approx(4e-6, rel=0.01)
    assert found.rate == pytest.approx(0.8, rel=0.01)


def test_a_constant_that_no_row_depends_on_keeps_its_default() -> None:
    assert fit(Line, line, line(Line(4e-6, 0.8, 7), np.arange(2000))).other == pytest.approx(3, rel=1e-12)


def test_bounds_hold() -> None:
    found = fit(Line, line, line(Line(1e-3, 2), np.arange(2000)))
    assert found.start <= 1e-4 * (1 + 1e-9) and found.rate <= 1 + 1e-9


def test_a_tenth_of_absurd_rows_does_not_bend_the_rest() -> None:
    measured = line(Line(4e-6, 0.8), np.arange(2000)) * NOISE
    measured[::10] *= 5
    found = fit(Line, line, measured)
    assert found.rate == pytest.approx(0.8, rel=0.03)


def test_a_matmuls_constants_come_back_as_times() -> None:
    """Some of the constants stand for each other over part of the sizes, so the times are compared; the launch, which
    nothing else stands for, comes back too."""
    truth = MatmulConstants(launch=4e-6, energy=2e-13, memory=0.7, serial=0.1)
    every = np.arange(2000)
    times = product(truth, every)
    found = fit(MatmulConstants, product, times * NOISE)
    assert found.launch == pytest.approx(4e-6, rel=0.03)
    assert found.memory == pytest.approx(0.7, rel=0.08)
    error = np.abs(product(found, every) / times - 1)
    assert np.median(error) < 0.01 and np.quantile(error, 0.9) < 0.03
    for f in fields(MatmulConstants):
        low, high = f.metadata["low"], f.metadata["high"]
        assert low * (1 - 1e-9) <= asdict(found)[f.name] <= high * (1 + 1e-9), f.name


def test_the_same_rows_give_the_same_constants() -> None:
    measured = line(Line(4e-6, 0.8), np.arange(2000)) * NOISE
    assert fit(Line, line, measured) == fit(Line, line, measured)
