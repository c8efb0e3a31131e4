"""How sure an allocation is: the law's own bootstrap band, and the wider spread between laws.

A band says how far the best N, D and loss move when the law is fitted again on runs drawn with replacement: the
sampling error of the fit. That the form itself holds far outside the runs is not in it; the spread between laws that
others fitted on other runs shows some of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tfsim.errors import InputError, quote
from tfsim.scaling.allocation import allocate, budget_of, optimal, same_counts
from tfsim.scaling.compare import Comparison
from tfsim.scaling.conventions import positive
from tfsim.scaling.laws import CURVES, DEFAULT, TRACKS, Law, curve_of, law
from tfsim.scaling.surface import Surface
from tfsim.units import Array, Number, as_number, common_shape

SHARES = (0.1, 0.5, 0.9)
"""An 80 % interval and its median."""

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Range:
    """Three quantiles of one quantity, of the shares that were asked."""

    low: Number
    middle: Number
    high: Number


@dataclass(frozen=True)
class Band:
    """Quantiles of a law's answer, in its own counts, at `shares` (0.1, 0.5 and 0.9: an 80 % interval).

    Each quantity has its own quantiles: the low N does not belong to the low D. loss is None where only the exponent
    of N_opt has a published error. `draws`: refits behind it, None for a normal approximation; `basis`: it in words.
    """

    law: Law
    shares: tuple[float, float, float]
    compute: Range
    parameters: Range
    tokens: Range
    tokens_per_parameter: Range
    loss: Range | None
    draws: int | None
    basis: str


@dataclass(frozen=True)
class Spread:
    """Quantiles over laws, each giving the best N and D of one budget: `laws` names them.

    N is total parameters where the law allows it (Allocation.total_parameters), the law's own count otherwise.
    """

    shares: tuple[float, float, float]
    parameters: Range
    tokens: Range
    tokens_per_parameter: Range
    laws: tuple[str, ...]


def why_no_band(name: object = DEFAULT) -> str | None:
    """Why a law has no band, in words; None when it has one. Raises: InputError for an unknown law."""
    chosen = law(name)
    if chosen.form not in (*CURVES, *TRACKS):
        return f"form {chosen.form} gives no allocation"
    if chosen.draws:
        flat = [key for key in ("alpha", "beta") if key in chosen.draws and not np.all(chosen.draws[key] > 0)]
        return f"some of its draws have {flat[0]} not above 0: the runs determine no optimum" if flat else None
    if _exponent_error(chosen) is None:
        return "its source prints no error of the optimum"
    if "compute" not in chosen.fitted:
        return "the budgets it was fitted on are not known, about which its exponent's error turns"
    return None


def band(
    name: object = DEFAULT,
    *,
    compute: object = None,
    parameters: object = None,
    tokens: object = None,
    served_tokens: object = None,
    serving_weight: object = 1 / 3,
    flops_per_token: Callable[[Number], Number] | None = None,
    n_means: str | None = None,
    c_means: str | None = None,
    shares: Sequence[float] = SHARES,
) -> Band:
    """The band of `optimal` for the same question: quantiles of N, D, D/N, loss and C.

    One of compute, parameters and tokens, or compute with parameters or tokens (the size is then settled, the loss is
    not); arrays broadcast. A law with `draws` answers for each of them. A law whose source prints the standard error of
    the exponent a of N_opt ~ C^a alone gets ln N = ln N_opt + z se(a) |ln C/C0|, C0 the geometric middle of the budgets
    it was fitted on, and D by C = 6ND: a normal approximation, too narrow near C0, for `compute` alone. Errors of A, B,
    alpha and beta without their covariance give no band: taken as independent they widen N of the default law at
    5.76e23 FLOPs from 58-98e9 to 14-397e9.

    Raises: InputError, with the reason for a law that has no band (why_no_band).
    """
    chosen = law(name)
    reason = why_no_band(chosen)
    if reason is not None:
        raise InputError(f"law {chosen.name}: no band: {reason}")
    wanted = _shares(shares)
    budget = budget_of(compute, parameters, tokens, None)
    served = None if served_tokens is None else as_number(served_tokens, "served_tokens", at_least=0)
    weight = as_number(serving_weight, "serving_weight", at_least=0)
    shape = common_shape(**budget, served_tokens=served, serving_weight=weight)
    same_counts(chosen, n_means, c_means, flops_per_token)
    if served is not None and flops_per_token is not None:
        raise InputError("flops_per_token: not together with served_tokens")
    if not chosen.draws:
        if tuple(budget) != ("compute",) or served is not None or flops_per_token is not None:
            raise InputError(f"law {chosen.name}: its band, of the exponent alone, is for compute alone")
        return _normal(chosen, budget["compute"], wanted)
    answer = allocate(chosen, _drawn(chosen, len(shape)), budget, served, weight, flops_per_token)
    count = len(next(iter(chosen.draws.values())))
    assert answer.loss is not None, "a law with draws is a surface"

    def of(values: Number) -> Range:
        return _quantiles(np.broadcast_to(values, (count, *shape)), wanted)

    return Band(
        law=chosen,
        shares=wanted,
        compute=of(answer.compute),
        parameters=of(answer.parameters),
        tokens=of(answer.tokens),
        tokens_per_parameter=of(answer.tokens_per_parameter),
        loss=of(answer.loss),
        draws=count,
        basis=f"{count:,} refits on runs drawn with replacement (bootstrap)",
    )


def spread(comparison: Comparison, *, shares: Sequence[float] = SHARES) -> Spread:
    """How far the laws of `compare_laws` differ: quantiles of N, D and D/N over them.

    Laws that are kept for comparison with their own source (Law.instead) do not count.

    Raises: InputError for shares that are not three rising numbers from 0 to 1.
    """
    answers = [x for x in (comparison.default, *comparison.others) if not x.law.instead]
    return spread_over(
        [x.law.name for x in answers],
        np.stack([x.parameters if x.total_parameters is None else x.total_parameters for x in answers]),
        np.stack([x.tokens for x in answers]),
        shares=shares,
    )


def spread_over(names: Sequence[str], parameters: Array, tokens: Array, *, shares: Sequence[float] = SHARES) -> Spread:
    """Quantiles over the first axis of N and D, one entry per law. Raises: InputError for shares as in `spread`."""
    wanted = _shares(shares)
    return Spread(
        shares=wanted,
        parameters=_quantiles(parameters, wanted),
        tokens=_quantiles(tokens, wanted),
        tokens_per_parameter=_quantiles(tokens / parameters, wanted),
        laws=tuple(names),
    )


def _drawn(chosen: Law, dimensions: int) -> Surface:
    """The law's surface with its draws on a first axis before `dimensions` of a question's."""
    point = curve_of(chosen)
    assert isinstance(point, Surface), "only laws of form surface have draws"
    values = {key: getattr(point, key) for key in ("E", "A", "B", "alpha", "beta", "gamma")}
    for key, draws in chosen.draws.items():
        values[key] = draws.reshape(-1, *(1,) * dimensions)
    return Surface(**values)


def _exponent_error(chosen: Law) -> float | None:
    """Standard error of a of N_opt ~ C^a."""
    return chosen.standard_errors.get("a", chosen.standard_errors.get("n_exponent"))


def _normal(chosen: Law, compute: Number, shares: tuple[float, float, float]) -> Band:
    best, error = optimal(chosen, compute=compute), _exponent_error(chosen)
    assert error is not None, "why_no_band was asked"
    low, high = chosen.fitted["compute"]
    middle = (low * high) ** 0.5
    log_sd = error * np.abs(np.log(compute / middle))
    factors = [np.exp(_NORMAL.inv_cdf(share) * log_sd) for share in shares]

    def times(x: Number, power: int = 1) -> Range:
        return Range(*(_plain(x * factor**power) for factor in factors))

    return Band(
        law=chosen,
        shares=shares,
        compute=times(compute, 0),
        parameters=times(best.parameters),
        tokens=times(best.tokens),
        tokens_per_parameter=times(best.tokens_per_parameter, 2),
        loss=None,
        draws=None,
        basis=f"normal approximation: its source's standard error of the exponent, {error:.2g}, about {middle:.2g} "
        "FLOPs, the middle of its runs; too narrow near it",
    )


def _quantiles(values: Array, shares: tuple[float, float, float]) -> Range:
    found = np.quantile(values, shares, axis=0)
    return Range(*(_plain(x) for x in found))


def _plain(x: Number) -> Number:
    """A number as Python's own, an array as it is."""
    return float(x) if np.ndim(x) == 0 else x


def _shares(shares: Sequence[float]) -> tuple[float, float, float]:
    values = [float(positive(share, "shares")) for share in shares]
    if len(values) != 3 or not 0 < values[0] < values[1] < values[2] < 1:
        raise InputError(f"shares: {quote(list(shares))} are not three rising numbers between 0 and 1")
    return values[0], values[1], values[2]
