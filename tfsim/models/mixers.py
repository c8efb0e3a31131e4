"""Token mixers: grouped-query attention and multi-head latent attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfsim.models.parts import BlockContext, apply_norm, as_stream, to_stream
from tfsim.models.recurrent import recurrent
from tfsim.models.spec import MLA, Attention, Rope
from tfsim.operators.attention import attention, decode_pairs_twice, keys_in_reach, prefill_pairs_twice
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import pointwise, rotary
from tfsim.operators.formats import element_bytes
from tfsim.operators.matmul import linear
from tfsim.units import Number, ceil_div, maximum


def mix(context: BlockContext, x: Tensor) -> list[Operator]:
    """The mixer of a block applied to the (normalised) stream ``x``."""
    mixer = context.block.mixer
    assert mixer is not None
    return MIXERS[mixer.kind](context, mixer, x)


def _projection(
    context: BlockContext, name: str, x: Tensor, n: Number, k: Number, bias: bool = False, tokens: Number | None = None
) -> Operator:
    return linear(
        name,
        x,
        tokens=context.shape.tokens if tokens is None else tokens,
        n=n,
        k=k,
        style=context.shape.style,
        group="attn",
        component="attn_proj",
        fmt=context.fmt(name, "attn"),
        bias=bias,
        bias_fmt=context.spec.dtype,
    )


def rope_tables(rope: Rope, width: int, context: BlockContext) -> tuple[Tensor, ...]:
    """Cosines and sines of one pass: shared by all layers of the same rotary base; interleaved pairs need half."""
    shape = context.shape
    rotated = rope.rotary_dim or width
    elements = shape.seq_len * (rotated // 2 if rope.interleaved else rotated)
    return tuple(
        Tensor(f"rope.{rope.theta:g}.{rotated}.{part}", elements, shape.style.act, scope="model")
        for part in ("cos", "sin")
    )


def _lengths(context: BlockContext, mixer: Attention | MLA) -> tuple[Number, Number]:
    """(keys in reach, twice the pairs counted) under the pass's causal convention."""
    shape = context.shape
    span, chunked = mixer.span
    if shape.phase == "decode":
        keys = keys_in_reach(shape.seq_len, shape.past_len, span)
        return keys, decode_pairs_twice(shape.seq_len, keys)
    halved = shape.causal == "halved"
    end = shape.past_len + shape.seq_len
    return end, prefill_pairs_twice(shape.seq_len, shape.past_len, span, chunked=chunked, halved=halved)


def _cache_bytes(context: BlockContext) -> Number:
    return element_bytes(context.spec.kv_format) if context.spec.kv_format else context.shape.style.act


def grouped_attention(context: BlockContext, mixer: Attention, x: Tensor) -> list[Operator]:
    """MHA / GQA / MQA (Vaswani 2017; Ainslie 2023; Shazeer 2019) with optional QK norm, rotary and clipping."""
    shape, d_model = context.shape, context.spec.d_model
    style, tp = shape.style, shape.shards.tp
    heads, d = ceil_div(mixer.n_heads, tp), mixer.d_head
    kv_heads = maximum(1, ceil_div(mixer.n_kv_heads, tp))
    q_width, kv_width = heads * d, kv_heads * d
    x, ops = as_stream("attention.gather", x, d_model, shape)
    if mixer.fused_qkv:
        ops.append(_projection(context, "qkv_proj", x, q_width + 2 * kv_width, d_model, mixer.qkv_bias))
        if mixer.clip_qkv:
            ops.append(_clip("qkv_clip", ops[-1].output, context))
        q = k = v = ops[-1].output
    else:
        made = {}
        for name, width in (("q_proj", q_width), ("k_proj", kv_width), ("v_proj", kv_width)):
            ops.append(_projection(context, name, x, width, d_model, mixer.qkv_bias))
            if mixer.clip_qkv:
                ops.append(_clip(f"{name}.clip", ops[-1].output, context))
            made[name] = ops[-1].output
        q, k, v = made.values()
    if mixer.qk_norm:
        normed = [
            _qk_norm(context, mixer, label, t, n) for label, t, n in (("q_norm", q, heads), ("k_norm", k, kv_heads))
        ]
        ops += normed
        q, k = normed[0].output, normed[1].output
    if mixer.rope:
        tables = rope_tables(mixer.rope, d, context)
        turned = [
            rotary(f"{label}.rope", t, elements=shape.tokens * width, tables=tables, style=style)
            for label, t, width in (("q", q, q_width), ("k", k, kv_width))
        ]
        ops += turned
        q, k = turned[0].output, turned[1].output
    kv_len, pairs2 = _lengths(context, mixer)
    sinks = (Weight("sinks", "attn", heads, fmt=context.spec.dtype),) if mixer.sinks else ()
    ops.append(
        attention(
            q,
            k,
            v,
            batch=shape.batch,
            heads=heads,
            kv_heads=kv_heads,
            q_len=shape.seq_len,
            kv_len=kv_len,
            d_qk=d,
            d_v=d,
            pairs2=pairs2,
            style=style,
            kv_bytes=_cache_bytes(context),
            softmax_fp32=mixer.softmax_fp32,
            scores_fp32=mixer.scores_fp32,
            score_copies=1 if mixer.logit_softcap else 0,
            sinks=1 if mixer.sinks else 0,
            weights=sinks,
        )
    )
    ops.append(_projection(context, "o_proj", ops[-1].output, d_model, q_width, mixer.out_bias))
    ops.append(to_stream("attention.reduce", ops[-1].output, d_model, shape))
    return ops


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
    if mixer.q_lora_rank:
        ops.append(_projection(context, "q_a_proj", x, mixer.q_lora_rank, d_model, mixer.bias))
        ops.append(_latent_norm(context, "q_a_norm", ops[-1].output, mixer.q_lora_rank))
        ops.append(_projection(context, "q_b_proj", ops[-1].output, heads * d_qk, mixer.q_lora_rank))
    else:
        ops.append(_projection(context, "q_proj", x, heads * d_qk, d_model))
    q = ops[-1].output
    ops.append(_projection(context, "kv_a_proj", x, rank + d_rope, d_model, mixer.bias))
    latent = ops[-1].output
    ops.append(_latent_norm(context, "kv_a_norm", Tensor("kv_a_proj.latent", tokens * rank, style.act), rank))
    normed = ops[-1].output
    if mixer.rope:
        tables = rope_tables(mixer.rope, d_rope, context)
        ops.append(rotary("q.rope", q, elements=tokens * heads * d_rope, tables=tables, style=style))
        ops.append(rotary("k.rope", latent, elements=tokens * d_rope, tables=tables, style=style))
    kv_len, pairs2 = _lengths(context, mixer)
    common: dict[str, Any] = {
        "batch": shape.batch,
        "heads": heads,
        "q_len": shape.seq_len,
        "kv_len": kv_len,
        "pairs2": pairs2,
        "style": style,
        "kv_bytes": _cache_bytes(context),
        "softmax_fp32": mixer.softmax_fp32,
    }
    wide = heads * (mixer.qk_nope_head_dim + d_v)
    expansion = Weight("kv_b_proj.weight", "attn", wide, rank, fmt=context.fmt("kv_b_proj", "attn"))
    if shape.phase == "decode" and shape.latent == "absorbed":
        ops += _absorbed(context, mixer, q, expansion, heads, common)
    else:
        # a decode step that expands does so for every cached latent
        expanded = shape.batch * kv_len if shape.phase == "decode" else tokens
        ops.append(_projection(context, "kv_b_proj", normed, wide, rank, tokens=expanded))
        q = activation("q.assembled", tokens * heads * d_qk, style)
        k = activation("k.assembled", expanded * heads * d_qk, style)
        ops.append(attention(q, k, ops[-1].output, kv_heads=heads, d_qk=d_qk, d_v=d_v, **common))
    ops.append(_projection(context, "o_proj", ops[-1].output, d_model, heads * d_v, mixer.bias))
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
    "recurrent": recurrent,
}
