"""DeepSeek-V4's attention as operators: a window of tokens, and compressed entries of everything before."""

from __future__ import annotations

from tfsim.models.indexer import chosen_pairs, index_scores, untrained
from tfsim.models.parts import (
    BlockContext,
    apply_norm,
    as_stream,
    cached_element_bytes,
    project,
    to_stream,
)
from tfsim.models.spec.compressed import CompressedAttention, Compression
from tfsim.operators.attention import attention, decode_pairs_twice, keys_in_reach, pairs_twice, prefill_pairs_twice
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import pointwise, rotary
from tfsim.operators.matmul import grouped_linear
from tfsim.units import Number, ceil_div, floor_div


def compressed_attention(context: BlockContext, mixer: CompressedAttention, x: Tensor) -> list[Operator]:
    """Queries through a latent, one shared key-value vector, compressed entries, grouped output projection."""
    shape, spec, d = context.shape, context.spec, mixer.d_head
    style, tokens, tp = shape.style, shape.tokens, shape.shards.tp
    heads = ceil_div(mixer.n_heads, tp)

    def normed(name: str, of: Tensor, rows: Number, width: int, weight: bool = True) -> Operator:
        norm = spec.norm.model_copy(update={"weight": weight, "two_inputs": not weight})
        return apply_norm(name, of, norm, rows=rows, width=width, shape=shape, fmt=spec.dtype)

    x, ops = as_stream("attention.gather", x, spec.d_model, shape)
    ops.append(project(context, "q_a_proj", x, mixer.q_lora_rank, spec.d_model))
    ops.append(normed("q_a_norm", ops[-1].output, tokens, mixer.q_lora_rank))
    latent = ops[-1].output
    ops.append(project(context, "q_b_proj", latent, heads * d, mixer.q_lora_rank))
    ops.append(normed("q_b_norm", ops[-1].output, tokens * heads, d, weight=False))
    q = ops[-1].output
    ops.append(project(context, "kv_proj", x, d, spec.d_model))
    ops.append(normed("kv_norm", ops[-1].output, tokens, d))
    kv = ops[-1].output
    if mixer.rope:
        turned = mixer.rope.rotary_dim or d

        def tables(name: str) -> tuple[Tensor, ...]:  # spread to pairs at every use
            return tuple(activation(f"{name}.{part}", shape.seq_len * turned, style) for part in ("cos", "sin"))

        ops.append(rotary("q.rope", q, elements=tokens * heads * d, tables=tables("q"), style=style))
        q = ops[-1].output
        ops.append(rotary("kv.rope", kv, elements=tokens * d, tables=tables("kv"), style=style))
        kv = ops[-1].output
    keys, pairs2 = _window(context, mixer)
    if mixer.compression:
        compressing, entries, entry_pairs2 = _entries(context, mixer, mixer.compression, x, latent)
        ops += compressing
        keys, pairs2 = keys + entries, pairs2 + entry_pairs2
    element = cached_element_bytes(context)
    ops.append(
        attention(
            q,
            kv,
            kv,
            batch=shape.batch,
            heads=heads,
            kv_heads=1,
            q_len=shape.seq_len,
            kv_len=keys,
            d_qk=d,
            d_v=d,
            pairs2=pairs2,
            style=style,
            kv_bytes=element,
            kv_read=shape.batch * keys * d * element,
            softmax_fp32=mixer.softmax_fp32,
            sinks=1,
            weights=(Weight("sinks", "attn", heads, fmt="fp32"),),
        )
    )
    out = ops[-1].output
    if mixer.rope:  # values were rotated with the keys: the output is turned back
        ops.append(rotary("out.rope", out, elements=tokens * heads * d, tables=tables("out"), style=style))
        out = ops[-1].output
    groups = ceil_div(mixer.o_groups, tp)
    per_group = mixer.n_heads // mixer.o_groups * d
    ops.append(
        grouped_linear(
            "o_a_proj",
            out,
            rows=tokens * groups,
            n=mixer.o_lora_rank,
            k=per_group,
            experts=groups,
            experts_read=groups,
            style=style,
            fmt=context.fmt("o_a_proj", "attn"),
            bias=False,
            component="attn_proj",
            group="attn",
        )
    )
    ops.append(project(context, "o_b_proj", ops[-1].output, spec.d_model, groups * mixer.o_lora_rank))
    ops.append(to_stream("attention.reduce", ops[-1].output, spec.d_model, shape))
    return ops


def _window(context: BlockContext, mixer: CompressedAttention) -> tuple[Number, Number]:
    """(uncompressed keys in reach, twice their pairs)."""
    shape = context.shape
    if shape.phase == "decode":
        keys = keys_in_reach(shape.seq_len, shape.past_len, mixer.window)
        return keys, decode_pairs_twice(shape.seq_len, keys)
    halved = shape.causal == "halved"
    pairs2 = prefill_pairs_twice(shape.seq_len, shape.past_len, mixer.window, chunked=False, halved=halved)
    return shape.past_len + shape.seq_len, pairs2


def _entries(
    context: BlockContext, mixer: CompressedAttention, how: Compression, x: Tensor, latent: Tensor
) -> tuple[list[Operator], Number, Number]:
    """Making this pass's entries and choosing among all: (operators, entries attended to, twice their pairs)."""
    shape = context.shape
    end = shape.past_len + shape.seq_len
    entries = mixer.entries(end)
    ops = _compress(context, how, x, "", mixer.d_head)
    seen = shape.seq_len * entries * 2
    if shape.phase != "decode" and shape.causal == "halved":  # a query sees the entries closed before it
        seen = floor_div(pairs_twice(shape.seq_len, shape.past_len, None, chunked=False), how.ratio)
    if how.indexer is None:
        return ops, entries, seen
    indexer, d = how.indexer, how.indexer.d_head
    choosing = _compress(context, how, x, "index_", d)
    k = choosing[-1].output
    query = project(context, "index_q_proj", latent, indexer.n_heads * d, mixer.q_lora_rank)
    weights = project(context, "index_weights", x, indexer.n_heads, context.spec.d_model)
    kv_bytes, per_pair = cached_element_bytes(context), indexer.n_heads * d
    scores = index_scores(context, indexer, query.output, k, entries, seen, kv_bytes, per_pair=per_pair)
    ops += untrained([*choosing, query, weights, scores])
    if shape.phase == "decode" or shape.causal == "full":
        return ops, *chosen_pairs(context, indexer, entries)
    reach = pairs_twice(shape.seq_len, shape.past_len, indexer.top_k * how.ratio, chunked=False)
    return ops, indexer.keys(entries), floor_div(reach, how.ratio)


def _compress(context: BlockContext, how: Compression, x: Tensor, prefix: str, width: int) -> list[Operator]:
    """Values and gates of every token, a softmax of the gates inside each window, their weighted sum, a norm."""
    spec, shape, style = context.spec, context.shape, context.shape.style
    n, tokens = how.series * width, shape.tokens
    kv = project(context, f"{prefix}compress_kv", x, n, spec.d_model)
    gates = project(context, f"{prefix}compress_gate", x, n, spec.d_model)
    rows = shape.batch * floor_div(shape.seq_len, how.ratio)
    pooled = activation(f"{prefix}compress.out", rows * width, style)
    shares = Tensor(f"{prefix}compress.shares", tokens * n, 4)
    bias = Weight(f"{prefix}compress.position_bias", "attn", how.ratio, n, fmt="fp32")
    kept: tuple[Tensor, ...] = (kv.output, shares)
    if style.low_precision:  # the shares are cast back before they weigh the values
        kept += (activation(f"{prefix}compress.weights", tokens * n, style),)
    pooling = pointwise(
        f"{prefix}compress",
        "pointwise",
        pooled,
        saves=kept,
        weights=(bias,),
        vector_flops=10 * tokens * n,
        inputs=2 * how.ratio * how.series,
        style=style,
    )
    norm = apply_norm(f"{prefix}compress_norm", pooled, spec.norm, rows=rows, width=width, shape=shape, fmt=spec.dtype)
    return [kv, gates, pooling, norm]
