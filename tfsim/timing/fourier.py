"""Time of a convolution as long as its sequence, by Fourier transforms.

A transform whose points fit a core's scratchpad passes through memory once; a longer one is cut into factors that fit
(the four-step algorithm: Bailey 1990, "FFTs in external or hierarchical memory"), and all points are written and read
again between two of them. Kernels so short of arithmetic are bound by these bytes, or by the vector units. No public
table measures one: nothing here is fitted.
"""

from __future__ import annotations

import numpy as np

from tfsim.timing.machine import Machine
from tfsim.timing.memory import MemoryConstants, bytes_seconds
from tfsim.units import Array, Number

# Points of 8 bytes in 64 KiB of scratchpad: what a core of every current GPU has (VkFFT: Tolmachev 2023, section III).
_ON_CHIP = 2**13
_POINT = 8  # bytes of a complex number in fp32


def factors(points: Number) -> Array:
    """Factors that a transform of ``points`` complex points is cut into so that each fits on chip."""
    cut: Array = np.ceil(np.log2(np.maximum(2, np.asarray(points, float))) / np.log2(_ON_CHIP))
    return cut


def convolution_seconds(
    transforms: Number, length: Number, moved: Number, vector_flops: Number, machine: Machine, c: MemoryConstants
) -> Array:
    """Seconds of ``transforms`` real transforms of twice ``length`` and of what lies between them; launches apart.

    A real transform of 2 L numbers is a complex one of L points. ``moved``: bytes that pass when each transform reads
    and writes memory once [bytes]; ``vector_flops``: arithmetic in fp32, all of it vector work.
    """
    again = 2 * _POINT * np.asarray(transforms, float) * length * (factors(length) - 1)
    memory = bytes_seconds(np.asarray(moved, float) + again, machine, c) - c.launch
    vector = machine.vector.get("fp32")
    return memory if vector is None else np.maximum(memory, vector_flops / np.asarray(vector, float))
