"""The image towers of multimodal models: from ``vision_config`` to a stack whose output becomes tokens of the text.

Only of the types whose published class holds both parts and whose tower is written out here; other multimodal types
keep their text part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, positions, stack
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.huggingface.projectors import PROJECTED, Projected
from tfsim.models.huggingface.tower_parts import (
    AXIAL,
    SIGLIP_VISION,
    attention,
    layers,
    siglip,
    square,
    tower_stack,
)
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
    harmless=AXIAL,
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
    harmless=AXIAL
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
    harmless=AXIAL
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
    harmless=AXIAL | words("max_position_embeddings global_head_dim default_output_length standardize label2id"),
    refused={"use_clipped_linears": (False,)},
)

GEMMA_3 = replace(SIGLIP_VISION, used={**SIGLIP_VISION.used, "mm_tokens_per_image": 256})
QWEN2_VL = FieldTable(
    {
        "depth": 32,
        "embed_dim": 1280,
        "hidden_size": 3584,
        "hidden_act": "quick_gelu",
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    aliases=QWEN3_VL.aliases,
    harmless=AXIAL | words("in_chans spatial_patch_size"),
)
QWEN2_5_VL = FieldTable(
    {
        "depth": 32,
        "hidden_size": 3584,
        "hidden_act": "silu",
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "out_hidden_size": 3584,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    aliases=QWEN3_VL.aliases,
    harmless=QWEN2_VL.harmless | words("tokens_per_second"),
)
EXAONE4_5 = replace(QWEN2_5_VL, used={**QWEN2_5_VL.used, "num_key_value_heads": 8})
GLM4V = FieldTable(
    {
        "depth": 24,
        "hidden_size": 1536,
        "hidden_act": "silu",
        "attention_bias": False,
        "num_heads": 12,
        "in_channels": 3,
        "image_size": 336,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 4096,
        "intermediate_size": 13696,
    },
    aliases=QWEN3_VL.aliases,
    harmless=AXIAL,
)


def qwen3_vl(f: Fields, d_text: int) -> Decoder:
    """Qwen3-VL: patches of two frames, learned and rotary positions; four patches merge into a token, at the end and
    after each layer that ``deepstack_visual_indexes`` names."""
    hidden, side = f.size("hidden_size"), f.size("spatial_merge_size")
    rows, patch = f.size("num_position_embeddings"), f.size("patch_size", 65_536)
    taps = f.indices("deepstack_visual_indexes", f.layers("depth")) or ()
    joined = side * side * hidden
    f.choice("hidden_act", ACTIVATIONS)
    return tower_stack(
        layers(f, "num_heads", f.layers("depth"), hidden, f.size("num_heads"), fused_qkv=True),
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
    return tower_stack(
        layers(f, "num_attention_heads", f.layers("num_hidden_layers"), hidden, f.size("num_attention_heads")),
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
    return tower_stack(
        layers(f, "num_attention_heads", f.layers("num_hidden_layers"), hidden, f.size("num_attention_heads")),
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
    eyes = siglip(f)
    side = eyes.front.image_size // eyes.front.patch_size
    pooled = side // isqrt(f.size("mm_tokens_per_image"))
    if not pooled:
        raise f.fault("mm_tokens_per_image", f"is more than the {side} x {side} patches", f.raw("mm_tokens_per_image"))
    return eyes.tower(
        Merger(patches=pooled * pooled, mean=True, joined=(d_text,), norm=GEMMA_NORM, bias=False, beside=True)
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
    return tower_stack(
        stack([mixer] * n, [ffn] * n, "sandwich"),
        hidden,
        RMS_NORM,
        PatchFrontend(image_size=16 * side * patch, patch_size=patch, bias=False, class_tokens=0),
        Merger(patches=side * side, mean=True, joined=(d_text,), norm=Norm(weight=False), bias=False),
        **positions(2 * f.size("position_embedding_size")),
        final_norm=False,
    )


REFERENCE_TOKENS = 8
"""Tokens along a side of the image that is counted where a tower takes images of any size: 224 pixels, the example of
Wang et al. 2024 (Qwen2-VL), section 2.1."""


def _any_size(f: Fields, side: int) -> PatchFrontend:
    """Patches of two frames of an image with ``side`` patches a side, without biases."""
    patch = square(f, "patch_size")
    return PatchFrontend(
        image_size=side * patch,
        patch_size=patch,
        channels=f.size("in_channels"),
        frames=f.size("temporal_patch_size"),
        bias=False,
        class_tokens=0,
    )


def qwen2_vl(f: Fields, d_text: int) -> Decoder:
    """Qwen2-VL (Wang et al. 2024): rotary positions alone; four patches merge into a token."""
    hidden, side = f.size("embed_dim"), f.size("spatial_merge_size")
    mixer = attention(f, "num_heads", hidden, f.size("num_heads"), fused_qkv=True)
    activation = f.choice("hidden_act", ACTIVATIONS)
    ffn = DenseFFN(d_ff=hidden * f.size("mlp_ratio"), activation=activation, gated=False, bias=True)
    n, joined = f.layers("depth"), side * side * hidden
    return tower_stack(
        stack([mixer] * n, [ffn] * n),
        hidden,
        LAYER_NORM,
        _any_size(f, REFERENCE_TOKENS * side),
        Merger(patches=side * side, joined=(joined, f.size("hidden_size")), norm=LAYER_NORM),
        final_norm=False,
    )


def qwen2_5_vl(f: Fields, d_text: int) -> Decoder:
    """Qwen2.5-VL (Bai et al. 2025) and EXAONE 4.5: most layers attend within windows of ``window_size`` pixels, gated
    FFNs with biases, RMS norms. The image that is counted is whole windows."""
    hidden, side, n_heads = f.size("hidden_size"), f.size("spatial_merge_size"), f.size("num_heads")
    n, patch = f.layers("depth"), square(f, "patch_size")
    window = side * (f.size("window_size") // side // patch)
    if not window:
        raise f.fault("window_size", f"is less than a token of {side} x {side} patches", f.raw("window_size"))
    whole = f.indices("fullatt_block_indexes", n) or frozenset()
    n_kv = f.size("num_key_value_heads") if "num_key_value_heads" in f.names else n_heads
    kinds = [
        attention(f, "num_heads", hidden, n_heads, n_kv_heads=n_kv, fused_qkv=True, chunk=chunk)
        for chunk in (window * window, None)
    ]
    activation = f.choice("hidden_act", ACTIVATIONS)
    ffn = DenseFFN(d_ff=f.size("intermediate_size"), activation=activation, bias=True)
    joined = side * side * hidden
    return tower_stack(
        stack([kinds[i in whole] for i in range(n)], [ffn] * n),
        hidden,
        RMS_NORM,
        _any_size(f, -(-REFERENCE_TOKENS * side // window) * window),
        Merger(patches=side * side, joined=(joined, f.size("out_hidden_size")), norm=RMS_NORM),
        final_norm=False,
    )


def glm4v(f: Fields, d_text: int) -> Decoder:
    """GLM-4.1V, 4.5V and 4.6V (GLM-V Team 2025): learned and rotary positions, gated FFNs; a strided convolution makes
    a token of four patches, and a gated MLP follows."""
    hidden, side, width = f.size("hidden_size"), f.size("spatial_merge_size"), f.size("out_hidden_size")
    bias, n = f.flag("attention_bias"), f.layers("depth")
    mixer = attention(f, "num_heads", hidden, f.size("num_heads"), fused_qkv=True, qkv_bias=bias, out_bias=False)
    activation = f.choice("hidden_act", ACTIVATIONS)
    patch = square(f, "patch_size")
    front = _any_size(f, square(f, "image_size") // patch).model_copy(update={"bias": True})
    return tower_stack(
        stack([mixer] * n, [DenseFFN(d_ff=width, activation=activation)] * n),
        hidden,
        RMS_NORM,
        front,
        Merger(
            patches=side * side,
            merged=width,
            merged_bias=True,
            joined=(width, f.size("intermediate_size"), width),
            inner_norm=LAYER_NORM,
            gated=True,
            bias=False,
        ),
        **positions(front.seq_len),
        embedding_norm=True,
    )


@dataclass(frozen=True)
class Tower:
    """The image tower of one multimodal type: its fields, and what makes it from them and the text's width; ``above``:
    fields of the whole model that it reads too."""

    table: FieldTable
    build: Callable[[Fields, int], Decoder]
    above: tuple[str, ...] = ()

    def read(
        self, given: Mapping[str, Any], above: Mapping[str, Any], where: str, ignore: Sequence[str], d_text: int
    ) -> Decoder:
        """The tower of ``given``, a vision_config, and of the fields ``above`` it."""
        return self.build(Fields({**given, **above}, self.table, where, ignore), d_text)


TOWERS: dict[str, Tower | Projected] = {
    "qwen3_vl": Tower(QWEN3_VL, qwen3_vl),
    "qwen3_vl_moe": Tower(QWEN3_VL, qwen3_vl),
    "kimi_k25": Tower(KIMI_K25, kimi_k25),
    "minimax_m3_vl": Tower(MINIMAX_M3, minimax_m3),
    "gemma3": Tower(GEMMA_3, gemma3, above=("mm_tokens_per_image",)),
    "gemma4": Tower(GEMMA_4, gemma4),
    "qwen2_vl": Tower(QWEN2_VL, qwen2_vl),
    "qwen2_5_vl": Tower(QWEN2_5_VL, qwen2_5_vl),
    "exaone4_5": Tower(EXAONE4_5, qwen2_5_vl),
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), Tower(GLM4V, glm4v)),
    **PROJECTED,
}


def above_text(model_type: str) -> tuple[str, ...]:
    """The fields beside text_config and vision_config that the tower of a type reads."""
    return TOWERS[model_type].above if model_type in TOWERS else ()


def has_tower(config: Mapping[str, Any], ignore: Sequence[str]) -> bool:
    """Whether a config holds a vision_config that is not to be left out."""
    return isinstance(config.get("vision_config"), Mapping) and "vision_config" not in ignore


def tower(model_type: object, config: Mapping[str, Any], where: str, ignore: Any, d_text: int) -> Decoder | None:
    """The image tower of a multimodal config; None where its type has none here or the file holds no vision_config."""
    known = TOWERS.get(model_type) if isinstance(model_type, str) else None
    if known is None or not has_tower(config, ignore):
        return None
    above = {name: config[name] for name in known.above if name in config}
    return known.read(config["vision_config"], above, f"{where}: vision_config", ignore, d_text)
