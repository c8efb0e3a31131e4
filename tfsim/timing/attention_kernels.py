"""Which formula an attention operator takes: prefill, decode or latent kernels, or two products and a softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfsim.hardware import Device
from tfsim.operators.core import Operator
from tfsim.operators.formats import element_bytes
from tfsim.timing.attention import (
    FLASH2,
    FLASH3,
    DecodeConstants,
    Kernel,
    PrefillConstants,
    backward_seconds,
    decode_seconds,
    prefill_seconds,
)
from tfsim.timing.kernel_time import KernelTime
from tfsim.timing.memory import bytes_seconds, published
from tfsim.timing.moe import MoEConstants, even_load, grouped_seconds
from tfsim.units import Number

if TYPE_CHECKING:
    from tfsim.timing.kernels import Timer

_SCORE_KERNELS = 3  # scale and mask, softmax, cast or dropout
# Query heads of a group that one decode kernel serves together: any number up to this; engines take larger groups, and
# heads without a group, one by one.
_TOGETHER, _MOST_TOGETHER = 64, 32


def flash(device: Device) -> tuple[str, Kernel]:
    """The measured prefill kernels that stand for a device's, and their generation: those of Ada are FlashAttention-2's
    in a build of their own, which L40S was measured with; older devices take A100's."""
    if device.architecture in ("hopper", "blackwell", "blackwell-ultra"):
        return "bf16", FLASH3
    return ("bf16" if device.architecture == "ada" else "flash2"), FLASH2


def attention_time(timer: Timer, op: Operator) -> KernelTime:
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
    latent = bool(np.any(np.asarray(d["d_qk"]) > d["d_v"]))
    causal, window = _mask(op)
    if latent:
        kernel = FLASH3
        c = timer.constants("mla_prefill", PrefillConstants, "fp8" if _narrow(op) else "bf16")
    else:
        _, kernel = flash(timer.device)
        masked = np.any(causal & (np.asarray(d["q_len"]) > 1))
        c = timer.constants("prefill_attention", PrefillConstants, _variant(timer.device, op, masked=bool(masked)))
    sizes = (d["batch"], d["heads"], d["kv_heads"], d["q_len"], d["kv_len"], d["d_qk"], d["d_v"], timer.facts, c)
    mask: dict[str, Any] = {"causal": causal, "window": window, "kernel": kernel}
    if op.phase == "backward":
        return KernelTime(backward_seconds(*sizes, dtype=op.rate, **mask), 0)
    seconds = prefill_seconds(
        *sizes, dtype=_latent_rate(op) if latent else op.rate, kv_bytes=d["kv_bytes"], act_bytes=element_bytes(op.rate),
        **mask,
    )  # fmt: skip
    return KernelTime(seconds, 0)


def _variant(device: Device, op: Operator, *, masked: bool) -> str:
    """Whose constants prefill takes: those of kernels that read the cache's format, or without a mask the encoders',
    which Hopper and Blackwell were measured with (heads of no multiple of 16 run on kernels of an older generation)."""
    variant, kernel = flash(device)
    if kernel is FLASH3 and not masked and not _narrow(op):
        return "encoder" if np.all(np.asarray(op.dims["d_qk"]) % 16 == 0) else "encoder-unaligned"
    # kernels of A100 read no fp8 cache in any table: theirs takes fewer bytes, and else the same time
    return "bf16-fp8kv" if variant == "bf16" and _narrow(op) else variant


def _narrow(op: Operator) -> bool:
    """Whether the cache holds numbers of a byte."""
    return bool(np.all(np.asarray(op.dims["kv_bytes"]) < 1.5))


def _latent_rate(op: Operator) -> str:
    """Latent kernels multiply in the format of the cache, others widen it first."""
    return "fp8" if _narrow(op) else op.rate


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
    latent = bool(np.any(np.asarray(d["d_qk"]) > d["d_v"]))

    def seconds(kind: str, variant: str, packed: int) -> tuple[Number, Number]:
        c = timer.constants(kind, DecodeConstants, variant)
        time = decode_seconds(
            d["batch"], d["heads"], d["kv_heads"], keys, d["d_qk"], d["d_v"], timer.facts, c,
            dtype=_latent_rate(op) if latent else op.rate, key_bytes=key_bytes, packed=packed,
        )  # fmt: skip
        return time - c.launch, c.launch

    fmt = "fp8" if _narrow(op) else "bf16"
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
