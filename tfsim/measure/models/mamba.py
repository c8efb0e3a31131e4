"""Mamba (Gu and Dao 2023): a short convolution, then a selective state space, step by step in plain torch.

Beside mamba.yaml.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models.base import Decoder, RMSNorm, Size
from tfsim.models.spec import ModelSpec
from tfsim.models.spec.ssm import Mamba as MambaSpec


class Mixer(nn.Module):
    """Algorithm 2: step sizes, B and C come from the input; each channel keeps ``d_state`` values."""

    def __init__(self, width: int, spec: MambaSpec) -> None:
        super().__init__()
        inner, self.d_state, self.rank, self.taps = spec.d_inner, spec.d_state, spec.dt_rank, spec.d_conv
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, spec.d_conv, groups=inner, padding=spec.d_conv - 1)
        self.x_proj = nn.Linear(inner, self.rank + 2 * self.d_state, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.log_a = nn.Parameter(torch.arange(1.0, self.d_state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def parameters_of(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step sizes [batch, channels, length], B and C [batch, length, states] of ``u`` [batch, channels, length]."""
        projected = self.x_proj(u.transpose(1, 2).contiguous())
        dt, b, c = projected.split([self.rank, self.d_state, self.d_state], dim=-1)
        return functional.softplus(self.dt_proj(dt)).transpose(1, 2), b, c

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u, gate = self.in_proj(x).transpose(1, 2).chunk(2, dim=1)
        u = functional.silu(self.conv(u)[..., :length])
        dt, b, c = self.parameters_of(u)
        a = -torch.exp(self.log_a.float())
        decay = torch.exp(a[None, :, None, :] * dt[:, :, :, None])  # [batch, channels, length, states]
        inputs = (dt[:, :, :, None] * b[:, None, :, :].float()) * u[:, :, :, None].float()
        state = torch.zeros_like(inputs[:, :, 0])
        outputs = []
        # unbind: one gradient for all steps, where indexing would make one as large as the tensor for each
        for kept, added, read in zip(decay.unbind(2), inputs.unbind(2), c.unbind(1), strict=True):
            state = kept * state + added
            outputs.append(torch.matmul(state, read[:, :, None])[:, :, 0])
        y = torch.stack(outputs, dim=-1) + u * self.skip[None, :, None]
        return self.out_proj((y * functional.silu(gate)).transpose(1, 2).contiguous())

    def step(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        """One new token: the last inputs of the convolution, and the state, are all that is left of the others. As in
        transformers, the convolution runs over the kept inputs and the new one, and its first output is dropped."""
        inputs, state = cache
        u, gate = self.in_proj(x).transpose(1, 2).chunk(2, dim=1)
        inside = torch.cat([inputs, u], dim=-1)
        inputs.copy_(inside[..., 1:])
        u = functional.conv1d(inside, self.conv.weight, self.conv.bias, groups=len(self.conv.weight))
        u = functional.silu(u[..., -1:])
        dt, b, c = self.parameters_of(u)
        decay = torch.exp(-torch.exp(self.log_a.float()) * dt)
        state.copy_(state * decay + dt * b * u)
        y = torch.matmul(state, c[:, 0, :, None]) + u * self.skip[:, None]
        return self.out_proj((y * functional.silu(gate)).transpose(1, 2))


class Mamba(Decoder):
    """x + mixer(norm(x)) for every layer; the token table is the output matrix too."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.embed_token = nn.Embedding(spec.vocab_size, spec.d_model)
        made = [spec.blocks[name].mixer for name in spec.layer_blocks]
        self.mixers = nn.ModuleList(Mixer(spec.d_model, mixer) for mixer in made if isinstance(mixer, MambaSpec))
        self.norms = nn.ModuleList(RMSNorm(spec.d_model) for _ in made)
        self.final_norm = RMSNorm(spec.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_token(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return functional.linear(self.final_norm(x), self.embed_token.weight)

    def cache(self, size: Size) -> Any:
        held = []
        for mixer in self.mixers:
            inner = mixer.log_a.shape[0]
            inputs, state = torch.randn(size.batch, inner, mixer.taps), torch.randn(size.batch, inner, mixer.d_state)
            held.append([inputs, state])
        return held

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        x = self.embed_token(ids)
        for norm, mixer, held in zip(self.norms, self.mixers, cache, strict=True):
            x = x + mixer.step(norm(x), held)
        return functional.linear(self.final_norm(x), self.embed_token.weight)
