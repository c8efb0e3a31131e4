"""Operators on a CPU measured by ``tfsim measure hardware``: which formula of ``cpu`` each kind takes.

Counts alone decide: kinds, sizes, bytes and evaluations that the operator states. ``variant``: "inference", "forward"
(recorded for a gradient) or "backward".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tfsim.hardware import Device
from tfsim.operators.core import Operator
from tfsim.timing.constants import constants
from tfsim.timing.cpu import (
    FUNCTIONS,
    CpuAttentionConstants,
    CpuConvConstants,
    CpuDispatchConstants,
    CpuFftConstants,
    CpuMatmulConstants,
    CpuMemoryConstants,
    CpuOptimizerConstants,
    cpu_attention_seconds,
    cpu_matmul_seconds,
    cpu_memory_seconds,
    cpu_optimizer_seconds,
)
from tfsim.timing.machine import Machine
from tfsim.units import Number

Times = tuple[Number, Number]
"""Seconds of work, and of dispatch."""

_EXPERT_KERNELS = 2  # for each of an expert's products: finding, gathering, weighting and adding its rows
_CACHE_KERNELS = 6  # of a step with a cache: slices of it, the copies into them, the views that attention reads
_SCAN_KERNELS = 4  # of a step of a selective scan: views of what it reads and writes, a product, a sum
_SCAN_SETUP = 12  # before and after its steps: exponentials, outer products, the stack, the skip, the gate


@dataclass(frozen=True)
class Cpu:
    """A measured CPU in one phase of a step."""

    device: Device
    facts: Machine
    variant: str

    def of(self, kind: str, cls: type[Any], variant: str) -> Any:
        """The constants of a class of operations."""
        return constants(kind, cls, self.device, variant).values

    @property
    def dispatch(self) -> CpuDispatchConstants:
        """What operations cost however small they are, in turn with others."""
        key = f"dispatch {self.variant}"
        if key not in self.device.memo:
            one = self.of("cpu_dispatch", CpuDispatchConstants, self.variant)
            times = {f.name: one.mixed * getattr(one, f.name) for f in fields(one) if f.name != "mixed"}
            self.device.memo[key] = CpuDispatchConstants(**times, mixed=one.mixed)
        found = self.device.memo[key]
        assert isinstance(found, CpuDispatchConstants)
        return found

    def again(self, steps: Number) -> Number:
        """What dispatch takes in a loop of ``steps``: the same few operations over and over, whose code stays near."""
        return np.where(np.asarray(steps, float) > 1, 1 / self.dispatch.mixed, 1)

    @property
    def halves(self) -> Number:
        """Operators that one measured backward operation stands for: a product has two gradients."""
        return 0.5 if self.variant == "backward" else 1

    def product(self, op: Operator, m: Number, n: Number, k: Number, copies: Number | None = None) -> Number:
        """Seconds of a product with a weight, or of ``copies`` products of activations."""
        c = self.of("cpu_matmul", CpuMatmulConstants, _measured_format(self.device, op.rate))
        return cpu_matmul_seconds(m, n, k, self.facts, c, dtype=op.rate, copies=copies)

    def passes(self, op: Operator) -> Number:
        """Seconds of the operator's passes over its tensors. In a backward pass, what the forward pass kept is cold."""
        kernels = np.maximum(np.asarray(op.dims.get("passes", 1), float), 1)
        cold = op.write if self.variant == "backward" else 0
        evaluations = {f: op.dims[f] / kernels for f in FUNCTIONS if f in op.dims}
        if self.variant == "backward" and op.kind == "softmax":  # its gradient takes the result, and no exp
            evaluations = {}
        elements = (op.read + op.write) / kernels / 8  # a kernel reads and writes a number of 4 bytes each at least
        c = self.of("cpu_memory", CpuMemoryConstants, "fp32")
        one = cpu_memory_seconds(
            (op.read + op.write - cold) / kernels,
            self.facts,
            c,
            elements=elements,
            cold=cold / kernels,
            evaluations=evaluations,
        )
        whole: Number = kernels * one
        return whole


def cpu_time(op: Operator, device: Device, facts: Machine, *, recorded: bool) -> Times | None:
    """(seconds of work, of dispatch) of ``op``; None for a kind without a formula.

    ``recorded``: a forward pass that a backward pass will follow. Raises InputError for a format that the device lacks.
    """
    formula = _FORMULAS.get(op.kind)
    variant = "backward" if op.phase == "backward" else "forward" if recorded else "inference"
    return None if formula is None else formula(Cpu(device, facts, variant), op)


def _measured_format(device: Device, rate: str) -> str:
    """The format whose constants a product takes: that which executes."""
    executes = device.matmul_peak(rate).dtype
    return executes if executes in device.profile.calibration.get("cpu_matmul", {}) else "fp32"


def _matmul(cpu: Cpu, op: Operator) -> Times:
    d = op.dims
    launch = (cpu.dispatch.product if "copies" in d else cpu.dispatch.linear) * cpu.halves
    if "unrolled" in d:  # a recurrent matrix's gradient: a product per step, each added to the sum so far
        steps = d["unrolled"]
        one = cpu.product(op, d["m"], d["n"], d["k"] / steps)
        c = cpu.of("cpu_memory", CpuMemoryConstants, "fp32")
        added = cpu_memory_seconds(12 * d["m"] * d["n"], cpu.facts, c, elements=d["m"] * d["n"])
        return steps * (one + added), cpu.again(steps) * steps * (launch + cpu.dispatch.pointwise)
    return cpu.product(op, d["m"], d["n"], d["k"], d.get("copies")), launch


def _grouped(cpu: Cpu, op: Operator) -> Times:
    """One expert after the other, each with its share of the rows, which are gathered before and added after."""
    groups = op.dims["groups"]
    rows = op.dims["m"] / np.maximum(groups, 1)
    return groups * cpu.product(op, rows, op.dims["n"], op.dims["k"]), groups * (
        cpu.dispatch.linear + _EXPERT_KERNELS * cpu.dispatch.pointwise
    ) * cpu.halves


def _product(cpu: Cpu, op: Operator) -> Times:
    d = op.dims
    return cpu.product(op, d["m"], d["n"], d["k"], d["copies"]), cpu.dispatch.product * cpu.halves


def _attention(cpu: Cpu, op: Operator) -> Times:
    d = op.dims
    heads = d["batch"] * d["heads"]
    backward = cpu.variant == "backward"
    if "softmax_bytes" in d:
        each = (2 if backward else 1) * (
            cpu.product(op, d["q_len"], d["kv_len"], d["d_qk"], heads)
            + cpu.product(op, d["q_len"], d["d_v"], d["kv_len"], heads)
        )
        return each + cpu.passes(op), cpu.dispatch.eager_attention
    c = cpu.of("cpu_attention", CpuAttentionConstants, _measured_format(cpu.device, op.rate))
    seconds = cpu_attention_seconds(
        heads, d["q_len"], d["kv_len"], (d["d_qk"] + d["d_v"]) / 2, cpu.facts, c, dtype=op.rate, backward=backward,
        masked=np.asarray(d["pairs"], float) < np.asarray(d["q_len"] * d["kv_len"], float),
    )  # fmt: skip
    # of a cache, or of what the forward pass kept, the keys come from memory
    memory = cpu.of("cpu_memory", CpuMemoryConstants, "fp32")
    seconds = np.maximum(seconds, cpu_memory_seconds(0, cpu.facts, memory, elements=1, cold=op.read))
    # a single query is a row that meets a matrix, its keys and then its values; each head of a group reads them anew
    alone = cpu.product(op, 1, d["kv_len"], d["d_qk"], heads) + cpu.product(op, 1, d["d_v"], d["kv_len"], heads)
    seconds = np.where(np.asarray(d["q_len"]) == 1, np.maximum(seconds, alone), seconds)
    cached = np.asarray(d["kv_len"], float) > np.asarray(d["q_len"], float)
    held = np.where(cached & (cpu.variant == "inference"), _CACHE_KERNELS, 0)
    return seconds, cpu.dispatch.attention + held * cpu.dispatch.pointwise


def _recurrent(cpu: Cpu, op: Operator) -> Times:
    """Dependent steps: a small product each, with a weight that then stays in the caches."""
    steps = op.dims["steps"]
    sizes = op.dims["m"], op.dims["n"], op.dims["k"]
    one = np.where(np.asarray(steps) > 1, cpu.product(op, *sizes, 1), cpu.product(op, *sizes))
    return steps * one, cpu.again(steps) * steps * cpu.dispatch.linear * cpu.halves


def _cell(cpu: Cpu, op: Operator) -> Times:
    kernel = cpu.dispatch.pointwise if cpu.variant == "backward" else cpu.dispatch.chained
    return cpu.passes(op), cpu.again(op.dims["steps"]) * op.dims.get("passes", 1) * kernel


def _scan(cpu: Cpu, op: Operator) -> Times:
    """A selective scan step by step: a product with the state, a sum, and a matrix product with C."""
    d = op.dims
    if "d_state" not in d:
        return _pointwise(cpu, op)
    steps = d["length"]
    launch = cpu.again(steps) * steps * (_SCAN_KERNELS * cpu.dispatch.pointwise + cpu.dispatch.product)
    return cpu.passes(op), launch + _SCAN_SETUP * cpu.dispatch.pointwise


def _fourier(cpu: Cpu, op: Operator) -> Times:
    """Transforms of twice the length, 2.5 n log2 n operations each, beside the passes over the kernel's powers."""
    n = 2 * op.dims["length"]
    work = op.dims["transforms"] * n * np.log2(np.maximum(n, 2))
    backward = 2 if cpu.variant == "backward" else 1
    c = cpu.of("cpu_fft", CpuFftConstants, "fp32")
    return cpu.passes(op) + backward * work * c.butterfly, cpu.dispatch.fft + op.dims["passes"] * cpu.dispatch.pointwise


def _norm(cpu: Cpu, op: Operator) -> Times:
    kernels = np.asarray(op.dims.get("passes", 1), float)
    return cpu.passes(op), np.where(kernels > 1, kernels * cpu.dispatch.chained, cpu.dispatch.norm)


def _pointwise(cpu: Cpu, op: Operator) -> Times:
    kernels = np.asarray(op.dims.get("passes", 1), float)
    first = cpu.dispatch.erf if "erf" in op.dims else cpu.dispatch.pointwise
    return cpu.passes(op), np.where(kernels > 1, kernels * cpu.dispatch.chained, first)


def _softmax(cpu: Cpu, op: Operator) -> Times:
    return cpu.passes(op), cpu.dispatch.softmax


def _conv(cpu: Cpu, op: Operator) -> Times:
    c = cpu.of("cpu_conv", CpuConvConstants, "fp32")
    each = c.gradient if cpu.variant == "backward" else c.element
    return op.dims["elements"] * each, cpu.dispatch.conv1d


def _loss(cpu: Cpu, op: Operator) -> Times:
    """torch's log-softmax reads the logits and writes as much; its backward pass reads two tensors and writes one."""
    elements = op.dims["elements"]
    c = cpu.of("cpu_memory", CpuMemoryConstants, "fp32")
    streams = {"backward": (0, 16), "forward": (8, 0), "inference": (8, 0)}[cpu.variant]
    warm, cold = (elements * bytes_ for bytes_ in streams)
    seconds = cpu_memory_seconds(warm, cpu.facts, c, elements=elements, cold=cold, evaluations={"exp": elements})
    return seconds, cpu.dispatch.loss


def _embedding(cpu: Cpu, op: Operator) -> Times:
    """A gather; the gradient is a table of zeros to which rows are added."""
    seconds = cpu.passes(op)
    if cpu.variant == "backward":
        c = cpu.of("cpu_memory", CpuMemoryConstants, "fp32")
        table = op.dims.get("table", 0)
        seconds = seconds + cpu_memory_seconds(0, cpu.facts, c, elements=table, cold=4 * table)
    return seconds, cpu.dispatch.embedding


def _optimizer(cpu: Cpu, op: Operator) -> Times:
    """One fused step, as the operator counts it."""
    c = cpu.of("cpu_optimizer", CpuOptimizerConstants, "adamw_fused")
    tensors = op.dims.get("tensors", 1)
    seconds = cpu_optimizer_seconds(tensors, op.dims["elements"], c)
    return seconds - tensors * c.tensor, tensors * c.tensor


_FORMULAS: dict[str, Callable[[Cpu, Operator], Times]] = {
    "matmul": _matmul,
    "convolution": _matmul,
    "grouped_matmul": _grouped,
    "batched_product": _product,
    "attention": _attention,
    "recurrent": _recurrent,
    "recurrent_cell": _cell,
    "scan": _scan,
    "fourier_convolution": _fourier,
    "norm": _norm,
    "softmax": _softmax,
    "conv": _conv,
    "cross_entropy": _loss,
    "embedding": _embedding,
    "optimizer": _optimizer,
    **dict.fromkeys(
        ("pointwise", "rotary", "stream_mix", "additive_scores", "state_step", "experts_move", "experts_route"),
        _pointwise,
    ),
}
