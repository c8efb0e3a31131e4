"""Loss surfaces L(N, D) as plain numbers, and the best point on them under a budget.

Every law with a loss becomes one of these before anything is computed. All of it broadcasts.
N, D and L are the law's own (tfsim.scaling.laws says what they count).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfsim.units import Number, maximum, minimum, where


class Curve(Protocol):
    """A loss over N parameters and D tokens."""

    def loss(self, n: Number, d: Number) -> Number: ...

    def slopes(self, n: Number, d: Number) -> tuple[Number, Number]:
        """-dL/d ln N and -dL/d ln D up to one common positive factor: all that a balance needs."""
        ...

    def tokens_of_loss(self, n: Number, loss: Number) -> Number:
        """D that brings n parameters to the loss; infinite where no amount does."""
        ...


@dataclass(frozen=True)
class Surface:
    """L = E + (A N^-alpha + B D^-beta)^gamma (Hoffmann et al. 2022, arXiv:2203.15556, Eq. 2, with gamma = 1)."""

    E: Number
    A: Number
    B: Number
    alpha: Number
    beta: Number
    gamma: Number = 1.0

    def loss(self, n: Number, d: Number) -> Number:
        return self.E + (self.A * n**-self.alpha + self.B * d**-self.beta) ** self.gamma

    def slopes(self, n: Number, d: Number) -> tuple[Number, Number]:
        return self.alpha * self.A * n**-self.alpha, self.beta * self.B * d**-self.beta

    @property
    def exponent(self) -> Number:
        """a of N_opt ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def scale(self) -> Number:
        """G of N_opt = G (N D)^a, D_opt = (N D)^(1 - a) / G (Hoffmann Eq. 4)."""
        return (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))

    @property
    def decay(self) -> Number:
        """g: the reducible loss at the optimum falls as (N D)^-g before the outer exponent."""
        return self.alpha * self.beta / (self.alpha + self.beta)

    def optimum(self, product: Number) -> tuple[Number, Number]:
        """N and D of the lowest loss where N D = product."""
        n = self.scale * product**self.exponent
        return n, product / n

    def product_of_parameters(self, n: Number) -> Number:
        """N D of the budget whose optimum has n parameters."""
        return (n / self.scale) ** (1 / self.exponent)

    def product_of_tokens(self, d: Number) -> Number:
        """N D of the budget whose optimum has d tokens."""
        return (d * self.scale) ** (1 / (1 - self.exponent))

    def log_product_of_loss(self, loss: Number) -> Number:
        """ln of the smallest N D that reaches a loss above E; a log, because a loss near E is out of any reach."""
        scale = self.scale
        height = self.A * scale**-self.alpha + self.B * scale**self.beta
        return (np.log(height) - np.log(loss - self.E) / self.gamma) / self.decay

    def tokens_of_loss(self, n: Number, loss: Number) -> Number:
        return _tokens(self._inner(loss) - self.A * n**-self.alpha, self.B, self.beta)

    def least_parameters(self, loss: Number) -> Number:
        """N that reaches the loss with endless data only."""
        return (self.A / self._inner(loss)) ** (1 / self.alpha)

    def _inner(self, loss: Number) -> Number:
        return (loss - self.E) ** (1 / self.gamma)


@dataclass(frozen=True)
class Repeats:
    """A surface over `unique` tokens, repeated (Muennighoff et al. 2023, arXiv:2305.16264).

    Tokens beyond the unique ones count less and less, and so do parameters beyond those that
    fit the unique data: D' = U + U R* (1 - exp(-R / R*)), R = D / U - 1.
    """

    base: Surface
    unique: Number
    R_D: float
    R_N: float

    def loss(self, n: Number, d: Number) -> Number:
        return self.base.loss(self._parameters(n)[0], self._tokens(d)[0])

    def slopes(self, n: Number, d: Number) -> tuple[Number, Number]:
        (n_eff, n_rate), (d_eff, d_rate) = self._parameters(n), self._tokens(d)
        by_n, by_d = self.base.slopes(n_eff, d_eff)
        return by_n * n_rate * n / n_eff, by_d * d_rate * d / d_eff

    def tokens_of_loss(self, n: Number, loss: Number) -> Number:
        worth = self.base.tokens_of_loss(self._parameters(n)[0], loss)
        left = 1 - maximum(worth / self.unique - 1, 0.0) / self.R_D
        repeats = -self.R_D * np.log(where(left > 0, left, 1.0))
        return where(left > 0, minimum(worth, self.unique) + self.unique * repeats, np.inf)

    def _parameters(self, n: Number) -> tuple[Number, Number]:
        fitting = self.base.optimum(self.base.product_of_tokens(self.unique))[0]
        return _worn(n, fitting, self.R_N)

    def _tokens(self, d: Number) -> tuple[Number, Number]:
        return _worn(d, self.unique, self.R_D)


def _tokens(rest: Number, scale: Number, exponent: Number) -> Number:
    """D whose term scale D^-exponent is `rest`; infinite when nothing is left for it."""
    return where(rest > 0, (scale / where(rest > 0, rest, 1.0)) ** (1 / exponent), np.inf)


def _worn(x: Number, fresh: Number, wear: float) -> tuple[Number, Number]:
    """What x is worth when only `fresh` of it is new, and the worth of one more."""
    first = minimum(x, fresh)
    repeats = maximum(x / fresh - 1, 0.0)
    left = np.exp(-repeats / wear)
    return first + first * wear * (1 - left), left


@dataclass(frozen=True)
class Sparse:
    """L = a N^-alpha + b D^-beta + c (1-S)^-lam + d (1-S)^-delta N^-gamma + e (Abnar et al. 2025, arXiv:2501.12370).

    N counts all experts, S is the share of parameters that a token leaves idle.
    """

    coefficients: dict[str, float]
    sparsity: Number

    def loss(self, n: Number, d: Number) -> Number:
        k, active = self.coefficients, 1 - self.sparsity
        by_n, by_d = self._terms(n, d)
        return sum(by_n) + by_d + k["c"] * active ** -k["lam"] + k["e"]

    def slopes(self, n: Number, d: Number) -> tuple[Number, Number]:
        k = self.coefficients
        (own, mixed), by_d = self._terms(n, d)
        return k["alpha"] * own + k["gamma"] * mixed, k["beta"] * by_d

    def tokens_of_loss(self, n: Number, loss: Number) -> Number:
        return _tokens(loss - self.loss(n, np.inf), self.coefficients["b"], self.coefficients["beta"])

    def _terms(self, n: Number, d: Number) -> tuple[tuple[Number, Number], Number]:
        k, active = self.coefficients, 1 - self.sparsity
        mixed = k["d"] * active ** -k["delta"] * n ** -k["gamma"]
        return (k["a"] * n ** -k["alpha"], mixed), k["b"] * d ** -k["beta"]


def balance(
    curve: Curve,
    tokens_of: Callable[[Number], Number],
    weight_of: Callable[[Number, Number], Number],
    low: Number,
    high: Number,
) -> Number:
    """N between low and high where -dL/d ln N = weight (-dL/d ln D), D = tokens_of(N).

    The weight is -d ln D / d ln N along the constraint (1 under N D = constant), so this is
    dL/dN = 0. Bisection in ln N: the left side falls and the right side rises with N.
    """
    shape = np.broadcast(low, high, tokens_of(high)).shape
    left, right = np.broadcast_to(np.log(low), shape), np.broadcast_to(np.log(high), shape)
    for _ in range(80):  # 2^-80 of the first interval: below float64's resolution
        middle = (left + right) / 2
        n = np.exp(middle)
        d = tokens_of(n)
        by_n, by_d = curve.slopes(n, d)
        grow = by_n > weight_of(n, d) * by_d
        left, right = np.where(grow, middle, left), np.where(grow, right, middle)
    result = np.exp((left + right) / 2)
    return float(result) if result.ndim == 0 else result
