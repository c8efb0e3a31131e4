"""Multimodal types that put a projector behind a known image encoder: LLaVA and its kind, PaliGemma, Idefics 3,
InternVL, Cohere's, Mistral 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, positions, stack
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.huggingface.tower_parts import ENCODERS, Encoder, EncoderType, attention, front
from tfsim.models.spec import LAYER_NORM, RMS_NORM, DenseFFN, Merger, QKNorm


@dataclass(frozen=True)
class Projected:
    """A type whose tower is an encoder and a projector: ``build`` makes the projector from the fields, the encoder and
    the text's width. ``fields``: those of the whole model that it reads, with their defaults. ``encoders``: the
    encoders that it may have, by model_type, the default first."""

    build: Callable[[Fields, Encoder, int], Merger]
    encoders: Mapping[str, EncoderType]
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def above(self) -> tuple[str, ...]:
        """The fields of the whole model that it reads."""
        return tuple(self.fields)

    def read(
        self, given: Mapping[str, Any], above: Mapping[str, Any], where: str, ignore: Sequence[str], d_text: int
    ) -> Decoder:
        """The tower of ``given``, a vision_config."""
        kind = given.get("model_type") or next(iter(self.encoders))
        if kind not in self.encoders:
            kind_field = Fields({"model_type": kind}, FieldTable({"model_type": None}), where)
            kind_field.choice("model_type", self.encoders)
        encoder = self.encoders[kind]
        table = replace(encoder.table, used={**encoder.table.used, **self.fields})
        own = {name: value for name, value in given.items() if name not in self.fields}
        f = Fields({**own, **above}, table, where, ignore)
        eyes = encoder.build(f)
        return eyes.tower(self.build(f, eyes, d_text))


_FEATURES = {"vision_feature_layer": -2, "vision_feature_select_strategy": "default", "multimodal_projector_bias": True}


def _layers_read(f: Fields) -> int:
    """How many layers' outputs a patch's vector is made of."""
    chosen = f.raw("vision_feature_layer")
    found = chosen if isinstance(chosen, list | tuple) else [chosen]
    if not found or not all(type(layer) is int for layer in found):
        raise f.fault("vision_feature_layer", "must be a layer's number or a list of them", chosen)
    return len(found)


def _patches_alone(f: Fields, eyes: Encoder) -> None:
    """Only patches become tokens: a class token must be dropped (strategy default), and a patch must not (full)."""
    strategy = "default" if eyes.front.class_tokens else "full"
    given = f.raw("vision_feature_select_strategy")
    if given != strategy:
        raise f.fault("vision_feature_select_strategy", f"tfsim models only {strategy} with this encoder", given)


def llava(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """LLaVA 1.5 (Liu et al. 2023): an MLP of two layers on every patch."""
    _patches_alone(f, eyes)
    bias = f.flag("multimodal_projector_bias")
    return Merger(patches=1, features=_layers_read(f), joined=(d_text, d_text), bias=bias, beside=True)


def llava_next(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """LLaVA-NeXT and LLaVA-OneVision: a learned token ends each row; an image here is one tile."""
    return llava(f, eyes, d_text).model_copy(update={"newline": True})


def paligemma(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """PaliGemma (Beyer et al. 2024): a linear layer on every patch."""
    return Merger(patches=1, joined=(f.size("projection_dim"),), beside=True)


def idefics3(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """Idefics 3 (Laurençon et al. 2024) and SmolVLM: neighbours joined (a pixel shuffle), and a linear layer."""
    side = f.size("scale_factor")
    return Merger(patches=side * side, joined=(d_text,), bias=False, beside=True)


def internvl(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """InternVL: four patches joined, normalised, and an MLP of two layers."""
    if _layers_read(f) > 1:
        raise f.fault("vision_feature_layer", "tfsim models one layer only", f.raw("vision_feature_layer"))
    _patches_alone(f, eyes)
    ratio = f.number("downsample_ratio")
    side = int(1 / ratio) if ratio else 0
    if not side:
        raise f.fault("downsample_ratio", "must be a number from 0 to 1", ratio)
    return Merger(patches=side * side, joined=(d_text, d_text), norm=LAYER_NORM, norm_joined=True, beside=True)


def cohere2_vision(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """Command A Vision: neighbours joined, and a gated MLP."""
    side, width = f.size("downsample_factor"), f.maybe_size("alignment_intermediate_size") or d_text
    if width % 2:
        raise f.fault("alignment_intermediate_size", "must be even: half of it gates the other half", width)
    return Merger(patches=side * side, joined=(width // 2, d_text), gated=True, beside=True)


def aya_vision(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """Aya Vision: as Command A Vision, after a norm."""
    return cohere2_vision(f, eyes, d_text).model_copy(update={"norm": LAYER_NORM, "norm_joined": True})


def mistral3(f: Fields, eyes: Encoder, d_text: int) -> Merger:
    """Mistral Small 3.1: a norm, neighbours merged by a linear layer, and an MLP of two layers."""
    if _layers_read(f) > 1:
        raise f.fault("vision_feature_layer", "tfsim models one layer only", f.raw("vision_feature_layer"))
    side, bias = f.size("spatial_merge_size"), f.flag("multimodal_projector_bias")
    return Merger(
        patches=side * side, merged=eyes.hidden, joined=(d_text, d_text), norm=RMS_NORM, bias=bias, beside=True
    )


INTERNVL_VISION = FieldTable(
    {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "attention_bias": False,
        "use_qk_norm": False,
        "intermediate_size": 4096,
        "hidden_act": "gelu",
        "norm_type": "layer_norm",
        "image_size": [448, 448],
        "patch_size": [14, 14],
        "num_channels": 3,
        "use_absolute_position_embeddings": True,
        "use_mean_pooling": True,
    },
    harmless=words("hidden_dropout_prob projection_dropout layer_scale_init_value initializer_factor"),
    refused={"use_mask_token": (False,)},
)


def internvit(f: Fields) -> Encoder:
    """InternViT (Chen et al. 2023): each branch is scaled by a learned vector; RMS norms in the 6B model."""
    hidden, n, eyes = f.size("hidden_size"), f.layers("num_hidden_layers"), front(f)
    mixer = attention(
        f,
        "num_attention_heads",
        hidden,
        f.size("num_attention_heads"),
        rope=None,
        qkv_bias=f.flag("attention_bias"),
        qk_norm=QKNorm(scope="full") if f.flag("use_qk_norm") else None,
    )
    ffn = DenseFFN(
        d_ff=f.size("intermediate_size"), activation=f.choice("hidden_act", ACTIVATIONS), gated=False, bias=True
    )
    norm = f.choice("norm_type", {"layer_norm": LAYER_NORM, "rms_norm": RMS_NORM})
    final = not f.flag("use_mean_pooling")
    if final and norm is not LAYER_NORM:
        raise f.fault("use_mean_pooling", "must be true with norm_type rms_norm: the last norm is a layer norm", False)
    block = stack([mixer], [ffn])[0].model_copy(update={"layer_scale": True})
    extra = positions(eyes.seq_len) if f.flag("use_absolute_position_embeddings") else {}
    return Encoder([block] * n, hidden, eyes, norm, {**extra, "final_norm": final})


def _types(*names: str) -> dict[str, EncoderType]:
    return {name: ENCODERS[name] for name in names}


_OPEN = _types("clip_vision_model", "siglip_vision_model", "pixtral")
_SIGLIP = _types("siglip_vision_model")
# the files of Idefics 3 and SmolVLM name the whole model's type here, too
_IDEFICS = dict.fromkeys(("idefics3_vision", "smolvlm_vision", "idefics3", "smolvlm"), ENCODERS["idefics3_vision"])
_INTERN = {"internvl_vision": EncoderType(INTERNVL_VISION, internvit)}
_SHUFFLE = {"downsample_factor": 2}

PROJECTED: dict[str, Projected] = {
    "llava": Projected(llava, _OPEN, _FEATURES),
    "llava_next": Projected(llava_next, _OPEN, _FEATURES),
    "llava_onevision": Projected(
        llava_next, _SIGLIP, {**_FEATURES, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    ),
    "paligemma": Projected(paligemma, _SIGLIP, {"projection_dim": 2048}),
    "idefics3": Projected(idefics3, _IDEFICS, {"scale_factor": 2}),
    "smolvlm": Projected(idefics3, _IDEFICS, {"scale_factor": 2}),
    "internvl": Projected(
        internvl,
        _INTERN,
        {"downsample_ratio": 0.5, "vision_feature_layer": -1, "vision_feature_select_strategy": "default"},
    ),
    "cohere2_vision": Projected(cohere2_vision, _SIGLIP, {**_SHUFFLE, "alignment_intermediate_size": 36864}),
    "aya_vision": Projected(aya_vision, _SIGLIP, {**_SHUFFLE, "alignment_intermediate_size": None}),
    "mistral3": Projected(
        mistral3,
        _types("pixtral"),
        {"spatial_merge_size": 2, "multimodal_projector_bias": False, "vision_feature_layer": -1},
    ),
}
