"""Training and serving paid together: a smaller model, trained longer, is cheaper to serve (Sardana et al. 2024).

Both bills are device-seconds on the named system, from tfsim.train and tfsim.serve for the shape itself; the paper's
6 N D + 2 N D_inf (arXiv:2401.00448) knows neither's efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfsim.errors import InputError
from tfsim.sizing.by_law import curve
from tfsim.sizing.question import Question
from tfsim.sizing.runs import Runs
from tfsim.sizing.shapes import ModelShape, shape_of

_FACTORS = (0.2, 0.3, 0.45, 0.67, 1.0)  # of the model that is best when nobody uses it
_FINER = 0.5  # steps below them, for demands that outweigh training by far


@dataclass(frozen=True)
class Lifetime:
    """A shape with the tokens it is trained on, and device-seconds of both bills."""

    shape: ModelShape
    tokens: float
    train_s: float
    serve_s: float
    loss: float


def lifetime_of(
    q: Question, runs: Runs, shape: ModelShape, devices: int, batch: int, *, loss: float | None, device_s: float | None
) -> Lifetime:
    """One shape, trained to a ``loss``, or with what serving leaves of ``device_s`` (no tokens where nothing is)."""
    surface = curve(q.law, q.facts)
    assert surface is not None, "refused for laws without a loss"
    n = float(shape.parameters(q.law.n))
    each = 1 / float(runs.step(shape, devices, batch).tokens_per_s_per_device)
    served = float(q.serve_tokens or 0) * runs.serving_device_s(shape)
    if loss is not None:
        tokens = float(surface.tokens_of_loss(n, loss))
        return Lifetime(shape, tokens, tokens * each, served, loss)
    assert device_s is not None
    tokens = max(0.0, (device_s - served) / each)
    return Lifetime(shape, tokens, tokens * each, served, float(surface.loss(n, tokens)) if tokens >= 1 else math.nan)


def best_lifetime(
    q: Question, runs: Runs, alone: ModelShape, devices: int, batch: int, *, loss: float | None, device_s: float | None
) -> tuple[Lifetime, Lifetime]:
    """The cheapest way to a loss, or the lowest loss of a budget, with serving paid; and the same for ``alone``.

    The sizes of a coarse grid are run and served, then the lowest point of the parabola through the best three. Raises:
    InputError when serving leaves nothing for training, whatever the model.
    """
    n = float(alone.parameters(q.law.n))
    seen: dict[float, Lifetime] = {}

    def worth(x: float) -> float:
        """What is minimised, of exp(x) parameters; infinite where it cannot be."""
        try:
            shape = shape_of(math.exp(x), q.law.n, q.architecture)
        except InputError:
            return math.inf  # smaller than any shape
        found = lifetime_of(q, runs, shape, devices, batch, loss=loss, device_s=device_s)
        value = found.train_s + found.serve_s if device_s is None else found.loss
        if not math.isfinite(value):
            return math.inf
        seen[x] = found
        return value

    best = _lowest(worth, math.log(n))
    if best is None:
        raise InputError("serve_tokens: to serve so many takes the whole budget, whatever the model")
    return seen[best], lifetime_of(q, runs, alone, devices, batch, loss=loss, device_s=device_s)


def _lowest(worth: Callable[[float], float], start: float) -> float | None:
    """x of the lowest value near and below ``start``; None where none is finite."""
    values = {start + math.log(k): worth(start + math.log(k)) for k in _FACTORS}
    while True:
        x = min(values, key=lambda key: values[key])
        if x != min(values):
            break
        lower = x + math.log(_FINER)
        values[lower] = worth(lower)
        if not values[lower] < values[x]:
            break
    if not math.isfinite(values[x]):
        return None
    order = sorted(values)
    at = order.index(x)
    three = order[max(0, at - 1) : at + 2]
    if len(three) == 3 and all(math.isfinite(values[p]) for p in three):
        a, b, _ = np.polyfit(np.array(three) - x, [values[p] for p in three], 2)
        if a > 0:
            middle = x + float(np.clip(-b / (2 * a), three[0] - x, three[2] - x))
            values[middle] = worth(middle)
    return min(values, key=lambda key: values[key])
