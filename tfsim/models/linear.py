"""Linear attention as a token mixer (Katharopoulos et al. 2020; Lightning Attention, MiniMax-01 2025)."""

from __future__ import annotations

from typing import Any

from tfsim.models.parts import BlockContext, apply_norm, as_stream, project, to_stream
from tfsim.models.spec.linear import LinearAttention
from tfsim.operators import linear
from tfsim.operators.core import Operator, Style, Tensor, activation
from tfsim.operators.elementwise import pointwise, sigmoid_gate
from tfsim.units import Number, ceil_div


def linear_attention(context: BlockContext, mixer: LinearAttention, x: Tensor) -> list[Operator]:
    """Projections, their feature map, attention over the state, a gated norm, output projection."""
    shape, d_model, style = context.shape, context.spec.d_model, context.shape.style
    heads = ceil_div(mixer.n_heads, shape.shards.tp)
    width = heads * mixer.d_head
    x, ops = as_stream("attention.gather", x, d_model, shape)
    names = ("qkv_proj",) if mixer.fused_qkv else ("q_proj", "k_proj", "v_proj")
    made = [project(context, name, x, 3 * width // len(names), d_model) for name in names]
    ops += [*made, _features(mixer, made, shape.tokens * width, style)]
    qkv = activation("features.qkv", shape.tokens * 3 * width, style)
    sizes: dict[str, Any] = {"batch": shape.batch, "heads": heads, "d_head": mixer.d_head, "style": style}
    if shape.phase == "decode":
        ops.append(linear.linear_step(qkv, steps=shape.seq_len, **sizes))
    else:
        ops.append(linear.linear_attention(qkv, seq_len=shape.seq_len, chunk=mixer.chunk, **sizes))
    y = ops[-1].output
    if mixer.normalised:
        ops.append(_normalise(y, shape.tokens * heads, style))
        y = ops[-1].output
    if mixer.gated:
        norm, fmt = context.spec.norm, context.spec.dtype
        ops.append(apply_norm("linear_norm", y, norm, rows=shape.tokens, width=width, shape=shape, fmt=fmt))
        y = ops[-1].output
        ops.append(project(context, "output_gate", x, width, d_model))
        gates = ops[-1].output
        ops.append(sigmoid_gate("attention.gate", gates, y, opened=gates.elements, style=style))
        y = ops[-1].output
    ops.append(project(context, "out_proj", y, d_model, width))
    ops.append(to_stream("attention.reduce", ops[-1].output, d_model, shape))
    return ops


def _features(mixer: LinearAttention, made: list[Operator], each: Number, style: Style) -> Operator:
    """The feature map of queries and keys (``each`` elements); silu of values as well."""
    silu = mixer.feature == "silu"
    mapped = (3 if silu else 2) * each
    kept = tuple(op.output for op in (made if silu or mixer.fused_qkv else made[:2]))
    out = activation("features.out", mapped, style)
    passes = 2 if style.eager and not silu else 1  # elu, then + 1
    return pointwise("features", "pointwise", out, saves=kept, vector_flops=8 * mapped, passes=passes, style=style)


def _normalise(y: Tensor, rows: Number, style: Style) -> Operator:
    """o_t / (q_t z_t), one divisor per token and head; the running sum of keys z costs one more addition a key."""
    out = activation("normalised.out", y.elements, style)
    kept = (y, activation("normalised.divisor", rows, style))
    return pointwise("normalise", "pointwise", out, saves=kept, vector_flops=4 * y.elements, inputs=2, style=style)
