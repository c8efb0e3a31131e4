"""Decoders of the GPT line: learned or ALiBi positions, LayerNorm, FFNs of two matrices."""

from __future__ import annotations

from typing import Any

from tfsim.models.huggingface.common import (
    ACTIVATIONS,
    ROPE_FIELDS,
    Decoder,
    heads,
    positions,
    rope,
    stack,
)
from tfsim.models.huggingface.dense import SCALE_ONLY_LAYER_NORM
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import LAYER_NORM, Attention, DenseFFN, Norm, Residual, Rope

ALL_SITES = ("embedding", "attention", "residual")

_GPT_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
}
GPT2 = FieldTable(
    {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
    aliases=_GPT_ALIASES,
    harmless=words(
        "n_ctx scale_attn_weights scale_attn_by_inverse_layer_idx summary_type summary_use_proj summary_activation "
        "summary_proj_to_labels summary_first_dropout"
    ),
    refused={"reorder_and_upcast_attn": (False,)},
)
GPTJ = FieldTable(
    {
        "vocab_size": 50400,
        "n_positions": 2048,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "rotary_dim": 64,
        "n_inner": None,
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
    },
    aliases=_GPT_ALIASES,
    harmless=words(
        "n_ctx scale_attn_weights summary_type summary_use_proj summary_activation summary_proj_to_labels "
        "summary_first_dropout rotary"
    ),
)
GPT_NEOX = FieldTable(
    {
        **ROPE_FIELDS,
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "attention_bias": True,
    },
    aliases={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
)
OPT = FieldTable(
    {
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "_remove_final_layer_norm": False,
        "word_embed_proj_dim": None,
        "num_attention_heads": 12,
        "activation_function": "relu",
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
    },
)
BLOOM = FieldTable(
    {
        "vocab_size": 250880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "tie_word_embeddings": True,
    },
    aliases={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "n_embed": "hidden_size"},
    harmless=words(
        "apply_residual_connection_post_layernorm pretraining_tp seq_length masked_softmax_fusion "
        "attention_softmax_in_fp32 bias_dropout_fusion offset_alibi skip_bias_add skip_bias_add_qkv"
    ),
    refused={"slow_but_exact": (False,), "n_inner": (None,)},
)
FALCON = FieldTable(
    {
        **ROPE_FIELDS,
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "num_ln_in_parallel_attn": None,
        "num_kv_heads": None,
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "max_position_embeddings": 2048,
        "ffn_hidden_size": None,
        "activation": "gelu",
        "tie_word_embeddings": True,
    },
    aliases={
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_embed": "hidden_size",
        "n_head_kv": "num_kv_heads",
    },
    harmless=words("apply_residual_connection_post_layernorm"),
)
MPT = FieldTable(
    {
        "vocab_size": 50368,
        "d_model": 2048,
        "n_heads": 16,
        "n_layers": 24,
        "max_seq_len": 2048,
        "tie_word_embeddings": True,
        "attn_config.clip_qkv": None,
    },
    aliases={"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"},
    harmless=words(
        "learned_pos_emb init_device logit_scale embedding_fraction norm_type verbose init_config tokenizer_name "
        "attn_config.attn_pdrop attn_config.attn_impl attn_config.softmax_scale attn_config.alibi_bias_max "
        "attn_config.model_type"
    ),
    # transformers builds 4 * d_model, no biases, full multi-head attention and ALiBi whatever these say
    refused={
        "expansion_ratio": (4,),
        "no_bias": (True,),
        "use_pad_tok_in_ffn": (True,),
        "attn_config.alibi": (True,),
        "attn_config.attn_type": ("multihead_attention",),
        "attn_config.prefix_lm": (False,),
        "attn_config.qk_ln": (False,),
        "attn_config.attn_uses_sequence_id": (False,),
    },
)


def _sizes(f: Fields, layers: str, hidden: str, heads_field: str) -> tuple[int, int, int, int]:
    n, width, n_heads = f.layers(layers), f.size(hidden), f.size(heads_field)
    return n, width, n_heads, f.d_head("", width, heads_field, n_heads)


def _decoder(f: Fields, mixer: Attention, ffn: DenseFFN, n: int, hidden: int, **options: Any) -> Decoder:
    residual: Residual = options.pop("residual", "pre")
    options.setdefault("norm", LAYER_NORM)
    return Decoder(
        layers=stack([mixer] * n, [ffn] * n, residual),
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        **options,
    )


def gpt2(f: Fields) -> Decoder:
    """GPT-2 and GPT-3: learned positions, fused projection with bias, softmax in the model's dtype."""
    n, hidden, n_heads, d_head = _sizes(f, "n_layer", "n_embd", "n_head")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=d_head,
        qkv_bias=True,
        out_bias=True,
        fused_qkv=True,
        softmax_fp32=False,
        given_mask=True,
    )
    ffn = DenseFFN(
        d_ff=f.maybe_size("n_inner") or 4 * hidden,
        activation=f.choice("activation_function", ACTIVATIONS),
        gated=False,
        bias=True,
    )
    rows = f.size("n_positions")
    return _decoder(f, mixer, ffn, n, hidden, max_seq_len=rows, dropout=ALL_SITES, extra=positions(rows))


def gptj(f: Fields) -> Decoder:
    """GPT-J: attention without biases and FFN with, side by side under one norm; a bias on the head."""
    n, hidden, n_heads, d_head = _sizes(f, "n_layer", "n_embd", "n_head")
    rotated = f.size("rotary_dim")
    if rotated > d_head:
        raise f.fault("rotary_dim", f"is more than the {d_head} dimensions of a head", rotated)
    turn = Rope(rotary_dim=rotated if rotated != d_head else None, interleaved=True)
    mixer = Attention(n_heads=n_heads, n_kv_heads=n_heads, d_head=d_head, rope=turn, scores_fp32=True)
    ffn = DenseFFN(
        d_ff=f.maybe_size("n_inner") or 4 * hidden,
        activation=f.choice("activation_function", ACTIVATIONS),
        gated=False,
        bias=True,
    )
    return _decoder(
        f,
        mixer,
        ffn,
        n,
        hidden,
        residual="parallel_shared",
        max_seq_len=f.size("n_positions"),
        dropout=ALL_SITES,
        extra={"head_bias": True},
    )


def gpt_neox(f: Fields) -> Decoder:
    """GPT-NeoX and Pythia: attention and FFN side by side, a norm each; a quarter of each head rotated."""
    n, hidden, n_heads, d_head = _sizes(f, "num_hidden_layers", "hidden_size", "num_attention_heads")
    bias = f.flag("attention_bias")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=d_head,
        qkv_bias=bias,
        out_bias=bias,
        fused_qkv=True,
        rope=rope(f, d_head, partial=0.25),
    )
    ffn = DenseFFN(
        d_ff=f.size("intermediate_size"),
        activation=f.choice("hidden_act", ACTIVATIONS),
        gated=False,
        bias=True,
    )
    return _decoder(
        f,
        mixer,
        ffn,
        n,
        hidden,
        residual="parallel" if f.flag("use_parallel_residual") else "pre",
        max_seq_len=f.size("max_position_embeddings"),
        dropout=ALL_SITES,
    )


def opt(f: Fields) -> Decoder:
    """OPT: learned positions with two rows of padding; OPT-350m has norms after, and a narrower embedding."""
    n, hidden, n_heads, d_head = _sizes(f, "num_hidden_layers", "hidden_size", "num_attention_heads")
    bias, affine = f.flag("enable_bias"), f.flag("layer_norm_elementwise_affine")
    before = f.flag("do_layer_norm_before")
    mixer = Attention(n_heads=n_heads, n_kv_heads=n_heads, d_head=d_head, qkv_bias=bias, out_bias=bias)
    ffn = DenseFFN(
        d_ff=f.size("ffn_dim"),
        activation=f.choice("activation_function", ACTIVATIONS),
        gated=False,
        bias=bias,
    )
    rows, narrow = f.size("max_position_embeddings"), f.maybe_size("word_embed_proj_dim")
    return _decoder(
        f,
        mixer,
        ffn,
        n,
        hidden,
        residual="pre" if before else "post",
        norm=Norm(kind="layernorm", weight=affine, bias=affine, upcast=False, fused=True),
        max_seq_len=rows,
        dropout=("attention", "residual"),
        extra={
            **positions(rows + 2, "sequence"),
            "final_norm": before and not f.flag("_remove_final_layer_norm"),
            "d_embed": narrow if narrow != hidden else None,
        },
    )


def bloom(f: Fields) -> Decoder:
    """BLOOM: ALiBi, a norm after the embedding."""
    n, hidden, n_heads, d_head = _sizes(f, "n_layer", "hidden_size", "n_head")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=d_head,
        qkv_bias=True,
        out_bias=True,
        fused_qkv=True,
        alibi=True,
    )
    ffn = DenseFFN(d_ff=4 * hidden, activation="gelu_tanh", gated=False, bias=True)
    sites = ("attention", "residual")
    return _decoder(f, mixer, ffn, n, hidden, dropout=sites, extra={"embedding_norm": True})


def falcon(f: Fields) -> Decoder:
    """Falcon: multi-query (7B) or grouped (40B, 180B) attention beside the FFN, without biases."""
    n, hidden, n_heads, d_head = _sizes(f, "num_hidden_layers", "hidden_size", "num_attention_heads")
    bias, new, parallel = f.flag("bias"), f.flag("new_decoder_architecture"), f.flag("parallel_attn")
    n_kv = heads(f, n_heads, "num_kv_heads")
    if not new:
        n_kv = 1 if f.flag("multi_query") else n_heads
    alibi = f.flag("alibi")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv,
        d_head=d_head,
        qkv_bias=bias,
        out_bias=bias,
        fused_qkv=True,
        rope=None if alibi else rope(f, d_head),
        alibi=alibi,
        softmax_fp32=False,
    )
    ffn = DenseFFN(
        d_ff=f.maybe_size("ffn_hidden_size") or 4 * hidden,
        activation=f.choice("activation", ACTIVATIONS),
        gated=False,
        bias=bias,
    )
    return _decoder(
        f,
        mixer,
        ffn,
        n,
        hidden,
        residual=_falcon_residual(f, new, parallel),
        max_seq_len=f.size("max_position_embeddings"),
        dropout=("attention", "residual"),
    )


def _falcon_residual(f: Fields, new: bool, parallel: bool) -> Residual:
    norms = f.maybe_size("num_ln_in_parallel_attn")
    if norms is None:
        norms = 2 if new else 1
    if new and not parallel:
        raise f.fault("parallel_attn", "the new decoder architecture always runs side by side", False)
    if norms > 2 or (parallel and norms == 2 and not new):
        raise f.fault("num_ln_in_parallel_attn", "must be 1, or 2 in the new decoder architecture", norms)
    if not parallel:
        return "pre"
    return "parallel" if norms == 2 else "parallel_shared"


def mpt(f: Fields) -> Decoder:
    """MPT: ALiBi, no biases at all."""
    n, hidden, n_heads, d_head = _sizes(f, "n_layers", "d_model", "n_heads")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=d_head,
        fused_qkv=True,
        alibi=True,
        clip_qkv=f.number("attn_config.clip_qkv"),
    )
    return _decoder(
        f,
        mixer,
        DenseFFN(d_ff=4 * hidden, activation="gelu", gated=False),
        n,
        hidden,
        norm=SCALE_ONLY_LAYER_NORM,
        max_seq_len=f.size("max_seq_len"),
        dropout=("attention", "residual"),
    )
