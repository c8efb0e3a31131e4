"""The text of the scaling ladder: a seeded random language whose entropy is known exactly.

A token follows the two before it. With probability 0.6 it is one of the four successors of that pair, with 0.3 one of
the four successors of the last token, with 0.1 any token of the vocabulary; successors are drawn by their frequency,
and frequencies and ranks follow Zipf's law with exponent 1. So there are many rules of very different worth, as in
text: a model first learns frequencies, then pairs, then triples from the common to the rare. What it can hold bounds
its loss by a power of its size, what it has seen by a power of its data (Michaud et al. 2023, arXiv:2303.13506), and
the least possible loss, the entropy rate of the chain, is a sum.
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

VOCABULARY = 64
SUCCESSORS = 4
TRIPLES, PAIRS, ANY = 0.6, 0.3, 0.1  # how often a token is drawn by the pair before it, by the last token, by neither
_CONVERGED = 1e-14  # change of the stationary distribution, summed


@dataclass(frozen=True)
class Source:
    """The language: ``pairs`` (V, K) and ``triples`` (V, V, K) list the successors, likeliest first.

    ``probability`` (V, V, V) is that of a token after the two before it, the older first; ``stationary`` (V, V) how
    often two tokens stand together. ``entropy`` [nats] of a token, given two before it; ``first`` given only one.
    """

    pairs: Tokens
    triples: Tokens
    probability: Array
    stationary: Array
    entropy: float
    first: float

    def floor(self, length: int) -> float:
        """The least loss [nats per token] of predicting ``length`` tokens; the first has a single token before it."""
        return (self.first + (length - 1) * self.entropy) / length

    def nats(self, tokens: Tokens) -> Array:
        """-ln of the source's own probability of each token after the first, shape (sequences, length - 1)."""
        alone = self.stationary / self.stationary.sum(1, keepdims=True)
        likely = self.probability[tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]]
        return np.asarray(-np.log(np.concatenate([alone[tokens[:, :1], tokens[:, 1:2]], likely], axis=1)))

    def sample(self, sequences: int, length: int, seed: int | Sequence[int]) -> Tokens:
        """Independent sequences of ``length`` >= 2 tokens, shape (sequences, length), each out of a long text."""
        random = np.random.default_rng(seed)
        size = len(self.pairs)
        ranks, frequencies = np.cumsum(zipf(SUCCESSORS))[:-1], np.cumsum(zipf(size))[:-1]
        together = np.cumsum(self.stationary.ravel())[:-1]
        tokens = np.empty((length, sequences), np.uint8)
        tokens[0], tokens[1] = divmod(np.searchsorted(together, random.random(sequences), side="right"), size)
        for t in range(2, length):
            older, last = tokens[t - 2], tokens[t - 1]
            rule, rank, any_of = random.random((3, sequences))
            rank = np.searchsorted(ranks, rank, side="right")
            known = np.where(rule < TRIPLES, self.triples[older, last, rank], self.pairs[last, rank])
            free = np.searchsorted(frequencies, any_of, side="right")
            tokens[t] = np.where(rule < TRIPLES + PAIRS, known, free)
        return np.ascontiguousarray(tokens.T)


def zipf(n: int) -> Array:
    """Probabilities proportional to 1, 1/2, ..., 1/n."""
    weights = 1 / np.arange(1.0, n + 1)
    return np.asarray(weights / weights.sum())


def make_source(seed: int = 0, vocabulary: int = VOCABULARY) -> Source:
    """The language of a seed; ``vocabulary`` tokens, 4 to 256."""
    random = np.random.default_rng(seed)
    pairs, triples = (_successors(random, (vocabulary,) * n) for n in (1, 2))
    probability = np.broadcast_to(ANY * zipf(vocabulary), (vocabulary,) * 3).copy()
    probability += PAIRS * _spread(pairs, vocabulary)
    probability += TRIPLES * _spread(triples, vocabulary)
    stationary = np.full((vocabulary, vocabulary), vocabulary**-2.0)
    change = np.inf
    while change > _CONVERGED:  # every token can follow every pair, so the chain forgets its start geometrically
        following = np.einsum("ab,abc->bc", stationary, probability)
        change = float(np.abs(following - stationary).sum())
        stationary = following / following.sum()
    given_one = stationary / stationary.sum(1, keepdims=True)
    return Source(
        pairs, triples, probability, stationary,
        entropy=float(-np.einsum("ab,abc,abc->", stationary, probability, np.log(probability))),
        first=float(-(stationary * np.log(given_one)).sum()),
    )  # fmt: skip


def _successors(random: np.random.Generator, shape: tuple[int, ...]) -> Tokens:
    """Distinct tokens drawn one after the other by their frequency (the order of Gumbel-perturbed logarithms)."""
    keys = np.log(zipf(shape[-1])) + random.gumbel(size=(*shape, shape[-1]))
    return np.argsort(-keys, axis=-1)[..., :SUCCESSORS].astype(np.uint8)


def _spread(successors: Tokens, vocabulary: int) -> Array:
    """Probability of each token where only the successors have any, by their ranks."""
    found = np.zeros((*successors.shape[:-1], vocabulary))
    ranks = np.broadcast_to(zipf(SUCCESSORS), successors.shape)
    np.put_along_axis(found, successors.astype(np.int64), ranks, axis=-1)
    return found
