"""Encoder-only models of text: BERT and its kin. What follows the layers is what ``architectures`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, layer_types, positions, stack
from tfsim.models.huggingface.dense import SCALE_ONLY_LAYER_NORM
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    LAYER_NORM,
    Attention,
    Classifier,
    DenseFFN,
    Disentangled,
    Head,
    MaskedLMHead,
    NoHead,
    Pooler,
    RelativePositions,
    Rope,
)

SITES = ("embedding", "attention", "residual")

TASK: dict[str, Any] = {"architectures": None, "num_labels": None, "id2label": None}
"""Fields that decide the head."""

_BERT: dict[str, Any] = {
    **TASK,
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
}
_HARMLESS = words("hidden_dropout_prob attention_probs_dropout_prob directionality")
_REFUSED: dict[str, tuple[Any, ...]] = {"is_decoder": (False,), "position_embedding_type": ("absolute", None)}

BERT = FieldTable(
    _BERT,
    harmless=_HARMLESS
    | words("pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type"),
    refused=_REFUSED,
)
ROBERTA = FieldTable({**_BERT, "vocab_size": 50265}, harmless=_HARMLESS, refused=_REFUSED)
ELECTRA = FieldTable(
    {
        **_BERT,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    harmless=_HARMLESS | words("summary_type summary_use_proj summary_activation summary_last_dropout"),
    refused=_REFUSED,
)


def task(f: Fields, default: str) -> str:
    """What the model is for: "MaskedLM" of BertForMaskedLM, "Model" of BertModel; ``default`` without any."""
    given = f.raw("architectures")
    if given is None or given == []:
        return default
    if not isinstance(given, list) or not isinstance(given[0], str):
        raise f.fault("architectures", "must be a list of class names", given)
    name: str = given[0]
    _, _, purpose = name.partition("For")
    return purpose or "Model"


def labels(f: Fields, default: int = 2) -> int:
    """Number of classes: of ``num_labels``, else the entries of ``id2label``."""
    names = f.mapping("id2label")
    return f.maybe_size("num_labels") or len(names) or default


def text_head(f: Fields, default: str, *, bare: Head, masked: Head, found: Head | None = None) -> Head:
    """The head by the task: ``bare`` of a Model, ``masked`` of a masked-LM, ``found`` of a PreTraining class."""
    n = labels(f)
    heads: dict[str, Head] = {
        "Model": bare,
        "MaskedLM": masked,
        "SequenceClassification": Classifier(n_classes=n, hidden=True),
        "TokenClassification": Classifier(n_classes=n, position="all"),
        "QuestionAnswering": Classifier(n_classes=n, position="all"),
    }
    if found is not None:
        heads["PreTraining"] = found
    purpose = task(f, default)
    if purpose not in heads:
        rule = f"tfsim models classes that end in {', '.join(f'For{h}' for h in heads if h != 'Model')} or Model"
        raise f.fault("architectures", rule, f.raw("architectures"))
    return heads[purpose]


def _bert(f: Fields, head: Head, *, max_seq_len: int, **extra: Any) -> Decoder:
    """Post-norm layers whose every query sees every key; learned positions and token types under one norm."""
    hidden, n_heads = f.size("hidden_size"), f.size("num_attention_heads")
    mixer = Attention(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_head=f.d_head("", hidden, "num_attention_heads", n_heads),
        qkv_bias=True,
        out_bias=True,
        softmax_fp32=False,
        causal=False,
    )
    ffn = DenseFFN(
        d_ff=f.size("intermediate_size"), activation=f.choice("hidden_act", ACTIVATIONS), gated=False, bias=True
    )
    n = f.layers("num_hidden_layers")
    if isinstance(head, MaskedLMHead) and not f.flag("tie_word_embeddings"):
        raise f.fault(
            "tie_word_embeddings", "an untied head of this class keeps two biases, which is not modelled", False
        )
    return Decoder(
        layers=stack([mixer] * n, [ffn] * n, "post"),
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=max_seq_len,
        norm=LAYER_NORM,
        dropout=SITES,
        extra={
            **positions(f.size("max_position_embeddings")),
            "token_types": f.count("type_vocab_size"),
            "embedding_norm": True,
            "final_norm": False,
            "head": head,
            "head_bias": isinstance(head, MaskedLMHead),
            **extra,
        },
    )


def bert(f: Fields) -> Decoder:
    """BERT (Devlin et al. 2019): a masked language model unless ``architectures`` says otherwise."""
    masked = MaskedLMHead(activation=f.choice("hidden_act", ACTIVATIONS))
    head = text_head(f, "MaskedLM", bare=Pooler(), masked=masked)
    return _bert(f, head, max_seq_len=f.size("max_position_embeddings"))


def roberta(f: Fields) -> Decoder:
    """RoBERTa (Liu et al. 2019): BERT whose positions count from pad_token_id + 1, two rows more than tokens."""
    head = text_head(f, "MaskedLM", bare=Pooler(), masked=MaskedLMHead())
    rows = f.size("max_position_embeddings")
    return _bert(f, head, max_seq_len=max(1, rows - 2))


def electra(f: Fields) -> Decoder:
    """ELECTRA (Clark et al. 2020): narrower embeddings, projected; a discriminator unless said otherwise."""
    discriminator = Classifier(n_classes=1, position="all", hidden=True)
    head = text_head(f, "PreTraining", bare=NoHead(), masked=MaskedLMHead(), found=discriminator)
    width, hidden = f.size("embedding_size"), f.size("hidden_size")
    narrow = {"d_embed": width, "projected_sum": True} if width != hidden else {}
    return _bert(f, head, max_seq_len=f.size("max_position_embeddings"), **narrow)


DEBERTA_V2 = FieldTable(
    {
        **_BERT,
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "type_vocab_size": 0,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "pos_att_type": None,
        "share_att_key": False,
    },
    harmless=_HARMLESS | words("pooler_dropout pooler_hidden_act pooler_hidden_size legacy"),
    refused={
        **_REFUSED,
        "conv_kernel_size": (0,),
        "conv_act": ("gelu", "tanh"),
        "embedding_size": (None,),
        "attention_head_size": (None,),
    },
)
MODERNBERT = FieldTable(
    {
        **{name: value for name, value in _BERT.items() if name not in ("hidden_act", "type_vocab_size", *TASK)},
        "architectures": None,
        "vocab_size": 50368,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "layer_types": None,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "rope_parameters": None,
    },
    harmless=words(
        "initializer_cutoff_factor mlp_dropout classifier_pooling deterministic_flash_attn sparse_prediction "
        "sparse_pred_ignore_index reference_compile repad_logits_with_grad position_embedding_type"
    ),
    refused={"rope_scaling": (None,)},
)


def _terms(f: Fields) -> tuple[bool, bool]:
    """Whether content-to-position and position-to-content terms are there: a list, or words with | between."""
    given = f.raw("pos_att_type")
    terms = given.lower().split("|") if isinstance(given, str) else [] if given is None else given
    if not isinstance(terms, list) or not all(term in ("c2p", "p2c", "") for term in terms):
        raise f.fault("pos_att_type", "must be c2p, p2c or both", given)
    return "c2p" in terms, "p2c" in terms


def deberta_v2(f: Fields) -> Decoder:
    """DeBERTa-v2 and v3 (He et al. 2021, 2023): contents and relative positions attend apart."""
    head = text_head(f, "MaskedLM", bare=NoHead(), masked=MaskedLMHead(activation=f.choice("hidden_act", ACTIVATIONS)))
    length, hidden = f.size("max_position_embeddings"), f.size("hidden_size")
    plain = _bert(f, head, max_seq_len=length)
    extra = dict(plain.extra)
    if not f.flag("position_biased_input"):
        del extra["positions"]
    spans = [f.raw(name) for name in ("position_buckets", "max_relative_positions")]
    norm, (to_position, to_content) = f.raw("norm_rel_ebd"), _terms(f)
    shared = f.flag("share_att_key")
    if not f.flag("relative_attention"):
        return replace(plain, extra=extra)
    if norm != "layer_norm" or not (to_position or to_content):
        raise f.fault("relative_attention", "tfsim models it with norm_rel_ebd layer_norm and pos_att_type c2p, p2c")
    if not all(type(span) is int and span <= 10**6 for span in spans):
        raise f.fault("position_buckets", "must be a whole number", spans)
    half = next((span for span in spans if span > 0), length)
    extra["relative_positions"] = RelativePositions(kind="disentangled", n_buckets=2 * half)
    n_heads = f.size("num_attention_heads")
    mixer = Disentangled(
        n_heads=n_heads,
        d_head=hidden // n_heads,
        content_to_position=to_position,
        position_to_content=to_content,
        shared=shared,
    )
    block = plain.layers[0].model_copy(update={"mixer": mixer})
    return replace(plain, layers=[block] * len(plain.layers), extra=extra)


def modernbert(f: Fields) -> Decoder:
    """ModernBERT (Warner et al. 2024): pre-norm, rotary, gated, two of three layers with a window to both sides."""
    hidden, n_heads, n = f.size("hidden_size"), f.size("num_attention_heads"), f.layers("num_hidden_layers")
    scale = LAYER_NORM if f.flag("norm_bias") else SCALE_ONLY_LAYER_NORM
    masked = MaskedLMHead(
        activation=f.choice("classifier_activation", ACTIVATIONS), bias=f.flag("classifier_bias"), norm=scale
    )
    heads: dict[str, Head] = {"Model": NoHead(), "MaskedLM": masked}
    purpose = task(f, "MaskedLM")
    if purpose not in heads:
        raise f.fault("architectures", "tfsim models ModernBertForMaskedLM and ModernBertModel", purpose)
    every = f.size("global_attn_every_n_layers")
    kinds = ("full_attention", "sliding_attention")
    types = layer_types(f, n, kinds, [kinds[i % every != 0] for i in range(n)])
    thetas = {kind: f.number(name) for kind, name in zip(kinds, ("global_rope_theta", "local_rope_theta"), strict=True)}
    for kind in kinds:
        given = f.mapping("rope_parameters").get(kind)
        if isinstance(given, Mapping) and given.get("rope_theta") is not None:
            thetas[kind] = f.positive(f"rope_parameters.{kind}.rope_theta", given["rope_theta"])
    bias, window = f.flag("attention_bias"), f.size("local_attention")
    mixers = {
        kind: Attention(
            n_heads=n_heads,
            n_kv_heads=n_heads,
            d_head=f.d_head("", hidden, "num_attention_heads", n_heads),
            qkv_bias=bias,
            out_bias=bias,
            fused_qkv=True,
            rope=Rope(theta=thetas[kind] or 10000.0),
            window=window if kind == "sliding_attention" else None,
            causal=False,
        )
        for kind in kinds
    }
    ffn = DenseFFN(
        d_ff=f.size("intermediate_size"),
        activation=f.choice("hidden_activation", ACTIVATIONS),
        bias=f.flag("mlp_bias"),
        fused_gate_up=True,
    )
    made = stack([mixers[kind] for kind in types], [ffn] * n)
    head = heads[purpose]
    return Decoder(
        # the first layer reads the embeddings, which are normalised already
        layers=[made[0].model_copy(update={"input_norm": False}), *made[1:]],
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=f.size("max_position_embeddings"),
        norm=scale,
        dropout=SITES,
        extra={
            "embedding_norm": True,
            "head": head,
            "head_bias": f.flag("decoder_bias") and isinstance(head, MaskedLMHead),
        },
    )
