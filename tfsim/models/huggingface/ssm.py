"""State space models and hybrids: Mamba, Falcon-Mamba, Mamba-2, RWKV-4, Jamba, Nemotron-H."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, stack
from tfsim.models.huggingface.dense import attention
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.huggingface.sparse import experts
from tfsim.models.spec import (
    FFN,
    LAYER_NORM,
    RMS_NORM,
    RWKV,
    ChannelMix,
    DenseFFN,
    Mamba,
    Mamba2,
    Mixer,
    Norm,
    SharedExpert,
)
from tfsim.units import ceil_div

_STEP = (
    "time_step_scale time_step_min time_step_max time_step_floor time_step_limit time_step_init_scheme "
    "rescale_prenorm_residual use_mambapy use_associative_scan use_mamba_kernels num_logits_to_keep"
)
_MAMBA: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "state_size": 16,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "residual_in_fp32": True,
    "time_step_rank": "auto",
    "intermediate_size": None,
    "pad_vocab_size_multiple": None,
    "tie_word_embeddings": True,
}
_OLD_NAMES = {"d_model": "hidden_size", "n_layer": "num_hidden_layers", "d_inner": "intermediate_size"}
MAMBA = FieldTable(
    {**_MAMBA, "vocab_size": 50280},
    aliases=_OLD_NAMES,
    harmless=words(_STEP, "ssm_cfg rms_norm fused_add_norm num_parameters"),
    refused={"hidden_act": ("silu",)},
)
FALCON_MAMBA = FieldTable(
    {**_MAMBA, "vocab_size": 50280},
    aliases=_OLD_NAMES,
    harmless=words(_STEP, "mixer_rms_eps use_falcon_mambapy"),
    refused={"hidden_act": ("silu",)},
)
MAMBA2 = FieldTable(
    {
        **_MAMBA,
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "state_size": 128,
        "num_heads": 128,
        "head_dim": 64,
        "n_groups": 8,
        "chunk_size": 256,
        "tie_word_embeddings": False,
    },
    aliases=_OLD_NAMES,
    harmless=words(_STEP, "time_step_rank rms_norm norm_before_gate"),
    refused={"hidden_act": ("silu",)},
)
RWKV_4 = FieldTable(
    {
        "vocab_size": 50277,
        "context_length": 1024,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "attention_hidden_size": None,
        "intermediate_size": None,
        "tie_word_embeddings": False,
    },
    aliases={"max_position_embeddings": "context_length"},
    harmless=words("rescale_every"),
)
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
    harmless=words(_STEP, "calc_logits_for_entire_prompt"),
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
        "attention_bias": False,
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
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
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
        _STEP,
        "expand mamba_expand mamba_proj_bias mamba_dt_min mamba_dt_max mamba_dt_limit mamba_dt_init_floor "
        "time_step_rank n_shared_experts moe_shared_expert_overlap routed_scaling_factor topk_group "
        "mtp_layers_block_type mtp_hybrid_override_pattern rope_theta partial_rotary_factor intermediate_size_mlp",
    ),
    refused={
        "mamba_hidden_act": ("silu",),
        "moe_latent_size": (None,),
        "sliding_window": (None,),
        "mamba_ssm_cache_dtype": ("float32",),
    },
)


def _rank(f: Fields, name: str, hidden: int) -> int:
    """The rank of the step sizes: ``auto`` is a sixteenth of the hidden size, rounded up."""
    return int(ceil_div(hidden, 16)) if f.raw(name) == "auto" else f.size(name)


def _inner(f: Fields, name: str, hidden: int) -> int:
    """Channels: ``expand`` times the hidden size, which may be a fraction."""
    factor = f.number(name)
    return int((2 if factor is None else factor) * hidden)


def mamba(f: Fields) -> Decoder:
    """Mamba-1: norm, selective state space, residual in fp32; no feed-forward network."""
    return _mamba(f, None)


def falcon_mamba(f: Fields) -> Decoder:
    """Falcon-Mamba: Mamba with weightless norms on step sizes, B and C."""
    return _mamba(f, Norm(weight=False))


def _mamba(f: Fields, inner_norm: Norm | None) -> Decoder:
    hidden = f.size("hidden_size")
    bias = f.flag("use_bias")
    d_inner = _inner(f, "expand", hidden)
    _same_inner(f, d_inner)
    mixer = Mamba(
        d_inner=d_inner,
        d_state=f.size("state_size"),
        d_conv=f.size("conv_kernel"),
        dt_rank=_rank(f, "time_step_rank", hidden),
        conv_bias=f.flag("use_conv_bias"),
        proj_bias=bias,
        inner_norm=inner_norm,
    )
    return _recurrent(f, [mixer] * f.layers("num_hidden_layers"))


def _same_inner(f: Fields, d_inner: int) -> None:
    given = f.maybe_size("intermediate_size")
    if given is not None and given != d_inner:
        raise f.fault("intermediate_size", f"must be expand x hidden_size = {d_inner}", given)


def _recurrent(f: Fields, mixers: Sequence[Mixer]) -> Decoder:
    """A stack of mixers without feed-forward networks."""
    return Decoder(
        layers=stack(mixers, [None] * len(mixers)),
        d_model=f.size("hidden_size"),
        vocab_size=_vocabulary(f),
        tied=f.flag("tie_word_embeddings"),
        dropout=(),
        extra={"residual_fp32": f.flag("residual_in_fp32")},
    )


def _vocabulary(f: Fields) -> int:
    """Rows of the embedding: the original Mamba files round the vocabulary up when they are loaded."""
    size = f.size("vocab_size")
    multiple = f.maybe_size("pad_vocab_size_multiple")
    return int(ceil_div(size, multiple)) * multiple if multiple else size


def mamba2(f: Fields) -> Decoder:
    """Mamba-2: as Mamba, with heads and a gated norm."""
    hidden = f.size("hidden_size")
    n_heads, width = f.size("num_heads"), f.size("head_dim")
    d_inner = _inner(f, "expand", hidden)
    if d_inner != n_heads * width:
        raise f.fault("num_heads", f"must give num_heads x head_dim = expand x hidden_size = {d_inner}", n_heads)
    _same_inner(f, d_inner)
    mixer = Mamba2(
        n_heads=n_heads,
        d_head=width,
        d_state=f.size("state_size"),
        n_groups=f.size("n_groups"),
        d_conv=f.size("conv_kernel"),
        chunk=f.size("chunk_size"),
        conv_bias=f.flag("use_conv_bias"),
        proj_bias=f.flag("use_bias"),
    )
    return _recurrent(f, [mixer] * f.layers("num_hidden_layers"))


def rwkv(f: Fields) -> Decoder:
    """RWKV-4: time mixing and channel mixing, a LayerNorm after the embedding."""
    n, hidden = f.layers("num_hidden_layers"), f.size("hidden_size")
    mixer = RWKV(d_attn=f.maybe_size("attention_hidden_size") or hidden, d_shift=hidden)
    ffn = ChannelMix(d_ff=f.maybe_size("intermediate_size") or 4 * hidden)
    return Decoder(
        layers=stack([mixer] * n, [ffn] * n),
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=f.size("context_length"),
        norm=LAYER_NORM,
        dropout=(),
        extra={"embedding_norm": True, "embedding_norm_in_layer": True},
    )


def jamba(f: Fields) -> Decoder:
    """Jamba (Lieber et al. 2024): one attention layer without positions among Mamba layers, experts every other."""
    n, hidden = f.layers("num_hidden_layers"), f.size("hidden_size")
    attends, sparse = _every(f, "attn_layer", n), _every(f, "expert_layer", n)
    mamba_mixer = Mamba(
        d_inner=f.size("mamba_expand") * hidden,
        d_state=f.size("mamba_d_state"),
        d_conv=f.size("mamba_d_conv"),
        dt_rank=_rank(f, "mamba_dt_rank", hidden),
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


def _kinds(f: Fields) -> list[str]:
    """The kind of each layer: the list, or the pattern string of letters M * - E."""
    listed, pattern = f.raw("layers_block_type"), f.raw("hybrid_override_pattern")
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
    kinds = _kinds(f)
    n = f.maybe_size("num_hidden_layers")
    if n is not None and n != len(kinds):
        raise f.fault("num_hidden_layers", f"contradicts the {len(kinds)} layers of the pattern", n)
    made = {kind: _nemotron_layer(f, kind) for kind in dict.fromkeys(kinds)}
    return Decoder(
        layers=stack([made[kind][0] for kind in kinds], [made[kind][1] for kind in kinds]),
        d_model=f.size("hidden_size"),
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
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
        bias = f.flag("attention_bias")
        return attention(f, rope=None, qkv_bias=bias, out_bias=bias), None
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
        **options,
    )
