"""Local and global layers of different head counts: MiMo-V2-Flash, Step-3.5 and Step-3.7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfsim.models.huggingface.common import Decoder, layer_types, overrides, rope, stack
from tfsim.models.huggingface.dense import GEMMA_NORM, attention, decoder, table
from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.indexed import layers_of, sparse_layers
from tfsim.models.huggingface.latent import fine_grained, router_groups
from tfsim.models.huggingface.sparse import choose, experts
from tfsim.models.spec import Attention, DenseFFN, QKNorm, Rope, SharedExpert

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
MIMO_V2 = table(
    vocab_size=152576,
    intermediate_size=16384,
    num_hidden_layers=48,
    num_attention_heads=64,
    num_key_value_heads=4,
    head_dim=192,
    v_head_dim=128,
    max_position_embeddings=131072,
    attention_bias=False,
    rope_theta=5e6,
    swa_rope_theta=10000.0,
    partial_rotary_factor=0.334,
    sliding_window=129,
    sliding_window_size=None,
    layer_types=None,
    hybrid_layer_pattern=None,
    mlp_layer_types=None,
    moe_layer_freq=None,
    moe_intermediate_size=2048,
    num_experts_per_tok=8,
    n_routed_experts=256,
    n_group=1,
    norm_topk_prob=True,
    num_nextn_predict_layers=0,
    n_shared_experts=None,
    swa_num_attention_heads=None,
    swa_num_key_value_heads=None,
    swa_head_dim=None,
    swa_v_head_dim=None,
    harmless="attention_value_scale routed_scaling_factor topk_group layernorm_epsilon attention_chunk_size",
    refused={
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "hybrid_block_size": (None,),
        "add_full_attention_sink_bias": (False,),
        "add_swa_attention_sink_bias": (True,),
    },
    aliases={"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"},
)
_OTHER = "attention_other_setting"
STEP3 = table(
    vocab_size=128815,
    intermediate_size=11264,
    num_hidden_layers=45,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=128000,
    attention_bias=False,
    sliding_window=None,
    layer_types=None,
    mlp_layer_types=None,
    moe_layers_enum=None,
    num_sliding_attention_heads=None,
    moe_intermediate_size=1280,
    num_experts_per_tok=8,
    n_routed_experts=288,
    share_expert_dim=1280,
    num_nextn_predict_layers=0,
    partial_rotary_factors=None,
    per_layer_config=None,
    **{f"{_OTHER}.{name}": None for name in ("num_attention_heads", "num_attention_groups", "head_dim")},
    harmless="moe_router_scaling_factor swiglu_limits swiglu_limits_shared query_pre_attn_scalar mtp_layer_types "
    "mtp_mlp_layer_types max_seq_len yarn_only_types use_moe_router_bias need_fp32_gate num_local_experts "
    "zero_centered moe_every_n_layer moe_layer_offset "
    f"{_OTHER}.attention_type {_OTHER}.true_head_dim",
    refused={
        "hidden_act": ("silu", "swigluoai"),
        "sink": (False,),
        "use_qk_norm": (True,),
        "use_moe": (True,),
        "use_head_wise_attn_gate": (True,),
        "gating": (True, "per-head"),
        "moe_router_activation": ("sigmoid",),
        "norm_expert_weight": (True,),
        "att_impl_type": ("GQA",),
        "use_rope_layers": ([], None),
        "use_mfa": (False,),
    },
    aliases={
        "num_attention_groups": "num_key_value_heads",
        "moe_num_experts": "n_routed_experts",
        "moe_top_k": "num_experts_per_tok",
        "share_expert_dims": "share_expert_dim",
        "num_mtp_layers": "num_nextn_predict_layers",
    },
)


def mimo_v2(f: Fields) -> Decoder:
    """MiMo-V2-Flash: a global layer first and every sixth; local ones with sinks and twice the KV heads; no shared
    expert; values narrower than keys."""
    n, width = f.layers("num_hidden_layers"), f.size("head_dim")
    default = [_GLOBAL if i == 0 or (i + 1) % 6 == 0 else _LOCAL for i in range(n)]
    types = layer_types(f, n, (_GLOBAL, _LOCAL), default)
    pattern = layers_of(f, "hybrid_layer_pattern", n, {0: False, 1: True})
    if pattern is not None and pattern != [kind == _LOCAL for kind in types]:
        raise f.fault("hybrid_layer_pattern", "transformers places the local layers differently")
    sparse = sparse_layers(f, n) or [i > 0 for i in range(n)]
    listed = layers_of(f, "moe_layer_freq", n, {0: False, 1: True})
    if listed is not None and listed != sparse:
        raise f.fault("moe_layer_freq", "transformers places the experts differently")
    n_kv = f.size("num_key_value_heads")
    expected = {
        "swa_num_attention_heads": f.size("num_attention_heads"),
        "swa_num_key_value_heads": 2 * n_kv,
        "swa_head_dim": width,
        "swa_v_head_dim": f.size("v_head_dim"),
    }
    for name, only in expected.items():
        if f.maybe_size(name) not in (None, only):
            raise f.fault(name, f"local layers have {only} in transformers", f.raw(name))
    if f.count("n_shared_experts"):
        raise f.fault("n_shared_experts", "the class has no shared expert", f.raw("n_shared_experts"))
    sized = f.maybe_size("sliding_window_size")
    window = sized + 1 if sized else f.size("sliding_window")
    kinds: dict[str, Attention] = {}
    for kind in dict.fromkeys(types):
        local = kind == _LOCAL
        kinds[kind] = attention(
            f,
            d_head=width,
            d_value=f.size("v_head_dim"),
            n_kv_heads=n_kv * 2 if local else n_kv,
            rope=_mimo_rope(f, width, kind),
            qkv_bias=f.flag("attention_bias"),
            window=window if local else None,
            sinks=local,
            softmax_fp32=False,
        )
    router: dict[str, Any] = {"n_groups": router_groups(f), "normalize_top_k": f.flag("norm_topk_prob")}
    return fine_grained(f, [kinds[kind] for kind in types], sparse, router="sigmoid", **router)


def _mimo_rope(f: Fields, width: int, kind: str) -> Rope:
    """Part of a head is rotated; the base may be given per kind of layer."""
    scaling = f.mapping("rope_scaling")
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise f.fault("rope_scaling", "must be of type default", scaling)
    given = f.mapping("rope_parameters").get(kind)
    given = given if isinstance(given, Mapping) else {}
    base = given.get("rope_theta", f.number("swa_rope_theta" if kind == _LOCAL else "rope_theta"))
    share = given.get("partial_rotary_factor", f.number("partial_rotary_factor") or 1.0)
    rotated = int(width * f.positive("partial_rotary_factor", share))
    if not 0 < rotated <= width:
        raise f.fault("partial_rotary_factor", f"rotates {rotated} of the {width} dimensions of a head", share)
    return Rope(theta=f.positive("rope_theta", base), rotary_dim=rotated if rotated < width else None)


def step3(f: Fields) -> Decoder:
    """Step-3.5 and 3.7, text part: a gate per head on the output, more query heads in local layers, a shared expert."""
    n, extra_layers = f.layers("num_hidden_layers"), f.count("num_nextn_predict_layers")
    types = _padded(f, "layer_types", n, extra_layers, (_GLOBAL, _LOCAL)) or [_GLOBAL] * n
    placed = _padded(f, "mlp_layer_types", n, extra_layers, ("dense", "sparse"))
    sparse = [kind == "sparse" for kind in placed] if placed else _enumerated(f, n)
    local_heads = f.maybe_size("num_sliding_attention_heads") or f.maybe_size(f"{_OTHER}.num_attention_heads")
    wide = overrides(f, [i for i, kind in enumerate(types) if kind == _LOCAL], ("num_attention_heads",)) or {}
    local_heads = wide.get("num_attention_heads", local_heads)
    for name, same in (("num_attention_groups", "num_key_value_heads"), ("head_dim", "head_dim")):
        if f.maybe_size(f"{_OTHER}.{name}") not in (None, f.size(same)):
            raise f.fault(f"{_OTHER}.{name}", f"must be the {f.size(same)} of the other layers")
    kinds: dict[str, Attention] = {}
    for kind in dict.fromkeys(types):
        local = kind == _LOCAL
        n_heads = (local_heads or f.size("num_attention_heads")) if local else f.size("num_attention_heads")
        bias = f.flag("attention_bias")
        kinds[kind] = Attention(
            n_heads=n_heads,
            n_kv_heads=f.size("num_key_value_heads"),
            d_head=f.size("head_dim"),
            rope=_step_rope(f, kind, types.index(kind)),
            qk_norm=QKNorm(norm=GEMMA_NORM),
            qkv_bias=bias,
            out_bias=bias,
            window=f.maybe_size("sliding_window") if local else None,
            output_gate="head",
        )
    moe = experts(
        f,
        "n_routed_experts",
        "moe_intermediate_size",
        activation="silu",
        shared=SharedExpert(d_ff=f.size("share_expert_dim")),
        router="sigmoid",
    )
    dense = DenseFFN(d_ff=f.size("intermediate_size"), activation="silu")
    mixers = [kinds[kind] for kind in types]
    extra = {"n_mtp_modules": extra_layers}
    return decoder(f, stack(mixers, choose(sparse, moe, dense)), GEMMA_NORM, extra=extra)


def _padded(f: Fields, name: str, n: int, extra: int, kinds: tuple[str, ...]) -> list[str] | None:
    """A list of kinds per layer, which may go on with the multi-token-prediction layers."""
    value = f.raw(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(kind, str) and kind in kinds for kind in value):
        raise f.fault(name, f"must be a list of {', '.join(kinds)}", value)
    if len(value) not in (n, n + extra):
        raise f.fault(name, f"has {len(value)} entries for {n} layers")
    return value[:n]


def _enumerated(f: Fields, n: int) -> list[bool]:
    """Layers with experts by moe_layers_enum (a list, or text with commas); without it all from the fourth on."""
    value = f.raw("moe_layers_enum")
    if value is None:
        return [i >= 3 for i in range(n)]
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(str(part).strip().isdecimal() for part in parts if str(part).strip()):
        raise f.fault("moe_layers_enum", "must list layer indices", value)
    listed = {int(part) for part in parts if str(part).strip()}
    return [i in listed for i in range(n)]


def _step_rope(f: Fields, kind: str, layer: int) -> Rope:
    """rope_theta and partial_rotary_factors may be lists, one entry a layer; or rope_parameters holds both by kind."""
    if f.mapping("rope_parameters"):
        return rope(f, f.size("head_dim"), layer_type=kind)
    f.mapping("rope_scaling")  # stretches the global layers: no count depends on it

    def entry(name: str, default: float) -> float:
        value = f.raw(name)
        if isinstance(value, list):
            if layer >= len(value):
                raise f.fault(name, "has fewer entries than layers", value)
            value = value[layer]
        return default if value is None else f.positive(name, value)

    width = f.size("head_dim")
    rotated = int(width * entry("partial_rotary_factors", 1.0))
    if not 0 < rotated <= width:
        raise f.fault("partial_rotary_factors", f"rotates {rotated} of the {width} dimensions of a head")
    return Rope(theta=entry("rope_theta", 10000.0), rotary_dim=rotated if rotated < width else None)
