"""The vision transformer (Dosovitskiy et al. 2021): patches of an image as tokens, a class token, pre-norm blocks.

Beside vit.yaml.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfsim.measure.models.base import Measured, Size, given_loss
from tfsim.measure.models.bert import Layer as PostNormLayer
from tfsim.models.spec import Classifier, ModelSpec, PatchFrontend


class Layer(PostNormLayer):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class ViT(Measured):
    """Patches by a strided convolution, positions, layers, and classes from the class token."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.frontend, PatchFrontend) and isinstance(spec.head, Classifier)
        assert spec.positions is not None
        front, width = spec.frontend, spec.d_model
        self.front = front
        self.patches = nn.Conv2d(front.channels, width, front.patch_size, front.patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.embed_pos = nn.Parameter(torch.zeros(1, spec.positions.n_positions, width))
        self.layers = nn.ModuleList(Layer(width, spec.blocks[name]) for name in spec.layer_blocks)
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, spec.head.n_classes)
        self.classes = spec.head.n_classes

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Images, and their classes."""
        side = self.front.image_size
        return (torch.randn(size.batch, self.front.channels, side, side),), (
            torch.randint(0, self.classes, (size.batch,)),
        )

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1) + self.embed_pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final_norm(x)[:, 0])

    def loss(self, output: Tensor, *targets: Tensor) -> Tensor:
        """Of each image's class."""
        return given_loss(output, targets[0])
