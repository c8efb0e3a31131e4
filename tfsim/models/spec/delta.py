"""The gated delta rule: linear attention with a state of constant size (Yang et al. 2025, Gated DeltaNet)."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tfsim.models.spec.base import Flag, Size
from tfsim.models.spec.mixers import MixerSpec
from tfsim.units import Number, ceil_div


class GatedDelta(MixerSpec):
    """Gated DeltaNet as Qwen3-Next and Qwen3.5 run it (arXiv 2412.06464, equation 10, with an output gate):
    S_t = S_{t-1} alpha_t (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t q_t.

    Queries, keys and values pass a causal depthwise convolution of ``conv_kernel`` first; each key head serves
    n_value_heads / n_key_heads value heads, and keeps a state of d_key x d_value in fp32. ``chunk``: tokens that a
    prefill handles together (the UT transform). ``fused_input``: two input projections (q k v z; beta alpha) instead of
    four.
    """

    kind: Literal["gated_delta"] = "gated_delta"
    n_key_heads: Size
    n_value_heads: Size
    d_key: Size
    d_value: Size
    conv_kernel: Size = 4
    chunk: Size = 64
    fused_input: Flag = False

    @model_validator(mode="after")
    def _consistent(self) -> GatedDelta:
        if self.n_value_heads % self.n_key_heads:
            raise ValueError(
                f"n_value_heads ({self.n_value_heads}) must be a multiple of n_key_heads ({self.n_key_heads})"
            )
        return self

    @property
    def n_parts(self) -> int:
        """Key heads."""
        return self.n_key_heads

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.n_key_heads * self.d_key + self.n_value_heads * self.d_value

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """The convolution's last inputs, and a d_key x d_value state in fp32 per value head."""
        window = ceil_div(self.conv_width, tp) * self.conv_kernel * element
        return window + ceil_div(self.n_value_heads, tp) * self.d_key * self.d_value * 4

    def describe(self) -> str:
        """Such as "gated delta rule 16 key / 48 value heads, state 128 x 128 each"."""
        heads = f"{self.n_key_heads} key / {self.n_value_heads} value heads"
        return f"gated delta rule {heads}, state {self.d_key} x {self.d_value} each"
