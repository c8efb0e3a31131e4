"""What every measured model is: a torch module made from its tfsim specification, and inputs to run it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfsim.models.spec import ModelSpec


@dataclass(frozen=True)
class Size:
    """What a pass runs on: ``batch`` sequences of ``seq_len`` positions (new tokens, residues, patches), after
    ``past_len`` cached ones in a decode step; ``encoder_len``: positions of an encoder, or sequences of an alignment.
    """

    batch: int
    seq_len: int
    past_len: int = 0
    encoder_len: int = 0


class Measured(nn.Module):
    """A model that is measured. The sizes of its parts are read from ``spec``, which is also what tfsim counts.

    ``forward(*inputs)`` is one pass; ``loss(output, *targets)`` closes a training step.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec

    def example(self, size: Size) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """(inputs, targets) of a pass of ``size``: a token model reads random tokens and predicts the next ones."""
        ids = tokens(self.spec.vocab_size, size.batch, size.seq_len)
        return (ids,), (ids,)

    def loss(self, output: Tensor, *targets: Tensor) -> Tensor:
        """Of a language model: of each next token."""
        return next_token_loss(output, targets[0])


class Decoder(Measured):
    """A model that generates: ``step(ids, cache)`` takes new tokens after those whose keys, values or states the cache
    holds. ``cache`` allocates it, as after ``size.past_len`` tokens."""

    def cache(self, size: Size) -> Any:
        """Tensors that hold past and new tokens (nested lists of them)."""
        raise NotImplementedError

    def step(self, ids: Tensor, cache: Any, past_len: int) -> Tensor:
        """Logits of the new tokens [batch, new, vocabulary]; the cache takes them in."""
        raise NotImplementedError


def tokens(vocabulary: int, batch: int, length: int) -> Tensor:
    """Random tokens [batch, length]."""
    return torch.randint(0, vocabulary, (batch, length))


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy of each next token, in fp32; the labels are the input, shifted into a tensor of their own."""
    labels = functional.pad(ids[:, 1:], (0, 1), value=-100)
    return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1), ignore_index=-100)


def given_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of labels that are given."""
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class RMSNorm(nn.Module):
    """Zhang and Sennrich 2019, as plain torch operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def heads_first(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads x d] as [batch, heads, length, d]."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def heads_joined(x: Tensor) -> Tensor:
    """[batch, heads, length, d] as [batch, length, heads x d]."""
    return x.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """Two matrices around an activation."""

    def __init__(self, width: int, inner: int, activation: str = "gelu", bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(activate(self.activation, self.up(x)))


def activate(name: str, x: Tensor) -> Tensor:
    """The activation function called ``name`` in specifications."""
    if name == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    return getattr(functional, name)(x)
