"""Softmax attention between projected queries, keys and values.

``eager`` materialises the scores (Vaswani et al. 2017, eq. 1, as torch runs it); ``fused`` never does (Dao et al.
2022), keeping only the log-sum-exp of each row and computing the scores again in its backward pass.
"""

from __future__ import annotations

from tfsim.operators.attention_io import flash_forward, lengths, scores_forward
from tfsim.operators.core import Operator, Style, Tensor, Weight, activation
from tfsim.units import Number, minimum


def pairs_twice(q_len: Number, past_len: Number, span: Number | None, *, chunked: bool) -> Number:
    """Twice the (query, key) pairs that causal attention visits, for queries after ``past_len`` cached tokens.

    Twice, so that S^2/2 stays an integer. A query counts half of its own key (S^2/2, the convention of Megatron-Bridge
    and MaxText), so a window of ``span`` gives 2 W S - W^2. ``chunked``: the span is an aligned chunk.
    """
    end = past_len + q_len
    if span is None:
        return end * end - past_len * past_len
    if chunked:
        return chunk_area(end, span) - chunk_area(past_len, span)
    below, above = minimum(end, span), minimum(past_len, span)
    return (below * below - above * above) + 2 * span * ((end - below) - (past_len - above))


def banded_pairs_twice(seq_len: Number, span: Number | None) -> Number:
    """Twice the pairs of attention to both sides: all of them, or within ``span`` // 2 positions of the query."""
    if span is None:
        return 2 * seq_len * seq_len
    reach = minimum(span // 2, seq_len - 1)
    return 2 * (seq_len * (2 * reach + 1) - reach * (reach + 1))


def chunk_area(n: Number, chunk: Number) -> Number:
    """Sum of squares of the lengths of the chunks that ``n`` tokens fall into."""
    whole = n // chunk
    rest = n - whole * chunk
    return whole * chunk * chunk + rest * rest


def keys_in_reach(q_len: Number, past_len: Number, span: Number | None) -> Number:
    """Keys a decode step multiplies: its own, and what the cache holds (a span keeps the last span - 1 besides)."""
    return past_len + q_len if span is None else minimum(past_len, span - 1) + q_len


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    batch: Number,
    heads: Number,
    kv_heads: Number,
    q_len: Number,
    kv_len: Number,
    d_qk: Number,
    d_v: Number,
    pairs2: Number,
    style: Style,
    kv_bytes: Number,
    softmax_fp32: bool = True,
    scores_fp32: bool = False,
    score_copies: int = 0,
    sinks: int = 0,
    kv_read: Number | None = None,
    by_head: bool = False,
    weights: tuple[Weight, ...] = (),
) -> Operator:
    """softmax(q k^T) v for [batch, heads, q_len, d_qk] against [batch, kv_heads, kv_len, d].

    ``pairs2``: twice the pairs counted per head and sequence; FLOPs = pairs2 batch heads (d_qk + d_v). ``kv_bytes``:
    bytes per cached element. ``scores_fp32``: queries and keys are cast before the score product. ``score_copies``:
    further score-sized tensors that eager attention keeps (soft-capping).
    ``sinks``: extra columns in the softmax. ``kv_read``: bytes of keys and values read when not
    batch kv_heads kv_len (d_qk + d_v) (latent attention). ``by_head``: each head's queries lie together in memory, so
    that a fused kernel writes its output that way too, and what follows works on a copy in the order of tokens.
    """
    rows = batch * heads * q_len
    query = rows * d_qk
    out = activation("attention.out", rows * d_v, style)
    cache = batch * kv_heads * kv_len * (d_qk + d_v) * kv_bytes if kv_read is None else kv_read
    dims: dict[str, Number] = {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "q_len": q_len,
        "kv_len": kv_len,
        "d_qk": d_qk,
        "d_v": d_v,
        "pairs": pairs2 / 2,
        "kv_bytes": kv_bytes,
    }
    scores = rows * kv_len
    read, write = query * style.act + cache, rows * d_v * style.act
    saves: tuple[Tensor, ...]
    if style.attention == "fused":
        written = activation("attention.by_head", rows * d_v, style) if by_head else out
        saves = (q, k, v, written, Tensor("attention.lse", rows, 4))
        if style.sram is not None:
            tiled = flash_forward(lengths(dims, style.act), sram=style.sram, version=style.flash)
            read, write = tiled.read, tiled.write
    else:
        wide = 4 if scores_fp32 else style.act
        saves = (
            Tensor("attention.q", query, wide),
            Tensor("attention.k", batch * heads * kv_len * d_qk, wide),
            activation("attention.v", batch * heads * kv_len * d_v, style),
            *_probabilities(rows, kv_len, sinks, style, softmax_fp32, score_copies),
        )
        dims["softmax_bytes"] = 4 if softmax_fp32 else style.act
        moved = scores_forward(scores, style.act, dims["softmax_bytes"], dropout=style.dropout > 0)
        read, write = read + moved.read, write + moved.write
    return Operator(
        "attention",
        "attention",
        "attn_core",
        out,
        dims=dims,
        flops=pairs2 * batch * heads * (d_qk + d_v),
        vector_flops=5 * scores,
        read=read,
        write=write,
        weights=weights,
        saves=saves,
        rate=style.dtype,
    )


def _probabilities(
    rows: Number, kv_len: Number, sinks: int, style: Style, softmax_fp32: bool, score_copies: int
) -> tuple[Tensor, ...]:
    scores = rows * kv_len
    wide = 4 if softmax_fp32 else style.act
    kept = [Tensor("attention.probabilities", rows * (kv_len + sinks), wide, recomputable=True)]
    # a cast or a dropped-out copy is a second storage, which the value product keeps
    if (softmax_fp32 and style.low_precision) or style.dropout:
        kept.append(Tensor("attention.weights", scores, style.act, recomputable=True))
    if style.dropout:
        kept.append(Tensor("attention.dropout_mask", scores, style.mask, recomputable=True))
    if sinks:
        kept.append(Tensor("attention.max_index", rows, 8, recomputable=True))
    kept += [Tensor(f"attention.scores{i}", scores, style.act, recomputable=True) for i in range(score_copies)]
    return tuple(kept)


def decode_pairs_twice(q_len: Number, kv_len: Number) -> Number:
    """Twice the pairs of a decode step: every new token against every cached key and its own."""
    return 2 * q_len * kv_len


def prefill_pairs_twice(q_len: Number, past_len: Number, span: Number | None, *, chunked: bool, halved: bool) -> Number:
    """Twice the pairs of a prefill: the full rectangle, or (``halved``) only what the mask lets through."""
    if halved:
        return pairs_twice(q_len, past_len, span, chunked=chunked)
    return 2 * q_len * (past_len + q_len)
