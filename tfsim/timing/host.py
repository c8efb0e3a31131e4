"""What the host adds to kernels: launches one by one, compiled, or replayed from a captured graph.

The host queues kernels ahead of the device, so between two synchronisations a chain of kernels takes the longer of two
sums: the kernels, or the host's dispatch of all of them. A short kernel after a long one
hides its dispatch; only a chain whose kernels are on average shorter than a dispatch shows it. A captured graph has no
dispatch. A call that is timed alone and waited for shows all of it: ``HostConstants``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.software import Software
from tfsim.timing.constants import constant
from tfsim.units import Array, Number, maximum


@dataclass(frozen=True, slots=True)
class HostConstants:
    """One call timed on the host: ``call``, what the framework and the synchronisation add to its kernels [s]."""

    call: float = constant(3e-5, 2e-6, 2e-4, unit="s")


def exposed_dispatch(busy: Number, kernels: Number, style: Software) -> Number:
    """Seconds that a chain of ``kernels`` kernels waits for the host between two synchronisations: where dispatching
    all of them takes longer than the ``busy`` seconds of the kernels themselves."""
    return maximum(0, kernels * style.dispatch_s - busy)


def timed_seconds(kernel: Number, c: HostConstants) -> Array:
    """Seconds that a host measures for one call whose kernels take ``kernel`` seconds."""
    return np.asarray(kernel, float) + c.call
