"""State space mixers as operators: S4 (Gu et al. 2022), Mamba (Gu and Dao 2023), Mamba-2 (Dao and Gu 2024)."""

from __future__ import annotations

from tfsim.models.parts import BlockContext, apply_norm, as_stream, to_stream
from tfsim.models.spec import Norm
from tfsim.models.spec.ssm import S4, Mamba, Mamba2
from tfsim.operators.collectives import collective
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.delta import causal_conv
from tfsim.operators.elementwise import activate, pointwise
from tfsim.operators.matmul import linear
from tfsim.operators.scan import fft_convolution, s4_step, selective_scan, state_space_dual
from tfsim.units import Number, ceil_div, maximum


def _projection(context: BlockContext, name: str, x: Tensor, n: Number, k: Number, bias: bool = False) -> Operator:
    shape, spec = context.shape, context.spec
    fmt = context.fmt(name, "ssm")
    return linear(
        name,
        x,
        tokens=shape.tokens,
        n=n,
        k=k,
        style=shape.style,
        group="ssm",
        component="ssm",
        fmt=fmt,
        bias=bias,
        bias_fmt=spec.dtype,
    )


def _convolution(context: BlockContext, x: Tensor, channels: Number, kernel: int, bias: bool) -> list[Operator]:
    """The short causal convolution and its SiLU."""
    shape = context.shape
    return causal_conv(
        "conv1d",
        x,
        batch=shape.batch,
        seq_len=shape.seq_len,
        channels=channels,
        kernel=kernel,
        stepwise=shape.phase == "decode",
        group="ssm",
        component="ssm",
        style=shape.style,
        fmt=context.spec.dtype,
        bias=bias,
    )


def _flat(name: str, x: Tensor, elements: Number, context: BlockContext) -> Tensor:
    """``x`` as a linear layer reads it: torch copies the transposed tensor."""
    return activation(name, elements, context.shape.style) if context.shape.style.eager else x


def mamba(context: BlockContext, mixer: Mamba, x: Tensor) -> list[Operator]:
    """in_proj -> (x, z); x = silu(conv(x)); dt, B, C from x; selective scan gated by silu(z); out_proj."""
    shape, d_model, tokens, tp = context.shape, context.spec.d_model, context.shape.tokens, context.shape.shards.tp
    style, rank, n = shape.style, mixer.dt_rank, mixer.d_state
    channels = ceil_div(mixer.d_inner, tp)
    x, ops = as_stream("ssm.gather", x, d_model, shape)
    ops.append(_projection(context, "in_proj", x, 2 * channels, d_model, mixer.proj_bias))
    projected = ops[-1].output
    ops += _convolution(context, projected, channels, mixer.d_conv, mixer.conv_bias)
    u = ops[-1].output
    ops.append(
        _projection(context, "x_proj", _flat("x_proj.in", u, tokens * channels, context), rank + 2 * n, channels)
    )
    parameters = ops[-1].output
    # every device holds some channels, and all of them share dt, B and C
    ops.append(
        collective(
            "x_proj.reduce", "all_reduce", "tp", parameters, devices=tp, bytes=parameters.bytes, backward="all_reduce"
        )
    )
    dt = parameters
    if mixer.inner_norm:
        norms = [
            _inner_norm(context, mixer.inner_norm, label, parameters, width)
            for label, width in (("dt", rank), ("B", n), ("C", n))
        ]
        ops += norms
        dt = norms[0].output
        # where B is cast to fp32, only C is kept as the norm made it
        kept = 1 if style.eager and style.low_precision else 2
        parameters = Tensor("ssm.BC", kept * tokens * n, style.act)
    ops.append(_projection(context, "dt_proj", dt, channels, rank, bias=True))
    ops.append(
        selective_scan(
            u,
            projected,
            parameters,
            batch=shape.batch,
            seq_len=shape.seq_len,
            channels=channels,
            d_state=n,
            stepwise=shape.phase == "decode",
            style=style,
            fmt=context.spec.dtype,
        )
    )
    y = _flat("out_proj.in", ops[-1].output, tokens * channels, context)
    ops.append(_projection(context, "out_proj", y, d_model, channels, mixer.proj_bias))
    ops.append(to_stream("ssm.reduce", ops[-1].output, d_model, shape))
    return ops


def _inner_norm(context: BlockContext, spec: Norm, label: str, x: Tensor, width: int) -> Operator:
    """A norm over the step sizes, B or C, which are slices of one projection."""
    shape, rows = context.shape, context.shape.tokens
    part = Tensor(f"x_proj.{label}", rows * width, shape.style.act) if shape.style.low_precision else x
    return apply_norm(f"{label}_norm", part, spec, rows=rows, width=width, shape=shape, fmt=context.spec.dtype)


def mamba2(context: BlockContext, mixer: Mamba2, x: Tensor) -> list[Operator]:
    """in_proj -> (z, x B C, dt); x B C = silu(conv(x B C)); state space dual; norm(y * silu(z)); out_proj."""
    shape, d_model, tokens, tp = context.shape, context.spec.d_model, context.shape.tokens, context.shape.shards.tp
    style = shape.style
    heads, groups = ceil_div(mixer.n_heads, tp), maximum(1, ceil_div(mixer.n_groups, tp))
    width = heads * mixer.d_head
    channels = width + 2 * groups * mixer.d_state
    x, ops = as_stream("ssm.gather", x, d_model, shape)
    ops.append(_projection(context, "in_proj", x, width + channels + heads, d_model, mixer.proj_bias))
    projected = ops[-1].output
    ops += _convolution(context, projected, channels, mixer.d_conv, mixer.conv_bias)
    ops.append(
        state_space_dual(
            ops[-1].output,
            projected,
            batch=shape.batch,
            seq_len=shape.seq_len,
            heads=heads,
            groups=groups,
            d_head=mixer.d_head,
            d_state=mixer.d_state,
            chunk=mixer.chunk,
            stepwise=shape.phase == "decode",
            halved=shape.causal == "halved",
            style=style,
            fmt=context.spec.dtype,
        )
    )
    ops.append(_gated_norm(context, ops[-1].output, projected, width, groups if mixer.grouped_norm else 1))
    y = activation("out_proj.in", tokens * width, style)
    ops.append(_projection(context, "out_proj", y, d_model, width, mixer.proj_bias))
    ops.append(to_stream("ssm.reduce", ops[-1].output, d_model, shape))
    return ops


def _gated_norm(context: BlockContext, y: Tensor, gate: Tensor, width: Number, groups: Number) -> Operator:
    """RMSNorm(y * silu(z)) in fp32, over each group's channels."""
    shape, style, elements = context.shape, context.shape.style, context.shape.tokens * width
    saves: tuple[Tensor, ...] = (y, gate)
    if style.eager:
        saves += tuple(Tensor(f"ssm_norm.{part}", elements, 4) for part in ("silu", "gated", "normed"))
        saves += (Tensor("ssm_norm.z.fp32", elements, 4),) if style.low_precision else ()
    saves += (Tensor("ssm_norm.rstd", shape.tokens * groups, 4),)
    return pointwise(
        "ssm_norm",
        "norm",
        activation("ssm_norm.out", elements, style),
        saves=saves,
        weights=(Weight("ssm_norm.weight", "norm", width, fmt=context.spec.dtype),),
        vector_flops=12 * elements,
        passes=8 if style.eager else 1,
        inputs=2,
        style=style,
    )


def s4(context: BlockContext, mixer: S4, x: Tensor) -> list[Operator]:
    """y = W (GELU(conv(x) + D x)) + b, gated by its second half (GLU)."""
    shape, d_model, tokens, tp = context.shape, context.spec.d_model, context.shape.tokens, context.shape.shards.tp
    style, channels = shape.style, ceil_div(mixer.d_inner, tp)
    x, ops = as_stream("ssm.gather", x, d_model, shape)
    sizes = {"batch": shape.batch, "channels": channels}
    pairs, fmt = mixer.d_state // 2, context.spec.dtype
    if shape.phase == "decode":
        ops.append(s4_step(x, steps=shape.seq_len, pairs=pairs, style=style, fmt=fmt, **sizes))
    else:
        ops.append(fft_convolution(x, seq_len=shape.seq_len, pairs=pairs, style=style, fmt=fmt, **sizes))
    ops.append(activate("s4.act", "gelu", ops[-1].output, elements=tokens * channels, style=style))
    ops.append(_projection(context, "out_proj", ops[-1].output, 2 * d_model, channels, bias=True))
    mixed = ops[-1].output
    ops.append(to_stream("ssm.reduce", mixed, 2 * d_model, shape))
    halves = shape.stream_tokens * d_model
    ops.append(
        pointwise(
            "s4.glu",
            "pointwise",
            activation("s4.glu.out", halves, style),
            saves=(mixed,),
            vector_flops=5 * halves,
            inputs=2,
            style=style,
        )
    )
    return ops
