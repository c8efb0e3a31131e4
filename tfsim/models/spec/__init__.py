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
from tfsim.models.spec.block import FFN, Adapters, Block, Mixer, Residual
from tfsim.models.spec.compressed import CompressedAttention, Compression
from tfsim.models.spec.delta import GatedDelta
from tfsim.models.spec.disentangled import Disentangled
from tfsim.models.spec.dit import Condition, DenoiseHead
from tfsim.models.spec.evoformer import AlignmentFrontend, Evoformer, SingleHead
from tfsim.models.spec.ffn import ActivationName, DenseFFN, MoE, SharedExpert
from tfsim.models.spec.frontends import AudioFrontend, Frontend, PatchFrontend
from tfsim.models.spec.heads import Classifier, Head, LMHead, MaskedLMHead, Merger, NoHead, Pooler, Projection
from tfsim.models.spec.indexer import Indexer
from tfsim.models.spec.linear import LinearAttention
from tfsim.models.spec.mixers import MLA, Attention
from tfsim.models.spec.model import (
    ENCODER,
    VISION,
    VISION_LEFT_OUT,
    LearnedPositions,
    ModelSpec,
    PerLayerInput,
    RelativePositions,
    require_decoder,
    require_model,
)
from tfsim.models.spec.pattern import compress_layers, expand_layers
from tfsim.models.spec.recurrent import Additive, Recurrent
from tfsim.models.spec.ssm import RWKV, S4, ChannelMix, Mamba, Mamba2

__all__ = [
    "ENCODER",
    "FFN",
    "LAYER_NORM",
    "MAX_LAYERS",
    "MAX_SIZE",
    "MLA",
    "RMS_NORM",
    "RWKV",
    "S4",
    "VISION",
    "VISION_LEFT_OUT",
    "ActivationName",
    "Adapters",
    "Additive",
    "AlignmentFrontend",
    "Attention",
    "AudioFrontend",
    "Block",
    "ChannelMix",
    "Classifier",
    "CompressedAttention",
    "Compression",
    "Condition",
    "DenoiseHead",
    "DenseFFN",
    "Disentangled",
    "Evoformer",
    "Frontend",
    "GatedDelta",
    "Head",
    "Indexer",
    "LMHead",
    "LearnedPositions",
    "LinearAttention",
    "Mamba",
    "Mamba2",
    "MaskedLMHead",
    "Merger",
    "Mixer",
    "MoE",
    "ModelSpec",
    "NoHead",
    "Norm",
    "PatchFrontend",
    "PerLayerInput",
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
    "SingleHead",
    "compress_layers",
    "expand_layers",
    "require_decoder",
    "require_model",
]
