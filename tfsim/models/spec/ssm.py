"""State space mixers: a state of constant size instead of a cache of keys and values."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tfsim.models.spec.base import Flag, Norm, Size, Strict
from tfsim.models.spec.mixers import MixerSpec
from tfsim.units import Number, ceil_div, maximum


class Mamba(MixerSpec):
    """Mamba's selective state space (Gu and Dao 2023, Algorithm 2): each of ``d_inner`` channels keeps ``d_state``
    values; step sizes (through a bottleneck of ``dt_rank``), B and C are computed from the input.

    ``inner_norm``: a norm on step sizes, B and C (Jamba; Falcon-Mamba's has no weights).
    """

    kind: Literal["mamba"] = "mamba"
    d_inner: Size
    d_state: Size = 16
    d_conv: Size = 4
    dt_rank: Size
    conv_bias: Flag = True
    proj_bias: Flag = False
    inner_norm: Norm | None = None

    @property
    def part_names(self) -> tuple[str, str]:
        """For messages."""
        return "channels", "channels"

    @property
    def n_parts(self) -> int:
        """Channels."""
        return self.d_inner

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """The convolution's last ``d_conv`` inputs, and d_inner x d_state in fp32."""
        return ceil_div(self.d_inner, tp) * (self.d_conv * element + self.d_state * 4)

    def describe(self) -> str:
        """Such as "Mamba 5,120 channels of state 16"."""
        return f"Mamba {self.d_inner:,} channels of state {self.d_state}"


class Mamba2(MixerSpec):
    """Mamba-2's state space dual (Dao and Gu 2024): ``n_heads`` heads of width ``d_head`` keep d_head x ``d_state``
    values each and decay by one scalar; ``n_groups`` share B and C. ``chunk``: tokens multiplied out at once (section
    6, Listing 1). ``grouped_norm``: the gated norm runs over each group's channels, not over all.
    """

    kind: Literal["mamba2"] = "mamba2"
    n_heads: Size
    d_head: Size = 64
    d_state: Size = 128
    n_groups: Size = 1
    d_conv: Size = 4
    chunk: Size = 256
    conv_bias: Flag = True
    proj_bias: Flag = False
    grouped_norm: Flag = True

    @model_validator(mode="after")
    def _consistent(self) -> Mamba2:
        if self.n_heads % self.n_groups:
            raise ValueError(f"n_heads ({self.n_heads}) must be a multiple of n_groups ({self.n_groups})")
        return self

    @property
    def part_names(self) -> tuple[str, str]:
        """For messages."""
        return "Mamba heads", "Mamba groups"

    @property
    def n_parts(self) -> int:
        """Heads."""
        return self.n_heads

    @property
    def n_kv_parts(self) -> int | None:
        """Groups that share B and C."""
        return self.n_groups

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """The convolution's last inputs (x, B and C), and d_head x d_state in fp32 per head."""
        heads, groups = ceil_div(self.n_heads, tp), maximum(1, ceil_div(self.n_groups, tp))
        channels = heads * self.d_head + 2 * groups * self.d_state
        return channels * self.d_conv * element + heads * self.d_head * self.d_state * 4

    def describe(self) -> str:
        """Such as "Mamba-2 80 heads of 64, state 128"."""
        return f"Mamba-2 {self.n_heads} heads of {self.d_head}, state {self.d_state}"


class RWKV(MixerSpec):
    """RWKV-4's time mixing (Peng et al. 2023, equations 11 to 18): a token shift, then a decayed sum of values
    weighted by exp(key), gated by the receptance. ``d_shift``: width of the stream, whose last token both this mixer
    and the channel mixing after it keep."""

    kind: Literal["rwkv"] = "rwkv"
    d_attn: Size
    d_shift: Size

    @property
    def part_names(self) -> tuple[str, str]:
        """For messages."""
        return "channels", "channels"

    @property
    def n_parts(self) -> int:
        """Channels."""
        return self.d_attn

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """Two shifted tokens, and numerator, denominator and maximum in fp32."""
        return 2 * self.d_shift * element + 3 * ceil_div(self.d_attn, tp) * 4

    def describe(self) -> str:
        """Such as "RWKV time mixing 4,096"."""
        return f"RWKV time mixing {self.d_attn:,}"


class ChannelMix(Strict):
    """RWKV-4's channel mixing (Peng et al. 2023, equations 19 to 21): a squared-ReLU network on shifted tokens, gated
    by sigmoid(R x)."""

    kind: Literal["channel_mix"] = "channel_mix"
    d_ff: Size

    def describe(self) -> str:
        """Such as "RWKV channel mixing 16,384"."""
        return f"RWKV channel mixing {self.d_ff:,}"


class S4(MixerSpec):
    """A structured state space layer (Gu et al. 2022; diagonal form, S4D): each of ``d_inner`` = d_model channels has
    ``d_state`` states in conjugate pairs, the same for every input. Training convolves the sequence with the layer's
    kernel by FFT (section 2.4); inference steps the recurrence. GELU and a gated linear output mix the channels."""

    kind: Literal["s4"] = "s4"
    d_inner: Size
    d_state: Size = 64

    @model_validator(mode="after")
    def _consistent(self) -> S4:
        if self.d_state % 2:
            raise ValueError(f"d_state ({self.d_state}) must be even: states come in conjugate pairs")
        return self

    @property
    def part_names(self) -> tuple[str, str]:
        """For messages."""
        return "channels", "channels"

    @property
    def n_parts(self) -> int:
        """Channels."""
        return self.d_inner

    @property
    def output_width(self) -> int | None:
        """As many channels as it reads."""
        return self.d_inner

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """One complex fp32 value per channel and pair."""
        return ceil_div(self.d_inner, tp) * (self.d_state // 2) * 8

    def describe(self) -> str:
        """Such as "S4 512 channels of state 64"."""
        return f"S4 {self.d_inner:,} channels of state {self.d_state}"
