"""Gemma 4, text part."""

from __future__ import annotations

from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, heads, layer_types, overrides, rope, stack
from tfsim.models.huggingface.dense import attention, decoder, table
from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.sparse import MAX_EXPERTS
from tfsim.models.spec import FFN, Attention, DenseFFN, MoE, Norm, PerLayerInput, QKNorm, SharedExpert

POWER_NORM = Norm(late_cast=True, power=True)
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
GEMMA4 = table(
    vocab_size=262144,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=30,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    hidden_activation="gelu_pytorch_tanh",
    max_position_embeddings=131072,
    tie_word_embeddings=True,
    rope_parameters={
        _LOCAL: {"rope_type": "default", "rope_theta": 10000.0},
        _GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
    attention_bias=False,
    sliding_window=512,
    layer_types=None,
    final_logit_softcapping=None,
    vocab_size_per_layer_input=262144,
    hidden_size_per_layer_input=256,
    attention_k_eq_v=False,
    num_kv_shared_layers=0,
    enable_moe_block=False,
    use_double_wide_mlp=False,
    num_experts=None,
    top_k_experts=None,
    moe_intermediate_size=None,
    global_head_dim=512,
    num_global_key_value_heads=None,
    per_layer_config=None,
    refused={"use_bidirectional_attention": ("vision", None), "hidden_act": ("gelu_pytorch_tanh",)},
)


def gemma4(f: Fields) -> Decoder:
    """Gemma 4: five local layers, then a global one with wider heads whose values may be its keys; unscaled norms on
    values; the last num_kv_shared_layers read an earlier layer's keys; experts beside the dense FFN; per-layer inputs.
    """
    n = f.layers("num_hidden_layers")
    types = list(layer_types(f, n, (_LOCAL, _GLOBAL), [_GLOBAL if (i + 1) % 6 == 0 else _LOCAL for i in range(n)]))
    types[-1] = _GLOBAL  # the class does so whatever the file says
    n_shared = f.count("num_kv_shared_layers")
    if n_shared > n:
        raise f.fault("num_kv_shared_layers", f"is more than the {n} layers", n_shared)
    reuses = [i >= n - n_shared for i in range(n)]
    if n_shared and set(types[: n - n_shared]) != set(types):
        raise f.fault("num_kv_shared_layers", "leaves no layer of a kind whose keys the others could read", n_shared)
    keys = list(zip(types, reuses, strict=True))
    wide = overrides(f, [i for i, kind in enumerate(types) if kind == _GLOBAL], ("head_dim", "num_key_value_heads"))
    mixers = {key: _mixer(f, *key, wide) for key in dict.fromkeys(keys)}
    feeds = {reuse: _ffn(f, reuse) for reuse in dict.fromkeys(reuses)}
    extra: dict[str, Any] = {"final_logit_softcap": f.number("final_logit_softcapping")}
    width, rows = f.count("hidden_size_per_layer_input"), f.size("vocab_size_per_layer_input")
    if width:
        act = f.choice("hidden_activation", ACTIVATIONS)
        extra["per_layer_input"] = PerLayerInput(vocab_size=rows, width=width, activation=act)
    layers = stack([mixers[key] for key in keys], [feeds[reuse] for reuse in reuses], "sandwich")
    return decoder(f, layers, POWER_NORM, extra=extra)


def _mixer(f: Fields, kind: str, reuses: bool, wide: dict[str, int] | None) -> Attention:
    local, bias = kind == _LOCAL, f.flag("attention_bias")
    same = f.flag("attention_k_eq_v")
    width = f.size("head_dim") if local else f.size("global_head_dim")
    n_heads, n_kv = f.size("num_attention_heads"), None
    if not local and wide is not None:
        width, n_kv = wide.get("head_dim", f.size("head_dim")), wide.get("num_key_value_heads")
        if n_kv and n_heads % n_kv:
            raise f.fault("per_layer_config", f"has KV heads that do not divide the {n_heads} attention heads", n_kv)
    elif not local and same and f.maybe_size("num_global_key_value_heads"):
        n_kv = heads(f, n_heads, "num_global_key_value_heads")
    turn = rope(f, width, layer_type=kind)
    return attention(
        f,
        d_head=width,
        n_kv_heads=n_kv,
        window=f.size("sliding_window") if local else None,
        rope=turn and turn.model_copy(update={"whole_head": turn.rotary_dim is not None}),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=QKNorm(norm=POWER_NORM),
        value="reused" if reuses else "key" if same and not local else "own",
        value_norm=True,
    )


def _ffn(f: Fields, reuses: bool) -> FFN:
    width = f.size("intermediate_size") * (2 if f.flag("use_double_wide_mlp") and reuses else 1)
    act = f.choice("hidden_activation", ACTIVATIONS)
    if not f.flag("enable_moe_block"):
        return DenseFFN(d_ff=width, activation=act)
    n, top_k = f.size("num_experts", MAX_EXPERTS), f.size("top_k_experts", MAX_EXPERTS)
    if top_k > n:
        raise f.fault("top_k_experts", f"is more than the {n} experts", top_k)
    return MoE(
        n_experts=n,
        top_k=top_k,
        d_ff=f.size("moe_intermediate_size"),
        activation=act,
        shared=SharedExpert(d_ff=width),
        branch_norms=True,
        router_scales=True,
    )
