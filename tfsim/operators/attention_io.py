"""Memory traffic of softmax attention: with the scores in memory, and tiled (Dao et al. 2022; Dao 2023).

Standard attention moves Theta(N d + N^2) elements; FlashAttention, with M elements of on-chip memory,
Theta(N^2 d^2 / M) (Dao et al. 2022, Theorem 2). The passes are counted one by one from the algorithms, per head: q and
out have ``q_len`` rows, k and v ``kv_len``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsim.units import Number, ceil_div, maximum


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes read and written."""

    read: Number
    write: Number

    @property
    def bytes(self) -> Number:
        """Both."""
        return self.read + self.write


@dataclass(frozen=True, slots=True)
class Lengths:
    """``heads``: query heads of all sequences, each against ``kv_len`` keys; ``kv_heads``: distinct keys and values;
    ``act``: bytes of an activation element."""

    heads: Number
    kv_heads: Number
    q_len: Number
    kv_len: Number
    d_qk: Number
    d_v: Number
    act: Number

    @property
    def queries(self) -> Number:
        """Bytes of the queries."""
        return self.heads * self.q_len * self.d_qk * self.act

    @property
    def outputs(self) -> Number:
        """Bytes of the output."""
        return self.heads * self.q_len * self.d_v * self.act

    @property
    def scores(self) -> Number:
        """Number of scores."""
        return self.heads * self.q_len * self.kv_len

    def keys(self, heads: Number) -> Number:
        """Bytes of keys and values for ``heads`` heads."""
        return heads * self.kv_len * (self.d_qk + self.d_v) * self.act


def lengths(dims: Mapping[str, Number], act: Number) -> Lengths:
    """The sizes of an attention operator with ``dims`` and activations of ``act`` bytes."""
    heads, kv_heads = dims["batch"] * dims["heads"], dims["batch"] * dims["kv_heads"]
    return Lengths(heads, kv_heads, dims["q_len"], dims["kv_len"], dims["d_qk"], dims["d_v"], act)


def scores_forward(scores: Number, act: Number, softmax_bytes: Number, *, dropout: bool) -> Traffic:
    """Traffic of ``scores`` kept in memory: written; read and written by scale and mask; by the softmax, whose elements
    take ``softmax_bytes``; (by dropout, with a mask of a byte each;) read by the product with v."""
    moved = scores * (2 * act + softmax_bytes)
    if dropout:
        return Traffic(moved + scores * act, moved + scores * (act + 1))
    return Traffic(moved, moved)


def scores_backward(scores: Number, act: Number, softmax_bytes: Number, *, dropout: bool) -> Traffic:
    """The same for the gradients: dV = P^T dO; dP = dO V^T; (dropout;) dS from P and dP; scale and mask; dQ = dS K,
    dK = dS^T Q."""
    read = scores * (4 * act + 2 * softmax_bytes)  # P; P and dP; scaling; dS twice
    write = scores * (2 * act + softmax_bytes)  # dP; dS; scaling
    if dropout:
        return Traffic(read + scores * (act + 1), write + scores * act)
    return Traffic(read, write)


def standard_backward(x: Lengths, *, softmax_bytes: Number, dropout: bool) -> Traffic:
    """Scores, q, k, v and (twice) the output's gradient; the gradients of q, k, v."""
    moved = scores_backward(x.scores, x.act, softmax_bytes, dropout=dropout)
    inputs = x.queries + x.keys(x.kv_heads)
    return Traffic(moved.read + inputs + 2 * x.outputs, moved.write + inputs)


def _blocks(length: Number, x: Lengths, sram: Number) -> Number:
    """Tiles of ``length`` rows when a tile of q, k, v and out each takes a quarter of ``sram`` bytes (Algorithm 1)."""
    rows = ceil_div(sram, 4 * maximum(x.d_qk, x.d_v) * x.act)
    return ceil_div(length, rows)


def flash_forward(x: Lengths, *, sram: Number, version: int) -> Traffic:
    """FlashAttention-1, Algorithm 1: for each tile of keys all queries, outputs and row statistics pass again.
    FlashAttention-2 and 3, Algorithm 1 of Dao 2023: for each tile of queries all keys and values pass again."""
    keys = x.keys(x.heads)
    statistics = 4 * x.heads * x.q_len
    if version == 1:
        tiles = _blocks(x.kv_len, x, sram)
        return Traffic(keys + tiles * (x.queries + x.outputs + 2 * statistics), tiles * (x.outputs + 2 * statistics))
    tiles = _blocks(x.q_len, x, sram)
    return Traffic(x.queries + tiles * keys, x.outputs + statistics)


def flash_backward(x: Lengths, *, sram: Number, version: int) -> Traffic:
    """Algorithm 4: for each tile of keys the queries, outputs, their gradients and the statistics pass again, and the
    queries' gradient is read and written; FlashAttention-2 sums out * its gradient once, beforehand."""
    keys = x.keys(x.heads)
    statistics = 4 * x.heads * x.q_len
    tiles = _blocks(x.kv_len, x, sram)
    each = 2 * x.queries + 2 * statistics + (2 if version == 1 else 1) * x.outputs
    before = 0 if version == 1 else 2 * x.outputs
    return Traffic(keys + tiles * each + before, keys + tiles * x.queries)
