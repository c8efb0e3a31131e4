"""Encoder-only models of text: BERT and its kin. What follows the layers is what ``architectures`` names."""

from __future__ import annotations

from typing import Any

from tfsim.models.huggingface.common import ACTIVATIONS, Decoder, positions, stack
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import LAYER_NORM, Attention, Classifier, DenseFFN, Head, MaskedLMHead, NoHead, Pooler

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
