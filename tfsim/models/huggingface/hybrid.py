"""Hybrids of state space and attention layers: Jamba, Nemotron-H and Nemotron-3, Bamba, Granite-4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, ROPE_FIELDS, Decoder, rope, stack
from tfsim.models.huggingface.dense import attention, d_head, decoder
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.huggingface.sparse import experts
from tfsim.models.huggingface.ssm import STEP, step_rank
from tfsim.models.spec import FFN, RMS_NORM, DenseFFN, Mamba, Mamba2, Mixer, MoE, SharedExpert

JAMBA = FieldTable(
    {
        "vocab_size": 65536,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "num_experts_per_tok": 2,
        "num_experts": 16,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "tie_word_embeddings": False,
    },
    aliases={"num_local_experts": "num_experts"},
    harmless=words(STEP, "calc_logits_for_entire_prompt"),
    refused={"mamba_inner_layernorms": (True,), "sliding_window": (None,)},
)
NEMOTRON_H = FieldTable(
    {
        "vocab_size": 131072,
        "hidden_size": 4096,
        "layers_block_type": None,
        "hybrid_override_pattern": None,
        "num_hidden_layers": None,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "intermediate_size": 21504,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "chunk_size": 128,
        "use_bias": False,
        "residual_in_fp32": False,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "n_group": 1,
        "moe_latent_size": None,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
    aliases={
        "layer_types": "layers_block_type",
        "num_local_experts": "n_routed_experts",
        "attention_head_dim": "head_dim",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_chunk_size": "chunk_size",
    },
    harmless=words(
        STEP,
        "expand mamba_expand mamba_proj_bias mamba_dt_min mamba_dt_max mamba_dt_limit mamba_dt_init_floor "
        "time_step_rank n_shared_experts moe_shared_expert_overlap routed_scaling_factor topk_group "
        "mtp_layers_block_type mtp_hybrid_override_pattern rope_theta partial_rotary_factor intermediate_size_mlp",
    ),
    refused={
        "mamba_hidden_act": ("silu",),
        "sliding_window": (None,),
        "mamba_ssm_cache_dtype": ("float32",),
        "tie_word_embeddings": (False,),  # the class ties nothing
    },
)
_MAMBA2_LAYERS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
BAMBA = FieldTable(
    {
        **ROPE_FIELDS,
        **_MAMBA2_LAYERS,
        "vocab_size": 128000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "attn_layer_indices": None,
        "mlp_bias": False,
    },
    harmless=words(STEP, "z_loss_coefficient attn_rotary_emb"),
)
GRANITE_HYBRID = FieldTable(
    {
        **ROPE_FIELDS,
        **_MAMBA2_LAYERS,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "position_embedding_type": None,
        "layer_types": None,
    },
    aliases={"layers_block_type": "layer_types"},
    harmless=words(
        STEP, "embedding_multiplier logits_scaling residual_multiplier attention_multiplier normalization_function"
    ),
)


def jamba(f: Fields) -> Decoder:
    """Jamba (Lieber et al. 2024): one attention layer without positions among Mamba layers, experts every other."""
    n, hidden = f.layers("num_hidden_layers"), f.size("hidden_size")
    attends, sparse = _every(f, "attn_layer", n), _every(f, "expert_layer", n)
    mamba_mixer = Mamba(
        d_inner=f.size("mamba_expand") * hidden,
        d_state=f.size("mamba_d_state"),
        d_conv=f.size("mamba_d_conv"),
        dt_rank=step_rank(f, "mamba_dt_rank", hidden),
        conv_bias=f.flag("mamba_conv_bias"),
        proj_bias=f.flag("mamba_proj_bias"),
        inner_norm=RMS_NORM,
    )
    attending = attention(f, rope=None)
    dense = DenseFFN(d_ff=f.size("intermediate_size"), activation=f.choice("hidden_act", ACTIVATIONS))
    many = f.size("num_experts") > 1
    moe = experts(f, "num_experts", "intermediate_size", normalize_top_k=False) if many else dense
    return Decoder(
        layers=stack([attending if a else mamba_mixer for a in attends], [moe if s else dense for s in sparse]),
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=f.size("max_position_embeddings"),
    )


def _every(f: Fields, name: str, n: int) -> list[bool]:
    """The layers i with i mod period = offset."""
    period, offset = f.size(f"{name}_period"), f.count(f"{name}_offset")
    if offset >= period:
        raise f.fault(f"{name}_offset", f"must be below {name}_period = {period}", offset)
    return [i % period == offset for i in range(n)]


_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_TYPES = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "full_attention": "attention",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def _nemotron_kinds(f: Fields) -> list[str]:
    """The kind of each layer: the list, or the pattern string of letters M * - E."""
    listed, pattern = f.raw("layers_block_type"), f.raw("hybrid_override_pattern")
    if listed is None and pattern is None:
        return ["mamba", "moe", "attention", "mlp"]  # as the class does
    if listed is not None:
        if not isinstance(listed, list) or not listed or not all(t in _TYPES for t in listed if isinstance(t, str)):
            raise f.fault("layers_block_type", f"must be a list of {', '.join(_TYPES)}", listed)
        return [_TYPES[t] for t in listed]
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_LETTERS):
        raise f.fault(
            "hybrid_override_pattern", "must be a text of M (Mamba-2), * (attention), - (MLP), E (MoE)", pattern
        )
    return [_LETTERS[letter] for letter in pattern]


def nemotron_h(f: Fields) -> Decoder:
    """Nemotron-H and Nemotron-3: Mamba-2, attention without positions, squared-ReLU MLP or experts, one a layer."""
    kinds = _nemotron_kinds(f)
    n = f.maybe_size("num_hidden_layers")
    if n is not None and n != len(kinds):
        raise f.fault("num_hidden_layers", f"contradicts the {len(kinds)} layers of the pattern", n)
    made = {kind: _nemotron_layer(f, kind) for kind in dict.fromkeys(kinds)}
    return Decoder(
        layers=stack([made[kind][0] for kind in kinds], [made[kind][1] for kind in kinds]),
        d_model=f.size("hidden_size"),
        vocab_size=f.size("vocab_size"),
        tied=False,
        max_seq_len=f.size("max_position_embeddings"),
        extra={"residual_fp32": f.flag("residual_in_fp32"), "n_mtp_modules": f.count("num_nextn_predict_layers")},
    )


def _nemotron_layer(f: Fields, kind: str) -> tuple[Mixer | None, FFN | None]:
    if kind == "mamba":
        return (
            Mamba2(
                n_heads=f.size("mamba_num_heads"),
                d_head=f.size("mamba_head_dim"),
                d_state=f.size("ssm_state_size"),
                n_groups=f.size("n_groups"),
                d_conv=f.size("conv_kernel"),
                chunk=f.size("chunk_size"),
                conv_bias=f.flag("use_conv_bias"),
                proj_bias=f.flag("use_bias"),
            ),
            None,
        )
    if kind == "attention":
        return attention(f, rope=None), None
    options: Mapping[str, Any] = {
        "activation": f.choice("mlp_hidden_act", ACTIVATIONS),
        "gated": False,
        "bias": f.flag("mlp_bias"),
    }
    if kind == "mlp":
        return None, DenseFFN(d_ff=f.size("intermediate_size"), **options)
    if options["bias"]:
        raise f.fault("mlp_bias", "tfsim models only experts without biases", True)
    return None, experts(
        f,
        "n_routed_experts",
        "moe_intermediate_size",
        shared=SharedExpert(d_ff=f.size("moe_shared_expert_intermediate_size")),
        router="sigmoid",
        router_fp32=True,
        normalize_top_k=f.flag("norm_topk_prob"),
        n_groups=f.size("n_group"),
        d_latent=f.maybe_size("moe_latent_size"),
        **options,
    )


def _mamba2(f: Fields) -> Mamba2:
    """The Mamba-2 mixer of Bamba and Granite-4: its heads fill expand x hidden size."""
    n_heads, wide = f.size("mamba_n_heads"), f.size("mamba_expand") * f.size("hidden_size")
    width = wide // n_heads if f.raw("mamba_d_head") == "auto" else f.size("mamba_d_head")
    if n_heads * width != wide:
        raise f.fault("mamba_n_heads", f"must give mamba_n_heads x mamba_d_head = mamba_expand x hidden_size = {wide}")
    return Mamba2(
        n_heads=n_heads,
        d_head=width,
        d_state=f.size("mamba_d_state"),
        n_groups=f.size("mamba_n_groups"),
        d_conv=f.size("mamba_d_conv"),
        chunk=f.size("mamba_chunk_size"),
        conv_bias=f.flag("mamba_conv_bias"),
        proj_bias=f.flag("mamba_proj_bias"),
        grouped_norm=False,
    )


def bamba(f: Fields) -> Decoder:
    """Bamba (IBM 2024): Mamba-2 layers with a few attention layers, a gated FFN in each; half of a head is rotated."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    attends = f.indices("attn_layer_indices", n) or ()
    mixer = _mamba2(f)
    attending = attention(f, rope=rope(f, d_head(f), partial=0.5), qkv_bias=bias, out_bias=bias)
    ffn = DenseFFN(
        d_ff=f.size("intermediate_size"), activation=f.choice("hidden_act", ACTIVATIONS), bias=f.flag("mlp_bias")
    )
    return decoder(f, stack([attending if i in attends else mixer for i in range(n)], [ffn] * n))


def granite_hybrid(f: Fields) -> Decoder:
    """Granite-4 (IBM 2025): Mamba-2 or attention, then experts beside a shared expert, or the latter alone."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    given = f.per_layer("layer_types", n, ", ".join(_TYPES), lambda x: x in _TYPES)
    kinds = [_TYPES[x] for x in given] if given else ["mamba"] * n
    turns = (
        f.choice("position_embedding_type", {"rope": True, "nope": False})
        if f.raw("position_embedding_type")
        else False
    )
    turn = rope(f, d_head(f))
    attending = attention(f, rope=turn if turns else None, qkv_bias=bias, out_bias=bias)
    made: Mapping[str, Mixer] = {"mamba": _mamba2(f), "attention": attending}
    shared = f.size("shared_intermediate_size")
    ffn: DenseFFN | MoE
    if f.count("num_local_experts"):
        ffn = experts(
            f, "num_local_experts", "intermediate_size", shared=SharedExpert(d_ff=shared), router="topk_softmax"
        )
    else:
        ffn = DenseFFN(d_ff=shared, activation=f.choice("hidden_act", ACTIVATIONS), fused_gate_up=True)
    return decoder(f, stack([made[kind] for kind in kinds], [ffn] * n))
