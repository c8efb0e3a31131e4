"""S4 (Gu et al. 2022), in its diagonal form (S4D, arXiv 2206.11893): a convolution as long as the sequence, by FFT.

Beside s4.yaml. A decode step runs the recurrence instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models.base import Decoder, FeedForward, Size
from tfsim.models.spec import Block, DenseFFN, ModelSpec
from tfsim.models.spec.ssm import S4 as S4Spec


class Mixer(nn.Module):
    """The kernel of every channel from its complex states, its convolution with the input, GELU and a gated output."""

    def __init__(self, width: int, spec: S4Spec) -> None:
        super().__init__()
        pairs = spec.d_state // 2
        self.log_dt = nn.Parameter(torch.rand(spec.d_inner) * 4 - 6)
        self.log_a_real = nn.Parameter(torch.full((spec.d_inner, pairs), 0.5).log())
        self.a_imag = nn.Parameter(torch.pi * torch.arange(pairs).float().repeat(spec.d_inner, 1))
        self.c = nn.Parameter(torch.randn(spec.d_inner, pairs, 2))
        self.skip = nn.Parameter(torch.randn(spec.d_inner))
        self.out = nn.Linear(spec.d_inner, 2 * width)

    def discrete(self) -> tuple[Tensor, Tensor]:
        """log A and C of one step: the zero-order hold over dt."""
        a = -self.log_a_real.exp() + 1j * self.a_imag
        step = a * self.log_dt.exp()[:, None]
        return step, torch.view_as_complex(self.c) * (torch.exp(step) - 1.0) / a

    def mix(self, y: Tensor) -> Tensor:
        """The channels [batch, length, channels] mixed and gated."""
        return functional.glu(self.out(functional.gelu(y)), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        step, c = self.discrete()
        powers = torch.exp(step[..., None] * torch.arange(length, device=x.device))
        kernel = 2 * (c[..., None] * powers).sum(dim=1).real
        u = x.transpose(1, 2)
        wide = 2 * length  # twice as long, so that the end does not wrap around to the start
        spectrum = torch.fft.rfft(u, n=wide) * torch.fft.rfft(kernel, n=wide)
        y = torch.fft.irfft(spectrum, n=wide)[..., :length] + u * self.skip[:, None]
        return self.mix(y.transpose(1, 2))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """One new token: the state [batch, channels, pairs] turns and takes it in."""
        step, c = self.discrete()
        u = x[:, 0]
        state.copy_(state * torch.exp(step) + u[..., None])
        y = 2 * (c * state).sum(-1).real + u * self.skip
        return self.mix(y[:, None])


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, block: Block) -> None:
        super().__init__()
        assert isinstance(block.mixer, S4Spec) and isinstance(block.ffn, DenseFFN)
        self.mixer, self.ffn = Mixer(width, block.mixer), FeedForward(width, block.ffn.d_ff, block.ffn.activation)
        self.input_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        normed = self.input_norm(x)
        x = x + (self.mixer(normed) if state is None else self.mixer.step(normed, state))
        return x + self.ffn(self.ffn_norm(x))


class S4(Decoder):
    """Layers between a token table and the token table again."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.embed_token = nn.Embedding(spec.vocab_size, spec.d_model)
        self.layers = nn.ModuleList(Layer(spec.d_model, spec.blocks[name]) for name in spec.layer_blocks)
        self.final_norm = nn.LayerNorm(spec.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_token(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.final_norm(x), self.embed_token.weight)

    def cache(self, size: Size) -> Any:
        held = (layer.mixer.log_a_real.shape for layer in self.layers)
        return [torch.randn(size.batch, *shape, dtype=torch.complex64) for shape in held]

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        x = self.embed_token(ids)
        for layer, state in zip(self.layers, cache, strict=True):
            x = layer(x, state)
        return functional.linear(self.final_norm(x), self.embed_token.weight)
