"""DeepSeek-V4: compressed keys and values, hyper-connections, hash-routed first layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfsim.models.huggingface.common import Decoder, rope, stack
from tfsim.models.huggingface.dense import LATE_RMS_NORM, decoder, table
from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.indexed import layers_of
from tfsim.models.huggingface.sparse import experts
from tfsim.models.spec import CompressedAttention, Compression, Indexer, Rope, SharedExpert

_LOCAL, _CSA, _HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_BY_RATIO = {0: _LOCAL, 4: _CSA, 128: _HCA}
DEEPSEEK_V4 = table(
    vocab_size=129280,
    moe_intermediate_size=2048,
    num_hidden_layers=43,
    num_attention_heads=64,
    num_key_value_heads=1,
    head_dim=512,
    q_lora_rank=1024,
    num_experts_per_tok=6,
    n_routed_experts=256,
    norm_topk_prob=True,
    max_position_embeddings=1048576,
    layer_types=None,
    compress_ratios=None,
    compress_rates=None,
    compress_rate_csa=None,
    compress_rate_hca=None,
    compress_rope_theta=160000.0,
    qk_rope_head_dim=None,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    scoring_func="sqrtsoftplus",
    mlp_layer_types=None,
    num_hash_layers=3,
    sliding_window=128,
    o_groups=8,
    o_lora_rank=1024,
    index_n_heads=64,
    index_head_dim=128,
    index_topk=512,
    num_nextn_predict_layers=0,
    harmless="hc_eps swiglu_limit routed_scaling_factor topk_group n_group expert_dtype",
    refused={
        "n_shared_experts": (1,),
        "topk_method": ("noaux_tc",),
        "intermediate_size": (None,),
    },
    aliases={"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"},
)


def deepseek_v4(f: Fields) -> Decoder:
    """DeepSeek-V4: every layer attends to a window of tokens; most also to entries of 4 tokens that an indexer selects
    (CSA), or to all entries of 128 tokens (HCA)."""
    n = f.layers("num_hidden_layers")
    types = _types(f, n)
    if f.size("num_key_value_heads") != 1:
        raise f.fault("num_key_value_heads", "all heads share one", f.raw("num_key_value_heads"))
    mixers = {kind: _mixer(f, kind) for kind in dict.fromkeys(types)}
    if f.raw("hidden_act") != "silu":
        raise f.fault("hidden_act", "must be silu", f.raw("hidden_act"))
    if f.raw("scoring_func") not in ("sqrtsoftplus", "softmax", "sigmoid"):
        raise f.fault("scoring_func", "must be sqrtsoftplus, softmax or sigmoid", f.raw("scoring_func"))
    layers_of(f, "mlp_layer_types", n, {"hash_moe": True, "moe": False})
    f.count("num_hash_layers")  # a hash layer chooses by token id, and scores like the others
    moe = experts(
        f,
        "n_routed_experts",
        "moe_intermediate_size",
        shared=SharedExpert(d_ff=f.size("moe_intermediate_size")),
        activation="limited_silu",
        router="sqrt_softplus" if f.raw("scoring_func") == "sqrtsoftplus" else "sigmoid",
        normalize_top_k=f.flag("norm_topk_prob"),
    )
    if f.size("hc_mult") == 1:
        raise f.fault("hc_mult", "hyper-connections need at least two streams", 1)
    extra: dict[str, Any] = {
        "hyper_streams": f.size("hc_mult"),
        "sinkhorn_steps": f.size("hc_sinkhorn_iters"),
        "n_mtp_modules": f.count("num_nextn_predict_layers"),
    }
    return decoder(f, stack([mixers[kind] for kind in types], [moe] * n), LATE_RMS_NORM, extra=extra)


def _types(f: Fields, n: int) -> list[str]:
    """layer_types, else compress_ratios (which may go on with the MTP layers), else two HCA and then CSA and HCA in
    turn."""
    kinds = tuple(_BY_RATIO.values())
    given = f.raw("layer_types")
    if given is not None:
        found = f.per_layer("layer_types", n, ", ".join(kinds), lambda kind: kind in kinds)
        assert found is not None
        return found
    ratios = f.raw("compress_ratios")
    if ratios is None:
        return [_HCA if i < 2 or i % 2 == 0 else _CSA for i in range(n)]
    if not isinstance(ratios, list) or not all(type(r) is int and r in _BY_RATIO for r in ratios) or len(ratios) < n:
        raise f.fault("compress_ratios", f"must list {n} of 0, 4 and 128", ratios)
    return [_BY_RATIO[ratio] for ratio in ratios[:n]]


def _mixer(f: Fields, kind: str) -> CompressedAttention:
    width = f.size("head_dim")
    return CompressedAttention(
        n_heads=f.size("num_attention_heads"),
        d_head=width,
        q_lora_rank=f.size("q_lora_rank"),
        o_groups=f.size("o_groups"),
        o_lora_rank=f.size("o_lora_rank"),
        window=f.size("sliding_window"),
        rope=_rope(f, width, kind),
        compression=None if kind == _LOCAL else _compression(f, kind),
    )


def _compression(f: Fields, kind: str) -> Compression:
    rates = {_CSA: 4, _HCA: 128, **f.mapping("compress_rates")}
    for name, legacy in ((_CSA, "compress_rate_csa"), (_HCA, "compress_rate_hca")):
        if f.maybe_size(legacy):
            rates[name] = f.size(legacy)
    ratio = rates[kind]
    if type(ratio) is not int or ratio <= 0:
        raise f.fault("compress_rates", "must give a positive whole number for each kind of layer", rates)
    if kind == _HCA:
        return Compression(ratio=ratio)
    indexer = Indexer(n_heads=f.size("index_n_heads"), d_head=f.size("index_head_dim"), top_k=f.size("index_topk"))
    return Compression(ratio=ratio, overlap=True, indexer=indexer)


def _rope(f: Fields, width: int, kind: str) -> Rope:
    """Compressed layers have a base of their own, and the stretched one; plain ones are not stretched."""
    rotated = f.maybe_size("qk_rope_head_dim")
    share = rotated / width if rotated else 64 / 512
    local = kind == _LOCAL
    if any(isinstance(f.mapping("rope_parameters").get(label), Mapping) for label in ("main", "compress")):
        return rope(f, width, layer_type="main" if local else "compress", partial=share, interleaved=True)
    base = "rope_theta" if local else "compress_rope_theta"
    turn = rope(f, width, theta=base, partial=share, interleaved=True)
    # a base inside rope_scaling belongs to no kind of layer
    return turn.model_copy(update={"scaling": None} if local else {})
