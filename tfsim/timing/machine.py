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
    computed from (NaN where nobody published them: what needs them has no value); ``bandwidth`` of its memory
    [bytes/s]; ``cache``: last-level cache or scratchpad [bytes]; ``matrix`` and ``vector``: dense peaks [FLOP/s] by
    number format. Any of the numbers may be an array."""

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

    Raises InputError when the bandwidth is not published.
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
        _published(device, "cores"),
        _published(device, "clock"),
        device.require("bandwidth"),
        cache,
        matrix,
        dict(device.vector_peak),
    )


def _published(device: Device, name: str) -> float:
    value = device.figure(name).value
    return math.nan if value is None else value
