"""Recurrent language models: embedding, a stack of torch.nn.RNN, GRU or LSTM layers, output matrix with bias.

No transformers class: the field names are those of the oracle's own ``rnn_lm`` configurations.
"""

from __future__ import annotations

from typing import Literal

from tfsim.models.huggingface.common import Decoder
from tfsim.models.huggingface.fields import REQUIRED, Fields, FieldTable
from tfsim.models.spec import Block, Recurrent

CELLS: dict[str, Literal["rnn", "gru", "lstm"]] = {"rnn": "rnn", "gru": "gru", "lstm": "lstm"}
RNN_LM = FieldTable(
    used={"cell": "lstm", "vocab_size": REQUIRED, "hidden_size": REQUIRED, "num_layers": REQUIRED, "tie": False},
    aliases={"num_hidden_layers": "num_layers", "tie_word_embeddings": "tie"},
    harmless=frozenset({"p"}),
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
        extra={"final_norm": False, "head_bias": True},
    )
