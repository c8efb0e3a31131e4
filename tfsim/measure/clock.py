"""Robust timing: warm up, repeat for a while, take the median and say how far the quartiles lie apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfsim.measure.backend import Backend

_LEAST_SAMPLE = 2e-4  # a sample lasts at least this long [s]: the clock's own cost is then below a thousandth
_WARM_UP = 2  # calls
_FEWEST = 5  # samples
_MOST = 400
_ROUNDS, _STEADY = 3, 0.15
_TOO_LONG = 1.5  # a call that takes longer is timed once more, not five times [s]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the ``median`` of ``samples``, and ``spread``, the distance of the quartiles as a share."""

    median: float
    spread: float
    samples: int


def timed(call: Callable[[], object], where: Backend, seconds: float) -> Timing:
    """Time ``call`` for about ``seconds``. A sample is as many calls as last 0.2 ms.

    Samples that differ much were disturbed by something else on the machine: then once or twice more, and the fastest
    round counts.
    """
    rounds: list[Timing] = []
    while len(rounds) < _ROUNDS and not (rounds and rounds[-1].spread <= _STEADY):
        rounds.append(_round(call, where, seconds))
    return min(rounds, key=lambda one: one.median)


def _round(call: Callable[[], object], where: Backend, seconds: float) -> Timing:
    first = _sample(call, where, 1)
    for _ in range(_WARM_UP if first < _TOO_LONG else 0):
        first = _sample(call, where, 1)
    calls = max(1, round(_LEAST_SAMPLE / max(first, 1e-7)))
    wanted = _FEWEST if first < _TOO_LONG else 1
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < wanted or (time.perf_counter() - start < seconds and len(samples) < _MOST):
        samples.append(_sample(call, where, calls) / calls)
    low, middle, high = np.quantile(samples, [0.25, 0.5, 0.75])
    return Timing(float(middle), float((high - low) / middle), len(samples))


def _sample(call: Callable[[], object], where: Backend, calls: int) -> float:
    """Seconds of ``calls`` calls: on the device's own clock where it has one."""
    if where.device == "cuda":
        start, end = (where.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    where.synchronize()
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    where.synchronize()
    return time.perf_counter() - begun
