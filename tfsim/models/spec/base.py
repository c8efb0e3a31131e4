"""What every part of a specification is made of: sizes, flags, norms, rotary embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from tfsim.operators.formats import FORMAT_NAMES

MAX_SIZE = 10**9
MAX_LAYERS = 10_000

Size = Annotated[int, Field(strict=True, gt=0, le=MAX_SIZE)]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)]
Flag = Annotated[bool, Field(strict=True)]
Real = Annotated[float, Field(strict=True, gt=0, le=1e12, allow_inf_nan=False)]


class Strict(BaseModel):
    """Base of every part of a specification: unknown fields are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with the fields of ``update``, without what was derived from the old ones (cached properties)."""
        changed = super().model_copy(update=update, deep=deep)
        for name in changed.__dict__.keys() - type(self).model_fields.keys():
            del changed.__dict__[name]
        return changed


class Norm(Strict):
    """A normalisation over the last dimension.

    ``weight``/``bias``: learned scale and shift. ``unit_offset``: the scale is stored as (w - 1) and applied in fp32
    (Gemma). ``upcast``: computed in fp32 whatever the model's dtype (every RMSNorm, OLMo's LayerNorm); ``late_cast``:
    scaled in fp32 too, and cast last (OLMo-2, gpt-oss). ``fused``: a single kernel exists in plain torch (LayerNorm).
    ``two_inputs``: the statistics read an fp32 copy, the scaling the input itself (T5). ``power``: the reciprocal root
    is a power of the mean square, which is kept beside it (Gemma-4).
    """

    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    weight: Flag = True
    bias: Flag = False
    unit_offset: Flag = False
    upcast: Flag = True
    late_cast: Flag = False
    fused: Flag = False
    two_inputs: Flag = False
    power: Flag = False


LAYER_NORM = Norm(kind="layernorm", bias=True, upcast=False, fused=True)
RMS_NORM = Norm()


ScalingKind = Literal["linear", "dynamic", "ntk", "yarn", "llama3", "longrope"]


class RopeScaling(Strict):
    """How rotary frequencies are stretched beyond the trained context (a description: it changes no count).

    linear: Chen et al. 2023 (position interpolation); dynamic and ntk: NTK-aware scaling; yarn: Peng et al. 2023;
    llama3: Llama-3.1's frequency bands; longrope: Ding et al. 2024 (Phi-3).
    """

    kind: ScalingKind
    factor: Real | None = None
    original_max_seq_len: Size | None = None
    low_freq_factor: Real | None = None
    high_freq_factor: Real | None = None
    beta_fast: Real | None = None
    beta_slow: Real | None = None


class Rope(Strict):
    """Rotary position embedding (Su et al. 2021) of the first ``rotary_dim`` of each head (all of it when absent).

    ``interleaved``: pairs of neighbours are rotated (GPT-J, Cohere, Llama-4) instead of the two halves. ``whole_head``:
    the other dimensions are rotated by nothing, so that tables are as wide as a head (Gemma-4).
    """

    theta: Real = 10000.0
    rotary_dim: Size | None = None
    interleaved: Flag = False
    whole_head: Flag = False
    scaling: RopeScaling | None = None


class QKNorm(Strict):
    """Normalisation of queries and keys. ``head``: one scale of d_head shared by all heads; ``each_head``: a scale per
    head; ``full``: over the whole projection."""

    scope: Literal["head", "each_head", "full"] = "head"
    norm: Norm = RMS_NORM


def known_format(name: str) -> str:
    """``name``, when it is a number format. Raises ValueError otherwise."""
    if name not in FORMAT_NAMES:
        raise ValueError(f"unknown number format {name!r}: one of {', '.join(FORMAT_NAMES)}")
    return name


Residual = Literal["pre", "post", "output", "sandwich", "parallel", "parallel_shared", "none", "adaln"]
