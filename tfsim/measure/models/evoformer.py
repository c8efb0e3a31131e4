"""AlphaFold 2's Evoformer (Jumper et al. 2021, supplement 1.6): an alignment and pairs of residues inform each other.

Beside evoformer.yaml.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models.base import FeedForward, Measured, Size
from tfsim.models.spec import ModelSpec
from tfsim.models.spec.evoformer import Evoformer as EvoformerSpec
from tfsim.models.spec.evoformer import SingleHead


class GatedAttention(nn.Module):
    """Algorithms 7, 8, 13, 14: attention along the last axis but one, with an output gate and maybe a bias of pairs."""

    def __init__(self, width: int, heads: int, d_head: int, pair: int = 0, own_bias: bool = False) -> None:
        super().__init__()
        self.heads, inner = heads, heads * d_head
        self.norm = nn.LayerNorm(width)
        self.pair_norm = nn.LayerNorm(pair) if pair and not own_bias else None
        self.bias = nn.Linear(pair, heads, bias=False) if pair else None
        self.q, self.k, self.v = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor, pair: Tensor | None = None) -> Tensor:
        normed = self.norm(x)
        q, k, v = (self.split(project(normed)) for project in (self.q, self.k, self.v))
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
        if self.bias is not None:
            source = normed if self.pair_norm is None else self.pair_norm(pair)
            scores = scores + self.bias(source).permute(0, 3, 1, 2)[:, None]
        y = torch.matmul(functional.softmax(scores, dim=-1), v).transpose(2, 3).flatten(3)
        return self.out(torch.sigmoid(self.gate(normed)) * y)

    def split(self, x: Tensor) -> Tensor:
        """[batch, rows, length, heads x d] as [batch, rows, heads, length, d]."""
        return x.view(*x.shape[:3], self.heads, -1).transpose(2, 3)


class Transition(nn.Module):
    """Algorithms 9 and 15: two layers with a ReLU between them."""

    def __init__(self, width: int, widening: int) -> None:
        super().__init__()
        self.norm, self.ffn = nn.LayerNorm(width), FeedForward(width, widening * width, "relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn(self.norm(x))


class OuterProductMean(nn.Module):
    """Algorithm 10: for each pair of residues the mean over sequences of a_i b_j^T."""

    def __init__(self, width: int, inner: int, pair: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.a, self.b = nn.Linear(width, inner), nn.Linear(width, inner)
        self.out = nn.Linear(inner * inner, pair)

    def forward(self, msa: Tensor) -> Tensor:
        normed = self.norm(msa)
        a, b = self.a(normed), self.b(normed)
        batch, rows, n, c = a.shape
        outer = torch.matmul(a.view(batch, rows, -1).transpose(1, 2), b.view(batch, rows, -1))
        outer = outer.view(batch, n, c, n, c).transpose(2, 3).reshape(batch, n, n, c * c)
        return self.out(outer / rows)


class TriangleMultiplication(nn.Module):
    """Algorithms 11 and 12: an edge from the two others of every triangle it is part of."""

    def __init__(self, pair: int, inner: int, outgoing: bool) -> None:
        super().__init__()
        self.outgoing = outgoing
        self.norm, self.inner_norm = nn.LayerNorm(pair), nn.LayerNorm(inner)
        self.a, self.a_gate, self.b, self.b_gate = (nn.Linear(pair, inner) for _ in range(4))
        self.out, self.gate = nn.Linear(inner, pair), nn.Linear(pair, pair)

    def forward(self, z: Tensor) -> Tensor:
        normed = self.norm(z)
        a = torch.sigmoid(self.a_gate(normed)) * self.a(normed)
        b = torch.sigmoid(self.b_gate(normed)) * self.b(normed)
        first, second = ((0, 3, 1, 2), (0, 3, 2, 1)) if self.outgoing else ((0, 3, 2, 1), (0, 3, 1, 2))
        edges = torch.matmul(a.permute(first), b.permute(second)).permute(0, 2, 3, 1)
        return torch.sigmoid(self.gate(normed)) * self.out(self.inner_norm(edges))


class Block(nn.Module):
    """Algorithm 6."""

    def __init__(self, width: int, spec: EvoformerSpec) -> None:
        super().__init__()
        pair = spec.d_pair
        self.row = GatedAttention(width, spec.n_msa_heads, spec.d_msa_head, pair)
        self.column = GatedAttention(width, spec.n_msa_heads, spec.d_msa_head)
        self.msa_transition = Transition(width, spec.transition)
        self.outer_product = OuterProductMean(width, spec.d_outer, pair)
        self.outgoing, self.incoming = (TriangleMultiplication(pair, spec.d_triangle, way) for way in (True, False))
        self.starting, self.ending = (
            GatedAttention(pair, spec.n_pair_heads, spec.d_pair_head, pair, own_bias=True) for _ in range(2)
        )
        self.pair_transition = Transition(pair, spec.transition)

    def forward(self, msa: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        msa = msa + self.row(msa, pair)
        msa = msa + self.column(msa.transpose(1, 2)).transpose(1, 2)
        msa = msa + self.msa_transition(msa)
        pair = pair + self.outer_product(msa)
        pair = pair + self.outgoing(pair)
        pair = pair + self.incoming(pair)
        pair = pair + self.starting(pair)
        pair = pair + self.ending(pair.transpose(1, 2)).transpose(1, 2)
        return msa, pair + self.pair_transition(pair)


class Evoformer(Measured):
    """Blocks, and the single representation from the first row of the alignment."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        made = [spec.blocks[name].mixer for name in spec.layer_blocks]
        self.blocks = nn.ModuleList(Block(spec.d_model, mixer) for mixer in made if isinstance(mixer, EvoformerSpec))
        assert isinstance(spec.head, SingleHead) and isinstance(made[0], EvoformerSpec)
        self.single = nn.Linear(spec.d_model, spec.head.d_out)
        self.d_pair = made[0].d_pair

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """An alignment [batch, sequences, residues, c_m] and pairs [batch, residues, residues, c_z]."""
        n = size.seq_len
        msa = torch.randn(size.batch, size.encoder_len, n, self.spec.d_model)
        return (msa, torch.randn(size.batch, n, n, self.d_pair)), ()

    def forward(self, msa: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            msa, pair = block(msa, pair)
        return self.single(msa[:, 0]), pair

    def loss(self, output: tuple[Tensor, Tensor], *targets: Tensor) -> Tensor:
        """A sum of squares of both results stands for what reads them."""
        single, pair = output
        return single.float().pow(2).mean() + pair.float().pow(2).mean()
