"""Recurrent language models in plain torch: LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho et al. 2014).

Beside lstm.yaml and gru.yaml. As in torch.nn, sequences lie time first, the input's products are taken for all steps at
once while those of the state wait for the step before, and gates are activated in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tfsim.measure.models.base import Decoder, Size, given_loss, tokens
from tfsim.models.spec import ModelSpec
from tfsim.models.spec.recurrent import Recurrent


class Layer(nn.Module):
    """One recurrent layer with two bias vectors a gate, as torch.nn has them."""

    n_gates: int

    def __init__(self, mixer: Recurrent, width: int) -> None:
        super().__init__()
        self.hidden = mixer.d_hidden
        self.input = nn.Linear(width + mixer.attended, self.n_gates * mixer.d_hidden)
        self.state = nn.Linear(mixer.d_hidden, self.n_gates * mixer.d_hidden)

    def start(self, batch: int) -> list[Tensor]:
        """The state before the first step."""
        device = self.input.weight.device
        return [torch.zeros(batch, self.hidden, device=device) for _ in range(2 if isinstance(self, LSTM) else 1)]

    def cell(self, gates: Tensor, state: list[Tensor]) -> list[Tensor]:
        """The state after a step, its output first."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = self.start(x.shape[1]), []
        for gates in self.input(x).unbind():
            state = self.cell(gates, state)
            outputs.append(state[0])
        return torch.stack(outputs)

    def step(self, x: Tensor, state: list[Tensor]) -> Tensor:
        """One token [1, batch, width]; the state takes it in."""
        for held, new in zip(state, self.cell(self.input(x)[0], state), strict=True):
            held.copy_(new)
        return state[0][None]


class LSTM(Layer):
    """c = f c + i g, h = o tanh(c)."""

    n_gates = 4

    def cell(self, gates: Tensor, state: list[Tensor]) -> list[Tensor]:
        hidden, memory = state
        i, f, g, o = self.state(hidden).add_(gates).unsafe_chunk(4, dim=-1)
        memory = (f.sigmoid_() * memory).add_(i.sigmoid_() * g.tanh_())
        return [o.sigmoid_() * memory.tanh(), memory]


class GRU(Layer):
    """h = n + z (h - n), with n from a reset state."""

    n_gates = 3

    def cell(self, gates: Tensor, state: list[Tensor]) -> list[Tensor]:
        hidden = state[0]
        r_input, z_input, n_input = gates.unsafe_chunk(3, dim=-1)
        r, z, n = self.state(hidden).unsafe_chunk(3, dim=-1)
        r, z = r.add_(r_input).sigmoid_(), z.add_(z_input).sigmoid_()
        new = n_input.add(n.mul_(r)).tanh_()
        return [(hidden - new).mul_(z).add_(new)]


CELLS: dict[str, type[Layer]] = {"lstm": LSTM, "gru": GRU}


class RecurrentLM(Decoder):
    """Layers between a token table and an output matrix of its own."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.embed_token = nn.Embedding(spec.vocab_size, spec.d_model)
        made = [spec.blocks[name].mixer for name in spec.layer_blocks]
        self.layers = nn.ModuleList(
            CELLS[mixer.cell](mixer, spec.d_model) for mixer in made if isinstance(mixer, Recurrent)
        )
        self.head = nn.Linear(spec.d_model, spec.vocab_size)

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Tokens [length, batch], and the next ones."""
        ids, following = (tokens(self.spec.vocab_size, size.seq_len, size.batch) for _ in range(2))
        return (ids,), (following,)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_token(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def loss(self, output: Tensor, *targets: Tensor) -> Tensor:
        """Of each next token."""
        return given_loss(output, targets[0])

    def cache(self, size: Size) -> Any:
        return [layer.start(size.batch) for layer in self.layers]

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        x = self.embed_token(ids.t())
        for layer, state in zip(self.layers, cache, strict=True):
            x = layer.step(x, state)
        return self.head(x).transpose(0, 1)
