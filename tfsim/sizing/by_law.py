"""What a law says of shapes: the size that a budget or target asks for, other sizes, other laws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfsim.errors import InputError
from tfsim.scaling import Allocation, Band, Law, Range, band, curve_of, law, list_laws, optimal, why_no_band
from tfsim.scaling.allocation import BOWL
from tfsim.scaling.laws import CURVES, FORMS, TRACKS
from tfsim.scaling.surface import Curve, Repeats
from tfsim.sizing.estimate import BowlSize, OtherLaw
from tfsim.sizing.question import Question, of_mixtures, read_facts
from tfsim.sizing.runs import Runs, solve
from tfsim.sizing.shapes import Architecture, ModelShape, shape_of

_ROUNDS = 2  # of looking on both sides of the cheapest size so far
_SAVES = 0.99  # of the answer's device time: less is the roundness of shapes and steps


@dataclass(frozen=True)
class Placed:
    """The answer's shape and tokens, and where it runs: None without a system."""

    shape: ModelShape
    tokens: float
    runs: Runs | None
    devices: int | None
    batch: int | None
    days: float | None


def curve(found: Law, facts: Mapping[str, Any]) -> Curve | None:
    """L(N, D) of the law; None where it states optima only. One epoch where no unique tokens are given."""
    if found.form not in CURVES:
        return None
    if found.form == "repeats" and not facts:
        repeated = curve_of(found, unique_tokens=1.0)
        assert isinstance(repeated, Repeats)
        return repeated.base
    return curve_of(found, **facts)


def by_law(q: Question) -> tuple[ModelShape, float, Allocation | None]:
    """Shape, tokens and the law's optimum of a question that FLOPs, N, D or a loss decide. Raises: InputError."""
    if q.budget is not None:
        return _by_flops(q, q.budget.amount)
    if q.params is not None:
        shape = shape_of(q.params, "total", q.architecture)
        n = float(shape.parameters(q.law.n))
        if q.tokens is not None:
            return shape, q.tokens, None
        if q.loss is not None:
            return shape, _tokens_of_loss(q, n, q.loss), None
        found = optimal(q.law, parameters=n, **q.facts)
        return shape, float(found.tokens), found
    if q.tokens is not None:
        found = optimal(q.law, tokens=q.tokens, **q.facts)
        return shape_of(float(found.parameters), q.law.n, q.architecture), q.tokens, found
    assert q.loss is not None
    found = optimal(q.law, loss=q.loss, **q.facts)
    shape = shape_of(float(found.parameters), q.law.n, q.architecture)
    return shape, _tokens_of_loss(q, float(shape.parameters(q.law.n)), q.loss), found


def _by_flops(q: Question, flops: float) -> tuple[ModelShape, float, Allocation | None]:
    def spends(x: float) -> float:
        """ln N of the model that the rest of the budget trains on the tokens given."""
        shape = shape_of(math.exp(x), q.law.n, q.architecture)
        return x + math.log(flops / (float(shape.flops_per_token(q.law)) * float(q.tokens or 1)))

    found = None
    if q.params is not None:
        shape = shape_of(q.params, "total", q.architecture)
    elif q.tokens is not None:
        shape = shape_of(math.exp(solve(spends, math.log(flops / (6 * q.tokens)))), q.law.n, q.architecture)
        return shape, q.tokens, None
    else:
        found = optimal(q.law, compute=flops, **q.facts, **_own_count(q.law))
        shape = shape_of(float(found.parameters), q.law.n, q.architecture)
    tokens = flops / float(shape.flops_per_token(q.law))
    if tokens < 1:
        raise InputError(f"budget: {q.budget} buys not one token for {shape.total:,} parameters")
    return shape, tokens, found


def _own_count(found: Law) -> dict[str, Any]:
    return {"c_means": found.c}


def _tokens_of_loss(q: Question, n: float, loss: float) -> float:
    surface = curve(q.law, q.facts)
    if surface is None:
        raise InputError(f"loss: law {q.law.name} gives no loss L(N, D)")
    tokens = float(surface.tokens_of_loss(n, loss))
    if not math.isfinite(tokens):
        raise InputError(f"loss: no amount of data brings {n:.3g} parameters to {loss:g} (law {q.law.name})")
    return tokens


def best_parameters(q: Question, flops: float) -> Allocation:
    """The law's optimum of so many FLOPs in its own count."""
    return optimal(q.law, compute=flops, **q.facts, **_own_count(q.law))


def bowl_of(q: Question, placed: Placed) -> tuple[BowlSize, ...]:
    """Models of 0.5, 0.7, 1.5 and 2 times N beside the answer; empty for a law without a loss."""
    sizes = (size_beside(q, placed, factor) for factor in BOWL)
    return tuple(size for size in sizes if size is not None)


def cheapest_of(q: Question, placed: Placed, bowl: tuple[BowlSize, ...]) -> BowlSize | None:
    """The size that reaches the loss in the least device time, of the bowl's and of some around the best of them; None
    where none saves a per cent.

    Plans and shapes are discrete, so time over N has steps: the best of those tried, no proof that none is better.
    """
    if placed.days is None:
        return None
    tried: dict[float, BowlSize] = {b.factor: b for b in bowl}

    def days(factor: float) -> float:
        return placed.days if factor == 1 else tried[factor].days or math.inf  # type: ignore[return-value]

    for _ in range(_ROUNDS):
        order = sorted([1.0, *tried])
        at = order.index(min(order, key=days))
        low = order[at - 1] if at else order[0] / 2
        high = order[at + 1] if at + 1 < len(order) else 2 * order[-1]
        for factor in (math.sqrt(low * order[at]), math.sqrt(order[at] * high)):
            if (found := size_beside(q, placed, factor)) is not None:
                tried[factor] = found
    best = min([1.0, *tried], key=days)
    return tried[best] if days(best) < _SAVES * placed.days else None


def size_beside(q: Question, placed: Placed, factor: float) -> BowlSize | None:
    """A model of ``factor`` times N beside the answer; None for a law without a loss, and where no shape has that N."""
    surface = curve(q.law, q.facts)
    if surface is None:
        return None
    shape, tokens, runs = placed.shape, placed.tokens, placed.runs
    n = float(shape.parameters(q.law.n))
    try:
        other = shape_of(factor * n, q.law.n, q.architecture)
    except InputError:
        return None  # smaller than any shape, or larger
    loss = surface.loss(n, tokens)
    flops = float(shape.flops_per_token(q.law)) * tokens
    m, each = float(other.parameters(q.law.n)), float(other.flops_per_token(q.law))
    needed = float(surface.tokens_of_loss(m, loss))
    days = usd = None
    left = flops / each
    if runs is not None and placed.devices is not None and placed.batch is not None:
        rate = float(runs.step(other, placed.devices, placed.batch).tokens_per_s_per_device)
        spent = tokens / float(runs.step(shape, placed.devices, placed.batch).tokens_per_s_per_device)
        served = q.serve_tokens * runs.serving_device_s(other) if q.serve_tokens else 0.0
        saved = q.serve_tokens * runs.serving_device_s(shape) - served if q.serve_tokens else 0.0
        left = (spent + saved) * rate
        days = needed / (rate * placed.devices) / 86400
        usd = runs.usd(needed / rate + served)
    return BowlSize(
        factor=factor,
        shape=other,
        parameters=int(other.total),
        tokens=needed,
        extra_compute=each * needed / flops - 1,
        days=days,
        cost_usd=usd,
        loss_same_budget=float(surface.loss(m, left)) if left >= 1 else math.nan,
    )


def band_of(q: Question, n: float, compute: float) -> tuple[Band | None, Range | None, str]:
    """Quantiles of the law's best N and D for so many FLOPs, of the loss of n parameters on them, and the basis."""
    reason = why_no_band(q.law)
    if reason is not None:
        return None, None, f"no band: {reason}"
    best = band(q.law, compute=compute)
    loss = band(q.law, compute=compute, parameters=n).loss if best.loss is not None else None
    return best, loss, best.basis


def other_laws(q: Question, shape: ModelShape, tokens: float) -> tuple[tuple[OtherLaw, ...], dict[str, str]]:
    """The optima of the other text laws for this run's FLOPs, counted as each counts; and why the rest is left out.

    A law of dense models is asked for the work that a mixture does per token.
    """
    found: list[OtherLaw] = []
    left_out: dict[str, str] = {}
    for name in list_laws():
        entry = law(name)
        if entry.form not in (*CURVES, *TRACKS) or name == q.law.name:
            continue
        if entry.domain != "text":
            left_out[name] = f"is about {entry.domain}"
            continue
        missing = [f for f in FORMS[entry.form].facts if f not in ("unique_tokens", "experts", *q.facts)]
        if entry.form == "sparse" and q.architecture.experts > 1:
            missing = []
        if missing:
            left_out[name] = f"needs {', '.join(missing)}"
            continue
        try:
            found.append(_other(entry, q, shape, tokens))
        except InputError as error:
            left_out[name] = str(error)
    return tuple(found), left_out


def _other(entry: Law, q: Question, shape: ModelShape, tokens: float) -> OtherLaw:
    shared = {key: q.facts.get(key) for key in ("unique_tokens", "bits", "granularity")}
    facts = read_facts(entry, q.architecture, *(shared[k] if k in FORMS[entry.form].facts else None for k in shared))
    arch = q.architecture
    if not of_mixtures(entry):
        shape, arch = shape.dense, replace(arch, experts=1, top_k=1)
    compute = float(shape.flops_per_token(entry)) * tokens
    best = optimal(entry, compute=compute, **facts, **_own_count(entry))
    n = float(best.parameters)
    return OtherLaw(
        law=entry.name,
        n=entry.n,
        c=entry.c,
        compute=compute,
        parameters=n,
        total_parameters=_total(n, entry, arch),
        tokens=float(best.tokens),
        loss=None if best.loss is None else float(best.loss),
        warnings=best.warnings,
    )


def _total(n: float, entry: Law, arch: Architecture) -> float:
    if entry.n in ("total", "not_stated"):
        return n
    return float(shape_of(n, entry.n, arch).total)
