"""Disentangled attention (He et al. 2021, section 3.1, equations 3 and 4) as operators.

A(i, j) = Qc(i) Kc(j) + Qc(i) Kr(d(i, j)) + Kc(j) Qr(d(j, i)): contents with contents, with the vector of their
distance, and the other way round. The vectors are projected once for all sequences of the batch.
"""

from __future__ import annotations

from dataclasses import replace

from tfsim.models.frontends import relative_positions
from tfsim.models.parts import BlockContext, as_stream, project, to_stream
from tfsim.models.spec import Disentangled
from tfsim.operators.attention import attention
from tfsim.operators.core import Operator, Tensor, activation
from tfsim.units import Number, ceil_div


def disentangled_attention(context: BlockContext, mixer: Disentangled, x: Tensor) -> list[Operator]:
    """Projections, the content scores with the values, the position terms, the output projection."""
    spec, shape = context.spec, context.shape
    d_model, n = spec.d_model, shape.seq_len
    # no fused kernel takes the two gathered terms: the scores are always in memory
    style = replace(shape.style, attention="eager")
    heads = ceil_div(mixer.n_heads, shape.shards.tp)
    width = heads * mixer.d_head
    x, ops = as_stream("attention.gather", x, d_model, shape)
    ops += [project(context, name, x, width, d_model, bias=True) for name in ("q_proj", "k_proj", "v_proj")]
    q, k, v = (op.output for op in ops[-3:])
    terms = []
    if mixer.content_to_position:
        terms.append(_position_term(context, mixer, "c2p", "k_proj", Tensor("attention.q", q.elements, style.act)))
    if mixer.position_to_content:
        terms.append(_position_term(context, mixer, "p2c", "q_proj", k))
    for term in terms:
        ops += term
    core = attention(
        q,
        k,
        v,
        batch=shape.batch,
        heads=heads,
        kv_heads=heads,
        q_len=n,
        kv_len=n,
        d_qk=mixer.d_head,
        d_v=mixer.d_head,
        pairs2=2 * n * n,
        style=style,
        kv_bytes=style.act,
        softmax_fp32=False,
    )
    mask = Tensor("attention.mask", shape.batch * n * n, 1, recomputable=True)
    scales = activation("attention.scales", 1 + len(terms), style)
    ops.append(replace(core, saves=(*core.saves, mask, scales)))
    ops.append(project(context, "o_proj", ops[-1].output, d_model, width, bias=True))
    ops.append(to_stream("attention.reduce", ops[-1].output, d_model, shape))
    return ops


def _position_term(
    context: BlockContext, mixer: Disentangled, name: str, shared: str, content: Tensor
) -> list[Operator]:
    """One term: positions projected, multiplied with the content, and gathered by distance."""
    spec, shape, style = context.spec, context.shape, context.shape.style
    assert spec.relative_positions is not None
    heads, d = ceil_div(mixer.n_heads, shape.shards.tp), mixer.d_head
    vectors = relative_positions(spec, spec.relative_positions, shape)
    rows, tokens, n = spec.relative_positions.n_buckets, shape.tokens, shape.seq_len
    projected = project(context, f"{name}_proj", vectors, heads * d, spec.d_model, bias=True, tokens=rows)
    if mixer.shared:  # the content's own matrix, read again
        own = project(context, shared, vectors, heads * d, spec.d_model, bias=True)
        projected = replace(projected, weights=(), weights_read=own.weight_bytes)
    scores: Number = tokens * heads * rows
    kept = (
        content,
        activation(f"{name}.positions", shape.batch * heads * rows * d, style),
        activation(f"{name}.scores", scores, style),
        Tensor(f"{name}.index", n * n, 8),
    )
    product = Operator(
        name,
        "matmul",
        "attn_core",
        activation(f"{name}.out", shape.batch * heads * n * n, style),
        dims={"m": tokens, "n": rows, "k": d, "copies": heads},
        flops=2 * scores * d,
        read=(content.elements + shape.batch * heads * rows * d) * style.act,
        write=(scores + shape.batch * heads * n * n) * style.act,
        saves=kept,
        rate=style.dtype,
    )
    return [projected, product]
