"""Diffusion Transformers with adaLN-Zero blocks (Peebles and Xie 2023, section 3.2).

A condition vector c (timestep and class) is turned by every block into a shift, a scale and a gate for each of its two
branches: x + gate * branch(norm(x) (1 + scale) + shift).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tfsim.models.parts import BlockContext, model_norm, weight_format
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec
from tfsim.models.spec.dit import DenoiseHead
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import activate, embedding, pointwise
from tfsim.operators.matmul import linear
from tfsim.units import Number

Branch = Callable[[BlockContext, Tensor], list[Operator]]


def condition_operators(spec: ModelSpec, shape: Shape) -> list[Operator]:
    """c = W2 silu(W1 sines(t)) + label[y]: a vector per image. The sines are data: they need no gradient."""
    condition = spec.condition
    assert condition is not None
    style, images, d = shape.style, shape.batch, spec.d_model
    sines = activation("time.sines", images * condition.n_frequencies, style)
    first = _linear("time.0", sines, spec, shape, n=d, k=condition.n_frequencies)
    act = activate("time.act", "silu", first.output, elements=images * d, style=style)
    second = _linear("time.2", act.output, spec, shape, n=d, k=d)
    ops = [replace(first, dims={**first.dims, "data": 1}), act, second]
    if condition.n_labels:
        table = Weight("label.weight", "embed_other", condition.n_labels, d, fmt=weight_format(spec, "embed_other"))
        ops.append(embedding("label", table, tokens=images, width=d, style=style))
    return ops


def _linear(
    name: str,
    x: Tensor,
    spec: ModelSpec,
    shape: Shape,
    *,
    n: int,
    k: int,
    group: str = "embed_other",
    component: str = "embed_frontend",
    tokens: Number | None = None,
    fmt: str | None = None,
) -> Operator:
    return linear(
        name,
        x,
        tokens=shape.batch if tokens is None else tokens,
        n=n,
        k=k,
        style=shape.style,
        group=group,
        component=component,
        fmt=fmt or weight_format(spec, group),
        bias=True,
        bias_fmt=spec.dtype,
    )


def _modulation(spec: ModelSpec, shape: Shape, parts: int, group: str, fmt: str) -> list[Operator]:
    """W silu(c) + b: ``parts`` vectors of d_model per image. The condition itself is kept once, by the head."""
    d, images = spec.d_model, shape.batch
    condition = activation("condition", images * d, shape.style)
    act = activate("condition.act", "silu", condition, elements=images * d, style=shape.style)
    if group != "head":
        act = replace(act, saves=())
    return [act, _linear("adaln", act.output, spec, shape, n=parts * d, k=d, group=group, component=group, fmt=fmt)]


def _modulated(name: str, x: Tensor, vectors: Tensor, spec: ModelSpec, shape: Shape) -> list[Operator]:
    """norm(x) (1 + scale) + shift. Eager torch keeps the normalised values and 1 + scale; a fused kernel computes them
    again."""
    style = shape.style
    normed = model_norm(f"{name}.norm", x, spec, shape)
    out = activation(f"{name}.modulated", normed.output.elements, style)
    scale = activation(f"{name}.scale", shape.batch * spec.d_model, style)
    saves = (normed.output, scale) if style.eager else (x, vectors)
    passes = 2 if style.eager else 1
    return [
        normed,
        pointwise(
            f"{name}.modulate",
            "pointwise",
            out,
            saves=saves,
            vector_flops=2 * out.elements,
            passes=passes,
            style=style,
        ),
    ]


def modulated_block(context: BlockContext, x: Tensor, middle: Tensor, mix: Branch, feed: Branch) -> list[Operator]:
    """adaLN-Zero: both branches of a block shifted, scaled and gated by the condition."""
    spec, shape = context.spec, context.shape
    ops = _modulation(spec, shape, 6, "adaln", context.fmt("adaln", "adaln"))
    vectors = ops[-1].output
    for name, stream, branch, after in (("mixer", x, mix, "stream.middle"), ("ffn", middle, feed, "stream.out")):
        ops += _modulated(name, stream, vectors, spec, shape)
        ops += branch(context, ops[-1].output)
        total = activation(after, stream.elements, shape.style)
        ops.append(
            pointwise(
                f"{name}.gate",
                "pointwise",
                total,
                saves=(vectors, ops[-1].output),
                vector_flops=2 * stream.elements,
                inputs=2,
                passes=2 if shape.style.eager else 1,
                style=shape.style,
            )
        )
    return ops


def denoise_head(spec: ModelSpec, head: DenoiseHead, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    """The final layer: norm, shift and scale, a linear map to the patch; the loss is the mean squared error."""
    style, tokens = shape.style, shape.tokens
    ops = _modulation(spec, shape, 2, "head", weight_format(spec, "head"))
    ops += _modulated("final", x, ops[-1].output, spec, shape)
    ops.append(
        _linear(
            "final",
            ops[-1].output,
            spec,
            shape,
            n=head.d_out,
            k=spec.d_model,
            group="head",
            component="head",
            tokens=tokens,
        )
    )
    if loss:
        noise = ops[-1].output
        out = activation("loss.squares", noise.elements, style)
        ops.append(pointwise("loss", "pointwise", out, saves=(noise,), vector_flops=3 * noise.elements, style=style))
    return ops
