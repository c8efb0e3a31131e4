"""Manifold-constrained hyper-connections (Xie et al. 2026; DeepSeek-V4, section 2.2): the residual is several streams.

Around each mixer and FFN, n streams of d_model are collapsed into its input (weights ``pre``), mixed among each other
(``comb``, made doubly stochastic) and given its output (``post``); the 2n + n^2 weights come from the streams
themselves by one projection.
"""

from __future__ import annotations

from collections.abc import Callable

from tfsim.models.parts import BlockContext, apply_norm, model_norm
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec
from tfsim.operators.core import Operator, Tensor, Weight, activation, upcast
from tfsim.operators.elementwise import pointwise
from tfsim.operators.matmul import linear
from tfsim.units import Number

Body = Callable[[BlockContext, Tensor], list[Operator]]


def hyper_block(context: BlockContext, mix: Body, feed_forward: Body) -> list[Operator]:
    """One layer: collapse, norm, body, expand; for the mixer, then for the FFN."""
    spec, shape = context.spec, context.shape
    ops: list[Operator] = []
    for name, norm, body, given in (
        ("attn_hyper", "input_norm", mix, "stream.in"),
        ("ffn_hyper", "post_attention_norm", feed_forward, "stream.middle"),
    ):
        streams = _streams(given, spec, shape)
        collapsed = _weights(name, streams, spec, shape, outputs=spec.hyper_streams * (2 + spec.hyper_streams))
        normed = model_norm(norm, collapsed[-1].output, spec, shape)
        out = body(context, normed.output)
        ops += [*collapsed, normed, *out, _expand(name, streams, out[-1].output, spec, shape)]
    return ops


def hyper_collapse(spec: ModelSpec, shape: Shape) -> list[Operator]:
    """The streams' weighted sum before the final norm."""
    return _weights("head_hyper", _streams("stream.out", spec, shape), spec, shape, outputs=spec.hyper_streams)


def _streams(name: str, spec: ModelSpec, shape: Shape) -> Tensor:
    return activation(name, shape.stream_tokens * spec.d_model * spec.hyper_streams, shape.style)


def _weights(name: str, x: Tensor, spec: ModelSpec, shape: Shape, *, outputs: int) -> list[Operator]:
    """``outputs`` weights per token from all streams, in fp32, and the input collapsed by the first n of them."""
    style, tokens, n = shape.style, shape.stream_tokens, spec.hyper_streams
    width = n * spec.d_model
    plain = spec.norm.model_copy(update={"weight": False})
    normed = apply_norm(f"{name}.norm", x, plain, rows=tokens, width=width, shape=shape, fmt="fp32")
    made = linear(
        f"{name}.fn",
        upcast(normed.output, style),
        tokens=tokens,
        n=outputs,
        k=width,
        style=style,
        group="other",
        component="other",
        fmt="fp32",
    )
    scales = 1 if outputs == n else 3
    weights = (
        Weight(f"{name}.base", "other", outputs, fmt="fp32"),
        Weight(f"{name}.scale", "other", scales, fmt="fp32"),
    )
    kept = _kept(name, tokens, n, outputs, spec.sinkhorn_steps) if style.eager else (made.output,)
    work = tokens * outputs * 10 + 40 * tokens * n * n + 2 * tokens * width
    out = activation(f"{name}.collapsed", tokens * spec.d_model, style)
    collapse = pointwise(
        f"{name}.collapse",
        "pointwise",
        out,
        saves=(x, *kept),
        weights=weights,
        vector_flops=work,
        inputs=n,
        style=style,
    )
    return [normed, made, collapse]


def _kept(name: str, tokens: Number, n: int, outputs: int, steps: int) -> tuple[Tensor, ...]:
    """What eager torch keeps of the weights: sigmoids, and every division of the Sinkhorn iterations."""
    gates = {"scaled": outputs, "pre_sigmoid": n, "pre": n}
    if outputs > n:
        divisions = 2 * steps - 1
        gates |= {"post_sigmoid": n, "softmax": n * n, "sinkhorn": divisions * (n * n + n)}
    return tuple(Tensor(f"{name}.{part}", tokens * size, 4) for part, size in gates.items())


def _expand(name: str, x: Tensor, y: Tensor, spec: ModelSpec, shape: Shape) -> Operator:
    """post * y + comb^T streams: an n x n product per token."""
    style, tokens, n = shape.style, shape.stream_tokens, spec.hyper_streams
    out = activation(f"{name}.expanded", tokens * spec.d_model * n, style)
    moved = tokens * spec.d_model * style.act
    return Operator(
        f"{name}.expand",
        "stream_mix",
        "other",
        out,
        dims={"elements": out.elements, "passes": 1},
        flops=2 * tokens * n * n * spec.d_model,
        vector_flops=2 * tokens * n * n * spec.d_model + 2 * out.elements,
        read=moved * (n + 1),
        write=moved * n,
        saves=(x, y, activation(f"{name}.comb", tokens * n * n, style), activation(f"{name}.post", tokens * n, style)),
        rate=style.dtype,
    )
