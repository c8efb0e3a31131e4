"""The gated delta rule as a token mixer (Yang et al. 2025; Qwen3-Next, 2025)."""

from __future__ import annotations

from tfsim.models.parts import BlockContext, apply_norm, as_stream, to_stream
from tfsim.models.spec.delta import GatedDelta
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.delta import causal_conv, delta_rule, delta_step
from tfsim.operators.elementwise import pointwise
from tfsim.operators.matmul import linear
from tfsim.units import Number, ceil_div


def gated_delta(context: BlockContext, mixer: GatedDelta, x: Tensor) -> list[Operator]:
    """Projections, short convolution, the delta rule over the state, a gated norm, output projection."""
    shape, d_model = context.shape, context.spec.d_model
    style, tp, tokens = shape.style, shape.shards.tp, shape.tokens
    key_width = ceil_div(mixer.n_key_heads, tp) * mixer.d_key
    heads = ceil_div(mixer.n_value_heads, tp)
    value_width = heads * mixer.d_value
    conv_width = 2 * key_width + value_width

    def projection(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        fmt = context.fmt(name, "ssm")
        return linear(name, of, tokens=tokens, n=n, k=k, style=style, group="ssm", component="ssm", fmt=fmt)

    x, ops = as_stream("attention.gather", x, d_model, shape)
    if mixer.fused_input:
        ops.append(projection("in_proj_qkvz", x, conv_width + value_width, d_model))
        qkv = z = ops[-1].output
        ops.append(projection("in_proj_ba", x, 2 * heads, d_model))
    else:
        ops.append(projection("in_proj_qkv", x, conv_width, d_model))
        qkv = ops[-1].output
        ops.append(projection("in_proj_z", x, value_width, d_model))
        z = ops[-1].output
        ops += [projection("in_proj_b", x, heads, d_model), projection("in_proj_a", x, heads, d_model)]
    recurrent = shape.phase == "decode"
    ops += causal_conv(
        "conv1d",
        qkv,
        batch=shape.batch,
        seq_len=shape.seq_len,
        channels=conv_width,
        kernel=mixer.conv_kernel,
        stepwise=recurrent,
        group="ssm",
        component="ssm",
        style=style,
        fmt=context.spec.dtype,
    )
    qkv = ops[-1].output
    ops.append(_gates(context, heads))
    if recurrent:
        ops.append(
            delta_step(
                qkv,
                batch=shape.batch,
                heads=heads,
                steps=shape.seq_len,
                d_key=mixer.d_key,
                d_value=mixer.d_value,
                style=style,
            )
        )
    else:
        ops.append(
            delta_rule(
                qkv,
                batch=shape.batch,
                key_heads=ceil_div(mixer.n_key_heads, tp),
                heads=heads,
                seq_len=shape.seq_len,
                d_key=mixer.d_key,
                d_value=mixer.d_value,
                chunk=mixer.chunk,
                style=style,
            )
        )
    ops += _gated_norm(context, mixer, ops[-1].output, z, heads)
    ops.append(projection("out_proj", ops[-1].output, d_model, value_width))
    ops.append(to_stream("attention.reduce", ops[-1].output, d_model, shape))
    return ops


def _gates(context: BlockContext, heads: Number) -> Operator:
    """beta = sigmoid(b); log alpha = -exp(A) softplus(a + dt): one of each per token and value head, in fp32."""
    shape, fmt = context.shape, context.spec.dtype
    elements = shape.tokens * heads
    return pointwise(
        "delta.gates",
        "pointwise",
        Tensor("delta.gates.out", 2 * elements, 4),
        saves=(activation("delta.beta", elements, shape.style), Tensor("delta.alpha", 2 * elements, 4)),
        weights=(Weight("A_log", "ssm", heads, fmt=fmt), Weight("dt_bias", "ssm", heads, fmt=fmt)),
        vector_flops=12 * elements,
        style=shape.style,
    )


def _gated_norm(context: BlockContext, mixer: GatedDelta, y: Tensor, z: Tensor, heads: Number) -> list[Operator]:
    """norm(y) * silu(z), the norm per head with one shared scale."""
    shape, style, spec = context.shape, context.shape.style, context.spec
    rows = shape.tokens * heads
    plain = spec.norm.model_copy(update={"unit_offset": False, "weight": True})
    normed = apply_norm("delta_norm", y, plain, rows=rows, width=mixer.d_value, shape=shape, fmt=spec.dtype)
    elements = rows * mixer.d_value
    out = activation("delta_norm.gated", elements, style)
    wide = (Tensor("delta.z.fp32", elements, 4),) if style.low_precision else (z,)
    saves = (*wide, Tensor("delta.z.silu", elements, 4), normed.output) if style.eager else (y, z)
    work = 6 * elements
    gated = pointwise("delta_norm.gate", "pointwise", out, saves=saves, vector_flops=work, inputs=2, style=style)
    return [normed, gated]
