"""Linear attention: a sum of outer products of keys and values instead of a cache of them."""

from __future__ import annotations

from typing import Literal

from tfsim.models.spec.base import Flag, Size
from tfsim.models.spec.mixers import MixerSpec
from tfsim.units import Number, ceil_div


class LinearAttention(MixerSpec):
    """S_t = decay S_{t-1} + k_t v_t^T, o_t = S_t^T q_t (Katharopoulos et al. 2020, equations 18 to 20).

    ``feature``: what makes queries and keys: ``elu``, elu(x) + 1 (equation 7), with the normaliser z_t = z_{t-1} + k_t
    that the output is divided by; ``silu``, of values too and without a normaliser (Lightning Attention, MiniMax-01
    2025, section 2.2). ``decay``: the state fades by a constant of each head (RetNet, Sun et al. 2023, equation 5;
    Lightning), no parameter. ``gated``: a norm over all heads, times the sigmoid of a projection of the input
    (MiniMax-01). ``chunk``: tokens multiplied out at once in a prefill. ``fused_qkv``: one projection for all three.
    """

    kind: Literal["linear_attention"] = "linear_attention"
    n_heads: Size
    d_head: Size
    feature: Literal["elu", "silu"] = "elu"
    decay: Flag = False
    gated: Flag = False
    fused_qkv: Flag = False
    chunk: Size = 256

    @property
    def n_parts(self) -> int:
        """Heads."""
        return self.n_heads

    @property
    def normalised(self) -> bool:
        """Whether a sum of keys divides the output."""
        return self.feature == "elu"

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """d_head x d_head in fp32 per head, and the normaliser's d_head."""
        row = self.d_head * (self.d_head + (1 if self.normalised else 0))
        return ceil_div(self.n_heads, tp) * row * 4

    def describe(self) -> str:
        """Such as "linear attention 64 heads of 128, decaying"."""
        words = f"linear attention {self.n_heads} heads of {self.d_head}"
        return words + (", decaying" if self.decay else "") + (", gated output" if self.gated else "")
