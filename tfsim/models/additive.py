"""Additive attention of a decoder to its encoder's output (Bahdanau et al. 2015, appendix A.1.2)."""

from __future__ import annotations

from dataclasses import replace

from tfsim.models.parts import BlockContext
from tfsim.models.spec.recurrent import Additive
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import pointwise
from tfsim.operators.matmul import linear
from tfsim.operators.products import batched_product
from tfsim.units import Number, where


def additive_attention(
    context: BlockContext, mixer: Additive, x: Tensor, source: Tensor, d_source: int, length: Number
) -> list[Operator]:
    """e_ij = v tanh(W q_i + U k_j + b), softmax over j, and the mean of the ``source``'s ``length`` states under it.

    As NVIDIA's GNMT v2 runs it for all decoder steps at once: the sum of every pair exists, d_attention wide.
    """
    shape, style, fmt = context.shape, context.shape.style, context.spec.dtype
    width, pairs = mixer.d_attention, shape.tokens * length

    def projection(name: str, of: Tensor, tokens: Number, k: int) -> Operator:
        label = f"additive.{name}"
        return linear(
            label,
            of,
            tokens=tokens,
            n=width,
            k=k,
            style=style,
            group="attn",
            component="attn_proj",
            fmt=context.fmt(label, "attn"),
        )

    query = projection("q_proj", x, shape.tokens, context.spec.d_model)
    key = projection("k_proj", source, shape.batch * length, d_source)
    tanh = activation("additive.tanh", pairs * width, style)
    vector = activation("additive.vector", 2 * width + 1, style)  # v, v / |v| and its norm
    weights = tuple(
        Weight(f"additive.{name}", "attn", n, fmt=fmt) for name, n in (("v", width), ("b", width), ("g", 1))
    )
    passes = 3 if style.eager else 0  # the sum, its tanh, and the product with v
    scores = Operator(
        "additive.scores",
        "additive_scores",
        "attn_proj",
        activation("additive.scores.out", pairs, style),
        dims={"elements": pairs * width, "passes": max(1, passes)},
        flops=2 * pairs * width,
        vector_flops=10 * pairs * width,
        read=query.output.bytes + key.output.bytes + passes * pairs * width * style.act,
        write=(passes * width + 1) * pairs * style.act,
        weights=weights,
        saves=(tanh, vector) if style.eager else (query.output, key.output, vector),
        rate=style.dtype,
    )
    chosen = activation("additive.weights", pairs, style)
    softmax = pointwise("additive.softmax", "softmax", chosen, saves=(chosen,), vector_flops=8 * pairs, style=style)
    # eager torch keeps a copy of the source with the batch first; one sequence needs none
    copied = activation("additive.source", source.elements, style)
    values = replace(copied, elements=where(shape.batch > 1, source.elements, 0)) if style.eager else source
    mean = batched_product(
        "additive.mean",
        chosen,
        values,
        copies=shape.batch,
        m=shape.seq_len,
        n=d_source,
        k=length,
        component="attn_core",
        style=style,
    )
    keys = [] if shape.phase == "decode" else [key]
    return [query, *keys, scores, softmax, mean]
