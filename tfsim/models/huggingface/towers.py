"""The image towers of multimodal models: from ``vision_config`` to a stack whose output becomes tokens of the text.

Only of the types whose published class holds both parts and whose tower is written out here; other multimodal types
keep their text part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, positions, stack
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    LAYER_NORM,
    RMS_NORM,
    Attention,
    DenseFFN,
    Merger,
    Norm,
    PatchFrontend,
    QKNorm,
    Rope,
)

GEMMA_NORM = Norm(unit_offset=True)
_HARMLESS = words("rope_parameters rope_theta")
QWEN3_VL = FieldTable(
    {
        "depth": 27,
        "hidden_size": 1152,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 4304,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 3584,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "depth"},
    harmless=_HARMLESS,
)
KIMI_K25 = FieldTable(
    {
        "patch_size": 14,
        "pos_emb_height": 64,
        "pos_emb_width": 64,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "merge_kernel_size": [2, 2],
    },
    aliases={
        "init_pos_emb_height": "pos_emb_height",
        "init_pos_emb_width": "pos_emb_width",
        "vt_num_attention_heads": "num_attention_heads",
        "vt_num_hidden_layers": "num_hidden_layers",
        "vt_hidden_size": "hidden_size",
        "vt_intermediate_size": "intermediate_size",
    },
    harmless=_HARMLESS
    | words(
        "pos_emb_time init_pos_emb_time hidden_act mm_hidden_size projector_hidden_act projector_ln_eps "
        "text_hidden_size video_attn_type"
    ),
    refused={
        "merge_type": ("sd2_tpool",),
        "mm_projector_type": ("patchmerger",),
        "pos_emb_type": ("divided_fixed",),
    },
)
MINIMAX_M3 = FieldTable(
    {
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 2016,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "hidden_act": "gelu",
    },
    harmless=_HARMLESS
    | words("projection_dim rope_mode initializer_factor vocab_size vision_segment_max_frames")
    | words("img_token_compression_config"),
    refused={"position_embedding_type": ("rope",)},
)
GEMMA_4 = FieldTable(
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "pooling_kernel_size": 3,
        "patch_size": 16,
        "position_embedding_size": 10240,
    },
    harmless=_HARMLESS | words("max_position_embeddings global_head_dim default_output_length standardize label2id"),
    refused={"use_clipped_linears": (False,)},
)

GEMMA_3 = FieldTable(
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "vision_use_head": True,
        "mm_tokens_per_image": 256,
    },
    harmless=_HARMLESS,
)


def _layers(f: Fields, prefix: str, n_layers: int, hidden: int, n_heads: int, **attention: Any) -> list[Any]:
    """Pre-norm layers with biases whose every patch sees every patch."""
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=f.d_head("", hidden, prefix, n_heads),
        **{"qkv_bias": True, "out_bias": True, "rope": Rope(), "causal": False, **attention},
    )
    ffn = DenseFFN(d_ff=f.size("intermediate_size"), activation="gelu_tanh", gated=False, bias=True)
    return stack([mixer] * n_layers, [ffn] * n_layers)


def _tower(layers: list[Any], hidden: int, norm: Norm, front: PatchFrontend, head: Merger, **extra: Any) -> Decoder:
    return Decoder(
        layers=layers,
        d_model=hidden,
        vocab_size=0,
        tied=False,
        max_seq_len=front.seq_len,
        norm=norm,
        dropout=("attention",),
        extra={"frontend": front, "head": head, **extra},
    )


def qwen3_vl(f: Fields, d_text: int) -> Decoder:
    """Qwen3-VL: patches of two frames, learned and rotary positions; four patches merge into a token, at the end and
    after each layer that ``deepstack_visual_indexes`` names."""
    hidden, side = f.size("hidden_size"), f.size("spatial_merge_size")
    rows, patch = f.size("num_position_embeddings"), f.size("patch_size", 65_536)
    taps = f.indices("deepstack_visual_indexes", f.layers("depth")) or ()
    joined = side * side * hidden
    f.choice("hidden_act", ACTIVATIONS)
    return _tower(
        _layers(f, "num_heads", f.layers("depth"), hidden, f.size("num_heads"), fused_qkv=True),
        hidden,
        LAYER_NORM,
        PatchFrontend(
            image_size=max(1, isqrt(rows)) * patch,
            patch_size=patch,
            channels=f.size("in_channels"),
            frames=f.size("temporal_patch_size"),
            class_tokens=0,
        ),
        Merger(patches=side * side, joined=(joined, f.size("out_hidden_size")), norm=LAYER_NORM, taps=len(taps)),
        **positions(rows),
        final_norm=False,
    )


def kimi_k25(f: Fields, d_text: int) -> Decoder:
    """Kimi-K2.5 (MoonViT): learned and rotary positions; four patches merge into a token in a projector beside."""
    hidden, patch = f.size("hidden_size"), f.size("patch_size", 65_536)
    height, width = f.size("pos_emb_height"), f.size("pos_emb_width")
    kernel = f.raw("merge_kernel_size")
    if not isinstance(kernel, list | tuple) or not all(type(side) is int and 0 < side < 100 for side in kernel):
        raise f.fault("merge_kernel_size", "must be two whole numbers", kernel)
    merged = kernel[0] * kernel[-1]
    return _tower(
        _layers(f, "num_attention_heads", f.layers("num_hidden_layers"), hidden, f.size("num_attention_heads")),
        hidden,
        LAYER_NORM,
        PatchFrontend(image_size=height * patch, patch_size=patch, class_tokens=0),
        Merger(patches=merged, joined=(merged * hidden, d_text), norm=LAYER_NORM, beside=True),
        **positions(height * width),
    )


def minimax_m3(f: Fields, d_text: int) -> Decoder:
    """MiniMax-M3: CLIP's layers with rotary positions; each patch is projected, then four are merged."""
    hidden, side = f.size("hidden_size"), f.size("spatial_merge_size")
    f.choice("hidden_act", ACTIVATIONS)
    return _tower(
        _layers(f, "num_attention_heads", f.layers("num_hidden_layers"), hidden, f.size("num_attention_heads")),
        hidden,
        LAYER_NORM,
        PatchFrontend(
            image_size=f.size("image_size", 65_536),
            patch_size=f.size("patch_size", 65_536),
            channels=f.size("num_channels"),
            frames=f.size("temporal_patch_size"),
            bias=False,
            class_tokens=0,
        ),
        Merger(patches=side * side, each=(d_text, d_text), joined=(d_text, d_text), beside=True),
        embedding_norm=True,
        final_norm=False,
    )


def gemma3(f: Fields, d_text: int) -> Decoder:
    """Gemma-3: SigLIP, whose patches are averaged into ``mm_tokens_per_image`` tokens and projected without a bias."""
    hidden, patch = f.size("hidden_size"), f.size("patch_size", 65_536)
    front = PatchFrontend(
        image_size=f.size("image_size", 65_536), patch_size=patch, channels=f.size("num_channels"), class_tokens=0
    )
    side = front.image_size // patch
    pooled = side // isqrt(f.size("mm_tokens_per_image"))
    if not pooled:
        raise f.fault("mm_tokens_per_image", f"is more than the {side} x {side} patches", f.raw("mm_tokens_per_image"))
    if f.flag("vision_use_head"):
        raise f.fault("vision_use_head", "must be false: SigLIP's pooling head is not modelled", True)
    f.choice("hidden_act", ACTIVATIONS)
    n_heads = f.size("num_attention_heads")
    return _tower(
        _layers(f, "num_attention_heads", f.layers("num_hidden_layers"), hidden, n_heads, rope=None),
        hidden,
        LAYER_NORM,
        front,
        Merger(patches=pooled * pooled, mean=True, joined=(d_text,), norm=GEMMA_NORM, bias=False, beside=True),
        **positions(front.seq_len),
    )


def gemma4(f: Fields, d_text: int) -> Decoder:
    """Gemma-4: gated layers with norms on both sides and on queries and keys; positions from a table for each axis;
    nine patches are averaged into a token."""
    hidden, n_heads, side = f.size("hidden_size"), f.size("num_attention_heads"), f.size("pooling_kernel_size")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=f.size("num_key_value_heads"),
        d_head=f.size("head_dim"),
        rope=Rope(),
        qk_norm=QKNorm(),
        value_norm=True,
        causal=False,
    )
    activation = f.choice("hidden_activation", ACTIVATIONS)
    ffn, n = DenseFFN(d_ff=f.size("intermediate_size"), activation=activation), f.layers("num_hidden_layers")
    patch = f.size("patch_size", 65_536)
    return _tower(
        stack([mixer] * n, [ffn] * n, "sandwich"),
        hidden,
        RMS_NORM,
        PatchFrontend(image_size=16 * side * patch, patch_size=patch, bias=False, class_tokens=0),
        Merger(patches=side * side, mean=True, joined=(d_text,), norm=Norm(weight=False), bias=False),
        **positions(2 * f.size("position_embedding_size")),
        final_norm=False,
    )


@dataclass(frozen=True)
class Tower:
    """The image tower of one multimodal type: its fields, and what makes it from them and the text's width; ``above``:
    fields of the whole model that it reads too."""

    table: FieldTable
    build: Callable[[Fields, int], Decoder]
    above: tuple[str, ...] = ()


TOWERS: dict[str, Tower] = {
    "qwen3_vl": Tower(QWEN3_VL, qwen3_vl),
    "qwen3_vl_moe": Tower(QWEN3_VL, qwen3_vl),
    "kimi_k25": Tower(KIMI_K25, kimi_k25),
    "minimax_m3_vl": Tower(MINIMAX_M3, minimax_m3),
    "gemma3": Tower(GEMMA_3, gemma3, above=("mm_tokens_per_image",)),
    "gemma4": Tower(GEMMA_4, gemma4),
}


def tower(model_type: object, config: Mapping[str, Any], where: str, ignore: Any, d_text: int) -> Decoder | None:
    """The image tower of a multimodal config; None where its type has none here or the file holds no vision_config."""
    known = TOWERS.get(model_type) if isinstance(model_type, str) else None
    given = config.get("vision_config")
    if known is None or not isinstance(given, Mapping) or "vision_config" in ignore:
        return None
    whole = {**given, **{name: config[name] for name in known.above if name in config}}
    return known.build(Fields(whole, known.table, f"{where}: vision_config", ignore), d_text)
