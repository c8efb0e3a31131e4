"""Sparse decoders that differ from Mixtral, Qwen-MoE and DeepSeek in norms, biases and layer patterns: GLM-4.7-Flash,
Granite, OLMoE, ERNIE 4.5, Hunyuan, EXAONE, and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfsim.models.huggingface.common import Decoder, rope, stack
from tfsim.models.huggingface.dense import LATE_RMS_NORM, attention, d_head, decoder, ffn, per_window, table, windows
from tfsim.models.huggingface.fields import REQUIRED, Fields, FieldTable
from tfsim.models.huggingface.indexed import sparse_layers
from tfsim.models.huggingface.latent import DEEPSEEK_V3, fine_grained, latent_mixer, router_groups, sparse_after
from tfsim.models.huggingface.modern import GLM4_MOE, half_rotated
from tfsim.models.huggingface.relatives import GRANITE_SCALES, HUNYUAN_NAMES, HUNYUAN_REFUSED, hybrid_attention
from tfsim.models.huggingface.sparse import choose, experts
from tfsim.models.spec import LAYER_NORM, QKNorm, SharedExpert

_EXPERTS = {"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"}


def _latent(harmless: str = "", **used: Any) -> FieldTable:
    """DeepSeek-V3's fields with other defaults."""
    return FieldTable(
        {**DEEPSEEK_V3.used, **used},
        aliases=DEEPSEEK_V3.aliases,
        harmless=DEEPSEEK_V3.harmless | frozenset(harmless.split()),
        refused=DEEPSEEK_V3.refused,
    )


GLM4_MOE_LITE = _latent(
    vocab_size=154880,
    hidden_size=2048,
    intermediate_size=10240,
    moe_intermediate_size=1536,
    num_hidden_layers=47,
    num_attention_heads=20,
    num_key_value_heads=20,
    n_routed_experts=64,
    kv_lora_rank=512,
    q_lora_rank=768,
    v_head_dim=256,
    qk_nope_head_dim=192,
    n_group=1,
    num_experts_per_tok=4,
    max_position_embeddings=202752,
    first_k_dense_replace=1,
    mlp_layer_types=None,
)
MISTRAL4 = _latent(
    vocab_size=131072,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=32,
    n_routed_experts=128,
    kv_lora_rank=256,
    q_lora_rank=1024,
    qk_nope_head_dim=64,
    n_group=1,
    num_experts_per_tok=4,
    first_k_dense_replace=0,
    max_position_embeddings=1048576,
)
_GRANITE_MOE: dict[str, Any] = {"attention_bias": False, "num_local_experts": 8, "num_experts_per_tok": 2}
GRANITE_MOE = table(**_GRANITE_MOE, harmless=GRANITE_SCALES)
GRANITE_MOE_SHARED = table(**_GRANITE_MOE, shared_intermediate_size=0, harmless=GRANITE_SCALES)
OLMOE = table(
    vocab_size=50304,
    hidden_size=2048,
    intermediate_size=2048,
    num_hidden_layers=16,
    num_attention_heads=16,
    max_position_embeddings=4096,
    attention_bias=False,
    clip_qkv=None,
    num_experts=64,
    num_experts_per_tok=8,
    norm_topk_prob=False,
    aliases={"num_local_experts": "num_experts"},
)
FLEX_OLMO = FieldTable(
    {
        **OLMOE.used,
        "vocab_size": 100352,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_experts": 7,
        "num_experts_per_tok": 5,
    },
    aliases=OLMOE.aliases,
    harmless=OLMOE.harmless,
)
PHIMOE = table(
    vocab_size=32064,
    intermediate_size=6400,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    rope_theta=1e6,
    attention_bias=False,
    lm_head_bias=False,
    num_local_experts=16,
    num_experts_per_tok=2,
    sliding_window=None,
    harmless="input_jitter_noise original_max_position_embeddings",
    aliases={"num_experts": "num_local_experts"},
)
DOTS1 = table(
    vocab_size=152064,
    hidden_size=4608,
    intermediate_size=10944,
    num_hidden_layers=62,
    attention_bias=False,
    moe_intermediate_size=1408,
    n_shared_experts=None,
    n_routed_experts=REQUIRED,
    n_group=1,
    num_experts_per_tok=REQUIRED,
    first_k_dense_replace=0,
    norm_topk_prob=False,
    num_nextn_predict_layers=0,
    sliding_window=4096,
    max_window_layers=62,
    layer_types=None,
    harmless="routed_scaling_factor topk_group use_sliding_window",
    refused={"moe_layer_freq": (1,), "scoring_func": ("sigmoid", "noaux_tc"), "topk_method": ("noaux_tc",)},
    aliases=_EXPERTS,
)
SOLAR_OPEN = table(
    vocab_size=196608,
    num_hidden_layers=48,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    rope_theta=1e6,
    attention_bias=False,
    moe_intermediate_size=1280,
    num_experts_per_tok=8,
    n_shared_experts=1,
    n_routed_experts=128,
    n_group=1,
    norm_topk_prob=True,
    num_nextn_predict_layers=0,
    intermediate_size=10240,
    harmless="routed_scaling_factor topk_group",
    refused={"first_k_dense_replace": (0,), "use_qk_norm": (False,)},
    aliases=_EXPERTS,
)
HY_V3 = table(
    vocab_size=120832,
    intermediate_size=13312,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    rope_theta=11158840.0,
    attention_bias=False,
    n_routed_experts=192,
    num_experts_per_tok=8,
    n_shared_experts=1,
    moe_intermediate_size=1536,
    mlp_layer_types=None,
    first_k_dense_replace=1,
    num_nextn_predict_layers=0,
    harmless="router_scaling_factor enable_moe_fp32_combine enable_lm_head_fp32 enable_attention_fp32_softmax "
    "expert_hidden_dim output_router_logits",
    refused={
        "mlp_bias": (False,),
        "qk_norm": (True,),
        "moe_router_use_sigmoid": (True,),
        "moe_router_enable_expert_bias": (True,),
        "route_norm": (True,),
        "use_grouped_mm": (True, False),
    },
    aliases={**_EXPERTS, "num_shared_experts": "n_shared_experts"},
)
EXAONE_MOE = table(
    vocab_size=102400,
    intermediate_size=16384,
    num_key_value_heads=32,
    sliding_window=4096,
    sliding_window_pattern=4,
    layer_types=None,
    mlp_layer_types=None,
    first_k_dense_replace=1,
    moe_intermediate_size=1024,
    n_routed_experts=64,
    num_experts_per_tok=8,
    n_shared_experts=1,
    norm_topk_prob=True,
    n_group=1,
    num_nextn_predict_layers=0,
    harmless="routed_scaling_factor topk_group is_moe_layer",
    refused={"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
    aliases={**_EXPERTS, "num_shared_experts": "n_shared_experts"},
)
AFMOE = table(
    vocab_size=200192,
    hidden_size=2048,
    intermediate_size=6144,
    moe_intermediate_size=1408,
    first_k_dense_replace=1,
    num_attention_heads=16,
    head_dim=128,
    max_position_embeddings=16384,
    n_routed_experts=64,
    num_experts_per_tok=6,
    n_shared_experts=2,
    global_attn_every_n_layers=4,
    sliding_window=1024,
    layer_types=None,
    num_nextn_predict_layers=0,
    harmless="route_scale mup_enabled topk_group load_balance_coeff use_grouped_mm",
    refused={
        "score_func": ("sigmoid",),
        "route_norm": (True,),
        "n_group": (1,),
        "num_expert_groups": (1,),
        "num_limited_groups": (1,),
    },
    aliases={**_EXPERTS, "num_dense_layers": "first_k_dense_replace", "num_shared_experts": "n_shared_experts"},
)
ERNIE4_5_MOE = table(
    vocab_size=103424,
    hidden_size=2560,
    intermediate_size=12288,
    num_hidden_layers=28,
    num_attention_heads=20,
    num_key_value_heads=4,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
    rope_theta=500000.0,
    use_bias=False,
    moe_intermediate_size=1536,
    num_experts_per_tok=6,
    n_routed_experts=64,
    moe_num_shared_experts=2,
    moe_layer_start_index=1,
    moe_layer_end_index=-1,
    moe_layer_interval=1,
    num_nextn_predict_layers=0,
    harmless="moe_norm_min moe_capacity compression_ratio moe_gate_act",
    refused={"moe_use_aux_free": (True,), "moe_gate": ("topk",), "moe_use_hard_gate": (False,)},
    aliases={**_EXPERTS, "moe_k": "num_experts_per_tok", "moe_num_experts": "n_routed_experts"},
)
HUNYUAN_MOE = table(
    vocab_size=290943,
    attention_bias=False,
    n_routed_experts=1,
    num_experts_per_tok=1,
    moe_intermediate_size=None,
    num_shared_expert=None,
    moe_topk=None,
    harmless=f"{HUNYUAN_NAMES} attention_head_dim cla_share_factor capacity_factor moe_drop_tokens "
    "moe_random_routing_dropped_token",
    refused={
        **HUNYUAN_REFUSED,
        "use_mixed_mlp_moe": (True,),
        "moe_layer_num_skipped": (0,),
        "group_limited_greedy": (False,),
        "use_mla": (False,),
        "norm_topk_prob": (True,),
    },
    aliases=_EXPERTS,
)
GLM4V_MOE = FieldTable(
    {
        **{name: default for name, default in GLM4_MOE.used.items() if name != "use_qk_norm"},
        "vocab_size": 151424,
        "max_position_embeddings": 65536,
        "attention_bias": True,
    },
    aliases=GLM4_MOE.aliases,
    harmless=GLM4_MOE.harmless,
    refused={**GLM4_MOE.refused, "use_qk_norm": (False,)},
)


def glm4_moe_lite(f: Fields) -> Decoder:
    """GLM-4.7-Flash: the layers of DeepSeek-V3, one dense."""
    sparse = sparse_layers(f, f.layers("num_hidden_layers")) or sparse_after(f)
    router: dict[str, Any] = {"n_groups": router_groups(f), "normalize_top_k": f.flag("norm_topk_prob")}
    return fine_grained(f, [latent_mixer(f)] * len(sparse), sparse, router="sigmoid", **router)


def glm4v_moe(f: Fields) -> Decoder:
    """GLM-4.5V, text part: GLM-4.5 Air, rotated in three axes."""
    return half_rotated(f, None)


def mistral4(f: Fields) -> Decoder:
    """Mistral Small 4, text part: the layers of DeepSeek-V3 under a softmax router."""
    sparse = sparse_after(f)
    router: dict[str, Any] = {"n_groups": router_groups(f), "normalize_top_k": f.flag("norm_topk_prob")}
    return fine_grained(f, [latent_mixer(f)] * len(sparse), sparse, router="softmax_topk", **router)


def granite_moe(f: Fields) -> Decoder:
    """Granite 3 with experts: the chosen experts' scores pass a softmax."""
    return _granite(f, None)


def granite_moe_shared(f: Fields) -> Decoder:
    """Granite 3 with experts beside a shared one (none where its size is 0)."""
    width = f.count("shared_intermediate_size")
    return _granite(f, SharedExpert(d_ff=width) if width else None)


def _granite(f: Fields, shared: SharedExpert | None) -> Decoder:
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias)
    moe = experts(f, "num_local_experts", "intermediate_size", router="topk_softmax", shared=shared)
    return decoder(f, stack([mixer] * n, [moe] * n))


def olmoe(f: Fields) -> Decoder:
    """OLMoE (Muennighoff et al. 2024): norms on whole queries and keys, 64 small experts."""
    return _olmoe(f, QKNorm(scope="full"))


def flex_olmo(f: Fields) -> Decoder:
    """FlexOlmo: OLMoE's experts with OLMo 2's norms on the outputs."""
    made = _olmoe(f, QKNorm(scope="full", norm=LATE_RMS_NORM))
    block = made.layers[0].model_copy(update={"residual": "output"})
    return replace(made, layers=[block] * len(made.layers), norm=LATE_RMS_NORM)


def _olmoe(f: Fields, norm: QKNorm) -> Decoder:
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias, qk_norm=norm, clip_qkv=f.number("clip_qkv"))
    moe = experts(f, "num_experts", "intermediate_size", normalize_top_k=f.flag("norm_topk_prob"))
    return decoder(f, stack([mixer] * n, [moe] * n))


def phimoe(f: Fields) -> Decoder:
    """Phi-3.5-MoE: Mixtral's layers with LayerNorm; the two experts are chosen one after the other (SparseMixer)."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias, window=f.maybe_size("sliding_window"))
    moe = experts(f, "num_local_experts", "intermediate_size", normalize_top_k=False)
    return decoder(f, stack([mixer] * n, [moe] * n), LAYER_NORM, extra={"head_bias": f.flag("lm_head_bias")})


def dots1(f: Fields) -> Decoder:
    """dots.llm1 (2025): a norm on queries and keys of each head, DeepSeek-V3's experts."""
    n, first, bias = f.layers("num_hidden_layers"), f.count("max_window_layers"), f.flag("attention_bias")
    slides = f.raw("sliding_window") is not None
    found = windows(f, ["sliding_attention" if slides and i >= first else "full_attention" for i in range(n)])
    mixers = per_window(f, found, qkv_bias=bias, out_bias=bias, qk_norm=QKNorm())
    router: dict[str, Any] = {"n_groups": router_groups(f), "normalize_top_k": f.flag("norm_topk_prob")}
    return fine_grained(f, mixers, sparse_after(f), router="sigmoid", **router)


def solar_open(f: Fields) -> Decoder:
    """Solar Open (2025): grouped-query attention and DeepSeek-V3's experts in every layer."""
    n = f.layers("num_hidden_layers")
    mixer = attention(f, qkv_bias=f.flag("attention_bias"))
    router: dict[str, Any] = {"n_groups": router_groups(f), "normalize_top_k": f.flag("norm_topk_prob")}
    return fine_grained(f, [mixer] * n, [True] * n, router="sigmoid", **router)


def hy_v3(f: Fields) -> Decoder:
    """Hunyuan 3: a norm on queries and keys of each head, sigmoid-routed experts beside a shared one."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias, qk_norm=QKNorm())
    f.size("n_shared_experts")
    return fine_grained(f, [mixer] * n, sparse_layers(f, n) or sparse_after(f), router="sigmoid")


def exaone_moe(f: Fields) -> Decoder:
    """K-EXAONE: EXAONE 4's local and global layers, pre-norm, with DeepSeek-V3's experts."""
    mixers = hybrid_attention(f)
    sparse = sparse_layers(f, len(mixers)) or sparse_after(f)
    router: dict[str, Any] = {"n_groups": router_groups(f), "normalize_top_k": f.flag("norm_topk_prob")}
    return fine_grained(f, mixers, sparse, router="sigmoid", **router)


def afmoe(f: Fields) -> Decoder:
    """Arcee's Trinity: gated attention, norms on both sides, global layers without positions; the router's bias is a
    parameter."""
    n, every = f.layers("num_hidden_layers"), f.size("global_attn_every_n_layers")
    found = windows(f, ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(n)])
    turn = rope(f, d_head(f))
    options: dict[str, Any] = {"qk_norm": QKNorm(), "output_gate": "element"}
    kinds = {w: attention(f, window=w, rope=turn if w else None, **options) for w in dict.fromkeys(found)}
    made = fine_grained(f, [kinds[w] for w in found], sparse_after(f), router="sigmoid", router_bias=True)
    return replace(made, layers=sandwiched(made))


def sandwiched(made: Decoder) -> list[Any]:
    """The layers of a decoder with norms on both sides."""
    blocks = {id(block): block.model_copy(update={"residual": "sandwich"}) for block in made.layers}
    return [blocks[id(block)] for block in made.layers]


def ernie4_5_moe(f: Fields) -> Decoder:
    """ERNIE 4.5 with experts: softmax scores, a bias (a parameter) for the choice, shared experts as one."""
    n, bias = f.layers("num_hidden_layers"), f.flag("use_bias")
    first, every = f.count("moe_layer_start_index"), f.size("moe_layer_interval")
    last = f.raw("moe_layer_end_index")
    if type(last) is not int or not -1 <= last < 10_000:
        raise f.fault("moe_layer_end_index", "must be -1 (the last) or a layer index", last)
    last = n - 1 if last == -1 else last
    sparse = [first <= i <= last and (i + 1) % every == 0 for i in range(n)]
    mixer = attention(f, rope=rope(f, d_head(f), interleaved=True), qkv_bias=bias, out_bias=bias)
    width, n_shared = f.size("moe_intermediate_size"), f.count("moe_num_shared_experts")
    moe = experts(
        f,
        "n_routed_experts",
        "moe_intermediate_size",
        shared=SharedExpert(d_ff=width * n_shared) if n_shared else None,
        router_fp32=True,
        router_bias=True,
    )
    if bias and any(sparse):
        raise f.fault("use_bias", "tfsim models only experts without biases", True)
    extra = {"n_mtp_modules": f.count("num_nextn_predict_layers")}
    return decoder(f, stack([mixer] * n, choose(sparse, moe, ffn(f))), extra=extra)


def hunyuan_moe(f: Fields) -> Decoder:
    """Hunyuan-A13B: a norm on queries and keys of each head; a shared expert of the routed ones' width. Sizes may be
    lists with one entry a layer, all alike."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias, qk_norm=QKNorm())
    width = f.size("intermediate_size")
    for name, only in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        given = f.raw(name)
        if given is not None and any(value != only for value in (given if isinstance(given, list) else [given])):
            raise f.fault(name, f"must be {only}, as in transformers", given)
    listed = f.raw("moe_topk")
    if listed is not None:
        values = listed if isinstance(listed, list) else [listed]
        top_k = values[0] if values else None
        if type(top_k) is not int or top_k < 1 or any(value != top_k for value in values):
            raise f.fault("moe_topk", "must be one number for all layers", listed)
    else:
        top_k = f.size("num_experts_per_tok")
    moe = experts(f, "n_routed_experts", "intermediate_size", shared=SharedExpert(d_ff=width), router_fp32=True)
    if top_k > moe.n_experts:
        raise f.fault("moe_topk", f"is more than the {moe.n_experts} experts", top_k)
    return decoder(f, stack([mixer] * n, [moe.model_copy(update={"top_k": top_k})] * n))
