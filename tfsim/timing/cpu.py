"""Time of matrix products on a CPU: cores with matrix (AMX) or vector units beside one shared memory.

Each core takes blocks of 32 x 32 outputs (AMX: two by two tiles of 16 x 16, which reuse each loaded tile twice) and
runs along k. Blocks run in waves over the cores; a parallel region costs a barrier. Operands pass through memory once.

No table measures a CPU: the constants are set by hand, and the fractions are those of other devices. ``kernels`` does
not use it: a CPU takes the roofline at its profile's fractions until a measurement says which is nearer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

_TILE = 32  # outputs of a block, each way


@dataclass(frozen=True, slots=True)
class CpuConstants:
    """``launch``: fork and barrier of a parallel region [s]. ``compute``: achieved fraction of the peak of a core at
    full tiles. ``memory``: achieved fraction of the bandwidth. ``sharp``: exponent of the soft maximum of the two."""

    launch: float = constant(1e-5, 1e-6, 1e-4, unit="s")
    compute: float = constant(0.7, 0.05, 1)
    memory: float = constant(0.8, 0.3, 1)
    sharp: float = constant(3, 1.5, 8)


def cpu_matmul_seconds(
    m: Number,
    n: Number,
    k: Number,
    machine: Machine,
    c: CpuConstants,
    *,
    dtype: str,
    weight_bytes: Number,
    input_bytes: Number = 2,
    output_bytes: Number = 2,
) -> Array:
    """Seconds of [m, k] x [k, n]; bytes per element of the weights, inputs and outputs. Sizes broadcast.

    Raises InputError for a format the device lacks.
    """
    m, n, k, weight, read, write = (np.asarray(x, float) for x in (m, n, k, weight_bytes, input_bytes, output_bytes))
    blocks = np.ceil(m / _TILE) * np.ceil(n / _TILE)
    turns = np.ceil(blocks / machine.cores)
    compute = turns * 2 * _TILE**2 * k * machine.cores / (machine.peak(dtype) * c.compute)
    memory = (n * k * weight + m * k * read + m * n * write) / (machine.bandwidth * c.memory)
    time: Array = c.launch + (compute**c.sharp + memory**c.sharp) ** (1 / c.sharp)
    return time
