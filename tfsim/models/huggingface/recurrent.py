"""Recurrent language models, and translation by LSTMs with attention (GNMT).

No transformers class: the field names are those of tfsim's own ``rnn_lm`` and ``gnmt`` configurations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tfsim.models.huggingface.common import Decoder
from tfsim.models.huggingface.fields import REQUIRED, Fields, FieldTable
from tfsim.models.spec import Additive, Block, LMHead, NoHead, Recurrent

CELLS: dict[str, Literal["rnn", "gru", "lstm"]] = {"rnn": "rnn", "gru": "gru", "lstm": "lstm"}
RNN_LM = FieldTable(
    used={"cell": "lstm", "vocab_size": REQUIRED, "hidden_size": REQUIRED, "num_layers": REQUIRED, "tie": False},
    aliases={"num_hidden_layers": "num_layers", "tie_word_embeddings": "tie"},
    harmless=frozenset({"p"}),
)

GNMT = FieldTable(
    used={"vocab_size": REQUIRED, "hidden_size": 1024, "num_layers": 4},
    aliases={"num_hidden_layers": "num_layers"},
    harmless=frozenset({"p"}),
    refused={"is_encoder_decoder": (True,)},
)


def rnn_lm(f: Fields) -> Decoder:
    """Zaremba et al. 2014 (LSTM on Penn Treebank), and the same stack of other cells."""
    hidden = f.size("hidden_size")
    cell = f.choice("cell", CELLS)
    layer = Block(mixer=Recurrent(cell=cell, d_hidden=hidden), ffn=None, residual="none")
    return Decoder(
        layers=[layer] * f.layers("num_layers"),
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie"),
        dropout=("embedding",),
        extra={"final_norm": False, "head_bias": True, "head": LMHead(own_labels=False)},
    )


def gnmt(f: Fields) -> Decoder:
    """GNMT (Wu et al. 2016) as NVIDIA's GNMT v2 builds it: a bidirectional layer, one that joins its directions, then
    layers with skips; a decoder whose first layer attends and hands what it found to all layers above."""
    h, n = f.size("hidden_size"), f.layers("num_layers")
    if n < 2:
        raise f.fault("num_layers", "must be at least 2", n)
    plain = Recurrent(cell="lstm", d_hidden=h)

    def block(mixer: Recurrent, cross: Additive | None = None) -> Block:
        return Block(mixer=mixer, ffn=None, residual="none", cross=cross)

    both = block(plain.model_copy(update={"bidirectional": True}))
    join = block(plain.model_copy(update={"d_input": 2 * h}))
    skip = block(plain.model_copy(update={"skip": True}))
    attending = block(plain, Additive(d_attention=h))
    second = block(plain.model_copy(update={"attended": h}))
    above = block(plain.model_copy(update={"attended": h, "skip": True}))
    base = Decoder(
        layers=[attending, second, *[above] * (n - 2)],
        d_model=h,
        vocab_size=f.size("vocab_size"),
        tied=False,
        dropout=("embedding",),
        extra={
            "final_norm": False,
            "head_bias": True,
            "shared_embeddings": True,
            "head": LMHead(loss_fp32=True),
        },
    )
    extra = {"final_norm": False, "head": NoHead()}
    return replace(base, encoder=replace(base, layers=[both, join, *[skip] * (n - 2)], extra=extra))
