"""Diffusion Transformers; field names are those of facebookresearch/DiT (models.py), whose class has no config.json.

No transformers class stands behind the ``dit`` type: it is tfsim's own, equal to facebookresearch's in parameters
and FLOPs.
"""

from __future__ import annotations

from tfsim.models.huggingface.common import Decoder
from tfsim.models.huggingface.fields import REQUIRED, Fields, FieldTable
from tfsim.models.spec import Attention, Block, DenseFFN, LearnedPositions, Norm, PatchFrontend
from tfsim.models.spec.dit import Condition, DenoiseHead

DIT = FieldTable(
    used={
        "hidden_size": REQUIRED,
        "num_layers": REQUIRED,
        "num_heads": REQUIRED,
        "patch_size": 2,
        "input_size": 32,
        "in_channels": 4,
        "num_classes": 1000,
        "class_dropout_prob": 0.1,
        "mlp_ratio": 4.0,
        "learn_sigma": True,
    },
    aliases={"depth": "num_layers", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
    harmless=frozenset({"p"}),
)


def dit(f: Fields) -> Decoder:
    """Peebles and Xie 2023: ViT blocks over latent patches, conditioned by adaLN-Zero; sinusoidal table kept frozen."""
    hidden, heads, patch = f.size("hidden_size"), f.size("num_heads"), f.size("patch_size")
    side, channels = f.size("input_size"), f.size("in_channels")
    front = PatchFrontend(image_size=side, patch_size=patch, channels=channels, class_tokens=0)
    mixer = Attention(
        n_heads=heads,
        n_kv_heads=heads,
        d_head=f.d_head("head_dim", hidden, "num_heads", heads),
        qkv_bias=True,
        out_bias=True,
        fused_qkv=True,
        causal=False,
    )
    width = int(hidden * f.positive("mlp_ratio", f.raw("mlp_ratio")))
    ffn = DenseFFN(d_ff=width, activation="gelu_tanh", gated=False, bias=True)
    out = channels * (2 if f.flag("learn_sigma") else 1)
    return Decoder(
        layers=[Block(mixer=mixer, ffn=ffn, residual="adaln")] * f.layers("num_layers"),
        d_model=hidden,
        vocab_size=0,
        tied=False,
        norm=Norm(kind="layernorm", weight=False, upcast=False, fused=True),
        dropout=(),
        extra={
            "frontend": front,
            "positions": LearnedPositions(n_positions=front.seq_len, frozen=True),
            "condition": Condition(n_classes=f.count("num_classes"), null_class=bool(f.raw("class_dropout_prob"))),
            "head": DenoiseHead(d_out=patch * patch * out),
            "final_norm": False,
        },
    )
