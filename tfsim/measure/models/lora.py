"""Fine-tuning by low-rank adapters (Hu et al. 2021, LoRA) of a Llama: y = W x + s B A x, W frozen, A and B learned.

Beside lora.yaml. Norms and embeddings learn too (Chen et al. 2024, LongLoRA).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfsim.measure.models.llama import Llama
from tfsim.models.spec import ModelSpec

_LAYERS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "out"}


class Adapter(nn.Module):
    """A linear layer that is frozen, and two small ones beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y + self.b(self.a(x)) * self.scale


class AdaptedLlama(Llama):
    """The matrices of its layers and its output matrix are frozen."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        assert spec.adapters is not None
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.requires_grad_(False)
        for layer in self.layers:
            for target in spec.adapters.targets:
                name = _LAYERS[target]
                base = getattr(layer.attention, name)
                with torch.device(base.weight.device):
                    setattr(layer.attention, name, Adapter(base, spec.adapters.rank))
