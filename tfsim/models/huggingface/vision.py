"""Models of images: ViT, and CLIP's two towers."""

from __future__ import annotations

from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, positions, stack
from tfsim.models.huggingface.encoders import SITES, TASK, labels, task
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    LAYER_NORM,
    Attention,
    Classifier,
    DenseFFN,
    Head,
    PatchFrontend,
    Pooler,
    Projection,
)

VIT = FieldTable(
    {
        **TASK,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "pooler_output_size": None,
    },
    harmless=words("hidden_dropout_prob attention_probs_dropout_prob encoder_stride"),
    refused={"pooler_act": ("tanh",)},
)
CLIP = FieldTable(
    {
        "projection_dim": 512,
        "text_config.vocab_size": 49408,
        "text_config.hidden_size": 512,
        "text_config.intermediate_size": 2048,
        "text_config.num_hidden_layers": 12,
        "text_config.num_attention_heads": 8,
        "text_config.max_position_embeddings": 77,
        "text_config.hidden_act": "quick_gelu",
        "vision_config.hidden_size": 768,
        "vision_config.intermediate_size": 3072,
        "vision_config.num_hidden_layers": 12,
        "vision_config.num_attention_heads": 12,
        "vision_config.num_channels": 3,
        "vision_config.image_size": 224,
        "vision_config.patch_size": 32,
        "vision_config.hidden_act": "quick_gelu",
    },
    harmless=words(
        "logit_scale_init_value initializer_factor text_config_dict vision_config_dict text_config.projection_dim "
        "vision_config.projection_dim text_config.initializer_factor vision_config.initializer_factor "
        "tie_word_embeddings"
    ),
)


def _layers(f: Fields, prefix: str = "", **attention: Any) -> tuple[list[Any], int]:
    hidden, n_heads = f.size(f"{prefix}hidden_size"), f.size(f"{prefix}num_attention_heads")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=f.d_head("", hidden, f"{prefix}num_attention_heads", n_heads),
        **{"qkv_bias": True, "out_bias": True, **attention},
    )
    ffn = DenseFFN(
        d_ff=f.size(f"{prefix}intermediate_size"),
        activation=f.choice(f"{prefix}hidden_act", ACTIVATIONS),
        gated=False,
        bias=True,
    )
    n = f.layers(f"{prefix}num_hidden_layers")
    return stack([mixer] * n, [ffn] * n), hidden


def _patches(f: Fields, prefix: str = "", *, bias: bool) -> PatchFrontend:
    front = PatchFrontend(
        image_size=f.size(f"{prefix}image_size", 65_536),
        patch_size=f.size(f"{prefix}patch_size", 65_536),
        channels=f.size(f"{prefix}num_channels"),
        bias=bias,
    )
    if front.patch_size > front.image_size:
        raise f.fault(f"{prefix}patch_size", "is more than the image's size", front.patch_size)
    return front


def _tower(f: Fields, layers: list[Any], hidden: int, front: PatchFrontend, head: Head, **extra: Any) -> Decoder:
    """Patches and a class token with learned positions, pre-norm layers without a mask."""
    return Decoder(
        layers=layers,
        d_model=hidden,
        vocab_size=0,
        tied=False,
        max_seq_len=front.seq_len,
        norm=LAYER_NORM,
        dropout=SITES,
        extra={"frontend": front, **positions(front.seq_len), "head": head, **extra},
    )


def vit(f: Fields) -> Decoder:
    """ViT (Dosovitskiy et al. 2021): a classifier unless ``architectures`` says otherwise."""
    n = labels(f)
    purpose = task(f, "ImageClassification")
    heads: dict[str, Head] = {"ImageClassification": Classifier(n_classes=n), "Model": Pooler()}
    if purpose not in heads:
        raise f.fault("architectures", "tfsim models ViTForImageClassification and ViTModel", f.raw("architectures"))
    layers, hidden = _layers(f, causal=False, qkv_bias=f.flag("qkv_bias"))
    pooled = f.maybe_size("pooler_output_size")
    if purpose == "Model" and pooled not in (None, hidden):
        raise f.fault("pooler_output_size", f"must be the hidden size, {hidden}", pooled)
    return _tower(f, layers, hidden, _patches(f, bias=True), heads[purpose])


def clip(f: Fields) -> Decoder:
    """CLIP (Radford et al. 2021): a causal text tower, an image tower beside it, and one space for both."""
    width = f.size("projection_dim")
    seen, d_image = _layers(f, "vision_config.", causal=False)
    front = _patches(f, "vision_config.", bias=False)
    image = _tower(f, seen, d_image, front, Projection(d_out=width), embedding_norm=True)
    read, d_text = _layers(f, "text_config.", given_mask=True)
    rows = f.size("text_config.max_position_embeddings")
    return Decoder(
        layers=read,
        d_model=d_text,
        vocab_size=f.size("text_config.vocab_size"),
        tied=False,
        max_seq_len=rows,
        norm=LAYER_NORM,
        dropout=SITES,
        extra={**positions(rows, "stored"), "head": Projection(d_out=width, contrast=True)},
        encoder=image,
    )
