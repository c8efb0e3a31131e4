"""Sparse decoders that are run today: GLM-4.5, MiniMax-M2, the text part of Qwen3-VL, with plain attention; and
MiniMax-Text-01, most of whose layers are linear attention."""

from __future__ import annotations

from typing import Any

from tfsim.models.huggingface.common import Decoder, layer_types, rope, stack
from tfsim.models.huggingface.dense import attention, d_head, decoder, ffn, table, uniform
from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.latent import fine_grained, router_groups, sparse_after
from tfsim.models.huggingface.sparse import experts, qwen_ffns
from tfsim.models.spec import RMS_NORM, LinearAttention, Mixer, QKNorm

GLM4_MOE = table(
    vocab_size=151552,
    intermediate_size=10944,
    num_hidden_layers=46,
    num_attention_heads=96,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    attention_bias=False,
    moe_intermediate_size=1408,
    num_experts_per_tok=8,
    n_shared_experts=1,
    n_routed_experts=128,
    n_group=1,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    use_qk_norm=False,
    num_nextn_predict_layers=0,
    harmless="routed_scaling_factor topk_group use_grouped_mm",
    refused={"moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
    aliases={
        "num_local_experts": "n_routed_experts",
        "num_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    },
)
_MINIMAX: dict[str, Any] = {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "head_dim": None,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rotary_dim": None,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "layer_types": None,
    "attn_type_list": None,
    "block_size": 256,
}
MINIMAX = table(
    **_MINIMAX,
    harmless=" ".join(
        f"{where}_{factor}_factor" for where in ("full_attn", "linear_attn", "mlp") for factor in ("alpha", "beta")
    )
    + " layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha"
    " layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta postnorm shared_moe_mode",
    refused={"shared_intermediate_size": (0, None)},
    aliases={"num_experts": "num_local_experts"},
)
MINIMAX_M2 = table(
    vocab_size=200064,
    hidden_size=3072,
    intermediate_size=1536,
    num_hidden_layers=62,
    num_attention_heads=48,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=196608,
    rope_theta=5e6,
    rotary_dim=None,
    num_experts_per_tok=8,
    num_local_experts=256,
    attn_type_list=None,
    harmless="use_routing_bias use_mtp mtp_transformer_layers num_mtp_modules mlp_intermediate_size shared_moe_mode "
    "layernorm_full_attention_alpha layernorm_full_attention_beta layernorm_linear_attention_alpha "
    "layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta",
    refused={
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_layer",),
        "shared_intermediate_size": (0, None),
        "scoring_func": ("sigmoid",),
        "sliding_window": (None,),
    },
    aliases={"num_experts": "num_local_experts"},
)
_VL: dict[str, Any] = {
    "vocab_size": 151936,
    "max_position_embeddings": 128000,
    "rope_theta": 500000.0,
    "attention_bias": False,
}
QWEN3_VL = table(
    **_VL,
    intermediate_size=22016,
    num_key_value_heads=32,
    head_dim=128,
    refused={"sliding_window": (None,), "use_sliding_window": (False,)},
)
QWEN3_VL_MOE = table(
    **_VL,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=16,
    decoder_sparse_step=1,
    moe_intermediate_size=1408,
    num_experts_per_tok=4,
    num_experts=60,
    mlp_only_layers=None,
    norm_topk_prob=True,
    tie_word_embeddings=False,
    refused={"sliding_window": (None,), "use_sliding_window": (False,), "shared_expert_intermediate_size": (0, None)},
    aliases={"num_local_experts": "num_experts"},
)


def glm4_moe(f: Fields) -> Decoder:
    """GLM-4.5 (Zeng et al. 2025): half-rotated heads, a QK norm in the big one, DeepSeek-V3's experts."""
    return half_rotated(f, QKNorm() if f.flag("use_qk_norm") else None)


def half_rotated(f: Fields, norm: QKNorm | None) -> Decoder:
    """GLM-4.5's layers with or without the norm on queries and keys."""
    # the class rounds down where head_dim is missing
    width = f.maybe_size("head_dim") or max(1, f.size("hidden_size") // f.size("num_attention_heads"))
    turn = rope(f, width, partial=0.5)
    mixer = attention(f, d_head=width, rope=turn, qkv_bias=f.flag("attention_bias"), qk_norm=norm)
    sparse = sparse_after(f)
    router: dict[str, Any] = {"n_groups": router_groups(f), "normalize_top_k": f.flag("norm_topk_prob")}
    return fine_grained(f, [mixer] * len(sparse), sparse, router="sigmoid", **router)


def minimax_m2(f: Fields) -> Decoder:
    """MiniMax-M2: full attention with a norm over whole queries and keys, sigmoid routing, no shared expert."""
    n, width = f.layers("num_hidden_layers"), d_head(f)
    kinds = f.per_layer("attn_type_list", n, "1 (softmax attention)", lambda kind: kind in (0, 1))
    if kinds and not all(kinds):
        raise f.fault("attn_type_list", "linear attention (0) is not part of this class", kinds)
    rotated = f.maybe_size("rotary_dim")
    turn = rope(f, width, partial=rotated / width if rotated else 1.0)
    mixer = attention(f, rope=turn, qk_norm=QKNorm(scope="full"))
    moe = experts(f, "num_local_experts", "intermediate_size", router="sigmoid")
    return decoder(f, stack([mixer] * n, [moe] * n))


def minimax(f: Fields) -> Decoder:
    """MiniMax-Text-01: Lightning Attention, and softmax attention in the layers that layer_types (or the older
    attn_type_list, 0 and 1) names; residuals start after the norm, which no count depends on."""
    n = f.layers("num_hidden_layers")
    listed = f.per_layer(
        "attn_type_list", n, f"{n} of 0 (linear) and 1 (softmax attention)", lambda kind: kind in (0, 1)
    )
    names = ("linear_attention", "full_attention")
    types = [names[kind] for kind in listed] if listed else [names[i % 2 == 0] for i in range(n)]
    rotated = f.maybe_size("rotary_dim")
    width = d_head(f)
    linear = LinearAttention(
        n_heads=f.size("num_attention_heads"),
        d_head=width,
        feature="silu",
        decay=True,
        gated=True,
        fused_qkv=True,
        chunk=f.size("block_size"),
    )
    turn = rope(f, width, partial=rotated / width if rotated else 1.0)
    full = attention(f, rope=turn, window=f.maybe_size("sliding_window"))
    kinds: dict[str, Mixer] = {"full_attention": full, "linear_attention": linear}
    mixers = [kinds[kind] for kind in layer_types(f, n, tuple(kinds), types)]
    moe = experts(f, "num_local_experts", "intermediate_size")
    return decoder(f, stack(mixers, [moe] * n))


def _vl_attention(f: Fields) -> Any:
    bias = f.flag("attention_bias")
    return attention(f, qkv_bias=bias, out_bias=bias, qk_norm=QKNorm())


def qwen3_vl(f: Fields) -> Decoder:
    """Qwen3-VL, text part: Qwen3 with rotary positions in three axes."""
    return uniform(f, _vl_attention(f), ffn(f), RMS_NORM)


def qwen3_vl_moe(f: Fields) -> Decoder:
    """Qwen3-VL with experts, text part: Qwen3-MoE."""
    n = f.layers("num_hidden_layers")
    return decoder(f, stack([_vl_attention(f)] * n, qwen_ffns(f, n, None)))
