"""First timing of operators: a roofline with achieved fractions.

An operator takes the longer of its arithmetic and its memory traffic, each at the fraction of the device's peak that
large kernels of its kind were measured to reach (the device profile's ``efficiency``), plus the gap between two kernel
launches (Williams et al. 2009; constants from the profiles and ``tfsim.software``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.hardware import System
from tfsim.operators.core import Operator, total
from tfsim.software import Software
from tfsim.timing.collectives import Groups, collective_seconds
from tfsim.units import Number, maximum


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Seconds of one operator: ``compute`` and ``memory`` are its two limits, ``network`` a collective's time and
    ``launch`` what launching its kernels adds. ``seconds`` is what it takes."""

    compute: Number
    memory: Number
    network: Number
    launch: Number

    @property
    def seconds(self) -> Number:
        """max(compute, memory) + network + launch."""
        return maximum(self.compute, self.memory) + self.network + self.launch


def operator_time(op: Operator, system: System, style: Software, groups: Groups) -> OperatorTime:
    """Time of ``op`` on one device of ``system``.

    Raises InputError when the device profile lacks a figure the operator needs.
    """
    if op.comm is not None:
        network = collective_seconds(op.comm.kind, op.comm.bytes, groups.of(op.comm.group), system)
        return OperatorTime(0, 0, network, 0)
    device = system.device
    memory = op.bytes_moved / (device.require("bandwidth") * device.efficiency.memory)
    arithmetic = _arithmetic(op, system, style)
    kernels = op.dims.get("passes", 1)
    # the host runs ahead of the device: its dispatch time shows only where it is longer than the kernels themselves
    hidden = maximum(0, kernels * style.dispatch_s - maximum(arithmetic, memory))
    return OperatorTime(arithmetic, memory, 0, hidden + kernels * style.gap_s)


def _arithmetic(op: Operator, system: System, style: Software) -> Number:
    device = system.device
    parts: list[Number] = []
    if op.kind in (
        "matmul",
        "grouped_matmul",
        "convolution",
        "attention",
        "batched_product",
        "recurrent",
        "delta_rule",
        "linear_attention",
        "index_scores",
        "state_space_dual",
    ):
        rate = device.matmul_peak(op.rate).flop_per_s * device.matmul_efficiency(op.rate) * style.sustained
        if op.kind == "attention":
            rate *= style.attention_fraction
        parts.append(op.flops / rate)
    else:
        # elementwise arithmetic is fp32 inside kernels; a profile without a vector rate leaves the memory bound alone
        vector = device.vector_peak.get("fp32")
        parts.append(op.vector_flops / vector if vector else 0)
    return total(parts)
