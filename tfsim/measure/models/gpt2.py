"""GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks with LayerNorm, GELU, a tied output matrix.

Beside gpt2.yaml and, with blocks that run again in the backward pass, checkpointed.yaml.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tfsim.measure.models.base import Decoder, FeedForward, Size, heads_first, heads_joined
from tfsim.models.spec import Attention, Block, DenseFFN, ModelSpec


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, block: Block) -> None:
        super().__init__()
        mixer, ffn = block.mixer, block.ffn
        assert isinstance(mixer, Attention) and isinstance(ffn, DenseFFN)
        self.heads = mixer.n_heads
        self.input_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ffn = FeedForward(width, ffn.d_ff, ffn.activation)

    def forward(self, x: Tensor, cache: list[Tensor] | None = None, past_len: int = 0) -> Tensor:
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(self.input_norm(x)).chunk(3, dim=-1))
        if cache is not None:
            end = past_len + x.shape[1]
            cache[0][:, :, past_len:end], cache[1][:, :, past_len:end] = k, v
            k, v = cache[0][:, :, :end], cache[1][:, :, :end]
        x = x + self.out(heads_joined(functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)))
        return x + self.ffn(self.ffn_norm(x))


class GPT2(Decoder):
    """A stack of blocks between token and position tables and the token table again."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        assert spec.positions is not None
        self.embed_token = nn.Embedding(spec.vocab_size, spec.d_model)
        self.embed_pos = nn.Embedding(spec.positions.n_positions, spec.d_model)
        self.blocks = nn.ModuleList(Layer(spec.d_model, spec.blocks[name]) for name in spec.layer_blocks)
        self.final_norm = nn.LayerNorm(spec.d_model)

    def embed(self, ids: Tensor, past_len: int = 0) -> Tensor:
        """Tokens plus positions."""
        positions = torch.arange(past_len, past_len + ids.shape[1], device=ids.device)
        return self.embed_token(ids) + self.embed_pos(positions)

    def logits(self, x: Tensor) -> Tensor:
        """Scores of every token of the vocabulary."""
        return functional.linear(self.final_norm(x), self.embed_token.weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = self.run(block, x)
        return self.logits(x)

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        """One block of a pass over whole sequences."""
        y: Tensor = block(x)
        return y

    def cache(self, size: Size) -> list[list[Tensor]]:
        mixer = self.spec.blocks[self.spec.layer_blocks[0]].mixer
        assert isinstance(mixer, Attention)
        shape = (size.batch, mixer.n_kv_heads, size.past_len + size.seq_len, mixer.d_head)
        return [[torch.randn(shape), torch.randn(shape)] for _ in self.blocks]

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        x = self.embed(ids, past_len)
        for block, held in zip(self.blocks, cache, strict=True):
            x = block(x, held, past_len)
        return self.logits(x)


class Checkpointed(GPT2):
    """The same, keeping only each block's input for the backward pass, which runs the whole block again (Chen et al.
    2016); by default torch would leave out what follows the last tensor that it needs."""

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        with set_checkpoint_early_stop(False):
            y: Tensor = checkpoint(block, x, use_reentrant=False)
        return y
