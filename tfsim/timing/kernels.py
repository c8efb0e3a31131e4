"""Which timing formula an operator takes, and with which constants.

Each kind of operator has one formula (matmul.py, moe.py, attention.py, scans.py, memory.py, systolic.py). Kinds that
nobody has measured, and devices without a measured relative, take the roofline: the longer of arithmetic and traffic at
the fractions of the peaks that the device's profile states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfsim.hardware import Device
from tfsim.hardware.dtypes import efficiency_class
from tfsim.operators.core import Operator
from tfsim.operators.formats import FORMATS, element_bytes
from tfsim.software import Software
from tfsim.timing.attention import PrefillConstants
from tfsim.timing.attention_kernels import attention_time, flash
from tfsim.timing.constants import Fitted, constants, has_relatives, is_measured
from tfsim.timing.cpu import CpuAttentionConstants, CpuMatmulConstants
from tfsim.timing.cpu_operators import cpu_time
from tfsim.timing.kernel_time import KernelTime
from tfsim.timing.machine import Machine, machine
from tfsim.timing.matmul import MatmulConstants, QuantisedMatmulConstants, matmul_seconds, quantise_seconds
from tfsim.timing.memory import bytes_seconds, published
from tfsim.timing.moe import ROUTING, MoEConstants, even_load, grouped_seconds, move_seconds, route_seconds
from tfsim.timing.scan_kernels import SCANS
from tfsim.timing.systolic import SystolicConstants, systolic_seconds
from tfsim.units import Number, maximum

MATRIX_KINDS = (
    "matmul",
    "grouped_matmul",
    "convolution",
    "attention",
    "batched_product",
    "recurrent",
    "delta_rule",
    "index_scores",
    "state_space_dual",
    "linear_attention",
)
# Formats whose activations are quantised on the way in -> the measured kernel family that stands for them.
_QUANTISED = {
    "fp8": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_channel": "fp8",
    "fp8_block": "fp8_block",
    "mxfp8": "fp8_block",
    "int8": "sq",
    "nvfp4": "nvfp4",
    "mxfp4": "nvfp4",
}
# The same for grouped products: no table measures int8 ones.
_GROUPED = {**_QUANTISED, "int8": "fp8"}


@dataclass(frozen=True)
class Timer:
    """The formulas of one device."""

    device: Device
    facts: Machine

    def constants(self, kind: str, cls: type[Any], variant: str) -> Any:
        """Fitted constants of a class of operators, own or borrowed."""
        found: Fitted[Any] = constants(kind, cls, self.device, variant)
        return found.values

    @property
    def executes_what_it_dispatches(self) -> bool:
        """Whether one thread dispatches and executes, and both were measured: a CPU with constants of its own."""
        return self.device.kind == "cpu" and is_measured(self.device)

    def time(self, op: Operator, style: Software, *, recorded: bool = True) -> KernelTime:
        """Device time of ``op``; ``recorded``: a backward pass will follow, which costs a measured CPU time.

        Raises InputError when the device's profile lacks a figure that it needs.
        """
        if self.executes_what_it_dispatches:
            times = cpu_time(op, self.device, self.facts, recorded=recorded)
            return self.roofline(op, style) if times is None else KernelTime(*times)
        formula: Callable[[Timer, Operator], KernelTime | None] | None = None
        if self.device.kind == "tpu":
            formula = _systolic if op.kind in ("matmul", "convolution") else None
        elif has_relatives(self.device) and not (op.kind == "attention" and style.older_attention):
            formula = _FORMULAS.get(op.kind)
        found = None if formula is None else formula(self, op)
        return self.roofline(op, style) if found is None else found

    def roofline(self, op: Operator, style: Software) -> KernelTime:
        """The longer of arithmetic and traffic at the profile's achieved fractions; a kernel costs ``gap_s``."""
        device = self.device
        memory = op.bytes_moved / (device.require("bandwidth") * device.efficiency.memory)
        share = style.attention_fraction if op.kind == "attention" else 1
        return KernelTime(maximum(self.arithmetic(op) / share, memory), op.dims.get("passes", 1) * style.gap_s)

    def arithmetic(self, op: Operator) -> Number:
        """Seconds of the arithmetic alone, at the profile's achieved rate."""
        if op.kind in MATRIX_KINDS:
            rate = self.device.matmul_peak(op.rate).flop_per_s * self.device.matmul_efficiency(op.rate)
            return op.flops / rate
        # elementwise arithmetic is fp32 inside kernels; a profile without a vector rate leaves the memory bound alone
        vector = self.device.vector_peak.get("fp32")
        return op.vector_flops / vector if vector else 0

    def bound_by_arithmetic(self, op: Operator) -> Any:
        """Whether the peaks, not the traffic, bound ``op`` (an array of such)."""
        return self.arithmetic(op) >= op.bytes_moved / self.device.require("bandwidth")


def timer(device: Device) -> Timer:
    """The formulas of ``device``, made once and kept with it."""
    if "timer" not in device.memo:
        device.memo["timer"] = Timer(device, machine(device))
    made = device.memo["timer"]
    assert isinstance(made, Timer)
    return made


def basis(device: Device) -> str:
    """Where the kernel times of ``device`` come from, in words, with the error that the fits left; without a
    semicolon, which in a sentence of confidence ends it."""
    if device.kind == "tpu":
        found = constants("systolic", SystolicConstants, device, "bfloat16")
        return f"kernels: matmul {found.source} ({found.median_ape:.0%} {_of(found.own)}), others a roofline"
    if device.kind == "cpu" and is_measured(device):
        errors = []
        for name, cls in (("matmul", CpuMatmulConstants), ("attention", CpuAttentionConstants)):
            formats = device.profile.calibration.get(f"cpu_{name}", {"fp32": None})
            left = [constants(f"cpu_{name}", cls, device, variant).median_ape or 0 for variant in formats]
            errors.append((name, max(left)))  # of the formats measured, the largest
        return f"kernels: measured on {device.name} ({', '.join(f'{n} {e:.0%}' for n, e in errors)} median error)"
    if not has_relatives(device):
        return "kernels: a roofline at the device's achieved fractions, not fitted"
    matmul = constants("matmul", MatmulConstants, device, "bfloat16")
    prefill = constants("prefill_attention", PrefillConstants, device, flash(device)[0])
    error = _of(matmul.own and prefill.own)
    said = [f"matmul {matmul.median_ape:.0%}", f"attention {prefill.median_ape:.0%} {error}"]
    where = matmul.source if matmul.source == prefill.source else f"{matmul.source}, attention {prefill.source}"
    return f"kernels: {where} ({', '.join(said)})"


def _of(own: bool) -> str:
    """Whose error a fit's is: a device that borrows constants has more."""
    return "median error" if own else "median error on the lenders, more here"


def _weight_bytes(op: Operator) -> Number:
    """Bytes of an element of the second factor: of the weight with its scales, or of an activation."""
    if not op.weights:
        return element_bytes(op.rate) if FORMATS[op.rate].bits >= 16 else 2
    matrix = op.weights[0]
    return matrix.bytes / maximum(matrix.elements, 1)


def _output_bytes(op: Operator) -> Number:
    """Bytes of an element of the result: gradients of weights are kept wide."""
    return op.write / maximum(op.dims["m"] * op.dims["n"] * op.dims.get("steps", 1), 1)


def _family(timer: Timer, op: Operator) -> str:
    """The measured kernel family: by the format that executes, and by that of weights that are widened first."""
    return _family_of(timer, op.rate, FORMATS[op.weights[0].fmt if op.weights else op.rate].bits)


def _family_of(timer: Timer, rate: str, weight_bits: Number) -> str:
    executes = timer.device.matmul_peak(rate).dtype
    if rate in _QUANTISED and efficiency_class(executes) != "bf16":
        return rate
    return "wide" if weight_bits >= 16 else "int8_wo" if weight_bits > 4 else "int4_wo"


def _product(timer: Timer, m: Number, n: Number, k: Number, op: Operator) -> KernelTime:
    """A matrix product, its activations quantised first where the format asks for it."""
    family = _family(timer, op)
    quantised = family in _QUANTISED
    narrow = element_bytes(op.rate) if quantised else element_bytes(op.rate) if FORMATS[op.rate].bits >= 16 else 2
    sizes: dict[str, Any] = {
        "dtype": op.rate, "weight_bytes": _weight_bytes(op), "input_bytes": narrow, "output_bytes": _output_bytes(op)
    }  # fmt: skip
    if quantised:
        c = timer.constants("quantised_matmul", QuantisedMatmulConstants, _QUANTISED[family])
        prepared = quantise_seconds(m, k, timer.facts, c, bytes=narrow)
        seconds = matmul_seconds(m, n, k, timer.facts, c, **sizes) + prepared
        return KernelTime(seconds - 2 * c.launch, 2 * c.launch)
    c = timer.constants("matmul", MatmulConstants, "bfloat16" if family == "wide" else family)
    return KernelTime(matmul_seconds(m, n, k, timer.facts, c, **sizes) - c.launch, c.launch)


def _matmul(timer: Timer, op: Operator) -> KernelTime:
    if "copies" in op.dims:  # a matrix per head
        return _batched(timer, op)
    return _product(timer, op.dims["m"], op.dims["n"], op.dims["k"], op)


def _recurrent(timer: Timer, op: Operator) -> KernelTime:
    """Dependent steps, each a small product that cannot start before the one before is done."""
    one = _matmul(timer, op)
    return KernelTime(one.seconds * op.dims["steps"], one.launch * op.dims["steps"])


def _many(timer: Timer, op: Operator, copies: Number, rows: Number) -> KernelTime:
    """``copies`` products of one shape over ``rows`` rows in all."""
    family = _family(timer, op)
    c, variant = _experts(timer, family)
    narrow = _input_bytes(op.rate, family)
    seconds = grouped_seconds(
        even_load(rows, copies), op.dims["n"], op.dims["k"], timer.facts, c,
        dtype=op.rate, weight_bytes=_weight_bytes(op), input_bytes=narrow, blocks=variant == "fp8_block",
    )  # fmt: skip
    return KernelTime(seconds - c.launch, c.launch)


def _experts(timer: Timer, family: str) -> tuple[MoEConstants, str]:
    """Constants of a mixture's kernels, and the measured number format that they are of."""
    variant = _GROUPED.get(family, "w4a16_mxfp4" if family == "int4_wo" else "bfloat16")
    return timer.constants("moe", MoEConstants, variant), variant


def _input_bytes(rate: str, family: str) -> Number:
    """Bytes of an activation that a product of ``family`` reads."""
    return element_bytes(rate) if FORMATS[rate].bits >= 16 or family in _QUANTISED else 2


def _experts_move(timer: Timer, op: Operator) -> KernelTime:
    """A kernel around the products of a fused layer of experts; what it writes for a product is in its format."""
    family = _family_of(timer, op.rate, op.dims["weight_bits"])
    c, _ = _experts(timer, family)
    moved = op.bytes_moved
    if op.dims["feeds"] and op.phase != "backward":
        moved = moved - op.output.elements * (op.output.bytes_per_element - _input_bytes(op.rate, family))
    return KernelTime(move_seconds(moved, timer.facts, c), c.launch)


def _experts_route(timer: Timer, op: Operator) -> KernelTime:
    """One of the kernels that choose experts and sort tokens by them."""
    c, _ = _experts(timer, _family_of(timer, op.rate, op.dims["weight_bits"]))
    return KernelTime(route_seconds(op.dims["tokens"], op.dims["experts"], c) / ROUTING, c.launch)


def _grouped(timer: Timer, op: Operator) -> KernelTime:
    return _many(timer, op, op.dims["groups"], op.dims["m"])


def _batched(timer: Timer, op: Operator) -> KernelTime:
    return _many(timer, op, op.dims["copies"], op.dims["copies"] * op.dims["m"])


def _systolic(timer: Timer, op: Operator) -> KernelTime:
    """A matrix product on a TPU's systolic arrays; the one measured generation stands for all."""
    c = timer.constants("systolic", SystolicConstants, "bfloat16")
    side = 256 if timer.device.architecture in ("tpu-v6e", "tpu-v7") else 128
    copies = op.dims.get("copies", 1)
    seconds = systolic_seconds(
        op.dims["m"], op.dims["n"], op.dims["k"], timer.facts, c,
        dtype=op.rate, weight_bytes=_weight_bytes(op), output_bytes=_output_bytes(op) / copies, side=side,
    )  # fmt: skip
    return KernelTime((seconds - c.launch) * copies, c.launch)


def _memory_bound(timer: Timer, op: Operator) -> KernelTime:
    c = published(timer.device)
    kernels = op.dims.get("passes", 1)
    launch = kernels * c.launch
    return KernelTime(bytes_seconds(op.bytes_moved, timer.facts, c, kernels=kernels) - launch, launch)


_FORMULAS: dict[str, Callable[[Timer, Operator], KernelTime | None]] = {
    "matmul": _matmul,
    "convolution": _matmul,
    "recurrent": _recurrent,
    "attention": attention_time,
    "grouped_matmul": _grouped,
    "experts_move": _experts_move,
    "experts_route": _experts_route,
    "batched_product": _batched,
    **SCANS,
    **dict.fromkeys(
        (
            "norm",
            "pointwise",
            "rotary",
            "softmax",
            "embedding",
            "cross_entropy",
            "optimizer",
            "recurrent_cell",
            "stream_mix",
            "additive_scores",
        ),
        _memory_bound,
    ),
}
