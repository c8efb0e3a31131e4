"""What the timing formulas read off a device: a few figures of its datasheet, as numbers or arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tfsim.errors import InputError
from tfsim.hardware import Device
from tfsim.units import Number

# Where no figure for the on-chip memory of a core is published: the smallest of the current chips.
_UNKNOWN_CACHE = 6 * 2**20


@dataclass(frozen=True, slots=True)
class Machine:
    """One device. ``cores``: SMs, compute units, tensor cores of a TPU or CPU cores; ``clock`` [Hz] that the peaks are
    computed from; ``bandwidth`` of its memory [bytes/s]; ``cache``: last-level cache or scratchpad [bytes];
    ``matrix`` and ``vector``: dense peaks [FLOP/s] by number format. Any of the numbers may be an array."""

    name: str
    kind: str
    cores: Number
    clock: Number
    bandwidth: Number
    cache: Number
    matrix: Mapping[str, Number]
    vector: Mapping[str, Number]

    def peak(self, dtype: str) -> Number:
        """Dense matrix peak [FLOP/s] of a format that the device has. Raises InputError for one it lacks."""
        if dtype not in self.matrix:
            raise InputError(f"{self.name} has no published rate for {dtype} matrices")
        return self.matrix[dtype]


def machine(device: Device) -> Machine:
    """The figures of ``device`` that timing needs; formats that it lacks run at the rate of the format that executes
    instead (docs/hardware.md).

    A TPU has no published clock: NaN, and its formulas (``tfsim.timing.systolic``) need none. Raises InputError when
    cores, bandwidth or another device's clock are not published.
    """
    from tfsim.operators.formats import FORMAT_NAMES

    matrix: dict[str, Number] = {}
    for name in FORMAT_NAMES:
        try:
            matrix[name] = device.matmul_peak(name).flop_per_s
        except InputError:
            continue  # Machine.peak refuses it by name where it is asked for
    cache = device.llc_bytes or device.l2_bytes or device.scratchpad_bytes or _UNKNOWN_CACHE
    return Machine(
        device.name,
        device.kind,
        device.require("cores"),
        math.nan if device.kind == "tpu" else device.require("clock"),
        device.require("bandwidth"),
        cache,
        matrix,
        dict(device.vector_peak),
    )
