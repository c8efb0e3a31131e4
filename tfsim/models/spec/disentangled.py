"""Disentangled attention (He et al. 2021, DeBERTa): scores of contents and of relative positions apart."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tfsim.models.spec.base import Flag, Size
from tfsim.models.spec.mixers import MixerSpec


class Disentangled(MixerSpec):
    """Every query sees every key; beside content to content, scores add ``content_to_position`` and
    ``position_to_content`` terms over the model's relative positions.

    ``shared``: positions pass the content's own query and key projections (DeBERTa-v3), else projections of their own.
    """

    kind: Literal["disentangled"] = "disentangled"
    n_heads: Size
    d_head: Size
    content_to_position: Flag = True
    position_to_content: Flag = True
    shared: Flag = True

    @model_validator(mode="after")
    def _some_term(self) -> Disentangled:
        if not (self.content_to_position or self.position_to_content):
            raise ValueError("give content_to_position, position_to_content or both; without either it is attention")
        return self

    @property
    def causal(self) -> bool:
        """Never: it is an encoder's."""
        return False

    @property
    def n_parts(self) -> int:
        """Heads."""
        return self.n_heads

    @property
    def score_width(self) -> int:
        """Scores and values of the contents, whose cost grows with the square of the length."""
        return 2 * self.n_heads * self.d_head

    def describe(self) -> str:
        """Such as "disentangled attention, 12 heads of 64"."""
        return f"disentangled attention, {self.n_heads} heads of {self.d_head}"
