"""RWKV-4 (Peng et al. 2023): time mixing and channel mixing, both on tokens mixed with the one before."""

from __future__ import annotations

from tfsim.models.parts import BlockContext, as_stream, to_stream
from tfsim.models.spec.ssm import RWKV, ChannelMix
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import activate, pointwise
from tfsim.operators.matmul import linear
from tfsim.operators.scan import wkv
from tfsim.units import Number, ceil_div


def _shift(context: BlockContext, prefix: str, group: str, x: Tensor, inputs: tuple[str, ...]) -> Operator:
    """mu x_t + (1 - mu) x_{t-1} with its own mu for each input (equations 11 to 13, 19 and 20)."""
    shape, d_model = context.shape, context.spec.d_model
    elements = shape.tokens * d_model
    kept: tuple[Tensor, ...] = (x,)
    if shape.style.eager:
        kept += (activation(f"{prefix}.shifted", elements, shape.style),)
        kept += tuple(activation(f"{prefix}.{name}.complement", d_model, shape.style) for name in inputs)
    return pointwise(
        f"{prefix}.shift",
        "pointwise",
        activation(f"{prefix}.shift.out", elements * len(inputs), shape.style),
        saves=kept,
        weights=tuple(Weight(f"{prefix}.mix_{name}", group, d_model, fmt=context.spec.dtype) for name in inputs),
        vector_flops=3 * elements * len(inputs),
        passes=3 if shape.style.eager else 1,
        style=shape.style,
    )


def _gated(context: BlockContext, prefix: str, receptance: Tensor, y: Tensor, elements: Number) -> list[Operator]:
    """sigmoid(r) * y."""
    style = context.shape.style
    opened = activation(f"{prefix}.opened", elements, style)
    out = activation(f"{prefix}.gated", elements, style)
    kept = (opened, y) if style.eager else (receptance, y)
    return [
        pointwise(
            f"{prefix}.gate",
            "pointwise",
            out,
            saves=kept,
            vector_flops=5 * elements,
            passes=2 if style.eager else 1,
            inputs=2,
            style=style,
        )
    ]


def time_mix(context: BlockContext, mixer: RWKV, x: Tensor) -> list[Operator]:
    """r, k, v from the shifted stream; o = W_o (sigmoid(r) * wkv(k, v))."""
    shape, d_model = context.shape, context.spec.d_model
    channels = ceil_div(mixer.d_attn, shape.shards.tp)

    def projection(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        fmt = context.fmt(name, "attn")
        return linear(
            name, of, tokens=shape.tokens, n=n, k=k, style=shape.style, group="attn", component="attn_proj", fmt=fmt
        )

    x, ops = as_stream("time_mix.gather", x, d_model, shape)
    inputs = ("key", "value", "receptance")
    ops.append(_shift(context, "time_mix", "attn", x, inputs))
    made = []
    for name in inputs:
        mixed = activation(f"time_mix.{name}", shape.tokens * d_model, shape.style)
        made.append(projection(name, mixed, channels, d_model))
    key, value, receptance = (op.output for op in made)
    ops += made
    ops.append(
        wkv(
            key,
            value,
            batch=shape.batch,
            seq_len=shape.seq_len,
            channels=channels,
            stepwise=shape.phase == "decode",
            style=shape.style,
            fmt=context.spec.dtype,
        )
    )
    ops += _gated(context, "time_mix", receptance, ops[-1].output, shape.tokens * channels)
    ops.append(projection("output", ops[-1].output, d_model, channels))
    ops.append(to_stream("time_mix.reduce", ops[-1].output, d_model, shape))
    return ops


def channel_mix(context: BlockContext, ffn: ChannelMix, x: Tensor) -> list[Operator]:
    """sigmoid(W_r x_r) * W_v relu(W_k x_k)^2."""
    shape, d_model = context.shape, context.spec.d_model
    width, style = ceil_div(ffn.d_ff, shape.shards.tp), shape.style

    def matrix(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        fmt = context.fmt(name, "ffn_dense")
        return linear(name, of, tokens=shape.tokens, n=n, k=k, style=style, group="ffn_dense", component="ffn", fmt=fmt)

    x, ops = as_stream("ffn.gather", x, d_model, shape)
    ops.append(_shift(context, "channel_mix", "ffn_dense", x, ("key", "receptance")))
    keyed, received = (
        activation(f"channel_mix.{name}", shape.tokens * d_model, style) for name in ("key", "receptance")
    )
    ops.append(matrix("ffn_key", keyed, width, d_model))
    ops.append(activate("channel_mix.act", "relu2", ops[-1].output, elements=shape.tokens * width, style=style))
    ops.append(matrix("ffn_value", ops[-1].output, d_model, width))
    ops.append(to_stream("ffn.reduce", ops[-1].output, d_model, shape))
    y = ops[-1].output
    receptance = matrix("ffn_receptance", received, d_model, d_model)
    ops.append(receptance)
    ops += _gated(context, "channel_mix", receptance.output, y, shape.tokens * d_model)
    return ops
