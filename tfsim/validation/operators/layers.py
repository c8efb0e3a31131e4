"""layers: what one layer of a model takes, layer part by layer part, under serving engines, eager code and XLA.

The model's name stands for its dimensions, which come from the zoo. A file section (device and model) whose projections
are fused comes from an engine with fused kernels; the others ran eager code (one kernel per torch operation), a TPU
compiled code. Experts were measured whole whatever ``tp`` says.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfsim.hardware import Device
from tfsim.models.load import load_model
from tfsim.models.spec import Attention, DenseFFN, MoE
from tfsim.timing.host import HostConstants, timed_seconds
from tfsim.timing.machine import Machine
from tfsim.timing.matmul import MatmulConstants, matmul_seconds
from tfsim.timing.memory import (
    OPERATIONS,
    MemoryConstants,
    gather_seconds,
    kernels_seconds,
    layer_norm_seconds,
    published,
    softmax_seconds,
)
from tfsim.timing.systolic import OnChipConstants, SystolicConstants, on_chip_seconds, systolic_seconds
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, where

MODELS = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "Llama-3.1-70B": "llama-3.1-70b",
    "Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Phi-mini-MoE-instruct": "phi-mini-moe",
    "Qwen3-32B": "qwen3-32b",
    "Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "gpt3-175b": "gpt3-175b",
}
_FUSED_LAYERS = ("qkv_proj", "gate_up_proj", "rotary_emb", "layernorm", "sampler")  # names only a fusing engine has
_ROUTER_KERNELS = 20  # eager routing beside its product: softmax in fp32, top-k, rescaling, one-hot masks
_NAMES = {"allreduce_mha", "allreduce_ffn"}, {"q_mul_k", "a_mul_v"}
_TPU_FROM = 64  # tokens


def _dimensions(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with ``op``, its sizes m x n x k (products) or rows x cols (the rest), ``style``, ``layer_norm`` and
    ``keys`` (key heads per query head)."""
    out = frame.copy()
    for column in ("m", "n", "k", "rows", "cols", "keys"):
        out[column] = np.nan
    out["op"], out["style"], out["layer_norm"] = "", "eager", False
    for (_, _, model), section in frame.groupby(["source", "device", "model"]):
        if model in MODELS:
            _section(out, section, MODELS[str(model)])
    return out


def _section(out: pd.DataFrame, section: pd.DataFrame, model: str) -> None:
    spec = load_model(model)
    block = spec.blocks["layer"]
    mixer, ffn = block.mixer, block.ffn
    assert isinstance(mixer, Attention) and isinstance(ffn, DenseFFN | MoE)  # of the models named above
    d, inner, kv = spec.d_model, mixer.n_heads * mixer.d_head, mixer.n_kv_heads * mixer.d_head
    tokens, tp = section["tokens"].to_numpy(float), section["tp"].to_numpy(float)
    experts = ffn.n_experts if isinstance(ffn, MoE) else 0
    width = ffn.d_ff / (np.ones_like(tp) if experts else tp)
    products: dict[str, tuple[Array | float, Array | float]] = {
        "q_proj": (inner / tp, d), "k_proj": (kv / tp, d), "v_proj": (kv / tp, d),
        "qkv_proj": ((inner + 2 * kv) / tp, d), "o_proj": (d, inner / tp), "wo_proj": (d, inner / tp),
        "gate_proj": (width, d), "up_proj": (width, d), "gate_up_proj": (2 * width, d), "down_proj": (d, width),
        "w1_proj": (width, d), "w2_proj": (d, width),
        "expert.w1": (width, d), "expert.w3": (width, d), "expert.w2": (d, width),
        "lm_head": (spec.vocab_size / tp, d), "gate": (experts, d),
    }  # fmt: skip
    batch, q_len, kv_len = (section[x].to_numpy(float) for x in ("batch", "q_len", "kv_len"))
    scores = batch * mixer.n_heads / tp * q_len
    others: dict[str, tuple[str, Array, Array | float]] = {
        "embedding": ("gather", tokens, d), "input_layernorm": ("norm", tokens, d),
        "post_layernorm": ("norm", tokens, d), "final_layernorm": ("norm", tokens, d), "layernorm": ("norm", tokens, d),
        "layernorm_mha": ("layernorm", tokens, d), "layernorm_ffn": ("layernorm", tokens, d),
        "qk_norm": ("head_norm", tokens * (mixer.n_heads + mixer.n_kv_heads) / tp, mixer.d_head),
        "rope": ("rotary", tokens, (inner + kv) / tp), "rotary_emb": ("rotary", tokens, (inner + kv) / tp),
        "act_fn": ("gated_activation", tokens, width), "gelu": ("gelu", tokens, width),
        "softmax": ("softmax", scores, kv_len), "sampler": ("sampler", tokens, spec.vocab_size),
    }  # fmt: skip
    style = "fused" if section["layer"].isin(_FUSED_LAYERS).any() else "eager"
    out.loc[section.index, "style"] = style
    out.loc[section.index, "keys"] = kv / inner
    out.loc[section.index, "layer_norm"] = spec.norm.kind == "layernorm"
    for layer, (n, k) in products.items():
        _set(out, section, layer, "router" if layer == "gate" else "product", m=tokens, n=n, k=k)
    for layer, (op, rows, columns) in others.items():
        _set(out, section, layer, op, rows=rows, cols=columns)


def _set(out: pd.DataFrame, section: pd.DataFrame, layer: str, op: str, **sizes: Array | float) -> None:
    chosen = (section["layer"] == layer).to_numpy()
    out.loc[section.index[chosen], "op"] = op
    for name, value in sizes.items():
        out.loc[section.index[chosen], name] = np.broadcast_to(np.asarray(value, float), chosen.shape)[chosen]


def _tpu(frame: pd.DataFrame) -> pd.Series[bool]:
    return frame["device"].str.startswith("tpu")


def _products(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, (frame["op"].isin(["product", "router"]) & ~_tpu(frame), "bfloat16"))


def _product(frame: pd.DataFrame, machine: Machine, c: MatmulConstants, variant: str) -> Array:
    m, n, k = (frame[x].to_numpy(float) for x in "mnk")
    time = matmul_seconds(m, n, k, machine, c, dtype="bf16", weight_bytes=2, input_bytes=2)
    router = (frame["op"] == "router").to_numpy()
    extra: Array = np.where(router, _ROUTER_KERNELS * MemoryConstants().launch, 0)
    total: Array = time + extra
    return total


def _product_roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    m, n, k = (frame[x].to_numpy(float) for x in "mnk")
    moved = 2 * (m * n + m * k + n * k)
    seconds: Array = np.maximum(2 * m * n * k / machine.peak("bf16"), moved / machine.bandwidth)
    return seconds


_BYTES = {"gather": 4, "norm": 4, "head_norm": 4, "rotary": 4, "gated_activation": 6, "sampler": 2}
_HOST = {"softmax": 4, "layernorm": 4, "gelu": 4}


def _pointwise(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, *(((frame["op"] == op) & ~_tpu(frame), op) for op in _BYTES))


def _pointwise_seconds(frame: pd.DataFrame, machine: Machine, c: MemoryConstants, op: str) -> Array:
    rows, columns = frame["rows"].to_numpy(float), frame["cols"].to_numpy(float)
    fused = (frame["style"] == "fused").to_numpy()

    def run(name: str, style: str) -> Array:
        return kernels_seconds(OPERATIONS[name, style], rows, columns, machine, c)

    if op == "gather":
        new, old = (gather_seconds(rows, columns, machine, c, vectorised=v) for v in (True, False))
        return np.where(fused, new, old)
    if op == "norm":
        eager = np.where(frame["layer_norm"], layer_norm_seconds(rows, columns, machine, c), run("norm", "eager"))
        return np.where(fused, run("add_norm", "fused"), eager)
    if op == "head_norm":
        return run("norm", "fused")
    if op == "sampler":
        return run("greedy", "eager")
    return np.where(fused, run(op, "fused"), run(op, "eager"))


def _pointwise_roofline(frame: pd.DataFrame, machine: Machine, op: str) -> Array:
    seconds: Array = (_BYTES | _HOST)[op] * frame["rows"].to_numpy(float) * frame["cols"].to_numpy(float)
    return seconds / machine.bandwidth


def _host(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, *((frame["op"] == op, op) for op in _HOST))


def _host_seconds(frame: pd.DataFrame, machine: Machine, c: HostConstants, op: str) -> Array:
    rows, columns = frame["rows"].to_numpy(float), frame["cols"].to_numpy(float)
    if op == "softmax":
        return timed_seconds(softmax_seconds(rows, columns, machine), c)
    if op == "layernorm":
        return timed_seconds(layer_norm_seconds(rows, columns, machine), c)
    return timed_seconds(kernels_seconds(OPERATIONS["activation", "fused"], rows, columns, machine), c)


def _systolic(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, ((frame["op"] == "product") & _tpu(frame), "bfloat16"))


def _systolic_seconds(frame: pd.DataFrame, machine: Machine, c: SystolicConstants, variant: str) -> Array:
    m, n, k = (frame[x].to_numpy(float) for x in "mnk")
    # the table has no key and value products: where rows fill tiles of 128, they are part of the queries'
    merged = (frame["layer"] == "q_proj").to_numpy() & (np.ceil(m / 8) % 16 == 0)
    n = np.where(merged, n * (1 + 2 * frame["keys"].to_numpy(float)), n)
    after_attention = (frame["layer"] == "o_proj").to_numpy()  # its weights arrive while attention computes
    return systolic_seconds(m, n, k, machine, c, dtype="bf16", weight_bytes=2, prefetched=after_attention)


def _on_chip(frame: pd.DataFrame) -> pd.Series[str]:
    moves = frame["op"].isin(["norm", "rotary", "gated_activation"])
    return where(frame, ((frame["op"] == "gather") & _tpu(frame), "gather"), (moves & _tpu(frame), "vector"))


def _on_chip_seconds(frame: pd.DataFrame, machine: Machine, c: OnChipConstants, variant: str) -> Array:
    # the final norm is two operations: the last token of each sequence is picked first
    picks = (frame["layer"] == "final_layernorm").to_numpy()
    return on_chip_seconds(_on_chip_bytes(frame), machine, c) + np.where(picks, c.launch, 0)


def _on_chip_bytes(frame: pd.DataFrame) -> Array:
    """Bytes left after XLA's fusion: nothing of norms that follow a product or of activations; of the rotary
    embedding the keys, which the cache needs (queries turn inside attention)."""
    everything = 4 * frame["rows"].to_numpy(float) * frame["cols"].to_numpy(float)
    share = np.where(frame["layer"].isin(["embedding", "input_layernorm"]), 1.0, 0.0)
    keys = frame["keys"].to_numpy(float)
    moved: Array = everything * np.where(frame["layer"] == "rope", keys / (1 + keys), share)
    return moved


def _on_chip_roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    seconds: Array = 4 * frame["rows"].to_numpy(float) * frame["cols"].to_numpy(float) / machine.bandwidth
    return seconds


def _even(frame: pd.DataFrame) -> pd.Series[bool]:
    return frame["tokens"] % 2 == 0


def _faults(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    """operators.md, known problems: TPU rows below 64 tokens jump by 2x; products above the device's peak. Attention
    and collectives have tables of their own."""
    sized = _dimensions(frame)
    rate = 2 * sized["m"] * sized["n"] * sized["k"] / frame["time_s"]
    return where(
        frame,
        (frame["layer"].isin(_NAMES[0]), "collective: see the collectives table"),
        (frame["layer"].isin(_NAMES[1]), "attention layer: see attention table"),
        (_tpu(frame) & (frame["tokens"] < _TPU_FROM), "TPU rows below 64 tokens jump by 2x"),
        (rate > device.matmul_peak("bf16").flop_per_s, "above the device's peak rate"),
    )


LAYERS = Table(
    "layers",
    frozenset({"device", "timing", "model", "tp", "layer", "tokens", "batch", "q_len", "kv_len", "time_s"}),
    (
        Part("matmul", MatmulConstants, _products, _product, _product_roofline, fits_on=()),
        Part(
            "memory", MemoryConstants, _pointwise, _pointwise_seconds, _pointwise_roofline,
            fits_on=(), published=published,
        ),
        Part("host", HostConstants, _host, _host_seconds, _pointwise_roofline, fits_on=()),
        Part(
            "systolic", SystolicConstants, _systolic, _systolic_seconds, _product_roofline,
            fits_on=("llmservingsim",), fit_rows=_even,
        ),
        Part(
            "on_chip", OnChipConstants, _on_chip, _on_chip_seconds, _on_chip_roofline,
            fits_on=("llmservingsim",), fit_rows=_even,
        ),
    ),
    _faults,
    group=("source", "device", "layer"),
    prepare=_dimensions,
)  # fmt: skip
