"""The text of the scaling ladder: a seeded random language whose entropy is known exactly.

A token follows the two before it: with probability 0.6 it is one of the four successors of the last token, with 0.3 one
of four others that belong to the token before, with 0.1 any token. Successors are drawn by their frequency, and
frequencies and ranks follow Zipf's law with exponent 1. So there are many rules of very different worth, as in text,
learned from the common to the rare: what a model can hold bounds its loss by about a power of its size, what it has
seen by about a power of its data (Michaud et al. 2023, arXiv:2303.13506). The least possible loss, the entropy rate of
the chain, is a sum.

Rules for pairs of tokens were tried and left out: models this small wait at the entropy of single tokens until, after a
time that is luck, they find the pairs, and their losses then follow no power law.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tfsim.units import Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Tokens = NDArray[np.uint8]

VOCABULARY = 256
SUCCESSORS = 4
LAST, OLDER, ANY = 0.6, 0.3, 0.1  # how often a token is drawn by the last one, by the one before, by neither
_RULES = np.cumsum([LAST, OLDER])
_CONVERGED = 1e-14  # change of the stationary distribution, summed


@dataclass(frozen=True)
class Source:
    """The language of ``V`` tokens.

    ``last`` and ``older`` (V, K) list the successors, likeliest first; ``by_last`` and ``by_older`` (V, V) are the
    parts of a token's probability that the last token and the one before decide (``by_last`` with the 0.1 of all);
    ``stationary`` (V, V) is how often two tokens stand together. ``entropy`` [nats] of a token, given two before it;
    ``first`` given only one.
    """

    last: Tokens
    older: Tokens
    by_last: Array
    by_older: Array
    stationary: Array
    entropy: float
    first: float

    def floor(self, length: int) -> float:
        """The least loss [nats per token] of predicting ``length`` tokens; the first has a single token before it."""
        return (self.first + (length - 1) * self.entropy) / length

    def nats(self, tokens: Tokens) -> Array:
        """-ln of the source's own probability of each token after the first, shape (sequences, length - 1)."""
        alone = self.stationary / self.stationary.sum(1, keepdims=True)
        likely = self.by_last[tokens[:, 1:-1], tokens[:, 2:]] + self.by_older[tokens[:, :-2], tokens[:, 2:]]
        return np.asarray(-np.log(np.concatenate([alone[tokens[:, :1], tokens[:, 1:2]], likely], axis=1)))

    def sample(self, sequences: int, length: int, seed: int | Sequence[int]) -> Tokens:
        """Independent sequences of ``length`` >= 2 tokens, shape (sequences, length), each out of a long text."""
        random = np.random.default_rng(seed)
        size = len(self.last)
        ranks, frequencies = np.cumsum(zipf(SUCCESSORS))[:-1], np.cumsum(zipf(size))[:-1]
        together = np.cumsum(self.stationary.ravel())[:-1]
        tokens = np.empty((length, sequences), np.uint8)
        tokens[0], tokens[1] = divmod(np.searchsorted(together, random.random(sequences), side="right"), size)
        for t in range(2, length):
            rule, rank, any_of = random.random((3, sequences))
            rank = np.searchsorted(ranks, rank, side="right")
            drawn = (
                self.last[tokens[t - 1], rank],
                self.older[tokens[t - 2], rank],
                np.searchsorted(frequencies, any_of, side="right"),
            )
            tokens[t] = np.choose(np.searchsorted(_RULES, rule, side="right"), drawn)
        return np.ascontiguousarray(tokens.T)


def zipf(n: int) -> Array:
    """Probabilities proportional to 1, 1/2, ..., 1/n."""
    weights = 1 / np.arange(1.0, n + 1)
    return np.asarray(weights / weights.sum())


def make_source(seed: int = 0, vocabulary: int = VOCABULARY) -> Source:
    """The language of a seed; ``vocabulary`` tokens, 4 to 256."""
    random = np.random.default_rng(seed)
    last, older = _successors(random, vocabulary), _successors(random, vocabulary)
    by_last = ANY * zipf(vocabulary) + LAST * _spread(last)
    by_older = OLDER * _spread(older)
    stationary = np.full((vocabulary, vocabulary), vocabulary**-2.0)
    change = np.inf
    while change > _CONVERGED:  # every token can follow every pair, so the chain forgets its start geometrically
        following = stationary.sum(0)[:, None] * by_last + stationary.T @ by_older
        change = float(np.abs(following - stationary).sum())
        stationary = following / following.sum()
    entropy = 0.0
    for together, part in zip(stationary, by_older, strict=True):  # by the older token: V^3 numbers are many at once
        likely = by_last + part
        entropy -= float(together @ (likely * np.log(likely)).sum(1))
    first = -(stationary * np.log(stationary / stationary.sum(1, keepdims=True))).sum()
    return Source(last, older, by_last, by_older, stationary, entropy, float(first))


def _successors(random: np.random.Generator, vocabulary: int) -> Tokens:
    """Distinct tokens drawn one after the other by their frequency (the order of Gumbel-perturbed logarithms)."""
    keys = np.log(zipf(vocabulary)) + random.gumbel(size=(vocabulary, vocabulary))
    return np.argsort(-keys, axis=-1)[..., :SUCCESSORS].astype(np.uint8)


def _spread(successors: Tokens) -> Array:
    """Probability of each token where only the successors have any, by their ranks."""
    found = np.zeros((len(successors), len(successors)))
    np.put_along_axis(found, successors.astype(np.int64), np.broadcast_to(zipf(SUCCESSORS), successors.shape), axis=-1)
    return found
