"""Recurrent token mixers: Elman RNN, GRU, LSTM."""

from __future__ import annotations

from typing import Literal

from tfsim.models.spec.base import Size
from tfsim.models.spec.mixers import MixerSpec
from tfsim.operators.recurrent import CELLS
from tfsim.units import Number


class Recurrent(MixerSpec):
    """One layer of ``d_hidden`` recurrent units with two bias vectors a gate, as torch.nn.RNN, GRU and LSTM have.

    A token's state needs the state before it: seq_len dependent steps. The state is all that decoding keeps.
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["rnn", "gru", "lstm"]
    d_hidden: Size

    @property
    def n_parts(self) -> int:
        """One: every unit needs every unit of the step before."""
        return 1

    @property
    def output_width(self) -> int | None:
        """The hidden units: no projection brings them to d_model."""
        return self.d_hidden

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """The hidden state, and an LSTM's cell state."""
        return CELLS[self.cell].states * self.d_hidden * element

    def describe(self) -> str:
        """Such as "LSTM 650 units"."""
        return f"{'Elman RNN' if self.cell == 'rnn' else self.cell.upper()} {self.d_hidden:,} units"
