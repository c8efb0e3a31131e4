"""BERT (Devlin et al. 2019): every token sees every other, norms after each addition, a masked language model's head.

Beside bert.yaml.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models.base import FeedForward, Measured, Size, given_loss, heads_first, heads_joined, tokens
from tfsim.models.spec import Attention, Block, DenseFFN, ModelSpec


class SelfAttention(nn.Module):
    """Multi-head attention with biases, over all keys or (``causal``) the earlier ones (Vaswani et al. 2017)."""

    def __init__(self, width: int, mixer: Attention) -> None:
        super().__init__()
        self.heads, self.causal = mixer.n_heads, mixer.causal
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_first(project(x), self.heads) for project in (self.q, self.k, self.v))
        return self.out(heads_joined(functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))


class Layer(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(self, width: int, block: Block) -> None:
        super().__init__()
        assert isinstance(block.mixer, Attention) and isinstance(block.ffn, DenseFFN)
        self.attention = SelfAttention(width, block.mixer)
        self.ffn = FeedForward(width, block.ffn.d_ff, block.ffn.activation)
        self.attention_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.ffn_norm(x + self.ffn(x))


class BERT(Measured):
    """Token, segment and position tables, a norm, layers, and the head that predicts masked tokens."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        assert spec.positions is not None
        width = spec.d_model
        self.embed_token = nn.Embedding(spec.vocab_size, width)
        self.embed_type = nn.Embedding(spec.token_types, width)
        self.embed_pos = nn.Embedding(spec.positions.n_positions, width)
        self.embed_norm, self.head_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, spec.blocks[name]) for name in spec.layer_blocks)
        self.transform = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(spec.vocab_size))

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Tokens and their segments; the target is a token for every position."""
        ids = tokens(self.spec.vocab_size, size.batch, size.seq_len)
        return (ids, torch.zeros_like(ids)), (tokens(self.spec.vocab_size, size.batch, size.seq_len),)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        positions = self.embed_pos(torch.arange(ids.shape[1], device=ids.device))
        x = self.embed_norm(self.embed_token(ids) + self.embed_type(types) + positions)
        for layer in self.layers:
            x = layer(x)
        x = self.head_norm(functional.gelu(self.transform(x)))
        return functional.linear(x, self.embed_token.weight, self.bias)

    def loss(self, output: Tensor, *targets: Tensor) -> Tensor:
        """Of the tokens that were masked (here: of all)."""
        return given_loss(output, targets[0])
