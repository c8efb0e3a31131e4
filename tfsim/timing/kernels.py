"""Which timing formula an operator takes, and with which constants.

Each kind of operator has one formula (matmul.py, moe.py, attention.py, scans.py, memory.py, systolic.py). Kinds that
nobody has measured, and devices without a measured relative, take the roofline: the longer of arithmetic and traffic at
the fractions of the peaks that the device's profile states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsim.hardware import Device
from tfsim.hardware.dtypes import efficiency_class
from tfsim.operators.core import Operator
from tfsim.operators.formats import FORMATS, element_bytes
from tfsim.software import Software
from tfsim.timing.attention import (
    FLASH2,
    FLASH3,
    DecodeConstants,
    PrefillConstants,
    backward_seconds,
    decode_seconds,
    prefill_seconds,
)
from tfsim.timing.constants import Fitted, constants, has_relatives, is_measured
from tfsim.timing.cpu import CpuAttentionConstants, CpuMatmulConstants
from tfsim.timing.cpu_operators import cpu_time
from tfsim.timing.machine import Machine, machine
from tfsim.timing.matmul import MatmulConstants, QuantisedMatmulConstants, matmul_seconds, quantise_seconds
from tfsim.timing.memory import bytes_seconds, published
from tfsim.timing.moe import MoEConstants, even_load, grouped_seconds
from tfsim.timing.scans import ChunkedConstants, chunked_delta_seconds
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
_SCORE_KERNELS = 3  # scale and mask, softmax, cast or dropout
# Query heads of a group that one decode kernel serves together: any number up to this; engines take larger groups, and
# heads without a group, one by one.
_TOGETHER, _MOST_TOGETHER = 64, 32
# The same for grouped products: no table measures int8 ones.
_GROUPED = {**_QUANTISED, "int8": "fp8"}


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Device time of an operator's kernels: ``seconds`` of work, and ``launch`` seconds of starting them."""

    seconds: Number
    launch: Number


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
        parts = {"matmul": CpuMatmulConstants, "attention": CpuAttentionConstants}
        errors = [(name, constants(f"cpu_{name}", cls, device, "fp32").median_ape) for name, cls in parts.items()]
        return f"kernels: measured on {device.name} ({', '.join(f'{n} {e:.0%}' for n, e in errors)} median error)"
    if not has_relatives(device):
        return "kernels: a roofline at the device's achieved fractions, not fitted"
    matmul = constants("matmul", MatmulConstants, device, "bfloat16")
    prefill = constants("prefill_attention", PrefillConstants, device, _attention_family(device))
    error = _of(matmul.own and prefill.own)
    said = [f"matmul {matmul.median_ape:.0%}", f"attention {prefill.median_ape:.0%} {error}"]
    where = matmul.source if matmul.source == prefill.source else f"{matmul.source}, attention {prefill.source}"
    return f"kernels: {where} ({', '.join(said)})"


def _of(own: bool) -> str:
    """Whose error a fit's is: a device that borrows constants has more."""
    return "median error" if own else "median error on the lenders, more here"


def _attention_family(device: Device) -> str:
    """The prefill kernels that engines run on a device: FlashAttention-2 before Hopper."""
    return "bf16" if device.architecture in ("hopper", "blackwell", "blackwell-ultra") else "flash2"


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
    executes = timer.device.matmul_peak(op.rate).dtype
    if op.rate in _QUANTISED and efficiency_class(executes) != "bf16":
        return op.rate
    stored = FORMATS[op.weights[0].fmt] if op.weights else FORMATS[op.rate]
    return "wide" if stored.bits >= 16 else "int8_wo" if stored.bits > 4 else "int4_wo"


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
    variant = _GROUPED.get(family, "w4a16_mxfp4" if family == "int4_wo" else "bfloat16")
    c = timer.constants("moe", MoEConstants, variant)
    narrow = element_bytes(op.rate) if FORMATS[op.rate].bits >= 16 or family in _QUANTISED else 2
    seconds = grouped_seconds(
        even_load(rows, copies), op.dims["n"], op.dims["k"], timer.facts, c,
        dtype=op.rate, weight_bytes=_weight_bytes(op), input_bytes=narrow, blocks=variant == "fp8_block",
    )  # fmt: skip
    return KernelTime(seconds - c.launch, c.launch)


def _grouped(timer: Timer, op: Operator) -> KernelTime:
    return _many(timer, op, op.dims["groups"], op.dims["m"])


def _batched(timer: Timer, op: Operator) -> KernelTime:
    return _many(timer, op, op.dims["copies"], op.dims["copies"] * op.dims["m"])


def _attention(timer: Timer, op: Operator) -> KernelTime:
    """Softmax attention: by kernels that keep scores on chip, or as two products with the scores in memory."""
    if "softmax_bytes" in op.dims:
        return _materialised(timer, op)
    single = np.asarray(op.dims["q_len"], float) == 1
    if op.phase == "backward" or not single.any():
        return _prefill(timer, op)
    decode = _decode(timer, op)
    if single.all():
        return decode
    prefill = _prefill(timer, op)
    seconds = np.where(single, decode.seconds, prefill.seconds)
    return KernelTime(seconds, np.where(single, decode.launch, prefill.launch))


def _prefill(timer: Timer, op: Operator) -> KernelTime:
    """Many queries per sequence, or the backward pass."""
    d = op.dims
    latent = np.any(np.asarray(d["d_qk"]) > d["d_v"])
    kind = "mla_prefill" if latent else "prefill_attention"
    family = "bf16" if latent else _attention_family(timer.device)
    c = timer.constants(kind, PrefillConstants, family)
    causal, window = _mask(op)
    run = backward_seconds if op.phase == "backward" else prefill_seconds
    seconds = run(
        d["batch"], d["heads"], d["kv_heads"], d["q_len"], d["kv_len"], d["d_qk"], d["d_v"], timer.facts, c,
        dtype=op.rate, causal=causal, window=window, kernel=FLASH2 if family == "flash2" else FLASH3,
    )  # fmt: skip
    return KernelTime(seconds, 0)


def _mask(op: Operator) -> tuple[Any, Any]:
    """(whether later keys are masked, keys that a query sees or 0), from the pairs that the operator counts."""
    q, keys, pairs = (np.asarray(op.dims[name], float) for name in ("q_len", "kv_len", "pairs"))
    before = np.maximum(0, keys - q)
    causal = pairs < q * keys
    # a query sees w keys, the first ones of a sequence fewer: q w - w^2 / 2 pairs where nothing came before
    seen = np.where(before >= pairs / q, pairs / q, q - np.sqrt(np.maximum(0, q * q - 2 * pairs)))
    short = pairs < 0.99 * q * (before + (q + 1) / 2)
    return causal, np.where(causal & short, np.ceil(seen), 0)


def _decode(timer: Timer, op: Operator) -> KernelTime:
    """One new query per sequence: a kernel per query head, or one for the heads of a group."""
    d = op.dims
    keys = np.asarray(d["pairs"] / d["q_len"], float)  # those that a query's window lets it see
    queries = d["batch"] * d["heads"] * d["d_qk"] * element_bytes(op.rate)
    held = d["batch"] * d["kv_heads"] * d["kv_len"]
    key_bytes = (op.read - queries) / held
    latent = bool(np.any(np.asarray(d["d_qk"]) > d["d_v"]))  # its values are the first of the key's numbers
    numbers = d["d_qk"] if latent else d["d_qk"] + d["d_v"]
    narrow = bool(np.all(np.asarray(key_bytes / numbers) < 1.5))

    def seconds(kind: str, variant: str, packed: int) -> tuple[Number, Number]:
        c = timer.constants(kind, DecodeConstants, variant)
        time = decode_seconds(
            d["batch"], d["heads"], d["kv_heads"], keys, d["d_qk"], d["d_v"], timer.facts, c,
            # latent kernels multiply in the format of the cache, others widen it first
            dtype="fp8" if latent and narrow else op.rate, key_bytes=key_bytes, packed=packed,
        )  # fmt: skip
        return time - c.launch, c.launch

    fmt = "fp8" if narrow else "bf16"
    if latent:
        return KernelTime(*seconds("mla_decode", fmt, _TOGETHER))
    group = np.asarray(d["heads"] / d["kv_heads"], float)
    alone = (group <= 1) | (group > _MOST_TOGETHER)
    one = seconds("decode_attention", f"{fmt}-heads", 1)
    several = seconds("decode_attention", fmt, _TOGETHER)
    return KernelTime(*(np.where(alone, a, b) for a, b in zip(one, several, strict=True)))


def _materialised(timer: Timer, op: Operator) -> KernelTime:
    """Scores in memory: a product per head, passes over the scores, another product."""
    d = op.dims
    c = timer.constants("moe", MoEConstants, "bfloat16")
    heads = d["batch"] * d["heads"]
    each = op.flops / (2 * heads * d["q_len"] * d["kv_len"] * (d["d_qk"] + d["d_v"]))  # 2 backward
    products: Number = 0
    for n, k in ((d["kv_len"], d["d_qk"]), (d["d_v"], d["kv_len"])):
        products = products + grouped_seconds(
            even_load(heads * d["q_len"], heads), n, k, timer.facts, c, dtype=op.rate, weight_bytes=0, input_bytes=0,
            output_bytes=0,
        )  # fmt: skip
    # keys and values are part of the traffic, so only what fits the cache as a whole may come from there
    one = published(timer.device)
    passes = bytes_seconds(op.bytes_moved, timer.facts, one) - one.launch
    launch = 2 * c.launch
    return KernelTime((products - launch) * each + passes, launch * each + _SCORE_KERNELS * one.launch)


def _delta_rule(timer: Timer, op: Operator) -> KernelTime | None:
    """The chunked delta rule; of its backward pass there is no table."""
    if op.phase == "backward":
        return None
    c = timer.constants("chunked_scan", ChunkedConstants, "chunked_delta")
    d = op.dims
    seconds = chunked_delta_seconds(d["rows"], d["chunks"] * d["chunk"], 1, 1, d["d_key"], d["d_value"], timer.facts, c)
    return KernelTime(seconds - c.launch, c.launch)


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
    "attention": _attention,
    "grouped_matmul": _grouped,
    "batched_product": _batched,
    "delta_rule": _delta_rule,
    **dict.fromkeys(
        (
            "norm",
            "pointwise",
            "rotary",
            "softmax",
            "embedding",
            "loss",
            "optimizer",
            "recurrent_cell",
            "conv",
            "stream_mix",
            "additive_scores",
        ),
        _memory_bound,
    ),
}
