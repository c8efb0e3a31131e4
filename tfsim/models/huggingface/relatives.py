"""Dense relatives of Llama that differ in biases, norms and positions: Granite, GLM-4, EXAONE, Command-A and more."""

from __future__ import annotations

from typing import Any

from tfsim.models.huggingface.common import Decoder, rope, stack
from tfsim.models.huggingface.dense import (
    COHERE,
    COHERE_NORM,
    GEMMA_NORM,
    LATE_RMS_NORM,
    OLMO2,
    QWEN2,
    attention,
    d_head,
    decoder,
    ffn,
    gemma_attention,
    per_window,
    table,
    uniform,
    windows,
)
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.latent import MLA_FIELDS, latent_mixer
from tfsim.models.spec import LAYER_NORM, RMS_NORM, Attention, QKNorm, Residual

GRANITE_SCALES = "embedding_multiplier logits_scaling residual_multiplier attention_multiplier"
NEMOTRON_NORM = LAYER_NORM.model_copy(update={"unit_offset": True})

GRANITE = table(attention_bias=False, mlp_bias=False, harmless=GRANITE_SCALES)
ARCEE = table(
    hidden_size=2560,
    intermediate_size=18432,
    hidden_act="relu2",
    max_position_embeddings=4096,
    attention_bias=False,
    mlp_bias=False,
)
SEED_OSS = table(
    vocab_size=155136,
    intermediate_size=27648,
    num_hidden_layers=64,
    num_attention_heads=80,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=524288,
    attention_bias=True,
    attention_out_bias=False,
    mlp_bias=False,
)
ERNIE4_5 = table(
    vocab_size=103424,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=18,
    num_attention_heads=16,
    num_key_value_heads=2,
    head_dim=128,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
    rope_theta=500000.0,
    use_bias=False,
    harmless="compression_ratio",
)
HUNYUAN_NAMES = (
    "eod_token_id sep_id pad_id im_start_id im_end_id im_newline_id text_start_id text_end_id org_vocab_size"
)
HUNYUAN_REFUSED: dict[str, tuple[Any, ...]] = {"use_cla": (False,), "use_qk_norm": (True,)}
HUNYUAN_DENSE = table(
    vocab_size=290943,
    attention_bias=False,
    harmless=f"{HUNYUAN_NAMES} attention_head_dim cla_share_factor",
    refused={**HUNYUAN_REFUSED, "num_experts": (1, None)},
)
HELIUM = table(
    vocab_size=48000,
    hidden_size=2560,
    intermediate_size=7040,
    num_hidden_layers=24,
    num_attention_heads=20,
    num_key_value_heads=20,
    head_dim=128,
    max_position_embeddings=4096,
    rope_theta=100000.0,
    attention_bias=False,
    mlp_bias=False,
)
EXAONE = table(
    vocab_size=102400,
    intermediate_size=14336,
    num_key_value_heads=8,
    max_position_embeddings=4096,
    attention_bias=False,
    aliases={"num_layers": "num_hidden_layers", "activation_function": "hidden_act"},
)
INTERNLM3 = table(
    vocab_size=128512,
    intermediate_size=10240,
    num_hidden_layers=48,
    num_key_value_heads=2,
    max_position_embeddings=32768,
    attention_bias=False,
    refused={"qkv_bias": (False,), "bias": (False,)},
)
SMOLLM3 = table(
    vocab_size=128256,
    hidden_size=2048,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=4,
    max_position_embeddings=32768,
    tie_word_embeddings=True,
    rope_theta=2e6,
    attention_bias=False,
    mlp_bias=False,
    no_rope_layers=None,
    no_rope_layer_interval=4,
    sliding_window=None,
    use_sliding_window=False,
    layer_types=None,
    harmless="max_window_layers",
)
MINISTRAL = table(
    intermediate_size=14336,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    sliding_window=4096,
    layer_types=None,
)
MINISTRAL3 = table(
    vocab_size=131072,
    intermediate_size=14336,
    num_hidden_layers=34,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=262144,
    sliding_window=None,
)
CWM = table(
    vocab_size=128256,
    hidden_size=6144,
    intermediate_size=21504,
    num_hidden_layers=64,
    num_attention_heads=48,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    sliding_window=8192,
    layer_types=None,
    harmless="window_pattern global_window",
)
_GLM: dict[str, Any] = {
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
}
GLM = table(**_GLM, head_dim=128, max_position_embeddings=131072, attention_bias=True)
GLM4V = table(**_GLM, max_position_embeddings=32768, refused={"attention_bias": (True,)})
EXAONE4 = table(
    vocab_size=102400,
    intermediate_size=16384,
    num_key_value_heads=32,
    sliding_window=4096,
    sliding_window_pattern=4,
    layer_types=None,
)
OLMO3 = FieldTable({**OLMO2.used, "sliding_window": 4096, "layer_types": None}, harmless=OLMO2.harmless)
COHERE2 = FieldTable(
    {
        **{name: default for name, default in COHERE.used.items() if name != "use_qk_norm"},
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "layer_types": None,
    },
    harmless=COHERE.harmless
    | frozenset(["layer_switch", "order_of_interleaved_layers", "position_embedding_type", "use_embedding_sharing"]),
    refused={
        "use_qk_norm": (False,),
        "use_gated_activation": (True,),
        "use_parallel_block": (True,),
        "use_parallel_embedding": (False, True),
        "rotary_pct": (1.0,),
    },
    aliases={"_sliding_window_pattern": "sliding_window_pattern"},
)
NEMOTRON = table(
    vocab_size=256000,
    hidden_size=6144,
    intermediate_size=24576,
    num_attention_heads=48,
    hidden_act="relu2",
    max_position_embeddings=4096,
    attention_bias=False,
    mlp_bias=False,
    aliases={"rope_percent": "partial_rotary_factor", "rope_percentage": "partial_rotary_factor"},
)
QWEN2_VL = FieldTable(
    {
        **QWEN2.used,
        "vocab_size": 152064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_window_layers": 80,
        "rope_theta": 1e6,
    },
    harmless=QWEN2.harmless,
)
YOUTU = table(
    **MLA_FIELDS,
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=16,
    num_key_value_heads=16,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
    harmless="qk_head_dim head_dim embedding_initializer_range",
)
MINICPM3 = table(
    **{**MLA_FIELDS, "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32},
    vocab_size=73448,
    hidden_size=2560,
    intermediate_size=6400,
    num_hidden_layers=62,
    num_attention_heads=40,
    num_key_value_heads=40,
    max_position_embeddings=32768,
    tie_word_embeddings=True,
    harmless="qk_head_dim head_dim scale_emb scale_depth dim_model_base",
)


def arcee(f: Fields) -> Decoder:
    """Arcee's AFM: Llama with a squared-ReLU FFN of two matrices."""
    bias = f.flag("attention_bias")
    mixer = attention(f, qkv_bias=bias, out_bias=bias)
    return uniform(f, mixer, ffn(f, gated=False, bias=f.flag("mlp_bias")), RMS_NORM)


def seed_oss(f: Fields) -> Decoder:
    """Seed-OSS: Llama with biases on queries, keys and values."""
    mixer = attention(f, qkv_bias=f.flag("attention_bias"), out_bias=f.flag("attention_out_bias"))
    return uniform(f, mixer, ffn(f, bias=f.flag("mlp_bias")), RMS_NORM, dropout=("attention", "residual"))


def ernie4_5(f: Fields) -> Decoder:
    """ERNIE 4.5, dense: Llama, rotated in pairs of neighbours."""
    bias = f.flag("use_bias")
    mixer = attention(f, rope=rope(f, d_head(f), interleaved=True), qkv_bias=bias, out_bias=bias)
    return uniform(f, mixer, ffn(f, bias=bias), RMS_NORM)


def hunyuan_dense(f: Fields) -> Decoder:
    """Hunyuan, dense: Llama with a norm on queries and keys of each head."""
    bias = f.flag("attention_bias")
    return uniform(f, attention(f, qkv_bias=bias, out_bias=bias, qk_norm=QKNorm()), ffn(f), RMS_NORM)


def exaone(f: Fields) -> Decoder:
    """EXAONE 3.5 and InternLM 3: Llama, and run by its class."""
    bias = f.flag("attention_bias")
    return uniform(f, attention(f, qkv_bias=bias, out_bias=bias), ffn(f), RMS_NORM)


def helium(f: Fields) -> Decoder:
    """Helium: Llama without a bias on attention's output, which is square in the class whatever the heads' width."""
    hidden, n_heads = f.size("hidden_size"), f.size("num_attention_heads")
    if n_heads * d_head(f) != hidden:
        raise f.fault("head_dim", f"must be the hidden size {hidden} over the {n_heads} heads", f.raw("head_dim"))
    turn = rope(f, d_head(f), interleaved=True)
    return uniform(
        f, attention(f, rope=turn, qkv_bias=f.flag("attention_bias")), ffn(f, bias=f.flag("mlp_bias")), RMS_NORM
    )


def smollm3(f: Fields) -> Decoder:
    """SmolLM3: Llama without positions in every fourth layer."""
    n, interval, bias = f.layers("num_hidden_layers"), f.size("no_rope_layer_interval"), f.flag("attention_bias")
    given = f.per_layer("no_rope_layers", n, "0 and 1", lambda x: x in (0, 1))
    rotated = [bool(x) for x in given] if given else [(i + 1) % interval != 0 for i in range(n)]
    slides = f.flag("use_sliding_window") and f.raw("sliding_window") is not None
    types = ["sliding_attention" if slides and not turns else "full_attention" for turns in rotated]
    keys = list(zip(rotated, windows(f, types), strict=True))
    turn = rope(f, d_head(f))
    kinds = {
        key: attention(f, rope=turn if key[0] else None, window=key[1], qkv_bias=bias, out_bias=bias)
        for key in dict.fromkeys(keys)
    }
    return decoder(f, stack([kinds[key] for key in keys], [ffn(f, bias=f.flag("mlp_bias"))] * n))


def ministral(f: Fields) -> Decoder:
    """Ministral: Mistral whose layers may have a window or not."""
    n = f.layers("num_hidden_layers")
    kind = "full_attention" if f.raw("sliding_window") is None else "sliding_attention"
    return decoder(f, stack(per_window(f, windows(f, [kind] * n)), [ffn(f)] * n))


def cwm(f: Fields) -> Decoder:
    """Code World Model: Llama with a global layer before every three local ones."""
    n = f.layers("num_hidden_layers")
    types = ["sliding_attention" if i % 4 else "full_attention" for i in range(n)]
    return decoder(f, stack(per_window(f, windows(f, types)), [ffn(f)] * n))


def _glm(f: Fields, residual: Residual, *, bias: bool) -> Decoder:
    mixer = attention(f, rope=rope(f, d_head(f), partial=0.5, interleaved=True), qkv_bias=bias)
    return uniform(f, mixer, ffn(f, fused_gate_up=True), RMS_NORM, residual)


def glm(f: Fields) -> Decoder:
    """GLM-4 of 2024: half-rotated heads, biases on queries, keys and values."""
    return _glm(f, "pre", bias=f.flag("attention_bias"))


def glm4(f: Fields) -> Decoder:
    """GLM-4 of 2025 (0414): with norms on the outputs too."""
    return _glm(f, "sandwich", bias=f.flag("attention_bias"))


def glm4v(f: Fields) -> Decoder:
    """GLM-4.1V, text part: GLM-4 of 2025, always with the biases."""
    return _glm(f, "sandwich", bias=True)


def hybrid_windows(f: Fields) -> list[int | None]:
    """EXAONE: every sliding_window_pattern-th layer is global (or L and G spell the pattern); null: all are."""
    n, pattern = f.layers("num_hidden_layers"), f.raw("sliding_window_pattern")
    if f.raw("sliding_window") is None:
        types = ["full_attention"] * n
    elif isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise f.fault("sliding_window_pattern", "must be a number or a text of L and G", pattern)
        types = ["sliding_attention" if pattern[i % len(pattern)] == "L" else "full_attention" for i in range(n)]
        types[-1] = "full_attention"
    else:
        every = f.size("sliding_window_pattern")
        types = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(n)]
    return windows(f, types)


def hybrid_attention(f: Fields) -> list[Attention]:
    """EXAONE's layers: a norm on queries and keys; global layers have positions only where no layer is local."""
    found = hybrid_windows(f)
    turn, local = rope(f, d_head(f)), f.raw("sliding_window") is not None
    kinds = {
        window: attention(f, window=window, qk_norm=QKNorm(), rope=turn if window or not local else None)
        for window in dict.fromkeys(found)
    }
    return [kinds[window] for window in found]


def exaone4(f: Fields) -> Decoder:
    """EXAONE 4.0 (LG 2025): norms on the outputs, three local layers before a global one without positions."""
    mixers = hybrid_attention(f)
    return decoder(f, stack(mixers, [ffn(f)] * len(mixers), "output"))


def olmo3(f: Fields) -> Decoder:
    """OLMo 3: OLMo 2 with three local layers before a global one."""
    n, bias = f.layers("num_hidden_layers"), f.flag("attention_bias")
    types = ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(n)]
    norm = QKNorm(scope="full", norm=LATE_RMS_NORM)
    found, keyed = windows(f, types), "full_attention" in f.mapping("rope_parameters")
    kinds = {
        window: attention(
            f,
            window=window,
            rope=rope(
                f, d_head(f), layer_type=("sliding_attention" if window else "full_attention") if keyed else None
            ),
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=norm,
        )
        for window in dict.fromkeys(found)
    }
    return decoder(f, stack([kinds[w] for w in found], [ffn(f)] * n, "output"), LATE_RMS_NORM)


def cohere2(f: Fields) -> Decoder:
    """Command-R7B and Command-A: three local layers, then a global one without positions."""
    n, every, bias = f.layers("num_hidden_layers"), f.size("sliding_window_pattern"), f.flag("attention_bias")
    found = windows(f, ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(n)])
    turn = rope(f, d_head(f), interleaved=True)
    kinds = {
        window: attention(f, rope=turn if window else None, window=window, qkv_bias=bias, out_bias=bias)
        for window in dict.fromkeys(found)
    }
    return decoder(f, stack([kinds[w] for w in found], [ffn(f)] * n, "parallel_shared"), COHERE_NORM)


def nemotron(f: Fields) -> Decoder:
    """Nemotron-4 and Minitron: LayerNorm stored less one, half-rotated heads, a squared-ReLU FFN of two matrices."""
    bias = f.flag("attention_bias")
    mixer = attention(f, rope=rope(f, d_head(f), partial=0.5), qkv_bias=bias, out_bias=bias)
    return uniform(f, mixer, ffn(f, gated=False, bias=f.flag("mlp_bias")), NEMOTRON_NORM)


def vaultgemma(f: Fields) -> Decoder:
    """VaultGemma: Gemma 2 without the norms on the outputs."""
    n = f.layers("num_hidden_layers")
    types = ["sliding_attention" if (i + 1) % 2 else "full_attention" for i in range(n)]
    mixers = per_window(f, windows(f, types), **gemma_attention(f))
    cap = {"final_logit_softcap": f.number("final_logit_softcapping")}
    return decoder(f, stack(mixers, [ffn(f, act="hidden_activation")] * n), GEMMA_NORM, extra=cap)


def latent_dense(f: Fields) -> Decoder:
    """Youtu-LLM and MiniCPM3: latent attention and dense FFNs."""
    n = f.layers("num_hidden_layers")
    extra = {"n_mtp_modules": f.count("num_nextn_predict_layers")}
    return decoder(f, stack([latent_mixer(f)] * n, [ffn(f)] * n), extra=extra)
