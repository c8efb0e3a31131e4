"""Decoders with a mixture of experts, and DeepSeek's latent attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfsim.models.huggingface.common import (
    ACTIVATIONS,
    ROPE_FIELDS,
    Decoder,
    heads,
    layer_types,
    rope,
    stack,
)
from tfsim.models.huggingface.dense import (
    LATE_RMS_NORM,
    SCALE_ONLY_LAYER_NORM,
    WINDOW_FIELDS,
    attention,
    d_head,
    decoder,
    ffn,
    per_window,
    table,
    windows,
)
from tfsim.models.huggingface.fields import REQUIRED, Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    Attention,
    DenseFFN,
    MoE,
    Norm,
    QKNorm,
    SharedExpert,
)

MIXTRAL = table(
    intermediate_size=14336,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    rope_theta=1e6,
    sliding_window=None,
    num_experts_per_tok=2,
    num_local_experts=8,
    aliases={"num_experts": "num_local_experts"},
)
_QWEN_MOE: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "max_position_embeddings": 32768,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "mlp_only_layers": None,
}
QWEN2_MOE = table(
    **_QWEN_MOE,
    **WINDOW_FIELDS,
    intermediate_size=5632,
    num_attention_heads=16,
    num_key_value_heads=16,
    num_experts=60,
    num_experts_per_tok=4,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    qkv_bias=True,
)
QWEN3_MOE = table(
    **_QWEN_MOE,
    intermediate_size=6144,
    num_key_value_heads=4,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    attention_bias=False,
    sliding_window=4096,
    use_sliding_window=False,
    harmless="max_window_layers",
    refused={"shared_expert_intermediate_size": (0, None), "qkv_bias": (False,), "use_qk_norm": (True,)},
    aliases={"num_local_experts": "num_experts"},
)
DBRX = FieldTable(
    {
        **ROPE_FIELDS,
        "vocab_size": 32000,
        "d_model": 2048,
        "n_heads": 16,
        "n_layers": 24,
        "max_seq_len": 2048,
        "tie_word_embeddings": False,
        "attn_config.clip_qkv": None,
        "attn_config.kv_n_heads": 1,
        "attn_config.rope_theta": None,
        "ffn_config.ffn_act_fn": None,
        "ffn_config.ffn_hidden_size": 3584,
        "ffn_config.moe_num_experts": 4,
        "ffn_config.moe_top_k": 1,
        "ffn_config.moe_normalize_expert_weights": 1.0,
    },
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
        "num_key_value_heads": "attn_config.kv_n_heads",
    },
    harmless=words(
        "attn_config.attn_pdrop attn_config.model_type ffn_config.hidden_size ffn_config.moe_jitter_eps "
        "ffn_config.moe_loss_weight ffn_config.model_type ffn_config.uniform_expert_assignment"
    ),
    refused={"attn_config.attn_type": ("grouped_query_attention",)},
)
GPT_OSS = table(
    vocab_size=201088,
    hidden_size=2880,
    intermediate_size=2880,
    num_hidden_layers=36,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=131072,
    rope_theta=150000.0,
    rope_parameters={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
    },
    sliding_window=128,
    layer_types=None,
    num_local_experts=128,
    num_experts_per_tok=4,
    attention_bias=True,
    harmless="initial_context_length swiglu_limit swiglu_alpha",
    refused={"hidden_act": ("silu",)},
    aliases={"num_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
)
LLAMA4 = table(
    vocab_size=202048,
    hidden_size=5120,
    intermediate_size=8192,
    intermediate_size_mlp=16384,
    num_hidden_layers=48,
    num_attention_heads=40,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    rope_theta=500000.0,
    num_local_experts=16,
    num_experts_per_tok=1,
    moe_layers=None,
    interleave_moe_layer_step=1,
    use_qk_norm=True,
    no_rope_layers=None,
    no_rope_layer_interval=4,
    attention_chunk_size=8192,
    layer_types=None,
    attention_bias=False,
    harmless="attn_temperature_tuning floor_scale attn_scale for_llm_compressor",
)
GROK = FieldTable(
    {
        "vocab_size": 131072,
        "hidden_size": REQUIRED,
        "intermediate_size": REQUIRED,
        "num_hidden_layers": REQUIRED,
        "num_attention_heads": REQUIRED,
        "num_key_value_heads": REQUIRED,
        "head_dim": None,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "max_attn_value": 30.0,
        **ROPE_FIELDS,
    },
    aliases={
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "ffn_size": "intermediate_size",
        "num_selected": "num_experts_per_tok",
        "num_local_experts": "num_experts",
        "max_attn_val": "max_attn_value",
        "attn_logit_softcapping": "max_attn_value",
    },
    harmless=words(
        "p hidden_act key_size widening_factor attn_output_multiplier embedding_multiplier_scale",
        "output_multiplier_scale",
    ),
)


MAX_EXPERTS = 100_000


def experts(f: Fields, count: str, width: str, *, all_when_null: bool = False, **options: Any) -> MoE:
    """The mixture of experts from its three sizes; ``options`` are further fields of MoE.

    ``all_when_null``: without num_experts_per_tok every expert is chosen (DeepSeek's class leaves it open).
    """
    n = f.size(count, MAX_EXPERTS)
    read = f.maybe_size if all_when_null else f.size
    top_k = read("num_experts_per_tok", MAX_EXPERTS) or n
    if top_k > n:
        raise f.fault("num_experts_per_tok", f"is more than the {n} experts", top_k)
    if "activation" not in options:
        options["activation"] = f.choice("hidden_act", ACTIVATIONS)
    return MoE(n_experts=n, top_k=top_k, d_ff=f.size(width), **options)


def choose(sparse: Sequence[bool], moe: MoE, dense: DenseFFN) -> list[DenseFFN | MoE]:
    """The FFN of each layer."""
    return [moe if is_sparse else dense for is_sparse in sparse]


def mixtral(f: Fields) -> Decoder:
    """Jiang et al. 2024: softmax over the experts in fp32, top-k weights rescaled."""
    n = f.layers("num_hidden_layers")
    mixer = attention(f, window=f.maybe_size("sliding_window"))
    moe = experts(f, "num_local_experts", "intermediate_size")
    return decoder(f, stack([mixer] * n, [moe] * n))


def qwen_ffns(f: Fields, n: int, shared: SharedExpert | None) -> list[DenseFFN | MoE]:
    """Qwen's pattern: every decoder_sparse_step-th layer, but those in mlp_only_layers."""
    dense_layers = f.indices("mlp_only_layers", n) or frozenset()
    step = f.size("decoder_sparse_step")
    sparse = [i not in dense_layers and (i + 1) % step == 0 for i in range(n)]
    if not any(sparse):
        return [ffn(f)] * n
    moe = experts(f, "num_experts", "moe_intermediate_size", shared=shared, normalize_top_k=f.flag("norm_topk_prob"))
    return choose(sparse, moe, ffn(f))


def qwen2_moe(f: Fields) -> Decoder:
    """Qwen1.5-MoE and Qwen2-57B: a shared expert behind a sigmoid gate. Odd layers are local when windows are on."""
    n = f.layers("num_hidden_layers")
    slides, below = f.flag("use_sliding_window"), f.count("max_window_layers")
    types = ["sliding_attention" if slides and i % 2 == 0 and i < below else "full_attention" for i in range(n)]
    mixers = per_window(f, windows(f, types), qkv_bias=f.flag("qkv_bias"))
    shared = SharedExpert(d_ff=f.size("shared_expert_intermediate_size"), gate=True)
    return decoder(f, stack(mixers, qwen_ffns(f, n, shared)))


def qwen3_moe(f: Fields) -> Decoder:
    """Qwen3-MoE: a norm on queries and keys of each head, no shared expert."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    window = f.maybe_size("sliding_window") if f.flag("use_sliding_window") else None
    mixer = attention(f, window=window, qkv_bias=bias, out_bias=bias, qk_norm=QKNorm())
    return decoder(f, stack([mixer] * n, qwen_ffns(f, n, None)))


def dbrx(f: Fields) -> Decoder:
    """DBRX: fused projections that are clipped, LayerNorm without bias."""
    n, hidden, n_heads = f.layers("n_layers"), f.size("d_model"), f.size("n_heads")
    width = f.d_head("", hidden, "n_heads", n_heads)
    theta = "attn_config.rope_theta" if f.raw("attn_config.rope_theta") is not None else "rope_theta"
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=heads(f, n_heads, "attn_config.kv_n_heads"),
        d_head=width,
        fused_qkv=True,
        rope=rope(f, width, theta=theta),
        clip_qkv=f.number("attn_config.clip_qkv"),
    )
    function = f.mapping("ffn_config.ffn_act_fn").get("name", "silu")
    if not isinstance(function, str) or function not in ACTIVATIONS:
        raise f.fault("ffn_config.ffn_act_fn", f"must name one of {', '.join(ACTIVATIONS)}", function)
    n_experts, top_k = f.size("ffn_config.moe_num_experts", MAX_EXPERTS), f.size("ffn_config.moe_top_k", MAX_EXPERTS)
    if top_k > n_experts:
        raise f.fault("ffn_config.moe_top_k", f"is more than the {n_experts} experts", top_k)
    moe = MoE(
        n_experts=n_experts,
        top_k=top_k,
        d_ff=f.size("ffn_config.ffn_hidden_size"),
        activation=ACTIVATIONS[function],
        normalize_top_k=f.number("ffn_config.moe_normalize_expert_weights") is not None,
    )
    if f.flag("tie_word_embeddings"):
        raise f.fault("tie_word_embeddings", "DBRX has an output matrix of its own", True)
    return Decoder(
        layers=stack([mixer] * n, [moe] * n),
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=False,
        max_seq_len=f.size("max_seq_len"),
        norm=SCALE_ONLY_LAYER_NORM,
        dropout=("attention", "residual"),
    )


def gpt_oss(f: Fields) -> Decoder:
    """gpt-oss: local and global layers in turn, sinks, biases in router and experts, a clamped SwiGLU."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    types = ["full_attention" if i % 2 else "sliding_attention" for i in range(n)]
    mixers = per_window(f, windows(f, types), qkv_bias=bias, out_bias=bias, sinks=True, softmax_fp32=False)
    moe = experts(
        f,
        "num_local_experts",
        "intermediate_size",
        activation="clamped_swiglu",
        bias=True,
        router="topk_softmax",
        router_bias=True,
    )
    return decoder(f, stack(mixers, [moe] * n), LATE_RMS_NORM)


def llama4(f: Fields) -> Decoder:
    """Llama 4, text part: chunked layers with rotary positions, every fourth full without; one expert plus a shared."""
    n, interval = f.layers("num_hidden_layers"), f.size("no_rope_layer_interval")
    listed = f.per_layer("no_rope_layers", n, "0 and 1", lambda x: x in (0, 1)) if f.raw("no_rope_layers") else None
    rotated = [bool(x) for x in listed] if listed else [(i + 1) % interval != 0 for i in range(n)]
    chunk = f.maybe_size("attention_chunk_size")
    types = ["chunked_attention" if turns and chunk is not None else "full_attention" for turns in rotated]
    chunked = layer_types(f, n, ("chunked_attention", "full_attention"), types)
    if chunk is None and "chunked_attention" in chunked:
        raise f.fault("attention_chunk_size", "must be given when a layer has chunked attention")
    turn = rope(f, d_head(f), interleaved=True)
    norm = QKNorm(norm=Norm(weight=False)) if f.flag("use_qk_norm") else None
    bias = f.flag("attention_bias")
    kinds: dict[tuple[bool, str], Attention] = {
        (turns, kind): attention(
            f,
            rope=turn if turns else None,
            qk_norm=norm if turns else None,
            chunk=chunk if kind == "chunked_attention" else None,
            qkv_bias=bias,
            out_bias=bias,
            softmax_fp32=False,
        )
        for turns, kind in dict.fromkeys(zip(rotated, chunked, strict=True))
    }
    step = f.size("interleave_moe_layer_step")
    given = f.indices("moe_layers", n)
    sparse = [i in given if given is not None else (i + 1) % step == 0 for i in range(n)]
    dense = DenseFFN(d_ff=f.size("intermediate_size_mlp"), activation=f.choice("hidden_act", ACTIVATIONS))
    feeds: list[DenseFFN | MoE] = [dense] * n
    if any(sparse):
        shared = SharedExpert(d_ff=f.size("intermediate_size"))
        moe = experts(
            f,
            "num_local_experts",
            "intermediate_size",
            shared=shared,
            router="sigmoid",
            normalize_top_k=False,
            weigh_input=True,
        )
        feeds = choose(sparse, moe, dense)
    mixers = [kinds[key] for key in zip(rotated, chunked, strict=True)]
    return decoder(f, stack(mixers, feeds))


def grok(f: Fields) -> Decoder:
    """Grok-1 by its public code: norms on both sides, gated GELU experts, tied embeddings, capped scores."""
    n, hidden, n_heads = f.layers("num_hidden_layers"), f.size("hidden_size"), f.size("num_attention_heads")
    width = f.d_head("head_dim", hidden, "num_attention_heads", n_heads)
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=heads(f, n_heads),
        d_head=width,
        rope=rope(f, width),
        logit_softcap=f.number("max_attn_value"),
    )
    moe = experts(
        f,
        "num_experts",
        "intermediate_size",
        activation="gelu_tanh",
        router_fp32=True,
        normalize_top_k=False,
    )
    return decoder(f, stack([mixer] * n, [moe] * n, "sandwich"), LATE_RMS_NORM, dropout=())
