"""Sparse attention behind a lightning indexer: DeepSeek-V3.2, GLM-5, MiniMax-M3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfsim.models.huggingface.common import Decoder, rope, stack
from tfsim.models.huggingface.dense import GEMMA_NORM, attention, d_head, decoder, table
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.latent import DEEPSEEK_V3, fine_grained, latent_mixer, router_groups, sparse_after
from tfsim.models.huggingface.sparse import experts
from tfsim.models.spec import FFN, MLA, Attention, DenseFFN, Indexer, QKNorm, SharedExpert

_NOT_THERE = {"mlp_bias": (False,), "moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}


def _table(harmless: str, **used: Any) -> FieldTable:
    """DeepSeek-V3's fields, always with a query latent, and those of the indexer."""
    fields = {**DEEPSEEK_V3.used, "first_k_dense_replace": 3, "mlp_layer_types": None, "index_topk": 2048}
    fields |= {"index_head_dim": 128, "index_n_heads": 64, **used}
    return FieldTable(
        fields,
        aliases=DEEPSEEK_V3.aliases,
        harmless=DEEPSEEK_V3.harmless | frozenset(harmless.split()),
        refused=_NOT_THERE,
    )


DEEPSEEK_V32 = _table("indexer_rope_interleave", max_position_embeddings=163840, layer_types=None)
GLM_MOE_DSA = _table(
    "indexer_rope_interleave",
    vocab_size=154880,
    hidden_size=6144,
    intermediate_size=12288,
    num_hidden_layers=78,
    num_attention_heads=64,
    num_key_value_heads=64,
    q_lora_rank=2048,
    qk_nope_head_dim=192,
    v_head_dim=256,
    n_group=1,
    max_position_embeddings=202752,
    index_n_heads=32,
    layer_types=None,
    indexer_types=None,
    index_topk_pattern=None,
    index_topk_freq=1,
    index_skip_topk_offset=2,
)
_SPARSE = "sparse_attention_config"
MINIMAX_M3 = table(
    vocab_size=200064,
    hidden_size=6144,
    intermediate_size=3072,
    num_hidden_layers=60,
    num_attention_heads=64,
    num_key_value_heads=4,
    head_dim=128,
    max_position_embeddings=524288,
    rope_theta=5e6,
    rotary_dim=64,
    num_experts_per_tok=4,
    num_local_experts=128,
    dense_intermediate_size=12288,
    shared_intermediate_size=3072,
    mlp_layer_types=None,
    moe_layer_freq=None,
    layer_types=None,
    index_n_heads=4,
    index_head_dim=128,
    index_block_size=128,
    index_topk_blocks=16,
    **{
        f"{_SPARSE}.{name}": None
        for name in (
            "sparse_attention_freq",
            "sparse_num_index_heads",
            "sparse_index_dim",
            "sparse_block_size",
            "sparse_topk_blocks",
        )
    },
    harmless="use_routing_bias num_mtp_modules swiglu_alpha swiglu_limit routed_scaling_factor index_local_blocks "
    f"{_SPARSE}.sparse_disable_index_value {_SPARSE}.sparse_local_block {_SPARSE}.sparse_init_block",
    refused={
        "hidden_act": ("swigluoai", "silu"),
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_head",),
        "use_gemma_norm": (True,),
        "attention_output_gate": (False,),
        "n_shared_experts": (1,),
        "scoring_func": ("sigmoid",),
        f"{_SPARSE}.use_sparse_attention": (True,),
        f"{_SPARSE}.sparse_score_type": ("max",),
    },
    aliases={"num_experts": "num_local_experts"},
)


def layers_of(f: Fields, name: str, n: int, kinds: dict[Any, bool]) -> list[bool] | None:
    """A per-layer list of two kinds as flags, or None where the file has none."""
    rule = " or ".join(map(str, kinds))
    given = f.per_layer(name, n, rule, lambda entry: isinstance(entry, str | int) and entry in kinds)
    return None if given is None else [kinds[entry] for entry in given]


def sparse_layers(f: Fields, n: int) -> list[bool] | None:
    """Which layers hold experts by mlp_layer_types, where the file has it."""
    return layers_of(f, "mlp_layer_types", n, {"dense": False, "sparse": True})


def _indexed(f: Fields, reuses: Sequence[bool]) -> Decoder:
    n = len(reuses)
    layers_of(f, "layer_types", n, {"indexed_attention": True, "deepseek_sparse_attention": True})
    indexer = Indexer(n_heads=f.size("index_n_heads"), d_head=f.size("index_head_dim"), top_k=f.size("index_topk"))
    kinds: dict[bool, MLA] = {
        reuse: latent_mixer(f, indexer=indexer, reuses_selection=reuse) for reuse in dict.fromkeys(reuses)
    }
    return fine_grained(
        f,
        [kinds[reuse] for reuse in reuses],
        sparse_layers(f, n) or sparse_after(f),
        router="sigmoid",
        n_groups=router_groups(f),
        normalize_top_k=f.flag("norm_topk_prob"),
    )


def deepseek_v32(f: Fields) -> Decoder:
    """DeepSeek-V3.2-Exp (2025): DeepSeek-V3 whose queries attend to the top-k keys of an indexer."""
    return _indexed(f, [False] * f.layers("num_hidden_layers"))


def glm_moe_dsa(f: Fields) -> Decoder:
    """GLM-5: the layers of DeepSeek-V3.2; some may reuse the selection of the layer before."""
    n, kinds = f.layers("num_hidden_layers"), {"full": False, "shared": True}
    reuses = layers_of(f, "indexer_types", n, kinds)
    pattern = f.raw("index_topk_pattern")
    if reuses is None and pattern is not None:
        letters = {"F": False, "S": True, **kinds}
        if not isinstance(pattern, str | list) or len(pattern) != n or any(p not in letters for p in map(str, pattern)):
            raise f.fault("index_topk_pattern", f"must hold {n} of F (full) and S (shared)", pattern)
        reuses = [letters[str(p)] for p in pattern]
    if reuses is None:
        every, skipped = max(f.count("index_topk_freq"), 1), f.count("index_skip_topk_offset")
        reuses = [max(i - skipped + 1, 0) % every != 0 for i in range(n)]
    if reuses[0]:
        raise f.fault("indexer_types", "the first layer has no selection to reuse")
    return _indexed(f, reuses)


def minimax_m3(f: Fields) -> Decoder:
    """MiniMax-M3, text part: blocks of keys are selected per KV head, Gemma's norms, clamped SwiGLU everywhere."""
    n, width = f.layers("num_hidden_layers"), d_head(f)

    def size(own: str, legacy: str) -> int:
        name = f"{_SPARSE}.{legacy}"
        return f.size(own) if f.raw(name) is None else f.size(name)

    block = size("index_block_size", "sparse_block_size")
    indexer = Indexer(
        n_heads=size("index_n_heads", "sparse_num_index_heads"),
        d_head=size("index_head_dim", "sparse_index_dim"),
        top_k=block * size("index_topk_blocks", "sparse_topk_blocks"),
        block=block,
        weighted=False,
    )
    switches = layers_of(f, "layer_types", n, {"full_attention": False, "minimax_m3_sparse": True})
    if switches is None:
        switches = layers_of(f, f"{_SPARSE}.sparse_attention_freq", n, {0: False, 1: True}) or [False] * n
    rotated = f.maybe_size("rotary_dim")
    options: dict[str, Any] = {
        "rope": rope(f, width, partial=rotated / width if rotated else 1.0),
        "qk_norm": QKNorm(norm=GEMMA_NORM),
    }
    kinds: dict[bool, Attention] = {
        on: attention(f, indexer=indexer if on else None, **options) for on in dict.fromkeys(switches)
    }
    sparse = sparse_layers(f, n)
    if sparse is None:
        sparse = layers_of(f, "moe_layer_freq", n, {0: False, 1: True}) or [True] * n
    moe = experts(
        f,
        "num_local_experts",
        "intermediate_size",
        activation="clamped_swiglu",
        shared=SharedExpert(d_ff=f.size("shared_intermediate_size")),
        router="sigmoid",
    )
    dense = DenseFFN(d_ff=f.size("dense_intermediate_size"), activation="clamped_swiglu")
    feeds: list[FFN] = [moe if has_experts else dense for has_experts in sparse]
    return replace(decoder(f, stack([kinds[on] for on in switches], feeds)), norm=GEMMA_NORM)
