"""What the host adds to kernels: launches one by one, compiled, or replayed from a captured graph.

The host queues kernels ahead of the device, so between two synchronisations a chain of kernels takes the longer of two
sums: the kernels with the gaps between them, or the host's dispatch of all of them. A short kernel after a long one
hides its dispatch; only a chain whose kernels are on average shorter than a dispatch shows it. A captured graph has no
dispatch. A call that is timed alone and waited for shows all of it: ``HostConstants``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.timing.constants import constant
from tfsim.units import Array, Number


@dataclass(frozen=True, slots=True)
class HostStyle:
    """How kernels reach the device. ``dispatch_s``: host time per kernel; ``gap_s``: idle device time between two kernels
    that are already queued (1.6-2.7 us launched one by one, 1.0-1.4 us in a graph; NVIDIA's and te42kyfo's public
    launch benchmarks)."""

    name: str
    dispatch_s: float
    gap_s: float


# Eager PyTorch: 11-18 us per operator (public GEMM tables timed on the host); compiled code launches with a thin
# wrapper, about half; a graph is launched once.
HOST_STYLES = {
    style.name: style
    for style in (
        HostStyle("eager", 12e-6, 1.6e-6),
        HostStyle("compiled", 6e-6, 1.6e-6),
        HostStyle("graph", 0.0, 1.2e-6),
    )
}


@dataclass(frozen=True, slots=True)
class HostConstants:
    """One call timed on the host: ``call``, what the framework and the synchronisation add to its kernels [s]."""

    call: float = constant(3e-5, 2e-6, 2e-4, unit="s")


def chain_seconds(busy: Number, kernels: Number, style: HostStyle) -> Array:
    """Seconds of a chain of ``kernels`` kernels that keep the device busy for ``busy`` seconds in all."""
    busy, kernels = np.asarray(busy, float), np.asarray(kernels, float)
    return np.maximum(busy + kernels * style.gap_s, kernels * style.dispatch_s)


def timed_seconds(kernel: Number, c: HostConstants) -> Array:
    """Seconds that a host measures for one call whose kernels take ``kernel`` seconds."""
    return np.asarray(kernel, float) + c.call
