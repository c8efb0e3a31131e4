"""Encoder-decoders: the Transformer of 2017, T5 and Switch, BART, Whisper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, positions
from tfsim.models.huggingface.encoders import SITES, task
from tfsim.models.huggingface.fields import REQUIRED, Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    FFN,
    LAYER_NORM,
    Attention,
    AudioFrontend,
    Block,
    DenseFFN,
    LearnedPositions,
    LMHead,
    MoE,
    NoHead,
    Norm,
    RelativePositions,
    Residual,
)

T5_NORM = Norm(two_inputs=True)
_SEQ2SEQ: dict[str, tuple[Any, ...]] = {"is_encoder_decoder": (True,), "is_decoder": (False,)}
_T5: dict[str, Any] = {
    "architectures": None,
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "feed_forward_proj": "relu",
    "is_gated_act": None,
    "tie_word_embeddings": True,
}
_T5_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
# dense_act_fn is written by the class from feed_forward_proj, and read by nobody else
_T5_HARMLESS = words(
    "relative_attention_max_distance dropout_rate initializer_factor n_positions output_past dense_act_fn "
    "scale_decoder_outputs"
)
T5 = FieldTable(_T5, aliases=_T5_ALIASES, harmless=_T5_HARMLESS, refused=_SEQ2SEQ)
MT5 = FieldTable(
    {**_T5, "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
    aliases=_T5_ALIASES,
    harmless=_T5_HARMLESS,
    refused=_SEQ2SEQ,
)
SWITCH = FieldTable(
    {
        **{name: value for name, value in _T5.items() if name not in ("feed_forward_proj", "is_gated_act")},
        "d_model": 768,
        "num_layers": 12,
        "num_decoder_layers": 12,
        "num_heads": 12,
        "num_sparse_encoder_layers": 3,
        "num_sparse_decoder_layers": 3,
        "encoder_sparse_step": None,
        "decoder_sparse_step": None,
        "num_experts": 8,
        "router_bias": False,
        "dense_act_fn": "relu",
    },
    aliases={name: value for name, value in _T5_ALIASES.items() if name != "head_dim"},
    harmless=_T5_HARMLESS - {"dense_act_fn"}
    | words(
        "expert_capacity router_dtype router_ignore_padding_tokens router_type add_router_probs num_selected_experts "
        "is_gated_act"
    ),
    refused={**_SEQ2SEQ, "feed_forward_proj": ("relu",)},
)
BART = FieldTable(
    {
        "architectures": None,
        "vocab_size": 50265,
        "d_model": 1024,
        "encoder_layers": 12,
        "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16,
        "decoder_layers": 12,
        "decoder_ffn_dim": 4096,
        "decoder_attention_heads": 16,
        "activation_function": "gelu",
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
    harmless=words(
        "encoder_layerdrop decoder_layerdrop scale_embedding classif_dropout normalize_embedding add_bias_logits "
        "force_bos_token_to_be_generated extra_pos_embeddings static_position_embeddings output_past "
        "save_step _num_labels"
    ),
    refused={**_SEQ2SEQ, "normalize_before": (False,), "add_final_layer_norm": (False,)},
)
WHISPER = FieldTable(
    {
        "architectures": None,
        "vocab_size": 51865,
        "num_mel_bins": 80,
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_ffn_dim": 1536,
        "encoder_attention_heads": 6,
        "decoder_layers": 4,
        "decoder_ffn_dim": 1536,
        "decoder_attention_heads": 6,
        "activation_function": "gelu",
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "tie_word_embeddings": True,
    },
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    },
    harmless=words(
        "encoder_layerdrop decoder_layerdrop scale_embedding use_weighted_layer_sum classifier_proj_size "
        "apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length "
        "mask_feature_min_masks forced_decoder_ids median_filter_width alignment_heads lang_ids num_key_value_heads"
    ),
    refused=_SEQ2SEQ,
)
TRANSFORMER_2017 = FieldTable(
    {
        "vocab_size": REQUIRED,
        "d_model": REQUIRED,
        "d_ff": REQUIRED,
        "num_heads": REQUIRED,
        "num_layers": REQUIRED,
        "attention_bias": False,
    },
    harmless=frozenset({"p"}),
)


def layers(
    n: int, own: Attention, ffns: Sequence[FFN], *, cross: Attention | None = None, residual: Residual
) -> list[Block]:
    """``n`` layers with these FFNs in turn; equal layers share one block."""
    made: dict[int, Block] = {}
    for ffn in ffns:
        made.setdefault(id(ffn), Block(mixer=own, ffn=ffn, cross=cross, residual=residual))
    return [made[id(ffns[i % len(ffns)])] for i in range(n)]


def _generates(f: Fields) -> None:
    if task(f, "ConditionalGeneration") not in ("ConditionalGeneration", "Model"):
        raise f.fault("architectures", "tfsim models classes for conditional generation", f.raw("architectures"))


def transformer_2017(f: Fields) -> Decoder:
    """Attention is all you need (Vaswani et al. 2017, section 3): post-norm, sinusoidal positions, one table for
    both inputs and the output. No transformers class: the fields are those of tfsim's own reference configurations."""
    d, n_heads, bias = f.size("d_model"), f.size("num_heads"), f.flag("attention_bias")
    seen = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=f.d_head("", d, "num_heads", n_heads),
        qkv_bias=bias,
        out_bias=bias,
        causal=False,
    )
    masked = seen.model_copy(update={"causal": True, "stored_mask": True})
    ffn, n = DenseFFN(d_ff=f.size("d_ff"), activation="relu", gated=False, bias=True), f.layers("num_layers")
    base = Decoder(
        layers=layers(n, masked, [ffn], cross=seen, residual="post"),
        d_model=d,
        vocab_size=f.size("vocab_size"),
        tied=True,
        norm=LAYER_NORM,
        dropout=SITES,
        extra={
            "sinusoidal": True,
            "final_norm": False,
            "shared_embeddings": True,
            "head": LMHead(loss_fp32=True),
        },
    )
    extra = {"sinusoidal": True, "final_norm": False, "head": NoHead()}
    inner = replace(base, layers=layers(n, seen, [ffn], residual="post"), tied=False, extra=extra)
    return replace(base, encoder=inner)


def _t5(f: Fields, encoder_ffns: Sequence[FFN], decoder_ffns: Sequence[FFN], *, masks_source: bool) -> Decoder:
    """Pre-norm without biases; each stack's relative biases are one table, added in every layer. ``masks_source``: the
    encoder is given a mask of its padding even where there is none."""
    _generates(f)
    n_heads = f.size("num_heads")
    seen = Attention(n_heads=n_heads, n_kv_heads=n_heads, d_head=f.size("d_kv"), softmax_fp32=False, causal=False)
    masked = seen.model_copy(update={"causal": True, "given_mask": True})
    read = seen.model_copy(update={"given_mask": masks_source})
    biases = RelativePositions(n_buckets=f.size("relative_attention_num_buckets"))
    n = f.layers("num_layers")
    m = n if f.raw("num_decoder_layers") is None else f.layers("num_decoder_layers")
    base = Decoder(
        layers=layers(m, masked, decoder_ffns, cross=seen, residual="pre"),
        d_model=f.size("d_model"),
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        norm=T5_NORM,
        dropout=SITES,
        extra={"relative_positions": biases, "shared_embeddings": True},
    )
    extra = {"relative_positions": biases, "head": NoHead()}
    inner = replace(base, layers=layers(n, read, encoder_ffns, residual="pre"), tied=False, extra=extra)
    return replace(base, encoder=inner)


def t5(f: Fields) -> Decoder:
    """T5 (Raffel et al. 2020), v1.1 and mT5. The output matrix is the file's ``tie_word_embeddings`` (v1.0 ties;
    v1.1 does not, though transformers 5 ties every T5)."""
    words_ = f.choice("feed_forward_proj", _T5_FFNS)
    if f.raw("is_gated_act") not in (None, words_["gated"]):
        raise f.fault(
            "is_gated_act", f"contradicts feed_forward_proj {f.raw('feed_forward_proj')}", f.raw("is_gated_act")
        )
    ffn = DenseFFN(d_ff=f.size("d_ff"), **words_)
    return _t5(f, [ffn], [ffn], masks_source=False)


_T5_FFNS: dict[str, dict[str, Any]] = {
    **{name: {"activation": activation, "gated": False} for name, activation in ACTIVATIONS.items()},
    **{f"gated-{name}": {"activation": activation, "gated": True} for name, activation in ACTIVATIONS.items()},
    "gated-gelu": {"activation": "gelu_new", "gated": True},
}


def switch(f: Fields) -> Decoder:
    """Switch Transformer (Fedus et al. 2022): T5 with every other FFN a mixture, a token to one expert."""
    activation = f.choice("dense_act_fn", ACTIVATIONS)
    dense = DenseFFN(d_ff=f.size("d_ff"), activation=activation, gated=False)
    sparse = MoE(
        n_experts=f.size("num_experts"),
        top_k=1,
        d_ff=f.size("d_ff"),
        activation=activation,
        gated=False,
        router_bias=f.flag("router_bias"),
        router_fp32=True,
        router_noise=True,
        normalize_top_k=False,
    )
    n = f.layers("num_layers")
    m = n if f.raw("num_decoder_layers") is None else f.layers("num_decoder_layers")

    def ffns(of: int, stack: str) -> list[FFN]:
        name = f"num_sparse_{stack}_layers"
        wanted = f.count(name)
        step = f.maybe_size(f"{stack}_sparse_step") or (of // wanted if wanted else of)
        if step == 0:
            raise f.fault(name, f"is more than the {of} layers", wanted)
        # the class's own rule, by which 0 sparse layers still makes one
        return [sparse if step == 1 or i % step == 1 else dense for i in range(of)]

    return _t5(f, ffns(n, "encoder"), ffns(m, "decoder"), masks_source=True)


def _stacks(f: Fields, *, residual: Residual, key_bias: bool, head_major: bool) -> tuple[list[Block], list[Block]]:
    """The layers of BART and Whisper: encoder, decoder."""
    d = f.size("d_model")
    made = []
    for part in ("encoder", "decoder"):
        n_heads = f.size(f"{part}_attention_heads")
        seen = Attention(
            n_heads=n_heads,
            n_kv_heads=n_heads,
            d_head=f.d_head("", d, f"{part}_attention_heads", n_heads),
            qkv_bias=True,
            out_bias=True,
            key_bias=key_bias,
            softmax_fp32=False,
            causal=False,
            head_major=head_major,
        )
        activation = f.choice("activation_function", ACTIVATIONS)
        ffn = DenseFFN(d_ff=f.size(f"{part}_ffn_dim"), activation=activation, gated=False, bias=True)
        masked = seen.model_copy(update={"causal": True, "given_mask": True})
        own, cross = (seen, None) if part == "encoder" else (masked, seen)
        made.append(layers(f.layers(f"{part}_layers"), own, [ffn], cross=cross, residual=residual))
    return made[0], made[1]


def bart(f: Fields) -> Decoder:
    """BART (Lewis et al. 2020): post-norm, learned positions from row 2 on, a norm after the embeddings."""
    _generates(f)
    seen, masked = _stacks(f, residual="post", key_bias=True, head_major=False)
    if not f.flag("tie_word_embeddings"):
        raise f.fault("tie_word_embeddings", "the class then has four tables, which is not modelled", False)
    length = f.size("max_position_embeddings")
    common = {"embedding_norm": True, "final_norm": False}
    base = Decoder(
        layers=masked,
        d_model=f.size("d_model"),
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=length,
        norm=LAYER_NORM,
        dropout=SITES,
        extra={**common, **positions(length + 2), "shared_embeddings": True},
    )
    extra = {**common, **positions(length + 2, "sequence"), "head": NoHead()}
    return replace(base, encoder=replace(base, layers=seen, tied=False, extra=extra))


def whisper(f: Fields) -> Decoder:
    """Whisper (Radford et al. 2022): convolutions over mel frames, sinusoidal positions kept as a frozen table."""
    _generates(f)
    seen, masked = _stacks(f, residual="pre", key_bias=False, head_major=True)
    frames, rows = f.size("max_source_positions"), f.size("max_target_positions")
    base = Decoder(
        layers=masked,
        d_model=f.size("d_model"),
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=rows,
        norm=LAYER_NORM,
        dropout=SITES,
        extra=positions(rows, "sequence"),
    )
    front = AudioFrontend(n_mels=f.size("num_mel_bins"), n_frames=frames)
    extra = {"frontend": front, "positions": LearnedPositions(n_positions=frames, frozen=True), "head": NoHead()}
    return replace(base, encoder=replace(base, layers=seen, tied=False, vocab_size=0, max_seq_len=frames, extra=extra))
