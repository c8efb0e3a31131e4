"""Dense decoders with rotary positions: Llama and its relatives."""

from __future__ import annotations

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
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import LAYER_NORM, RMS_NORM, Attention, DenseFFN, Norm, QKNorm, Residual

LATE_RMS_NORM = Norm(late_cast=True)
GEMMA_NORM = Norm(unit_offset=True)
COHERE_NORM = Norm(kind="layernorm", late_cast=True)
OLMO_NORM = Norm(kind="layernorm", weight=False, fused=True)
SCALE_ONLY_LAYER_NORM = Norm(kind="layernorm", upcast=False, fused=True)

SIZES: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def table(
    *,
    harmless: str = "",
    refused: dict[str, tuple[Any, ...]] | None = None,
    aliases: dict[str, str] | None = None,
    **used: Any,
) -> FieldTable:
    """The table of a Llama relative: Llama's sizes and rotary fields, with what differs.

    A size that is named harmless or refused is none of this type's.
    """
    others, refusals = words("pretraining_tp", harmless), refused or {}
    fields = {**SIZES, **ROPE_FIELDS, **used}
    kept = {name: default for name, default in fields.items() if name not in others and name not in refusals}
    return FieldTable(kept, aliases=aliases or {}, harmless=others, refused=refusals)


WINDOW_FIELDS: dict[str, Any] = {
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
    "layer_types": None,
}

LLAMA = table(attention_bias=False, mlp_bias=False)
MISTRAL = table(intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096)
QWEN2 = table(
    vocab_size=151936, intermediate_size=22016, num_key_value_heads=32, max_position_embeddings=32768, **WINDOW_FIELDS
)
QWEN3 = table(
    vocab_size=151936,
    intermediate_size=22016,
    num_key_value_heads=32,
    head_dim=128,
    max_position_embeddings=32768,
    attention_bias=False,
    **WINDOW_FIELDS,
)
_GEMMA: dict[str, Any] = {
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
GEMMA = table(
    **_GEMMA,
    hidden_size=3072,
    intermediate_size=24576,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=16,
    hidden_act="gelu_pytorch_tanh",
    harmless="hidden_activation",
)
_GEMMA2: dict[str, Any] = {
    **_GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "layer_types": None,
}
GEMMA2 = table(
    **_GEMMA2,
    final_logit_softcapping=30.0,
    attn_logit_softcapping=50.0,
    harmless="hidden_act query_pre_attn_scalar",
    aliases={"sliding_window_size": "sliding_window"},
)
GEMMA3 = table(
    **{**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6},
    final_logit_softcapping=None,
    attn_logit_softcapping=None,
    sliding_window_pattern=6,
    rope_local_base_freq=10000.0,
    harmless="hidden_act query_pre_attn_scalar",
    aliases={"_sliding_window_pattern": "sliding_window_pattern"},
)
PHI = table(
    vocab_size=51200,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=24,
    hidden_act="gelu_new",
    partial_rotary_factor=0.5,
    qk_layernorm=False,
)
PHI3 = table(
    vocab_size=32064,
    hidden_size=3072,
    intermediate_size=8192,
    max_position_embeddings=4096,
    sliding_window=None,
    harmless="original_max_position_embeddings interpolate_factor",
    refused={"full_attn_mod": (1,), "lm_head_bias": (False,)},
)
COHERE = table(
    vocab_size=256000,
    hidden_size=8192,
    intermediate_size=22528,
    num_hidden_layers=40,
    num_attention_heads=64,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    rope_theta=500000.0,
    attention_bias=False,
    use_qk_norm=False,
    harmless="logit_scale",
)
OLMO = table(vocab_size=50304, attention_bias=False, clip_qkv=None)
OLMO2 = table(vocab_size=50304, attention_bias=False)
STARCODER2 = table(
    vocab_size=49152,
    hidden_size=3072,
    intermediate_size=12288,
    num_hidden_layers=30,
    num_attention_heads=24,
    num_key_value_heads=2,
    hidden_act="gelu_pytorch_tanh",
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    sliding_window=None,
    use_bias=True,
    harmless="activation_function",
    refused={"mlp_type": ("default",)},
)
STABLELM = table(
    vocab_size=50304,
    hidden_size=2560,
    intermediate_size=6912,
    num_key_value_heads=32,
    max_position_embeddings=4096,
    partial_rotary_factor=0.25,
    use_qkv_bias=False,
    qk_layernorm=False,
    use_parallel_residual=False,
    refused={"head_dim": (None,)},
    aliases={"rope_pct": "partial_rotary_factor"},
)


def attention(f: Fields, **options: Any) -> Attention:
    """Grouped-query attention from the fields all relatives share; ``options`` are fields of Attention."""
    hidden, n_heads = f.size("hidden_size"), f.size("num_attention_heads")
    d_head = options.pop("d_head", None) or f.d_head("head_dim", hidden, "num_attention_heads", n_heads)
    if "rope" not in options:
        options["rope"] = rope(f, d_head)
    n_kv = options.pop("n_kv_heads", None) or heads(f, n_heads)
    return Attention(n_heads=n_heads, n_kv_heads=n_kv, d_head=d_head, **options)


def d_head(f: Fields) -> int:
    """Width of a head of a Llama relative."""
    return f.d_head("head_dim", f.size("hidden_size"), "num_attention_heads", f.size("num_attention_heads"))


def ffn(f: Fields, *, act: str = "hidden_act", **options: Any) -> DenseFFN:
    """The feed-forward network from the fields all relatives share; ``options`` are fields of DenseFFN."""
    return DenseFFN(d_ff=f.size("intermediate_size"), activation=f.choice(act, ACTIVATIONS), **options)


def decoder(f: Fields, layers: list[Any], norm: Norm = RMS_NORM, **options: Any) -> Decoder:
    """The decoder around ``layers``."""
    return Decoder(
        layers=layers,
        d_model=f.size("hidden_size"),
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=f.size("max_position_embeddings"),
        norm=norm,
        **options,
    )


def uniform(
    f: Fields, mixer: Attention, feed: DenseFFN, norm: Norm, residual: Residual = "pre", **options: Any
) -> Decoder:
    """A decoder whose layers are all alike."""
    n = f.layers("num_hidden_layers")
    return decoder(f, stack([mixer] * n, [feed] * n, residual), norm, **options)


def windows(f: Fields, default: list[str]) -> list[int | None]:
    """The window of each layer by ``layer_types``."""
    types = layer_types(f, len(default), ("full_attention", "sliding_attention"), default)
    window = f.maybe_size("sliding_window") if "sliding_attention" in types else None
    if window is None and "sliding_attention" in types:
        raise f.fault("sliding_window", "must be given when a layer has sliding attention")
    return [window if kind == "sliding_attention" else None for kind in types]


def per_window(f: Fields, windows_: list[int | None], **options: Any) -> list[Attention]:
    """One attention for each layer, equal ones shared."""
    kinds = {window: attention(f, window=window, **options) for window in dict.fromkeys(windows_)}
    return [kinds[window] for window in windows_]


def qwen_windows(f: Fields) -> list[int | None]:
    """Qwen-2 and 3: windows only when use_sliding_window, and then from layer max_window_layers on."""
    n = f.layers("num_hidden_layers")
    first = f.count("max_window_layers") if _slides(f) else n
    if not _slides(f) and f.raw("layer_types") is not None:
        types = layer_types(f, n, ("full_attention", "sliding_attention"), ())
        if "sliding_attention" in types:
            raise f.fault("layer_types", "has sliding attention, but use_sliding_window is false")
    return windows(f, ["sliding_attention" if i >= first else "full_attention" for i in range(n)])


def _slides(f: Fields) -> bool:
    return f.flag("use_sliding_window") and f.raw("sliding_window") is not None


def llama(f: Fields) -> Decoder:
    """Touvron et al. 2023."""
    bias = f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias)
    return uniform(f, mixer, ffn(f, bias=f.flag("mlp_bias")), RMS_NORM)


def mistral(f: Fields) -> Decoder:
    """Jiang et al. 2023: one window for all layers."""
    return uniform(f, attention(f, window=f.maybe_size("sliding_window")), ffn(f), RMS_NORM)


def qwen2(f: Fields) -> Decoder:
    """Yang et al. 2024: biases on queries, keys and values."""
    mixers = per_window(f, qwen_windows(f), qkv_bias=True)
    return decoder(f, stack(mixers, [ffn(f)] * len(mixers)))


def qwen3(f: Fields) -> Decoder:
    """Yang et al. 2025: a norm on queries and keys of each head."""
    bias = f.flag("attention_bias")
    mixers = per_window(f, qwen_windows(f), qkv_bias=bias, out_bias=bias, qk_norm=QKNorm())
    return decoder(f, stack(mixers, [ffn(f)] * len(mixers)))


def gemma(f: Fields) -> Decoder:
    """Gemma 1. Its files say gelu where the tanh approximation is meant (transformers does the same)."""
    bias = f.flag("attention_bias")
    act = f.choice("hidden_act", {**ACTIVATIONS, "gelu": "gelu_tanh"})
    feed = DenseFFN(d_ff=f.size("intermediate_size"), activation=act)
    return uniform(f, attention(f, qkv_bias=bias, out_bias=bias), feed, GEMMA_NORM)


def gemma2(f: Fields) -> Decoder:
    """Gemma 2: local and global layers in turn, norms on both sides, soft caps."""
    n = f.layers("num_hidden_layers")
    types = ["full_attention" if i % 2 else "sliding_attention" for i in range(n)]
    return _gemma_sandwich(f, per_window(f, windows(f, types), **gemma_attention(f)))


def gemma3(f: Fields) -> Decoder:
    """Gemma 3: five local layers, then a global one; norms on queries and keys; two rotary bases."""
    n, period = f.layers("num_hidden_layers"), f.size("sliding_window_pattern")
    types = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(n)]
    per_layer = windows(f, types)
    width = d_head(f)
    ropes = {
        True: rope(f, width, layer_type="sliding_attention", theta="rope_local_base_freq", scaled=False),
        False: rope(f, width, layer_type="full_attention"),
    }
    shared = {**gemma_attention(f), "qk_norm": QKNorm(norm=GEMMA_NORM)}
    kinds = {w: attention(f, window=w, rope=ropes[w is not None], **shared) for w in dict.fromkeys(per_layer)}
    return _gemma_sandwich(f, [kinds[w] for w in per_layer])


def gemma_attention(f: Fields) -> dict[str, Any]:
    bias = f.flag("attention_bias")
    return {"qkv_bias": bias, "out_bias": bias, "logit_softcap": f.number("attn_logit_softcapping")}


def _gemma_sandwich(f: Fields, mixers: list[Attention]) -> Decoder:
    feed = ffn(f, act="hidden_activation")
    cap = {"final_logit_softcap": f.number("final_logit_softcapping")}
    return decoder(f, stack(mixers, [feed] * len(mixers), "sandwich"), GEMMA_NORM, extra=cap)


def phi(f: Fields) -> Decoder:
    """Phi-1.5 and Phi-2: attention and FFN side by side under one LayerNorm, biases everywhere, head included."""
    norm = QKNorm(norm=LAYER_NORM) if f.flag("qk_layernorm") else None
    mixer = attention(f, rope=rope(f, d_head(f), partial=0.5), qkv_bias=True, out_bias=True, qk_norm=norm)
    return uniform(
        f,
        mixer,
        ffn(f, gated=False, bias=True),
        LAYER_NORM,
        "parallel_shared",
        extra={"head_bias": True},
        dropout=("embedding", "attention", "residual"),
    )


def phi3(f: Fields) -> Decoder:
    """Phi-3 and Phi-4: Llama with fused projections."""
    mixer = attention(f, fused_qkv=True, window=f.maybe_size("sliding_window"))
    return uniform(f, mixer, ffn(f, fused_gate_up=True), RMS_NORM, dropout=("attention", "residual"))


def cohere(f: Fields) -> Decoder:
    """Command-R: attention and gated FFN side by side under one LayerNorm without bias."""
    bias = f.flag("attention_bias")
    norm = QKNorm(scope="each_head", norm=COHERE_NORM) if f.flag("use_qk_norm") else None
    turn = rope(f, d_head(f), interleaved=True)
    mixer = attention(f, rope=turn, qkv_bias=bias, out_bias=bias, qk_norm=norm)
    return uniform(f, mixer, ffn(f), COHERE_NORM, "parallel_shared")


def olmo(f: Fields) -> Decoder:
    """OLMo: Llama with a LayerNorm that has no parameters."""
    bias = f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias, clip_qkv=f.number("clip_qkv"))
    return uniform(f, mixer, ffn(f), OLMO_NORM)


def olmo2(f: Fields) -> Decoder:
    """OLMo 2: norms on the outputs, and on whole queries and keys."""
    bias = f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias, qk_norm=QKNorm(scope="full", norm=LATE_RMS_NORM))
    return uniform(f, mixer, ffn(f), LATE_RMS_NORM, "output")


def starcoder2(f: Fields) -> Decoder:
    """StarCoder 2: LayerNorm, an FFN of two matrices, biases."""
    bias = f.flag("use_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias, window=f.maybe_size("sliding_window"))
    feed = ffn(f, gated=False, bias=bias)
    return uniform(f, mixer, feed, LAYER_NORM, dropout=("embedding", "attention", "residual"))


def stablelm(f: Fields) -> Decoder:
    """StableLM 2: LayerNorm and a partly rotated head."""
    norm = QKNorm(scope="each_head", norm=SCALE_ONLY_LAYER_NORM) if f.flag("qk_layernorm") else None
    turn = rope(f, d_head(f), partial=0.25)
    mixer = attention(f, rope=turn, qkv_bias=f.flag("use_qkv_bias"), qk_norm=norm)
    residual: Residual = "parallel_shared" if f.flag("use_parallel_residual") else "pre"
    return uniform(f, mixer, ffn(f), LAYER_NORM, residual, dropout=("attention", "residual"))
