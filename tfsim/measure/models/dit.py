"""The diffusion transformer (Peebles and Xie 2023): blocks whose norms are shifted, scaled and gated by a condition.

Beside dit.yaml.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models.base import FeedForward, Measured, Size, heads_first, heads_joined
from tfsim.models.spec import Attention, Block, DenseFFN, ModelSpec, PatchFrontend
from tfsim.models.spec.dit import DenoiseHead


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x (1 + scale) + shift, the same vectors for every position of an image."""
    return x * (1 + scale[:, None]) + shift[:, None]


class Layer(nn.Module):
    """adaLN-Zero: x + gate attention(modulated norm(x)), then the same with a network."""

    def __init__(self, width: int, block: Block) -> None:
        super().__init__()
        assert isinstance(block.mixer, Attention) and isinstance(block.ffn, DenseFFN)
        self.heads = block.mixer.n_heads
        self.input_norm, self.ffn_norm = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ffn = FeedForward(width, block.ffn.d_ff, block.ffn.activation)
        self.adaln = nn.Linear(width, 6 * width)

    def attend(self, x: Tensor) -> Tensor:
        """Attention among all patches of an image."""
        q, k, v = (heads_first(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(heads_joined(functional.scaled_dot_product_attention(q, k, v)))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = self.adaln(functional.silu(condition)).chunk(6, dim=-1)
        x = x + gate[:, None] * self.attend(modulate(self.input_norm(x), shift, scale))
        return x + ffn_gate[:, None] * self.ffn(modulate(self.ffn_norm(x), ffn_shift, ffn_scale))


class DiT(Measured):
    """Patches of a noisy latent, a condition from timestep and class, layers, and the noise of each patch."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.frontend, PatchFrontend) and isinstance(spec.head, DenoiseHead)
        assert spec.condition is not None and spec.positions is not None
        front, width = spec.frontend, spec.d_model
        self.front, self.condition, self.d_out = front, spec.condition, spec.head.d_out
        self.patches = nn.Conv2d(front.channels, width, front.patch_size, front.patch_size)
        positions = torch.randn(1, spec.positions.n_positions, width)
        self.embed_pos = nn.Parameter(positions, requires_grad=False)
        self.time = nn.Sequential(nn.Linear(self.condition.n_frequencies, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(self.condition.n_labels, width)
        self.layers = nn.ModuleList(Layer(width, spec.blocks[name]) for name in spec.layer_blocks)
        self.final_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.adaln, self.head = nn.Linear(width, 2 * width), nn.Linear(width, self.d_out)

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Noisy latents, timesteps and classes; the target is the noise of each patch."""
        side, channels = self.front.image_size, self.front.channels
        labels = torch.randint(0, self.condition.n_classes, (size.batch,))
        target = torch.randn(size.batch, self.front.positions(side), self.d_out)
        return (torch.randn(size.batch, channels, side, side), torch.rand(size.batch), labels), (target,)

    def forward(self, images: Tensor, timesteps: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.embed_pos
        condition = self.time(sines(timesteps, self.condition.n_frequencies)) + self.label(labels)
        for layer in self.layers:
            x = layer(x, condition)
        shift, scale = self.adaln(functional.silu(condition)).chunk(2, dim=-1)
        return self.head(modulate(self.final_norm(x), shift, scale))

    def loss(self, output: Tensor, *targets: Tensor) -> Tensor:
        """Mean squared error of the noise."""
        return functional.mse_loss(output, targets[0])


def sines(timesteps: Tensor, n: int) -> Tensor:
    """Cosines and sines of ``n`` / 2 frequencies of each timestep."""
    angles = timesteps[:, None] * torch.exp(-math.log(10000) / (n // 2) * torch.arange(n // 2, device=timesteps.device))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
