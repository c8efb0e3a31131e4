"""What the image towers share: square patches, layers in which every patch sees every patch, and the encoders that
several multimodal types take as they are (CLIP, SigLIP, Pixtral)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, positions, stack
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    LAYER_NORM,
    RMS_NORM,
    ActivationName,
    Attention,
    Block,
    DenseFFN,
    Merger,
    Norm,
    PatchFrontend,
    Rope,
)

AXIAL = words("rope_parameters rope_theta")
"""Rotary fields of a tower: positions in two axes, which no count depends on."""
MAX_SIDE = 65_536


def square(f: Fields, name: str) -> int:
    """A side in pixels, written as a number or as the two equal sides of a square."""
    value = f.raw(name)
    sides = list(value) if isinstance(value, list | tuple) else [value]
    if len(sides) not in (1, 2) or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        raise f.fault(name, f"must be a whole number from 1 to {MAX_SIDE}, or two", value)
    if len(set(sides)) > 1:
        raise f.fault(name, "tfsim models square patches and images", value)
    return int(sides[0])


def attention(f: Fields, prefix: str, hidden: int, n_heads: int, **how: Any) -> Attention:
    """Attention with biases in which every patch sees every patch."""
    return Attention(
        n_heads=n_heads,
        d_head=f.d_head("", hidden, prefix, n_heads),
        **{"n_kv_heads": n_heads, "qkv_bias": True, "out_bias": True, "rope": Rope(), "causal": False, **how},
    )


def layers(
    f: Fields,
    prefix: str,
    n_layers: int,
    hidden: int,
    n_heads: int,
    activation: ActivationName = "gelu_tanh",
    **how: Any,
) -> list[Block]:
    """Pre-norm layers with biases and FFNs of two matrices."""
    ffn = DenseFFN(d_ff=f.size("intermediate_size"), activation=activation, gated=False, bias=True)
    return stack([attention(f, prefix, hidden, n_heads, **how)] * n_layers, [ffn] * n_layers)


def tower_stack(
    blocks: list[Block], hidden: int, norm: Norm, front: PatchFrontend, head: Merger, **extra: Any
) -> Decoder:
    """The tower from its parts."""
    return Decoder(
        layers=blocks,
        d_model=hidden,
        vocab_size=0,
        tied=False,
        max_seq_len=front.seq_len,
        norm=norm,
        dropout=("attention",),
        extra={"frontend": front, "head": head, **extra},
    )


@dataclass(frozen=True)
class Encoder:
    """An image encoder of its own right, less what makes tokens of its patches."""

    blocks: list[Block]
    hidden: int
    front: PatchFrontend
    norm: Norm
    extra: Mapping[str, Any]

    def tower(self, head: Merger) -> Decoder:
        """With a projector."""
        return tower_stack(self.blocks, self.hidden, self.norm, self.front, head, **self.extra)


@dataclass(frozen=True)
class EncoderType:
    """An encoder's fields and what builds it from them."""

    table: FieldTable
    build: Callable[[Fields], Encoder]


CLIP_VISION = FieldTable(
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
    },
    harmless=words("projection_dim initializer_factor vocab_size"),
)
SIGLIP_VISION = FieldTable(
    {**CLIP_VISION.used, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": True},
    harmless=words("projection_dim projector_hidden_act num_image_tokens vocab_size"),
)
IDEFICS_VISION = FieldTable(
    {
        **CLIP_VISION.used,
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "patch_size": 32,
        "hidden_act": "gelu_pytorch_tanh",
    },
    harmless=words("size max_image_size use_base_siglip vision_use_head tie_word_embeddings"),
)
PIXTRAL_VISION = FieldTable(
    {
        **CLIP_VISION.used,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 1024,
        "patch_size": 16,
        "hidden_act": "gelu",
    },
    harmless=AXIAL | words("head_dim vocab_size image_token_id"),
)


def front(f: Fields, **how: Any) -> PatchFrontend:
    """Patches of a square image."""
    made = PatchFrontend(
        image_size=square(f, "image_size"), patch_size=square(f, "patch_size"), channels=f.size("num_channels"), **how
    )
    if made.patch_size > made.image_size:
        raise f.fault("patch_size", "is more than the image's size", made.patch_size)
    return made


def _encoder_layers(f: Fields, hidden: int, **how: Any) -> list[Block]:
    return layers(
        f,
        "num_attention_heads",
        f.layers("num_hidden_layers"),
        hidden,
        f.size("num_attention_heads"),
        f.choice("hidden_act", ACTIVATIONS),
        **how,
    )


def clip(f: Fields) -> Encoder:
    """CLIP's (Radford et al. 2021): a class token and a norm before the layers. All layers and the norm after them run,
    though a projector reads an earlier layer."""
    hidden, eyes = f.size("hidden_size"), front(f, bias=False)
    return Encoder(
        _encoder_layers(f, hidden, rope=None),
        hidden,
        eyes,
        LAYER_NORM,
        {**positions(eyes.seq_len), "embedding_norm": True},
    )


def siglip(f: Fields) -> Encoder:
    """SigLIP's (Zhai et al. 2023) without its pooling head, and Idefics 3's."""
    if "vision_use_head" in f.names and f.flag("vision_use_head"):
        raise f.fault("vision_use_head", "must be false: SigLIP's pooling head is not modelled", True)
    hidden, eyes = f.size("hidden_size"), front(f, class_tokens=0)
    return Encoder(_encoder_layers(f, hidden, rope=None), hidden, eyes, LAYER_NORM, positions(eyes.seq_len))


def pixtral(f: Fields) -> Encoder:
    """Pixtral's (Agrawal et al. 2024): rotary positions, RMS norms, gated FFNs, no biases."""
    hidden, eyes, n = f.size("hidden_size"), front(f, bias=False, class_tokens=0), f.layers("num_hidden_layers")
    mixer = attention(f, "num_attention_heads", hidden, f.size("num_attention_heads"), qkv_bias=False, out_bias=False)
    ffn = DenseFFN(d_ff=f.size("intermediate_size"), activation=f.choice("hidden_act", ACTIVATIONS))
    return Encoder(stack([mixer] * n, [ffn] * n), hidden, eyes, RMS_NORM, {"embedding_norm": True, "final_norm": False})


ENCODERS: dict[str, EncoderType] = {
    "clip_vision_model": EncoderType(CLIP_VISION, clip),
    "siglip_vision_model": EncoderType(SIGLIP_VISION, siglip),
    "idefics3_vision": EncoderType(IDEFICS_VISION, siglip),
    "pixtral": EncoderType(PIXTRAL_VISION, pixtral),
}
"""By the ``model_type`` of a vision_config."""
