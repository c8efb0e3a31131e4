"""Which formula a scan, a recurrence or a convolution along the sequence takes.

Operators whose kernel keeps the state on chip (``dims["on_chip"]``: the fused forms) take the formulas of scans.py and
fourier.py; unfused torch code is many passes over memory, which a roofline of its traffic describes. Rules of what no
public table measures, stated here once:

- Linear attention is the state-space dual whose groups are its heads (Dao and Gu 2024, section 7):
  Lightning Attention's kernel (Qin et al. 2024, Algorithm 1) walks its chunks as the dual's does.
- A decode step of any recurrence reads and writes its state once, as the gated delta rule's measured kernel; in a model
  the state comes from memory, for all other layers pass between two uses of it.
- A backward pass that keeps no states walks forward again and then computes two gradients: ``BACKWARD`` times the
  forward pass. A convolution's computes two gradients and nothing again: ``BACKWARD_CONVOLUTION`` times.

No work is shorter than its arithmetic at the peak, nor than its counted bytes from where they fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tfsim.operators.core import Operator
from tfsim.timing.fourier import convolution_seconds
from tfsim.timing.kernel_time import KernelTime
from tfsim.timing.memory import bytes_seconds, published
from tfsim.timing.scans import (
    ChunkedConstants,
    RaggedConstants,
    StreamConstants,
    UpdateConstants,
    chunked_delta_seconds,
    conv1d_seconds,
    conv1d_update_seconds,
    selective_scan_seconds,
    state_space_dual_seconds,
    state_step_seconds,
)
from tfsim.units import Array, Number

if TYPE_CHECKING:
    from tfsim.timing.kernels import Timer

BACKWARD, BACKWARD_CONVOLUTION = 3, 2


def _state_space_dual(timer: Timer, op: Operator) -> KernelTime | None:
    d = op.dims
    if "on_chip" not in d:
        return None
    return _dual(timer, op, heads=d["heads"], groups=d["groups"], d_head=d["d_head"], d_state=d["d_state"])


def _linear_attention(timer: Timer, op: Operator) -> KernelTime | None:
    d = op.dims
    if "on_chip" not in d:
        return None
    return _dual(timer, op, heads=d["heads"], groups=d["heads"], d_head=d["d_head"], d_state=d["d_head"])


def _dual(timer: Timer, op: Operator, *, heads: Number, groups: Number, d_head: Number, d_state: Number) -> KernelTime:
    c = timer.constants("ragged_scan", RaggedConstants, "state_space_dual")
    d = op.dims
    seconds = state_space_dual_seconds(
        d["batch"], d["length"], heads, d_head, groups, d_state, d["chunk"], timer.facts, c
    )
    return _bounded(timer, op, seconds - c.launch, c.launch, BACKWARD)


def _delta_rule(timer: Timer, op: Operator) -> KernelTime | None:
    d = op.dims
    if "on_chip" not in d:
        return None
    c = timer.constants("chunked_scan", ChunkedConstants, "chunked_delta")
    seconds = chunked_delta_seconds(
        d["batch"], d["length"], d["key_heads"], d["heads"], d["d_key"], d["d_value"], timer.facts, c
    )
    return _bounded(timer, op, seconds - c.launch, c.launch, BACKWARD)


def _selective_scan(timer: Timer, op: Operator) -> KernelTime:
    c = timer.constants("ragged_scan", RaggedConstants, "conv1d")
    d = op.dims
    seconds = selective_scan_seconds(d["batch"], d["length"], d["channels"], d["d_state"], timer.facts, c)
    return _bounded(timer, op, seconds - c.launch, c.launch, BACKWARD)


def _state_step(timer: Timer, op: Operator) -> KernelTime:
    c = timer.constants("stream_scan", StreamConstants, "recurrent_delta")
    launch = op.dims["passes"] * c.launch
    seconds = state_step_seconds(op.bytes_moved, timer.facts, c, reuse=np.inf) - c.launch
    return _bounded(timer, op, seconds, launch)


def _convolution(timer: Timer, op: Operator) -> KernelTime:
    d = op.dims
    if "on_chip" not in d:  # torch's own depthwise kernel
        stream = published(timer.device)
        return KernelTime(bytes_seconds(op.bytes_moved, timer.facts, stream) - stream.launch, stream.launch)
    if d["stepwise"]:
        one = timer.constants("update_scan", UpdateConstants, "conv1d_update")
        seconds = conv1d_update_seconds(d["batch"] * d["length"], d["channels"], d["taps"], timer.facts, one)
        return _bounded(timer, op, seconds - one.launch, one.launch)
    c = timer.constants("ragged_scan", RaggedConstants, "conv1d")
    seconds = conv1d_seconds(d["batch"], d["length"], d["channels"], timer.facts, c)
    return _bounded(timer, op, seconds - c.launch, c.launch, BACKWARD_CONVOLUTION)


def _fourier(timer: Timer, op: Operator) -> KernelTime:
    c, d = published(timer.device), op.dims
    gradients = 2 if op.phase == "backward" else 1  # of the input and of the kernel: as many transforms again
    launch = d["passes"] * c.launch
    work = convolution_seconds(
        d["transforms"] * gradients, d["length"], op.bytes_moved, op.vector_flops, timer.facts, c
    )
    return KernelTime(work, launch)


def _bounded(timer: Timer, op: Operator, work: Array, launch: Number, backward: int = 1) -> KernelTime:
    times = backward if op.phase == "backward" else 1
    c = published(timer.device)
    least = bytes_seconds(op.bytes_moved, timer.facts, c) - c.launch
    arithmetic = op.flops / timer.device.matmul_peak(op.rate).flop_per_s
    return KernelTime(np.maximum(np.maximum(work * times, least), arithmetic), launch * times)


SCANS: dict[str, Callable[[Timer, Operator], KernelTime | None]] = {
    "state_space_dual": _state_space_dual,
    "linear_attention": _linear_attention,
    "delta_rule": _delta_rule,
    "selective_scan": _selective_scan,
    "state_step": _state_step,
    "conv": _convolution,
    "fourier_convolution": _fourier,
}
