"""Llama (Touvron et al. 2023) and its relatives: RMSNorm, rotary positions, grouped keys and values, SwiGLU.

Beside llama.yaml (attention over all keys, in torch's fused kernel), window.yaml (a sliding window: Jiang et al. 2023,
Mistral; the mask is added to scores in memory) and moe.yaml (a mixture of experts: Jiang et al. 2024, Mixtral).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models.base import Decoder, RMSNorm, Size, heads_first, heads_joined
from tfsim.models.spec import Attention, Block, DenseFFN, ModelSpec, MoE


def rotary_tables(ids: Tensor, past_len: int, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, width] of new tokens ``ids`` after ``past_len`` others (Su et al. 2021), each
    frequency twice: for the two halves of a head."""
    frequencies = 1 / theta ** (torch.arange(0, width, 2, device=ids.device) / width)
    angles = torch.outer(torch.arange(past_len, past_len + ids.shape[1], device=ids.device), frequencies)
    twice = torch.cat([angles, angles], dim=-1)
    return twice.cos(), twice.sin()


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """The halves of each head turned by their position's angle."""
    cos, sin = tables
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class GroupedAttention(nn.Module):
    """Ainslie et al. 2023: several query heads share one key and value head."""

    def __init__(self, width: int, mixer: Attention) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.window = mixer.n_heads, mixer.n_kv_heads, mixer.window
        inner = mixer.n_kv_heads * mixer.d_head
        self.q = nn.Linear(width, mixer.n_heads * mixer.d_head, bias=False)
        self.k, self.v = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(mixer.n_heads * mixer.d_head, width, bias=False)

    def forward(
        self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None, cache: list[Tensor] | None, past_len: int
    ) -> Tensor:
        q, k = rotate(heads_first(self.q(x), self.heads), tables), rotate(heads_first(self.k(x), self.kv_heads), tables)
        v = heads_first(self.v(x), self.kv_heads)
        if cache is not None:
            k, v = self.remember(k, v, cache, past_len)
        return self.out(heads_joined(self.attend(q, k, v, mask, causal=cache is None)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
        """softmax(q k^T) v: fused over all keys; over a window, scores are in memory and a mask is added to them."""
        if self.window is None:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        return torch.matmul(functional.softmax(scores if mask is None else scores + mask, dim=-1), v)

    def remember(self, k: Tensor, v: Tensor, cache: list[Tensor], past_len: int) -> tuple[Tensor, Tensor]:
        """Keys and values of past and new tokens; those of a window take the place of the oldest ones."""
        start, end = past_len, past_len + k.shape[2]
        if self.window is not None:
            start %= self.window
            end = min(end, self.window)
        cache[0][:, :, start : start + k.shape[2]], cache[1][:, :, start : start + k.shape[2]] = k, v
        return cache[0][:, :, :end], cache[1][:, :, :end]


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A mixture of SwiGLU experts: softmax over all of them, each token visits the top ones; they run one by one."""

    def __init__(self, width: int, ffn: MoE) -> None:
        super().__init__()
        self.top_k, self.n_experts = ffn.top_k, ffn.n_experts
        self.router = nn.Linear(width, ffn.n_experts, bias=False)
        self.up = nn.Parameter(torch.randn(ffn.n_experts, 2 * ffn.d_ff, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(ffn.n_experts, width, ffn.d_ff) * ffn.d_ff**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = functional.softmax(self.router(flat).float(), dim=-1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(flat)
        visits = functional.one_hot(chosen, self.n_experts).permute(2, 1, 0)  # [experts, choice, tokens]
        for expert in range(self.n_experts):
            choice, token = torch.where(visits[expert])
            if len(token):
                gate, up = functional.linear(flat[token], self.up[expert]).chunk(2, dim=-1)
                y = functional.linear(functional.silu(gate) * up, self.down[expert])
                out.index_add_(0, token, y * weights[token, choice, None])
        return out.view_as(x)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, width: int, block: Block) -> None:
        super().__init__()
        assert isinstance(block.mixer, Attention) and isinstance(block.ffn, DenseFFN | MoE)
        self.input_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)
        self.attention = GroupedAttention(width, block.mixer)
        self.ffn = SwiGLU(width, block.ffn.d_ff) if isinstance(block.ffn, DenseFFN) else Experts(width, block.ffn)

    def forward(
        self,
        x: Tensor,
        tables: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: list[Tensor] | None = None,
        past_len: int = 0,
    ) -> Tensor:
        x = x + self.attention(self.input_norm(x), tables, mask, cache, past_len)
        return x + self.ffn(self.ffn_norm(x))


class Llama(Decoder):
    """A stack of layers between a token table and an output matrix of its own."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.embed_token = nn.Embedding(spec.vocab_size, spec.d_model)
        self.layers = nn.ModuleList(Layer(spec.d_model, spec.blocks[name]) for name in spec.layer_blocks)
        self.final_norm = RMSNorm(spec.d_model)
        self.head = nn.Linear(spec.d_model, spec.vocab_size, bias=False)
        mixer = spec.blocks[spec.layer_blocks[0]].mixer
        assert isinstance(mixer, Attention) and mixer.rope is not None
        self.mixer, self.theta = mixer, mixer.rope.theta

    def forward(self, ids: Tensor) -> Tensor:
        tables = rotary_tables(ids, 0, self.mixer.d_head, self.theta)
        mask = window_mask(ids, self.mixer.window) if self.mixer.window else None
        x = self.embed_token(ids)
        for layer in self.layers:
            x = layer(x, tables, mask)
        return self.head(self.final_norm(x))

    def cache(self, size: Size) -> list[list[Tensor]]:
        held = size.past_len + size.seq_len
        if self.mixer.window:
            held = min(held, self.mixer.window)
        shape = (size.batch, self.mixer.n_kv_heads, held, self.mixer.d_head)
        return [[torch.randn(shape), torch.randn(shape)] for _ in self.layers]

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        tables = rotary_tables(ids, past_len, self.mixer.d_head, self.theta)
        x = self.embed_token(ids)
        for layer, held in zip(self.layers, cache, strict=True):
            x = layer(x, tables, None, held, past_len)
        return self.head(self.final_norm(x))


def window_mask(ids: Tensor, window: int) -> Tensor:
    """0 where a query sees a key: its own and the ``window`` - 1 before it; minus infinity elsewhere."""
    positions = torch.arange(ids.shape[1], device=ids.device)
    distance = positions[:, None] - positions
    return torch.zeros_like(distance, dtype=torch.float32).masked_fill(
        (distance < 0) | (distance >= window), float("-inf")
    )
