"""Sparse attention's lightning indexer as operators (DeepSeek-V3.2-Exp, 2025, section 2.1).

Its scores cover every visible key, however few are then selected: the part of sparse attention that stays quadratic.
The choice of keys passes no gradient: the model's loss does not train it (DeepSeek trains it by a loss of its own).
"""

from __future__ import annotations

from dataclasses import replace

from tfsim.models.parts import BlockContext, apply_norm
from tfsim.models.spec import LAYER_NORM, Norm
from tfsim.models.spec.indexer import Indexer
from tfsim.operators.attention import decode_pairs_twice, pairs_twice
from tfsim.operators.core import Operator, Tensor, activation
from tfsim.operators.matmul import linear
from tfsim.units import Number


def chosen_pairs(context: BlockContext, indexer: Indexer, keys: Number) -> tuple[Number, Number]:
    """(keys attended to of ``keys`` visible ones, twice the pairs): like a window of top_k keys."""
    shape, chosen = context.shape, indexer.keys(keys)
    if shape.phase == "decode":
        return chosen, decode_pairs_twice(shape.seq_len, chosen)
    if shape.causal == "halved":
        return chosen, pairs_twice(shape.seq_len, shape.past_len, indexer.top_k, chunked=False)
    return chosen, 2 * shape.seq_len * chosen


def selection(
    context: BlockContext,
    indexer: Indexer,
    x: Tensor,
    query_source: Tensor,
    query_width: Number,
    keys: Number,
    pairs2: Number,
    kv_bytes: Number,
) -> list[Operator]:
    """Index queries from ``query_source`` ([tokens, query_width]), index keys and head weights from the stream ``x``,
    and the scores of all ``keys`` (``pairs2``: twice the pairs scored per sequence). Whole on every device."""
    shape, style, d_model = context.shape, context.shape.style, context.spec.d_model
    heads, d = indexer.n_heads, indexer.d_head

    def projection(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        fmt = context.fmt(name, "attn")
        tokens = shape.tokens
        return linear(name, of, tokens=tokens, n=n, k=k, style=style, group="attn", component="attn_proj", fmt=fmt)

    def normed(name: str, of: Tensor, count: Number, kind: Norm) -> Operator:
        return apply_norm(name, of, kind, rows=shape.tokens * count, width=d, shape=shape, fmt=context.spec.dtype)

    ops = [projection("index_q_proj", query_source, heads * d, query_width)]
    q = ops[-1].output
    if not indexer.weighted:
        ops.append(normed("index_q_norm", q, heads, context.spec.norm))
        q = ops[-1].output
    ops.append(projection("index_k_proj", x, d, d_model))
    ops.append(normed("index_k_norm", ops[-1].output, 1, LAYER_NORM if indexer.weighted else context.spec.norm))
    k = ops[-1].output
    if indexer.weighted:
        ops.append(projection("index_weights", x, heads, d_model))
    per_pair = heads * (d + 1 if indexer.weighted else d)
    return untrained([*ops, index_scores(context, indexer, q, k, keys, pairs2, kv_bytes, per_pair=per_pair)])


def untrained(operators: list[Operator]) -> list[Operator]:
    """The same operators without gradient: they keep nothing for a backward pass."""
    return [replace(op, trained=False, saves=()) for op in operators]


def index_scores(
    context: BlockContext,
    indexer: Indexer,
    q: Tensor,
    k: Tensor,
    keys: Number,
    pairs2: Number,
    kv_bytes: Number,
    *,
    per_pair: int,
) -> Operator:
    """The scores of ``keys`` index keys by every query, ``per_pair`` multiply-adds each, and the choice of the best."""
    shape, style = context.shape, context.shape.style
    heads, d = indexer.n_heads, indexer.d_head
    scores = shape.batch * shape.seq_len * keys
    out = Tensor("index.selected", shape.batch * shape.seq_len * indexer.keys(keys), 4)
    return Operator(
        "index_scores",
        "index_scores",
        "attn_core",
        out,
        dims={"batch": shape.batch, "heads": heads, "q_len": shape.seq_len, "kv_len": keys, "pairs": pairs2 / 2},
        flops=pairs2 * shape.batch * per_pair,
        vector_flops=3 * scores * heads,
        read=q.bytes + shape.batch * keys * d * kv_bytes + scores * 4,
        write=scores * 4 + out.bytes,
        saves=(q, k, activation("index.scores", scores, style)),
        rate=style.dtype,
    )
