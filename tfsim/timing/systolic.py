"""Time of operators on a TPU core: matrix products on systolic arrays, the rest on a scratchpad the compiler manages.

A systolic array holds a tile of ``side`` x ``side`` weights and streams rows of activations through it, one row per
step; meanwhile the next tile is loaded, which takes ``side`` steps. So columns and depth pad to the side, rows pad to a
register's 8 sublanes, and fewer rows than the side still cost the side (Jouppi et al. 2017, section 2). Weights stream
from memory, unless the compiler could fetch them into the scratchpad while something else ran (``prefetched``).

XLA fuses norms, activations and rotary embedding into their neighbours and keeps activations in the scratchpad: what is
left of them moves at a multiple of the memory's bandwidth. What the scratchpad cannot hold passes through memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

SIDE = 256  # of an array, v6e and later; 128 before (Google Cloud TPU v6e page)
_SUBLANES = 8


@dataclass(frozen=True, slots=True)
class SystolicConstants:
    """Fitted constants of matrix products. ``launch``: a product of no work [s]. ``compute``: achieved fraction of the
    peak at full tiles. ``memory``: achieved fraction of the bandwidth. ``scratchpad``: bandwidth of prefetched weights
    over the memory's. ``sharp``: exponent of the soft maximum of the two."""

    launch: float = constant(1e-6, 1e-7, 2e-5, unit="s")
    compute: float = constant(0.8, 0.3, 1)
    memory: float = constant(0.9, 0.4, 1)
    scratchpad: float = constant(4, 1, 10)
    sharp: float = constant(4, 1.5, 10)


@dataclass(frozen=True, slots=True)
class OnChipConstants:
    """Fitted constants of what is no matrix product. ``launch``: the shortest operation [s]. ``speed``: bandwidth that
    it reaches over the memory's."""

    launch: float = constant(6e-7, 1e-7, 5e-6, unit="s")
    speed: float = constant(1, 0.2, 10)


def systolic_seconds(
    m: Number,
    n: Number,
    k: Number,
    machine: Machine,
    c: SystolicConstants,
    *,
    dtype: str,
    weight_bytes: Number,
    input_bytes: Number = 2,
    output_bytes: Number = 2,
    prefetched: bool | npt.NDArray[np.bool_] = False,
    side: int = SIDE,
) -> Array:
    """Seconds of [m, k] x [k, n]; bytes per element of the weights, inputs and outputs. Sizes broadcast.

    Raises InputError for a format the device lacks.
    """
    m, n, k, weight, read, write = (np.asarray(x, float) for x in (m, n, k, weight_bytes, input_bytes, output_bytes))
    rows = np.maximum(side, np.ceil(m / _SUBLANES) * _SUBLANES)
    flops = 2 * rows * np.ceil(n / side) * np.ceil(k / side) * side**2
    compute = flops / (machine.peak(dtype) * c.compute)
    speed = machine.bandwidth * np.where(prefetched, c.scratchpad, c.memory)
    passed = m * k * read + m * n * write
    kept = np.minimum(passed, machine.cache)
    memory = (n * k * weight) / speed + kept / (machine.bandwidth * c.scratchpad)
    memory = memory + (passed - kept) / (machine.bandwidth * c.memory)
    time: Array = c.launch + (compute**c.sharp + memory**c.sharp) ** (1 / c.sharp)
    return time


def on_chip_seconds(moved: Number, machine: Machine, c: OnChipConstants) -> Array:
    """Seconds of an operation that moves ``moved`` bytes, between scratchpad and registers or from memory."""
    time: Array = c.launch + np.asarray(moved, float) / (machine.bandwidth * c.speed)
    return time
