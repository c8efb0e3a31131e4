"""DeepSeek and Kimi: latent attention and fine-grained experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfsim.models.huggingface.common import Decoder, rope, stack
from tfsim.models.huggingface.dense import decoder, ffn, table
from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.sparse import choose, experts
from tfsim.models.spec import MLA, DenseFFN, MoE, SharedExpert

MLA_FIELDS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
    "num_nextn_predict_layers": 0,  # a file that names none stores none; the class of V3 assumes one
    "rope_interleave": True,
}
_DEEPSEEK_ALIASES = {
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "num_mtp_layers": "num_nextn_predict_layers",
}
_DEEPSEEK_REFUSED: dict[str, tuple[Any, ...]] = {"moe_layer_freq": (1,)}
DEEPSEEK_V2 = table(
    **MLA_FIELDS,
    vocab_size=102400,
    first_k_dense_replace=0,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=None,
    moe_intermediate_size=1407,
    n_group=None,
    topk_method="greedy",
    harmless="routed_scaling_factor topk_group qk_head_dim head_dim norm_topk_prob",
    refused={**_DEEPSEEK_REFUSED, "scoring_func": ("softmax",)},
    aliases=_DEEPSEEK_ALIASES,
)
DEEPSEEK_V3 = table(
    **MLA_FIELDS,
    norm_topk_prob=True,
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    max_position_embeddings=4096,
    first_k_dense_replace=3,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_group=8,
    harmless="routed_scaling_factor topk_group qk_head_dim head_dim",
    refused={**_DEEPSEEK_REFUSED, "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)},
    aliases=_DEEPSEEK_ALIASES,
)


def latent_mixer(f: Fields, **options: Any) -> MLA:
    """Latent attention from the fields all relatives share; ``options`` are further fields of MLA."""
    n_heads = f.size("num_attention_heads")
    if (kv := f.maybe_size("num_key_value_heads")) not in (None, n_heads):
        raise f.fault("num_key_value_heads", f"latent attention has as many as the {n_heads} attention heads", kv)
    q_rank = f.raw("q_lora_rank")
    rope_dim = f.size("qk_rope_head_dim")
    return MLA(
        n_heads=n_heads,
        q_lora_rank=None if q_rank in (None, 0) and q_rank is not False else f.size("q_lora_rank"),
        kv_lora_rank=f.size("kv_lora_rank"),
        qk_nope_head_dim=f.size("qk_nope_head_dim"),
        qk_rope_head_dim=rope_dim,
        v_head_dim=f.size("v_head_dim"),
        bias=f.flag("attention_bias"),
        **{"rope": rope(f, rope_dim, interleaved=f.flag("rope_interleave")), **options},
    )


def sparse_after(f: Fields) -> list[bool]:
    """Which layers hold experts: all after the first first_k_dense_replace."""
    n, dense_layers = f.layers("num_hidden_layers"), f.count("first_k_dense_replace")
    return [i >= dense_layers for i in range(n)]


def _deepseek(f: Fields, **router: Any) -> Decoder:
    sparse = sparse_after(f)
    return fine_grained(f, [latent_mixer(f)] * len(sparse), sparse, **router)


def fine_grained(f: Fields, mixers: Sequence[Any], sparse: Sequence[bool], **router: Any) -> Decoder:
    """A decoder with these mixers and, in ``sparse`` layers, fine-grained experts beside shared ones (DeepSeekMoE)."""
    n, dense = len(sparse), ffn(f)
    feeds: list[DenseFFN | MoE] = [dense] * n
    if any(sparse):
        width, n_shared = f.size("moe_intermediate_size"), f.count("n_shared_experts")
        moe = experts(
            f,
            "n_routed_experts",
            "moe_intermediate_size",
            shared=SharedExpert(d_ff=width * n_shared) if n_shared else None,
            router_fp32=True,
            all_when_null=True,
            **router,
        )
        feeds = choose(sparse, moe, dense)
    extra: dict[str, Any] = {"n_mtp_modules": f.count("num_nextn_predict_layers")}
    if any(sparse) and f.raw("num_experts_per_tok") is None:
        extra["note"] = "num_experts_per_tok is null: every expert counts as chosen"
    return decoder(f, stack(mixers, feeds), extra=extra)


def deepseek_v2(f: Fields) -> Decoder:
    """DeepSeek-V2: the router's scores are a softmax, in groups when topk_method says so; never rescaled."""
    groups = f.choice("topk_method", {"greedy": False, "group_limited_greedy": True})
    n_groups = (f.maybe_size("n_group") or 1) if groups else 1
    return _deepseek(f, router="softmax_topk", n_groups=n_groups, normalize_top_k=False)


def router_groups(f: Fields) -> int:
    """Groups of experts, which must divide them."""
    n_groups, n = f.maybe_size("n_group") or 1, f.size("n_routed_experts")
    if n % n_groups:
        raise f.fault("n_group", f"does not divide the {n} experts", n_groups)
    return n_groups


def deepseek_v3(f: Fields) -> Decoder:
    """DeepSeek-V3, R1 and Kimi-K2: sigmoid scores in fp32, experts in groups."""
    return _deepseek(f, router="sigmoid", n_groups=router_groups(f), normalize_top_k=f.flag("norm_topk_prob"))
