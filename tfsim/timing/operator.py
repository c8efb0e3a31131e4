"""The time of an operator on one device of a system: its kernels, or its collective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.hardware import System
from tfsim.operators.core import Comm, Operator
from tfsim.software import Software
from tfsim.timing.collectives import Group, Groups, collective_seconds
from tfsim.timing.expert_alltoall import has_exchange, routed_seconds
from tfsim.timing.kernels import MATRIX_KINDS, timer
from tfsim.units import Number, minimum


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Seconds of one operator on the device. ``compute`` or ``memory``: its kernels, under the one that bounds them
    (the other is 0); ``network``: a collective; ``launch``: starting its kernels. ``kernels``: how many the host
    dispatches."""

    compute: Number
    memory: Number
    network: Number
    launch: Number
    kernels: Number

    @property
    def seconds(self) -> Number:
        """What the device takes."""
        return self.compute + self.memory + self.network + self.launch


def operator_time(
    op: Operator, system: System, style: Software, groups: Groups, *, recorded: bool = True
) -> OperatorTime:
    """Time of ``op`` on one device of ``system``; ``recorded``: a forward pass that a backward pass follows.

    Matrix arithmetic inside a pass reaches ``style.sustained`` of what the same kernel reaches alone; what a kernel
    waits for besides (bytes, part-filled waves) takes no longer.
    Raises InputError when the device profile lacks a figure the operator needs.
    """
    if op.comm is not None:
        return OperatorTime(0, 0, _network_seconds(op.comm, system, style, groups.of(op.comm.group)), 0, 0)
    device = timer(system.device)
    time = device.time(op, style, recorded=recorded)
    bound = device.bound_by_arithmetic(op)
    serial = device.executes_what_it_dispatches  # then nothing is queued, and cores hold their measured rate
    kernels = 0 if serial else op.dims.get("passes", 1)
    seconds = time.seconds
    if op.kind in MATRIX_KINDS and not serial:
        seconds = seconds + (1 / style.sustained - 1) * minimum(seconds, device.arithmetic(op))
    compute = np.where(bound, seconds, 0)
    return OperatorTime(_scalar(compute), _scalar(np.where(bound, 0, seconds)), 0, _scalar(time.launch), kernels)


def _network_seconds(comm: Comm, system: System, style: Software, group: Group) -> Number:
    seconds = collective_seconds(comm.kind, comm.bytes, group, system, library=style.all_reduce)
    if comm.routed is None or style.experts == "nccl" or not has_exchange(system):
        return seconds
    return minimum(seconds, routed_seconds(comm.routed, comm.bytes, group, system))


def _scalar(x: Number) -> Number:
    """A Python float for a single number."""
    return float(x) if np.ndim(x) == 0 else x
