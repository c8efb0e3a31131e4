"""Token mixers: grouped-query attention and multi-head latent attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfsim.models.compressed import compressed_attention
from tfsim.models.delta import gated_delta
from tfsim.models.disentangled import disentangled_attention
from tfsim.models.evoformer import evoformer
from tfsim.models.indexer import chosen_pairs, selection
from tfsim.models.linear import linear_attention
from tfsim.models.parts import (
    BlockContext,
    apply_norm,
    as_stream,
    cached_element_bytes,
    project,
    rope_tables,
    to_stream,
)
from tfsim.models.recurrent import recurrent
from tfsim.models.rwkv import time_mix
from tfsim.models.spec import MLA, Attention
from tfsim.models.ssm import mamba, mamba2, s4
from tfsim.operators.attention import (
    attention,
    banded_pairs_twice,
    decode_pairs_twice,
    keys_in_reach,
    prefill_pairs_twice,
)
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import pointwise, rotary, sigmoid_gate
from tfsim.operators.formats import element_bytes
from tfsim.units import Number, ceil_div, maximum, minimum


def mix(context: BlockContext, x: Tensor) -> list[Operator]:
    """The mixer of a block applied to the (normalised) stream ``x``."""
    mixer = context.block.mixer
    assert mixer is not None
    return MIXERS[mixer.kind](context, mixer, x)


def _lengths(context: BlockContext, mixer: Attention | MLA) -> tuple[Number, Number]:
    """(keys in reach, twice the pairs counted) under the pass's causal convention."""
    shape = context.shape
    span, chunked = mixer.span
    if shape.phase == "decode":
        keys = keys_in_reach(shape.seq_len, shape.past_len, span)
        return keys, decode_pairs_twice(shape.seq_len, keys)
    halved = shape.causal == "halved"
    if not getattr(mixer, "causal", True):
        if chunked and span is not None:
            inside = minimum(shape.seq_len, span)
            return inside, 2 * inside * inside
        pairs2 = banded_pairs_twice(shape.seq_len, span) if halved else 2 * shape.seq_len * shape.seq_len
        return shape.seq_len, pairs2
    end = shape.past_len + shape.seq_len
    return end, prefill_pairs_twice(shape.seq_len, shape.past_len, span, chunked=chunked, halved=halved)


def grouped_attention(context: BlockContext, mixer: Attention, x: Tensor) -> list[Operator]:
    """MHA / GQA / MQA (Vaswani 2017; Ainslie 2023; Shazeer 2019) with optional QK norm, rotary and clipping."""
    shape, d_model = context.shape, context.spec.d_model
    style, tp = shape.style, shape.shards.tp
    heads, d = ceil_div(mixer.n_heads, tp), mixer.d_head
    kv_heads = maximum(1, ceil_div(mixer.n_kv_heads, tp))
    q_width, kv_width = heads * d, kv_heads * d
    v_width, out_width = kv_heads * mixer.value_width, heads * mixer.value_width
    stream = x
    x, ops = as_stream("attention.gather", x, d_model, shape)
    if mixer.fused_qkv:
        ops.append(project(context, "qkv_proj", x, q_width + 2 * kv_width, d_model, mixer.qkv_bias))
        if mixer.clip_qkv:
            ops.append(_clip("qkv_clip", ops[-1].output, context))
        q = k = v = ops[-1].output
    else:
        made = {}
        for name, width in _projections(mixer, q_width, kv_width, v_width):
            bias = mixer.qkv_bias and (mixer.key_bias or name != "k_proj")
            ops.append(project(context, name, x, width, d_model, bias))
            if mixer.clip_qkv:
                ops.append(_clip(f"{name}.clip", ops[-1].output, context))
            made[name] = ops[-1].output
        q = made["q_proj"]
        k = made.get("k_proj", Tensor("reused.k", shape.tokens * kv_width, style.act))
        v = made.get("v_proj", k if mixer.value == "key" else Tensor("reused.v", shape.tokens * v_width, style.act))
    gates = q
    makes_keys = mixer.value != "reused"
    if mixer.value_norm and makes_keys:
        ops.append(_value_norm(context, mixer, v, kv_heads))
        v = ops[-1].output
    if mixer.qk_norm:
        ops.append(_qk_norm(context, mixer, "q_norm", q, heads))
        q = ops[-1].output
        if makes_keys:
            ops.append(_qk_norm(context, mixer, "k_norm", k, kv_heads))
            k = ops[-1].output
    if mixer.rope:
        tables = rope_tables(mixer.rope, d, context)
        ops.append(rotary("q.rope", q, elements=shape.tokens * q_width, tables=tables, style=style))
        q = ops[-1].output
        if makes_keys:
            ops.append(rotary("k.rope", k, elements=shape.tokens * kv_width, tables=tables, style=style))
            k = ops[-1].output
    kv_len, pairs2 = _lengths(context, mixer)
    if mixer.indexer:
        index_ops = selection(context, mixer.indexer, x, x, d_model, kv_len, pairs2, cached_element_bytes(context))
        kv_len, pairs2 = chosen_pairs(context, mixer.indexer, kv_len)
        ops += index_ops
    ops.append(attend(context, mixer, q, k, v, heads, kv_heads, kv_len, pairs2))
    if mixer.output_gate:
        ops += _output_gate(context, mixer, stream, gates, ops[-1].output, heads)
    ops.append(project(context, "o_proj", ops[-1].output, d_model, out_width, mixer.out_bias))
    ops.append(to_stream("attention.reduce", ops[-1].output, d_model, shape))
    return ops


def attend(
    context: BlockContext,
    mixer: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Number,
    kv_heads: Number,
    kv_len: Number,
    pairs2: Number,
) -> Operator:
    """softmax(q k^T) v as the mixer says: the numerics of its softmax, capping, sinks, mask."""
    shape = context.shape
    # windows of an image are sequences of their own, the last one padded (Qwen2.5-VL)
    q_len = kv_len if mixer.chunk and not mixer.causal else shape.seq_len
    sequences = shape.batch * ceil_div(shape.seq_len, q_len)
    sinks = (Weight("sinks", "attn", heads, fmt=context.spec.dtype),) if mixer.sinks else ()
    op = attention(
        q,
        k,
        v,
        batch=sequences,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        d_qk=mixer.d_head,
        d_v=mixer.value_width,
        pairs2=pairs2,
        style=shape.style,
        kv_bytes=cached_element_bytes(context),
        softmax_fp32=mixer.softmax_fp32,
        scores_fp32=mixer.scores_fp32,
        score_copies=1 if mixer.logit_softcap else 0,
        sinks=1 if mixer.sinks else 0,
        by_head=mixer.queries_by_head,
        weights=sinks,
    )
    if mixer.stored_mask and shape.style.attention == "eager":
        return replace(op, saves=(*op.saves, Tensor("attention.mask", shape.seq_len * kv_len, 1, recomputable=True)))
    return op


def _projections(mixer: Attention, q: Number, k: Number, v: Number) -> list[tuple[str, Number]]:
    """The separate projections of a mixer and their widths; an elementwise gate doubles the queries'."""
    made = [("q_proj", 2 * q if mixer.output_gate == "element" else q)]
    if mixer.value != "reused":
        made.append(("k_proj", k))
    if mixer.value == "own":
        made.append(("v_proj", v))
    return made


def _output_gate(
    context: BlockContext, mixer: Attention, x: Tensor, gates: Tensor, y: Tensor, heads: Number
) -> list[Operator]:
    """sigmoid(gate) * output: the gate is half of the queries' projection, or one logit per head of ``x``."""
    if mixer.output_gate == "element":
        return [sigmoid_gate("attention.gate", gates, y, opened=y.elements, style=context.shape.style)]
    projected = project(context, "g_proj", x, heads, context.spec.d_model)
    opened = context.shape.tokens * heads
    return [
        projected,
        sigmoid_gate("attention.gate", projected.output, y, opened=opened, style=context.shape.style),
    ]


def _value_norm(context: BlockContext, mixer: Attention, v: Tensor, heads: Number) -> Operator:
    shape, fmt = context.shape, context.spec.dtype
    plain = context.spec.norm.model_copy(update={"weight": False})
    rows = shape.tokens * heads
    return apply_norm("v_norm", v, plain, rows=rows, width=mixer.value_width, shape=shape, fmt=fmt)


def _clip(name: str, x: Tensor, context: BlockContext) -> Operator:
    out = activation(f"{name}.out", x.elements, context.shape.style)
    return pointwise(name, "pointwise", out, saves=(x,), vector_flops=x.elements, style=context.shape.style)


def _qk_norm(context: BlockContext, mixer: Attention, label: str, x: Tensor, heads: Number) -> Operator:
    assert mixer.qk_norm is not None
    tokens, d = context.shape.tokens, mixer.d_head
    rows, width, copies = {
        "head": (tokens * heads, d, 1),
        "each_head": (tokens * heads, d, heads),
        "full": (tokens, heads * d, 1),
    }[mixer.qk_norm.scope]
    shape, fmt = context.shape, context.spec.dtype
    return apply_norm(label, x, mixer.qk_norm.norm, rows=rows, width=width, shape=shape, copies=copies, fmt=fmt)


def latent_attention(context: BlockContext, mixer: MLA, x: Tensor) -> list[Operator]:
    """Multi-head latent attention (DeepSeek-V2, equations 9 to 19).

    A prefill expands the latents into keys and values per head. A decode step absorbs the expansion into the query and
    output instead (same section): scores are taken against the cached latents themselves.
    """
    shape, d_model = context.shape, context.spec.d_model
    style, tokens = shape.style, shape.tokens
    heads = ceil_div(mixer.n_heads, shape.shards.tp)
    d_qk = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    rank, d_rope, d_v = mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.v_head_dim
    x, ops = as_stream("attention.gather", x, d_model, shape)
    resid = x
    if mixer.q_lora_rank:
        ops.append(project(context, "q_a_proj", x, mixer.q_lora_rank, d_model, mixer.bias))
        ops.append(_latent_norm(context, "q_a_norm", ops[-1].output, mixer.q_lora_rank))
        resid = ops[-1].output
        ops.append(project(context, "q_b_proj", resid, heads * d_qk, mixer.q_lora_rank))
    else:
        ops.append(project(context, "q_proj", x, heads * d_qk, d_model))
    q = ops[-1].output
    ops.append(project(context, "kv_a_proj", x, rank + d_rope, d_model, mixer.bias))
    latent = ops[-1].output
    ops.append(_latent_norm(context, "kv_a_norm", Tensor("kv_a_proj.latent", tokens * rank, style.act), rank))
    normed = ops[-1].output
    if mixer.rope:
        tables = rope_tables(mixer.rope, d_rope, context)
        ops.append(rotary("q.rope", q, elements=tokens * heads * d_rope, tables=tables, style=style))
        ops.append(rotary("k.rope", latent, elements=tokens * d_rope, tables=tables, style=style))
    cached_keys, pairs2 = _lengths(context, mixer)
    kv_len = cached_keys
    if mixer.indexer:
        rank_q, kv_bytes = mixer.q_lora_rank or d_model, cached_element_bytes(context)
        if not mixer.reuses_selection:
            ops += selection(context, mixer.indexer, x, resid, rank_q, kv_len, pairs2, kv_bytes)
        kv_len, pairs2 = chosen_pairs(context, mixer.indexer, kv_len)
    common: dict[str, Any] = {
        "batch": shape.batch,
        "heads": heads,
        "q_len": shape.seq_len,
        "kv_len": kv_len,
        "pairs2": pairs2,
        "style": style,
        "kv_bytes": cached_element_bytes(context),
        "softmax_fp32": mixer.softmax_fp32,
    }
    wide = heads * (mixer.qk_nope_head_dim + d_v)
    expansion = Weight("kv_b_proj.weight", "attn", wide, rank, fmt=context.fmt("kv_b_proj", "attn"))
    if shape.phase == "decode" and shape.latent == "absorbed":
        ops += _absorbed(context, mixer, q, expansion, heads, common)
    else:
        # a decode step that expands does so for every cached latent
        expanded = shape.batch * cached_keys if shape.phase == "decode" else tokens
        ops.append(project(context, "kv_b_proj", normed, wide, rank, tokens=expanded))
        q = activation("q.assembled", tokens * heads * d_qk, style)
        k = activation("k.assembled", expanded * heads * d_qk, style)
        ops.append(attention(q, k, ops[-1].output, kv_heads=heads, d_qk=d_qk, d_v=d_v, **common))
    ops.append(project(context, "o_proj", ops[-1].output, d_model, heads * d_v, mixer.bias))
    ops.append(to_stream("attention.reduce", ops[-1].output, d_model, shape))
    return ops


def _latent_norm(context: BlockContext, name: str, x: Tensor, width: int) -> Operator:
    spec, shape = context.spec, context.shape
    return apply_norm(name, x, spec.norm, rows=shape.tokens, width=width, shape=shape, fmt=spec.dtype)


def _absorbed(
    context: BlockContext, mixer: MLA, q: Tensor, expansion: Weight, heads: Number, common: dict[str, Any]
) -> list[Operator]:
    """The decode form: q_nope W_uk, attention over latents (one shared KV head), then W_uv on the result."""
    shape, rank, style = context.shape, mixer.kv_lora_rank, context.shape.style
    latent = rank + mixer.qk_rope_head_dim
    cached = shape.batch * common["kv_len"] * latent * common["kv_bytes"]
    rows = shape.tokens * heads
    query = activation("absorb_q.out", rows * latent, style)

    def per_head(name: str, n: int, k: int, weights: tuple[Weight, ...]) -> Operator:
        # one [n, k] matrix per head, its half of kv_b_proj: a batched matmul
        return Operator(
            name,
            "matmul",
            "attn_proj",
            activation(f"{name}.out", rows * n, style),
            dims={"m": shape.tokens, "n": n, "k": k, "copies": heads},
            flops=2 * rows * n * k,
            read=rows * k * style.act,
            write=rows * n * style.act,
            weights=weights,
            weights_read=heads * n * k * element_bytes(expansion.fmt),
            rate=style.dtype,
        )

    return [
        per_head("absorb_q", rank, mixer.qk_nope_head_dim, (expansion,)),
        attention(query, query, query, kv_heads=1, d_qk=latent, d_v=rank, kv_read=cached, **common),
        per_head("absorb_v", mixer.v_head_dim, rank, ()),
    ]


# The operators of each kind of mixer; a family adds its own here.
MIXERS: dict[str, Callable[[BlockContext, Any, Tensor], list[Operator]]] = {
    "attention": grouped_attention,
    "mla": latent_attention,
    "disentangled": disentangled_attention,
    "compressed": compressed_attention,
    "gated_delta": gated_delta,
    "linear_attention": linear_attention,
    "recurrent": recurrent,
    "evoformer": evoformer,
    "mamba": mamba,
    "mamba2": mamba2,
    "rwkv": time_mix,
    "s4": s4,
}
