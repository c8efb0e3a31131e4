"""One layer of a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tfsim.models.spec.base import Flag, Size, Strict, known_format
from tfsim.models.spec.compressed import CompressedAttention
from tfsim.models.spec.delta import GatedDelta
from tfsim.models.spec.disentangled import Disentangled
from tfsim.models.spec.evoformer import Evoformer
from tfsim.models.spec.ffn import DenseFFN, MoE
from tfsim.models.spec.linear import LinearAttention
from tfsim.models.spec.mixers import MLA, Attention
from tfsim.models.spec.recurrent import Additive, Recurrent
from tfsim.models.spec.ssm import RWKV, S4, ChannelMix, Mamba, Mamba2

# A family adds its mixer here and its operators to tfsim.models.mixers.MIXERS; an FFN, to decoder.feed_forward.
Mixer = (
    Attention
    | Disentangled
    | MLA
    | Recurrent
    | Evoformer
    | GatedDelta
    | LinearAttention
    | CompressedAttention
    | Mamba
    | Mamba2
    | RWKV
    | S4
)
FFN = DenseFFN | MoE | ChannelMix

Residual = Literal["pre", "post", "output", "sandwich", "parallel", "parallel_shared", "none", "adaln"]

ONE_BRANCH: tuple[Residual, ...] = ("pre", "output", "sandwich", "none")
"""Residuals under which a layer may have only a mixer or only an FFN."""


class Adapters(Strict):
    """Fine-tuning with low-rank adapters of ``rank`` (Hu et al. 2021, LoRA) beside the linear layers in ``targets``
    (``q_proj``, ``up_proj``, ...). All other matrices of the blocks and an output matrix of its own are frozen; norms
    and embeddings learn (Chen et al. 2024, LongLoRA, section 3.3)."""

    rank: Size
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("q_proj", "v_proj")


class Block(Strict):
    """One layer: a mixer and an FFN around a residual stream.

    ``residual``: ``pre`` (norm before each), ``post`` (norm after each addition, 2017), ``output`` (norm on each
    output before the addition, OLMo-2), ``sandwich`` (both, Gemma-2), ``parallel`` (mixer and FFN side by side, a norm
    each), ``parallel_shared`` (side by side under one norm), ``none`` (one after the other, nothing added: RNNs),
    ``adaln`` (pre, each branch shifted, scaled and gated by the model's ``condition``: DiT).
    ``cross``: attention to the encoder's output between mixer and FFN, with a norm and residual of its own.
    ``layer_scale``: each branch is multiplied by a learned vector before it is added (Touvron et al. 2021, CaiT).
    ``input_norm`` false: the mixer reads the stream as it is (ModernBERT's first layer).
    ``mixer`` or ``ffn`` null: the layer has only the other (Mamba, Nemotron-H; residual pre, output, sandwich or none).
    ``formats``: weight format by parameter group (``attn``, ``ffn_dense``, ``moe_routed``, ...) or by operator name
    (``q_proj``, ...; the narrower wins) where it differs from the model's.
    """

    mixer: Annotated[Mixer, Field(discriminator="kind")] | None
    ffn: Annotated[FFN, Field(discriminator="kind")] | None
    residual: Residual = "pre"
    formats: dict[str, str] = Field(default_factory=dict)
    cross: Annotated[Attention | Additive, Field(discriminator="kind")] | None = None
    input_norm: Flag = True
    layer_scale: Flag = False

    @model_validator(mode="after")
    def _not_empty(self) -> Block:
        if self.mixer is None and self.ffn is None:
            raise ValueError("a block needs a mixer, an ffn, or both")
        if self.cross is not None and (self.mixer is None or self.residual not in ("pre", "post", "none")):
            raise ValueError("cross needs a mixer and residual pre, post or none")
        if self.layer_scale and self.residual != "pre":
            raise ValueError("layer_scale goes with residual pre only")
        if (self.mixer is None or self.ffn is None) and self.residual not in ONE_BRANCH:
            raise ValueError(f"residual {self.residual} needs both a mixer and an ffn")
        return self

    @field_validator("formats")
    @classmethod
    def _formats(cls, value: dict[str, str]) -> dict[str, str]:
        return {key: known_format(name) for key, name in value.items()}
