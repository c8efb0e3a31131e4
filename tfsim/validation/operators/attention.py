"""attention, mla, attention_mixed: prefill, encoder and decode attention, latent attention, and steps that mix both.

The aiconfigurator rows (timed as ``graph``) are whole attention calls of an inference engine, repeated on one cache:
TensorRT-LLM's, and vLLM's in decode on A100. Rows timed as ``kernel`` are one kernel. Those in "bfloat16" come from the
profiler of LLMServingSim: GPUs ran the variable-length FlashAttention-2 kernel, which in decode takes a query as a
sequence of length one, neither splits the keys nor packs heads, and whose ``kv_len`` counts the keys of all sequences.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tfsim.hardware import Device, load_device
from tfsim.timing.attention import (
    FLASH2,
    FLASH2_FLAT,
    FLASH3,
    DecodeConstants,
    PrefillConstants,
    decode_seconds,
    mixed_seconds,
    prefill_seconds,
)
from tfsim.timing.attention_kernels import flash
from tfsim.timing.machine import Machine
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, no_faults, where

# The tables' names of number formats; fp16 runs at the rate of bf16 on every device.
FORMATS = {"bfloat16": "bf16", "bf16": "bf16", "float16": "bf16", "fp16": "bf16", "fp8": "fp8"}
PACKED = 32  # query heads that TensorRT-LLM's grouped decode kernel serves together; a larger group runs one per head
TPU = "tpu-v6e"
# TensorRT-LLM's kernels of Ampere and Ada work in tiles as FlashAttention-2's do. On A100 they stand for it ("flash2":
# instructions that all later chips run too, which LLMServingSim's rows did); those of Ada are a build of their own.
A100 = "a100-sxm-80gb"
# Query and key-value heads of the models of attention_mixed (their configurations); heads have 128 numbers.
MIXED_HEADS = {"Llama-3.1-8B": (32, 8), "Qwen3-32B": (64, 8), "Qwen3-30B-A3B-Instruct-2507": (32, 4)}
_MIXED_SIZE = 128


def _older(frame: pd.DataFrame) -> pd.Series[bool]:
    """Rows of devices that A100's prefill kernels stand for, whatever the format of the cache."""
    return frame["device"].map({name: flash(load_device(name))[0] == "flash2" for name in frame["device"].unique()})


def _compact(device: Device) -> bool:
    """Compute capability 8.6 or 8.9: Ada, and Ampere without HBM."""
    hbm = device.profile.memory.type.startswith("HBM")
    return device.architecture == "ada" or (device.architecture == "ampere" and not hbm)


def _formats_known(frame: pd.DataFrame) -> pd.Series[bool]:
    return frame["dtype"].isin(list(FORMATS)) & _kv_format(frame).notna()


def _number(frame: pd.DataFrame, name: str) -> Array:
    return frame[name].to_numpy(float)


def _kv_format(frame: pd.DataFrame) -> pd.Series[str]:
    """Format of the cache; attention over fresh keys (no cache) has that of the activations."""
    return frame["kv_dtype"].fillna(frame["dtype"]).map(FORMATS)


def _profiled(frame: pd.DataFrame) -> pd.Series[bool]:
    return (frame["timing"] == "kernel") & (frame["dtype"] == "bfloat16")


def _key_bytes(kv: str) -> int:
    return 1 if kv == "fp8" else 2


# Prefill and encoder.


def _prefill_variant(frame: pd.DataFrame) -> pd.Series[str]:
    kv, tpu, known = _kv_format(frame), frame["device"] == TPU, _formats_known(frame)
    prefill = (frame["phase"] == "prefill") & ~tpu & known
    encoder = (frame["phase"] == "encoder") & known
    odd = frame["head_dim"] % 16 != 0  # such heads run on kernels of an older generation
    return where(
        frame,
        (prefill & (frame["dtype"] == "fp8"), "fp8"),
        ((prefill & _older(frame)) | (_profiled(frame) & frame["phase"].isin(["prefill", "decode"]) & ~tpu), "flash2"),
        (prefill & (kv == "fp8"), "bf16-fp8kv"),
        (prefill, "bf16"),
        (encoder & odd, "encoder-unaligned"),
        (encoder, "encoder"),
    )


def _prefill(frame: pd.DataFrame, machine: Machine, c: PrefillConstants, variant: str) -> Array:
    """The kernel alone where the row is a kernel's time, else the whole call."""
    q, kv, batch = _lengths(frame)
    runs = "fp8" if variant == "fp8" else "bf16"
    heads, kv_heads, d = _number(frame, "n_heads"), _number(frame, "n_kv_heads"), _number(frame, "head_dim")
    # half the bytes of a row leave a core's registers room for tiles of 128 rows, which overlap within themselves
    device = load_device(frame["device"].iloc[0])
    older = device.kind == "gpu" and flash(device)[1] is FLASH2 and runs == "bf16"
    generation = FLASH2 if older or variant == "flash2" else FLASH3
    cached = np.where(_kv_format(frame) == "fp8", 1, 2)
    call, kernel = (
        prefill_seconds(
            batch, heads, kv_heads, q, kv, d, d, machine, c, dtype=runs,
            kv_bytes=cached, act_bytes=_key_bytes(runs),
            causal=_number(frame, "causal") == 1, window=_number(frame, "window"), whole_call=whole,
            kernel=generation,
        )
        for whole in (True, False)
    )  # fmt: skip
    flat = FLASH2_FLAT if _compact(device) else FLASH2
    steps = mixed_seconds(0, 0, batch, kv, heads, kv_heads, d, machine, c, dtype=runs, kernel=flat)
    kernel = np.where(frame["phase"] == "decode", steps, kernel)
    return np.where(frame["timing"] == "kernel", kernel, call)


def _lengths(frame: pd.DataFrame) -> tuple[Array, Array, Array]:
    """q_len, keys per sequence and batch: a missing batch is one sequence, missing keys are as many as queries."""
    q, batch = _number(frame, "q_len"), frame["batch"].fillna(1).to_numpy(float)
    kv = frame["kv_len"].fillna(frame["q_len"]).to_numpy(float)
    tpu = ((frame["device"] == TPU) & (frame["phase"] == "prefill")).to_numpy()  # its kv_len is the prefix alone
    kv = np.where(tpu, kv + q, kv)
    total = (_profiled(frame) & (frame["phase"] == "decode") & (frame["device"] != TPU)).to_numpy()
    return q, np.where(total, np.maximum(1, kv / batch), kv), batch


def _seen(q: Array, kv: Array, causal: NDArray[np.bool_], window: Array) -> Array:
    """(query, key) pairs of a head."""
    prefix = np.maximum(0, kv - q)
    full = np.where(causal, q * prefix + q * q / 2, q * kv)
    return np.where(window > 0, np.minimum(full, q * window), full)


def _attention_roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    q, kv, batch = _lengths(frame)
    heads, kv_heads, d, window = (_number(frame, x) for x in ("n_heads", "n_kv_heads", "head_dim", "window"))
    pairs = _seen(q, kv, (_number(frame, "causal") == 1) & (q > 1), window)
    keys = np.where((window > 0) & (q == 1), np.minimum(window, kv), kv)
    moved = 2 * batch * d * (q * heads * 2 + keys * kv_heads * _key_bytes("fp8" if "fp8" in variant else ""))
    flops = 4 * batch * heads * d * pairs
    return np.maximum(flops / machine.peak("fp8" if variant == "fp8" else "bf16"), moved / machine.bandwidth)


# Decode.


def _decode_variant(frame: pd.DataFrame) -> pd.Series[str]:
    decode = (frame["phase"] == "decode") & ~_profiled(frame) & (frame["device"] != TPU) & _formats_known(frame)
    alone, fp8 = pd.Series(_packed(frame) == 1, frame.index), _kv_format(frame) == "fp8"
    return where(
        frame,
        (decode & fp8 & alone, "fp8-heads"),
        (decode & fp8, "fp8"),
        (decode & alone, "bf16-heads"),
        (decode, "bf16"),
    )


def _packed(frame: pd.DataFrame) -> Array:
    """Query heads that an item serves: none together without a group; groups of any size in vLLM (A100) and in the
    FlashAttention-3 kernels of single-kernel rows."""
    group = _number(frame, "n_heads") / _number(frame, "n_kv_heads")
    engine = (frame["timing"] == "graph").to_numpy() & (frame["device"] != A100).to_numpy()
    return np.where((group == 1) | (engine & (group > PACKED)), 1, 64)


def _decode(frame: pd.DataFrame, machine: Machine, c: DecodeConstants, variant: str) -> Array:
    d, kernel = _number(frame, "head_dim"), frame["timing"] == "kernel"
    batch, heads, kv_heads, keys = (_number(frame, x) for x in ("batch", "n_heads", "n_kv_heads", "kv_len"))
    return decode_seconds(
        batch, heads, kv_heads, keys, d, d, machine, c, dtype="bf16",
        key_bytes=2 * d * _key_bytes(variant.split("-")[0]), packed=_packed(frame),
        window=_number(frame, "window"), reuse=np.where(kernel, np.inf, 0),
        fed=np.where(kernel & (variant == "bf16"), 0, 1),  # single kernels are FlashAttention-3's; fp8 is widened first
    )  # fmt: skip


# TPU: fitted on even token counts (sequences of a decode step, or tens of prefill tokens), shown on odd ones.


def _tpu_variant(frame: pd.DataFrame, phase: str) -> pd.Series[str]:
    chosen = (frame["phase"] == phase) & (frame["device"] == TPU)
    tokens = frame["batch"] if phase == "decode" else frame["q_len"] // 32
    return where(frame, (chosen & (tokens % 2 == 0), "tpu-even"), (chosen, "tpu-odd"))


def _tpu_borrow(variant: str) -> str:
    return "tpu-even"


def _attention_faults(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    tokens = frame["batch"].fillna(1) * frame["q_len"]
    tpu = (frame["device"] == TPU) & (tokens < 64)
    above_peak = (
        (frame["device"] == "h100-sxm-80gb") & (frame["phase"] == "prefill") & (frame["head_dim"] == 256)
        & (frame["n_heads"] == 96) & (frame["batch"] == 16) & (frame["q_len"] == 6144) & (frame["dtype"] == "bfloat16")
    )  # fmt: skip
    return where(frame, (tpu, "TPU below 64 tokens"), (above_peak, "implies more than the peak"))


ATTENTION = Table(
    "attention",
    frozenset({"device", "timing", "phase", "dtype", "kv_dtype", "head_dim", "n_heads", "n_kv_heads", "window",
               "causal", "batch", "q_len", "kv_len", "time_s"}),
    (
        Part("prefill_attention", PrefillConstants, _prefill_variant, _prefill, _attention_roofline),
        Part("decode_attention", DecodeConstants, _decode_variant, _decode, _attention_roofline),
        Part(
            "prefill_attention", PrefillConstants, lambda f: _tpu_variant(f, "prefill"), _prefill, _attention_roofline,
            fits_on=("llmservingsim",), borrow=_tpu_borrow,
        ),
        Part(
            "decode_attention", DecodeConstants, lambda f: _tpu_variant(f, "decode"), _decode, _attention_roofline,
            fits_on=("llmservingsim",), borrow=_tpu_borrow,
        ),
    ),
    _attention_faults,
    group=("source", "device", "phase"),
)  # fmt: skip


# Latent attention (DeepSeek): 512 compressed and 64 rotary numbers per token.

_LATENT, _ROTARY, _NOPE, _VALUE = 512, 64, 128, 128


def _mla_variant(frame: pd.DataFrame, phase: str) -> pd.Series[str]:
    chosen, fp8 = (frame["phase"] == phase) & _formats_known(frame), _kv_format(frame) == "fp8"
    return where(frame, (chosen & fp8, "fp8"), (chosen, "bf16"))


def _mla_prefill(frame: pd.DataFrame, machine: Machine, c: PrefillConstants, variant: str) -> Array:
    q, heads = _number(frame, "q_len"), _number(frame, "n_heads")
    batch, kv = frame["batch"].fillna(1).to_numpy(float), frame["kv_len"].fillna(frame["q_len"]).to_numpy(float)
    call, kernel = (
        prefill_seconds(
            batch, heads, heads, q, kv, _NOPE + _ROTARY, _VALUE, machine, c, dtype=variant,
            kv_bytes=_key_bytes(variant), whole_call=whole,
        )
        for whole in (True, False)
    )  # fmt: skip
    return np.where(frame["timing"] == "kernel", kernel, call)


def _mla_decode(frame: pd.DataFrame, machine: Machine, c: DecodeConstants, variant: str) -> Array:
    return decode_seconds(
        _number(frame, "batch"), _number(frame, "n_heads"), 1, _number(frame, "kv_len"), _LATENT + _ROTARY, _LATENT,
        machine, c, dtype=variant, key_bytes=(_LATENT + _ROTARY) * _key_bytes(variant), packed=64,
        reuse=np.where(frame["timing"] == "kernel", np.inf, 0),
    )  # fmt: skip


def _mla_roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    q, heads = _number(frame, "q_len"), _number(frame, "n_heads")
    batch, kv = frame["batch"].fillna(1).to_numpy(float), frame["kv_len"].fillna(frame["q_len"]).to_numpy(float)
    decode = frame["phase"].to_numpy() == "decode"
    sizes: Array = np.where(decode, 2 * _LATENT + _ROTARY, _NOPE + _ROTARY + _VALUE)
    flops = 2 * batch * heads * sizes * _seen(q, kv, ~decode, np.zeros_like(q))
    fresh = np.where(decode, _LATENT + _ROTARY, heads * sizes)
    longer: Array = np.maximum(
        flops / machine.peak(variant), batch * kv * fresh * _key_bytes(variant) / machine.bandwidth
    )
    return longer


MLA = Table(
    "mla",
    frozenset({"device", "timing", "phase", "dtype", "kv_dtype", "n_heads", "batch", "q_len", "kv_len", "kv_lora_rank",
               "time_s"}),
    (
        Part("mla_prefill", PrefillConstants, lambda f: _mla_variant(f, "prefill"), _mla_prefill, _mla_roofline),
        Part("mla_decode", DecodeConstants, lambda f: _mla_variant(f, "decode"), _mla_decode, _mla_roofline),
    ),
    no_faults,
    group=("source", "device", "phase"),
)  # fmt: skip


# A step of vLLM that mixes a prefill chunk and decodes: one launch of the variable-length kernel over both. Where all
# sequences are decodes the kernel is another one: the query heads of a group become the rows of one tile, and the keys
# are split (``seqlenq_ngroups_swapped`` in vLLM's flash_api.cpp), as in every decode kernel.


def _mixed_sizes(frame: pd.DataFrame) -> pd.DataFrame:
    heads = frame["model"].map(lambda m: MIXED_HEADS.get(m, (np.nan, np.nan)))
    return frame.assign(
        n_heads=heads.str[0].astype(float) / frame["tp"].astype(float),
        n_kv_heads=np.maximum(1, heads.str[1].astype(float) / frame["tp"].astype(float)),
    )


def _mixed_seconds(frame: pd.DataFrame, machine: Machine, c: PrefillConstants, variant: str) -> Array:
    chunk, before, decodes, cached = (
        _number(frame, x) for x in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    )
    return mixed_seconds(
        chunk,
        before,
        decodes,
        cached,
        _number(frame, "n_heads"),
        _number(frame, "n_kv_heads"),
        _MIXED_SIZE,
        machine,
        c,
        dtype="bf16",
    )


def _mixed_roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    heads, kv_heads, chunk = (_number(frame, x) for x in ("n_heads", "n_kv_heads", "prefill_chunk"))
    before, decodes, cached = (_number(frame, x) for x in ("kv_prefill", "n_decode", "kv_decode"))
    pairs = chunk * (before + chunk / 2) + decodes * cached
    keys = (chunk > 0) * (chunk + before) + decodes * cached
    return np.maximum(
        4 * heads * _MIXED_SIZE * pairs / machine.peak("bf16"), 4 * kv_heads * _MIXED_SIZE * keys / machine.bandwidth
    )


def _mixed_variant(frame: pd.DataFrame, *, decodes: bool) -> pd.Series[str]:
    alone = frame["prefill_chunk"] == 0
    return where(frame, (alone, "bf16")) if decodes else where(frame, (~alone, "flash2"))


def _decodes_alone(frame: pd.DataFrame, machine: Machine, c: DecodeConstants, variant: str) -> Array:
    """The profiler repeats a step on one cache."""
    heads, kv_heads, decodes, cached = (_number(frame, x) for x in ("n_heads", "n_kv_heads", "n_decode", "kv_decode"))
    return decode_seconds(
        decodes, heads, kv_heads, cached, _MIXED_SIZE, _MIXED_SIZE, machine, c, dtype="bf16",
        key_bytes=2 * _MIXED_SIZE * 2, packed=64, reuse=0,
    )  # fmt: skip


MIXED = Table(
    "attention_mixed",
    frozenset({"device", "timing", "model", "tp", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_s"}),
    (
        Part(
            "prefill_attention", PrefillConstants, lambda f: _mixed_variant(f, decodes=False), _mixed_seconds,
            _mixed_roofline, fits_on=(),
        ),
        Part(
            "decode_attention", DecodeConstants, lambda f: _mixed_variant(f, decodes=True), _decodes_alone,
            _mixed_roofline, fits_on=(),
        ),
    ),
    no_faults,
    group=("source", "device"),
    prepare=_mixed_sizes,
)  # fmt: skip
