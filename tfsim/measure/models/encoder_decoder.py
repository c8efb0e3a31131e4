"""An encoder-decoder as BART (Lewis et al. 2020): norms after each addition, learned positions, cross-attention.

Beside encoder_decoder.yaml.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models import bert
from tfsim.measure.models.base import Decoder, FeedForward, Size, given_loss, heads_first, heads_joined, tokens
from tfsim.models.spec import Attention, Block, DenseFFN, ModelSpec


class CrossAttention(nn.Module):
    """Queries of the decoder, keys and values of the encoder's output (Vaswani et al. 2017, section 3.2.3)."""

    def __init__(self, width: int, mixer: Attention) -> None:
        super().__init__()
        self.heads = mixer.n_heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def keys(self, memory: Tensor) -> list[Tensor]:
        """Keys and values of the encoder's output: in a decode step they come from a cache."""
        return [heads_first(self.k(memory), self.heads), heads_first(self.v(memory), self.heads)]

    def forward(self, x: Tensor, keys: list[Tensor]) -> Tensor:
        q = heads_first(self.q(x), self.heads)
        return self.out(heads_joined(functional.scaled_dot_product_attention(q, *keys)))


class Layer(nn.Module):
    """Attention to earlier tokens, to the encoder's output, and a network; a norm after each addition."""

    def __init__(self, width: int, block: Block) -> None:
        super().__init__()
        assert isinstance(block.mixer, Attention) and isinstance(block.ffn, DenseFFN)
        assert isinstance(block.cross, Attention)
        self.attention, self.cross = bert.SelfAttention(width, block.mixer), CrossAttention(width, block.cross)
        self.ffn = FeedForward(width, block.ffn.d_ff, block.ffn.activation)
        self.attention_norm, self.cross_norm, self.ffn_norm = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        x = self.cross_norm(x + self.cross(x, self.cross.keys(memory)))
        return self.ffn_norm(x + self.ffn(x))

    def step(self, x: Tensor, cache: list[list[Tensor]], past_len: int) -> Tensor:
        """One new token: its keys and values join the cache; those of the encoder are in it."""
        own, attention = cache[0], self.attention
        end = past_len + x.shape[1]
        q, k, v = (heads_first(part(x), attention.heads) for part in (attention.q, attention.k, attention.v))
        own[0][:, :, past_len:end], own[1][:, :, past_len:end] = k, v
        y = functional.scaled_dot_product_attention(q, own[0][:, :, :end], own[1][:, :, :end])
        x = self.attention_norm(x + attention.out(heads_joined(y)))
        x = self.cross_norm(x + self.cross(x, cache[1]))
        return self.ffn_norm(x + self.ffn(x))


class Positions(nn.Module):
    """The shared token table plus positions of one stack, normalised."""

    def __init__(self, spec: ModelSpec, table: nn.Embedding) -> None:
        super().__init__()
        assert spec.positions is not None
        self.embed_token = table
        self.embed_pos = nn.Embedding(spec.positions.n_positions, spec.d_model)
        self.norm = nn.LayerNorm(spec.d_model)

    def forward(self, ids: Tensor, past_len: int = 0) -> Tensor:
        positions = torch.arange(past_len, past_len + ids.shape[1], device=ids.device)
        return self.norm(self.embed_token(ids) + self.embed_pos(positions))


class EncoderDecoder(Decoder):
    """Both stacks, and the token table again as output matrix."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        assert spec.encoder is not None
        width, encoder = spec.d_model, spec.encoder
        self.embed_token = nn.Embedding(spec.vocab_size, width)
        self.source, self.target = Positions(encoder, self.embed_token), Positions(spec, self.embed_token)
        self.encoder = nn.ModuleList(bert.Layer(width, encoder.blocks[name]) for name in encoder.layer_blocks)
        self.decoder = nn.ModuleList(Layer(width, spec.blocks[name]) for name in spec.layer_blocks)

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Tokens of the source and of the target, and what comes next in the target."""
        vocabulary = self.spec.vocab_size
        source, target = tokens(vocabulary, size.batch, size.encoder_len), tokens(vocabulary, size.batch, size.seq_len)
        return (source, target), (tokens(vocabulary, size.batch, size.seq_len),)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.target(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return functional.linear(x, self.embed_token.weight)

    def loss(self, output: Tensor, *targets: Tensor) -> Tensor:
        """Of each next token of the target."""
        return given_loss(output, targets[0])

    def cache(self, size: Size) -> Any:
        mixer = self.spec.blocks[self.spec.layer_blocks[0]].mixer
        assert isinstance(mixer, Attention)

        def held(length: int) -> list[Tensor]:
            return [torch.randn(size.batch, mixer.n_heads, length, mixer.d_head) for _ in range(2)]

        return [[held(size.past_len + size.seq_len), held(size.encoder_len)] for _ in self.decoder]

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        x = self.target(ids, past_len)
        for layer, held in zip(self.decoder, cache, strict=True):
            x = layer.step(x, held, past_len)
        return functional.linear(x, self.embed_token.weight)
