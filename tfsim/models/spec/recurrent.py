"""Recurrent token mixers: Elman RNN, GRU, LSTM, and the additive attention that came with them."""

from __future__ import annotations

from typing import Literal

from tfsim.models.spec.base import Count, Flag, Size
from tfsim.models.spec.mixers import MixerSpec
from tfsim.operators.recurrent import CELLS
from tfsim.units import Number


class Recurrent(MixerSpec):
    """One layer of ``d_hidden`` recurrent units with two bias vectors a gate, as torch.nn.RNN, GRU and LSTM have.

    A token's state needs the state before it: seq_len dependent steps. The state is all that decoding keeps.
    ``d_input``: width of what it is given (null: d_model). ``attended``: width of what attention gave, joined to the
    input. ``bidirectional``: units for either direction, their outputs joined. ``skip``: the input is added to the
    output (Wu et al. 2016, section 3.1).
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"]
    d_hidden: Size
    d_input: Size | None = None
    attended: Count = 0
    bidirectional: Flag = False
    skip: Flag = False

    @property
    def n_parts(self) -> int:
        """One: every unit needs every unit of the step before."""
        return 1

    @property
    def input_width(self) -> int | None:
        """What it is given."""
        return self.d_input

    @property
    def output_width(self) -> int | None:
        """The hidden units: no projection brings them to d_model."""
        return self.d_hidden * (2 if self.bidirectional else 1)

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """The hidden state, and an LSTM's cell state."""
        return CELLS[self.cell].states * (2 if self.bidirectional else 1) * self.d_hidden * element

    def describe(self) -> str:
        """Such as "LSTM 650 units"."""
        name = "Elman RNN" if self.cell == "rnn" else self.cell.upper()
        reads = " over input and attended" if self.attended else ""
        skip = ", skip" if self.skip else ""
        return f"{'bidirectional ' if self.bidirectional else ''}{name} {self.d_hidden:,} units{reads}{skip}"


class Additive(MixerSpec):
    """Attention to an encoder's output by v tanh(W q + U k + b) (Bahdanau et al. 2015), with v normalised and scaled.

    ``d_attention``: width of W q and U k; the values are the encoder's output itself.
    """

    kind: Literal["additive"] = "additive"
    d_attention: Size

    @property
    def n_parts(self) -> int:
        """One head."""
        return 1

    @property
    def score_width(self) -> int:
        """One multiply-add a value of the sum for the score, as many for the weighted mean."""
        return 2 * self.d_attention

    def cached_per_token(self, tp: Number = 1) -> Number:
        """The projected keys, and the encoder's output they come from (of the same width)."""
        return 2 * self.d_attention

    def describe(self) -> str:
        """Such as "additive 1,024"."""
        return f"additive {self.d_attention:,}"
