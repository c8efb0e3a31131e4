"""A recurrent translator with attention (Bahdanau et al. 2015), laid out as GNMT (Wu et al. 2016).

The encoder reads both ways; the decoder's upper layer reads what its lower one attends to.

Beside gnmt.yaml.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.measure.models.base import Decoder, Size, given_loss, tokens
from tfsim.measure.models.recurrent import LSTM
from tfsim.models.spec import Additive, ModelSpec
from tfsim.models.spec.recurrent import Recurrent


class AdditiveAttention(nn.Module):
    """v tanh(W q + U k + b) with v normalised and scaled; the values are the encoder's output itself."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.vector, self.bias = nn.Parameter(torch.randn(inner)), nn.Parameter(torch.zeros(inner))
        self.scale = nn.Parameter(torch.tensor(inner**-0.5))

    def keys(self, memory: Tensor) -> list[Tensor]:
        """Keys and values [batch, source, ...] of the encoder's output [source, batch, ...]."""
        return [self.k(memory).transpose(0, 1).contiguous(), memory.transpose(0, 1).contiguous()]

    def forward(self, x: Tensor, keys: list[Tensor]) -> Tensor:
        key, value = keys
        pairs = self.q(x).transpose(0, 1).contiguous()[:, :, None] + key[:, None] + self.bias
        vector = self.vector / self.vector.norm() * self.scale
        scores = torch.matmul(torch.tanh(pairs), vector[:, None])[..., 0]
        return torch.bmm(functional.softmax(scores, dim=-1), value).transpose(0, 1)


class GNMT(Decoder):
    """Encoder, decoder and attention between them; sequences lie time first."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        assert spec.encoder is not None
        width = spec.d_model
        self.embed_token = nn.Embedding(spec.vocab_size, width)
        source = [spec.encoder.blocks[name].mixer for name in spec.encoder.layer_blocks]
        first, *others = (mixer for mixer in source if isinstance(mixer, Recurrent))
        self.forwards, self.backwards = LSTM(first, width), LSTM(first, width)
        self.encoder = nn.ModuleList(LSTM(mixer, mixer.d_input or width) for mixer in others)
        made = [spec.blocks[name] for name in spec.layer_blocks]
        self.decoder = nn.ModuleList(LSTM(b.mixer, width) for b in made if isinstance(b.mixer, Recurrent))
        cross = made[0].cross
        assert isinstance(cross, Additive)
        self.attention = AdditiveAttention(width, cross.d_attention)
        self.head = nn.Linear(width, spec.vocab_size)

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Tokens of the source and of the target [length, batch], and what comes next in the target."""
        lengths = (size.encoder_len, size.seq_len, size.seq_len)
        source, target, following = (tokens(self.spec.vocab_size, length, size.batch) for length in lengths)
        return (source, target), (following,)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.embed_token(source)
        x = torch.cat([self.forwards(x), self.backwards(x.flip(0)).flip(0)], dim=-1)
        for layer in self.encoder:
            x = layer(x)
        keys = self.attention.keys(x)
        lower, *upper = self.decoder
        x = lower(self.embed_token(target))
        attended = self.attention(x, keys)
        for layer in upper:
            x = layer(torch.cat([x, attended], dim=-1))
        return self.head(x)

    def loss(self, output: Tensor, *targets: Tensor) -> Tensor:
        """Of each next token of the target."""
        return given_loss(output, targets[0])

    def cache(self, size: Size) -> Any:
        keys = [torch.randn(size.batch, size.encoder_len, self.spec.d_model) for _ in range(2)]
        return [keys, [layer.start(size.batch) for layer in self.decoder]]

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        keys, states = cache
        lower, *upper = self.decoder
        x = lower.step(self.embed_token(ids.t()), states[0])
        attended = self.attention(x, keys)
        for layer, state in zip(upper, states[1:], strict=True):
            x = layer.step(torch.cat([x, attended], dim=-1), state)
        return self.head(x).transpose(0, 1)
