"""Per-layer inputs: every layer adds a small embedding of its own for each token (Gemma-3n, Gemma-4)."""

from __future__ import annotations

from tfsim.models.parts import BlockContext, apply_norm, model_norm, weight_format
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec, PerLayerInput
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import activate, embedding, pointwise, residual
from tfsim.operators.matmul import linear


def per_layer_tables(spec: ModelSpec, shape: Shape) -> list[Operator]:
    """One table whose rows hold all layers' inputs, joined with a projection of the token embedding."""
    extra = spec.per_layer_input
    if extra is None:
        return []
    width, style, tokens = spec.n_layers * extra.width, shape.style, shape.tokens
    fmt = weight_format(spec, "embed_other")
    table = Weight("embed_per_layer.weight", "embed_other", extra.vocab_size, width, fmt=fmt)
    made = embedding("embed_per_layer", table, tokens=tokens, width=width, style=style)
    projected = linear(
        "per_layer_projection",
        activation("embed_token.out", tokens * spec.d_model, style),
        tokens=tokens,
        n=width,
        k=spec.d_model,
        style=style,
        group="embed_other",
        component="embed_frontend",
        fmt=fmt,
    )
    rows = tokens * spec.n_layers
    normed = apply_norm(
        "per_layer_norm", projected.output, spec.norm, rows=rows, width=extra.width, shape=shape, fmt=spec.dtype
    )
    summed = residual("per_layer.sum", tokens * width, style)
    return [made, projected, normed, summed]


def layer_input(context: BlockContext, extra: PerLayerInput, x: Tensor) -> list[Operator]:
    """gate(x) * input of this layer, projected back and normalised, added to the stream."""
    spec, shape, style = context.spec, context.shape, context.shape.style
    tokens, width = shape.stream_tokens, extra.width

    def matrix(name: str, of: Tensor, n: int, k: int) -> Operator:
        fmt = context.fmt(name, "ffn_dense")
        return linear(name, of, tokens=tokens, n=n, k=k, style=style, group="ffn_dense", component="ffn", fmt=fmt)

    gate = matrix("per_layer_gate", x, width, spec.d_model)
    acted = activate("per_layer_act", extra.activation, gate.output, elements=tokens * width, style=style)
    product = activation("per_layer_product", tokens * width, style)
    own = activation("per_layer_input", tokens * width, style)
    times = pointwise(
        "per_layer_mul",
        "pointwise",
        product,
        saves=(acted.output, own),
        vector_flops=product.elements,
        inputs=2,
        style=style,
    )
    back = matrix("per_layer_back", product, spec.d_model, width)
    normed = model_norm("post_per_layer_norm", back.output, spec, shape)
    return [gate, acted, times, back, normed, residual("stream.last", tokens * spec.d_model, style)]
