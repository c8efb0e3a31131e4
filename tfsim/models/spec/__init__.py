"""The validated description of a model.

A model is a set of named *blocks* and a *pattern* that says in which order they repeat; nothing else in tfsim knows a
model by its name. Sizes follow the field's names (``d_model``, ``n_heads``, ``d_ff``, ...), are counted in elements,
and are plain integers. Facts about numerics (which steps run in fp32) are part of the description, because they decide
how many bytes training keeps.
"""

from tfsim.models.spec.base import (
    LAYER_NORM,
    MAX_LAYERS,
    MAX_SIZE,
    RMS_NORM,
    Norm,
    QKNorm,
    Rope,
    RopeScaling,
    ScalingKind,
)
from tfsim.models.spec.block import FFN, Block, Mixer, Residual
from tfsim.models.spec.delta import GatedDelta
from tfsim.models.spec.ffn import ActivationName, DenseFFN, MoE, SharedExpert
from tfsim.models.spec.frontends import AudioFrontend, Frontend, PatchFrontend
from tfsim.models.spec.heads import Classifier, Head, LMHead, MaskedLMHead, NoHead, Pooler, Projection
from tfsim.models.spec.mixers import MLA, Attention
from tfsim.models.spec.model import ENCODER, LearnedPositions, ModelSpec, RelativePositions, require_model
from tfsim.models.spec.pattern import compress_layers, expand_layers
from tfsim.models.spec.recurrent import Recurrent

__all__ = [
    "ENCODER",
    "FFN",
    "LAYER_NORM",
    "MAX_LAYERS",
    "MAX_SIZE",
    "MLA",
    "RMS_NORM",
    "ActivationName",
    "Attention",
    "AudioFrontend",
    "Block",
    "Classifier",
    "DenseFFN",
    "Frontend",
    "GatedDelta",
    "Head",
    "LMHead",
    "LearnedPositions",
    "MaskedLMHead",
    "Mixer",
    "MoE",
    "ModelSpec",
    "NoHead",
    "Norm",
    "PatchFrontend",
    "Pooler",
    "Projection",
    "QKNorm",
    "Recurrent",
    "RelativePositions",
    "Residual",
    "Rope",
    "RopeScaling",
    "ScalingKind",
    "SharedExpert",
    "compress_layers",
    "expand_layers",
    "require_model",
]
