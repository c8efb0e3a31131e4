"""The best model under a budget: N, D and loss by a law, and how flat the optimum is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tfsim.errors import InputError
from tfsim.scaling.conventions import MOST, positive, typical_total
from tfsim.scaling.laws import (
    CURVES,
    DEFAULT,
    TRACKS,
    Law,
    curve_of,
    effective_share,
    facts_given,
    facts_of,
    fewest_bits,
    law,
    list_laws,
    one_by_one,
    outside,
    same_count,
)
from tfsim.scaling.surface import Curve, Repeats, Sparse, Surface, balance
from tfsim.units import Number, as_number, common_shape, where

BOWL = (0.5, 0.7, 1.5, 2.0)


@dataclass(frozen=True)
class BowlPoint:
    """What a model of `factor` times the best N costs.

    extra_compute: the share of the budget (FLOPs, those of serving included when asked) more for the same loss,
    infinite where no data suffice; extra_loss: what the loss is higher by for the same budget.
    """

    factor: float
    parameters: Number
    extra_compute: Number
    extra_loss: Number


@dataclass(frozen=True)
class Allocation:
    """A law's answer, in its own counts (`convention`).

    parameters N, tokens D (repeats counted), compute: FLOPs of training in the law's own count,
    served_compute: FLOPs of serving at 2 N per token, epochs: D by unique tokens (None without a limit), loss: None
    when the law states none. total_parameters: N with the embedding, by the architecture-free
    N + 47491 N^(1/3) for a law without it; None when it cannot be told.
    """

    law: Law
    parameters: Number
    tokens: Number
    compute: Number
    loss: Number | None
    total_parameters: Number | None
    epochs: Number | None
    served_compute: Number | None
    bowl: tuple[BowlPoint, ...]
    warnings: tuple[str, ...]

    @property
    def tokens_per_parameter(self) -> Number:
        return self.tokens / self.parameters

    @property
    def convention(self) -> str:
        return self.law.convention


def optimal(
    name: object = DEFAULT,
    *,
    compute: object = None,
    parameters: object = None,
    tokens: object = None,
    loss: object = None,
    unique_tokens: object = None,
    served_tokens: object = None,
    serving_weight: object = 1 / 3,
    experts: object = None,
    granularity: object = None,
    sparsity: object = None,
    bits: object = None,
    flops_per_token: Callable[[Number], Number] | None = None,
    n_means: str | None = None,
    c_means: str | None = None,
) -> Allocation:
    """The lowest loss that a budget buys, or the cheapest way to a loss, by a law.

    One of: compute (FLOPs) - the best N and D; parameters - the budget whose best model this is;
    tokens - likewise; loss - the smallest budget. Or compute with parameters or tokens: the rest of
    the budget, best or not. All numbers are in the law's own counts; n_means and c_means, when given, are checked.

    unique_tokens: D beyond them repeats data (Muennighoff; `compute` only).
    served_tokens: D_inf tokens served over the model's life (Sardana et al. 2024, arXiv:2401.00448); `compute`
    then pays for both, and a served token costs `serving_weight` of a trained one (1/3: 2N of 6N FLOPs; measured
    costs give another).
    flops_per_token: training FLOPs per token of a model of N parameters, for a budget in exact FLOPs (c_means="exact").
    experts (Ludziejewski), granularity (Krajewski), sparsity (Abnar), bits (Kumar): the law's own facts.

    Raises: InputError.
    """
    chosen = law(name)
    given = facts_given(
        {
            "unique_tokens": unique_tokens,
            "experts": experts,
            "granularity": granularity,
            "sparsity": sparsity,
            "bits": bits,
        }
    )
    budget = budget_of(compute, parameters, tokens, loss)
    served = None if served_tokens is None else as_number(served_tokens, "served_tokens", at_least=0)
    weight = as_number(serving_weight, "serving_weight", at_least=0)
    common_shape(**budget, served_tokens=served, serving_weight=weight, **one_by_one(given))
    if chosen.form not in (*CURVES, *TRACKS):
        raise InputError(f"law {chosen.name}: form {chosen.form} gives no allocation")
    same_counts(chosen, n_means, c_means, flops_per_token)
    special = [
        key for key, value in (("served_tokens", served), ("flops_per_token", flops_per_token)) if value is not None
    ]
    if unique_tokens is not None:
        special.append("unique_tokens")
    if len(special) > 1:
        raise InputError(f"{special[1]}: not together with {special[0]}")
    if chosen.form in TRACKS:
        facts_of(chosen, given)
        if special:
            raise InputError(f"{special[0]}: law {chosen.name} gives no loss L(N, D), which this needs")
        return _on_track(chosen, budget)
    if chosen.form == "repeats" and unique_tokens is None:
        curve: Curve = curve_of(chosen, **{**given, "unique_tokens": 1.0})
        assert isinstance(curve, Repeats)
        curve = curve.base  # one epoch
    else:
        curve = curve_of(chosen, **given)
    return allocate(chosen, curve, budget, served, weight, flops_per_token)


def allocate(
    chosen: Law,
    curve: Curve,
    budget: Mapping[str, Number],
    served: Number | None,
    weight: Number,
    flops_per_token: Callable[[Number], Number] | None,
) -> Allocation:
    """The best point of a curve, whose coefficients may be arrays too. Raises: InputError."""
    if served is not None:
        return _served(chosen, curve, budget, served, weight)
    if isinstance(curve, Surface) and flops_per_token is None:
        return _on_surface(chosen, curve, budget)
    per_token = flops_per_token or _flops_per_token(curve)
    return _along_budget(chosen, curve, budget, per_token)


def same_counts(
    chosen: Law, n_means: str | None, c_means: str | None, flops_per_token: Callable[[Number], Number] | None
) -> None:
    """Refuse a question in other counts than the law's. Raises: InputError."""
    same_count("n_means", n_means, chosen.n, chosen)
    if flops_per_token is None or c_means != "exact":
        same_count("c_means", c_means, chosen.c, chosen)
    if flops_per_token is not None and c_means != "exact":
        raise InputError("flops_per_token: is for a budget in exact FLOPs: say c_means='exact'")


def budget_of(compute: object, parameters: object, tokens: object, loss: object) -> dict[str, Number]:
    """The budget that is given, checked. Raises: InputError."""
    budget: dict[str, Number] = {}
    for key, value in (("compute", compute), ("parameters", parameters), ("tokens", tokens), ("loss", loss)):
        if value is not None:
            budget[key] = positive(value, key) if key == "loss" else as_number(value, key, at_least=1, at_most=MOST)
    if set(budget) not in (
        {"compute"}, {"parameters"}, {"tokens"}, {"loss"}, {"compute", "parameters"}, {"compute", "tokens"}
    ):  # fmt: skip
        raise InputError("give one of compute, parameters, tokens and loss, or compute with parameters or tokens")
    return budget


def _only(budget: Mapping[str, Number], what: str, *allowed: str) -> None:
    if tuple(budget) not in [(key,) for key in allowed]:
        raise InputError(f"{what}: needs {' or '.join(allowed)} alone, not {' with '.join(budget)}")


def _product_for(curve: Surface, loss: Number) -> Number:
    """The smallest N D of a loss. Raises: InputError when no budget of 1 to 1e40 FLOPs has it."""
    if not np.all(np.asarray(loss) > np.asarray(curve.E)):
        raise InputError(f"loss: must be above the law's floor E = {float(np.max(curve.E)):.4g}: no budget reaches it")
    log = curve.log_product_of_loss(loss)
    if not np.all((log >= 0) & (log <= np.log(MOST))):
        raise InputError(f"loss: no budget of 1 to {MOST:g} FLOPs has this loss as its lowest")
    return np.exp(log)


def _on_surface(chosen: Law, curve: Surface, budget: Mapping[str, Number]) -> Allocation:
    if len(budget) == 2:
        product = budget["compute"] / 6
        n = budget.get("parameters", product / budget.get("tokens", 1.0))
        return _answer(chosen, curve, n, product / n, budget["compute"], bowl=())
    if "compute" in budget:
        product = budget["compute"] / 6
    elif "parameters" in budget:
        product = curve.product_of_parameters(budget["parameters"])
    elif "tokens" in budget:
        product = curve.product_of_tokens(budget["tokens"])
    else:
        product = _product_for(curve, budget["loss"])
    n, d = curve.optimum(product)
    return _answer(chosen, curve, n, d, 6 * product, bowl=bowl(curve, n, d))


def bowl(
    curve: Curve,
    n: Number,
    d: Number,
    factors: tuple[float, ...] = BOWL,
    *,
    per_token: Callable[[Number], Number] = lambda n: 6 * n,
    priced: Number = 0.0,
) -> tuple[BowlPoint, ...]:
    """The cost of factor x N instead of the best N, where a run costs per_token(N) (D + priced)."""
    best, budget = curve.loss(n, d), per_token(n) * (d + priced)
    points = []
    for k in factors:
        needed = curve.tokens_of_loss(k * n, best)
        left = budget / per_token(k * n) - priced
        worse = where(left > 0, curve.loss(k * n, where(left > 0, left, 1.0)) - best, np.inf)
        points.append(BowlPoint(k, k * n, per_token(k * n) * (needed + priced) / budget - 1, worse))
    return tuple(points)


def _flops_per_token(curve: Curve) -> Callable[[Number], Number]:
    active = 1 - curve.sparsity if isinstance(curve, Sparse) else 1.0
    return lambda n: 6 * active * n


def _along_budget(
    chosen: Law, curve: Curve, budget: Mapping[str, Number], per_token: Callable[[Number], Number]
) -> Allocation:
    """The root of dL/dN = 0 along compute = per_token(N) D."""
    _only(budget, f"law {chosen.name} with these facts", "compute")
    c = budget["compute"]

    def rate(n: Number, d: Number) -> Number:  # d ln per_token / d ln N
        step = 1e-5
        return (np.log(per_token(n * (1 + step))) - np.log(per_token(n * (1 - step)))) / (2 * step)

    # per_token(N) is at least N for any model: a parameter that costs nothing is no parameter
    n = balance(curve, lambda n: c / per_token(n), rate, 1.0, c)
    d = c / per_token(n)
    return _answer(chosen, curve, n, d, c, bowl=bowl(curve, n, d, per_token=per_token))


def _served(chosen: Law, curve: Curve, budget: Mapping[str, Number], served: Number, weight: Number) -> Allocation:
    """eps_N / eps_D = 1 + w D_inf / D: the cheapest N (D + w D_inf) (Sardana et al. 2024)."""
    if not isinstance(curve, Surface):
        raise InputError(f"served_tokens: law {chosen.name} has no closed surface, which this needs")
    _only(budget, "served_tokens", "compute", "loss")
    priced = weight * served

    def tokens_of(n: Number) -> Number:
        if "compute" in budget:
            return np.maximum(
                budget["compute"] / (6 * n) - priced, 1e-9
            )  # beyond the range that is searched: no tokens
        return curve.tokens_of_loss(n, budget["loss"])

    if "compute" in budget:
        low: Number = 1.0
        top = budget["compute"] / 6 / (priced + 1.0)  # one token of training left
        if np.any(top < low):
            raise InputError("served_tokens: to serve so many takes the whole budget, whatever the model")
    else:
        top = curve.optimum(_product_for(curve, budget["loss"]))[0]  # nothing served
        low = curve.least_parameters(budget["loss"])
    n = balance(curve, tokens_of, lambda n, d: 1 + priced / d, low, top)
    d = tokens_of(n)
    points = bowl(curve, n, d, priced=priced)
    return _answer(chosen, curve, n, d, 6 * n * d, bowl=points, served_compute=2 * n * served)


def _on_track(chosen: Law, budget: Mapping[str, Number]) -> Allocation:
    """A law that gives N(C) or D(C) alone; what it does not give comes from C = 6ND."""
    (n_scale, n_exponent), (d_scale, d_exponent) = track(chosen)
    _only(budget, f"law {chosen.name} (gives the optimum only)", "compute", "parameters", "tokens")
    if "compute" in budget:
        c = budget["compute"]
    elif "parameters" in budget:
        c = (budget["parameters"] / n_scale) ** (1 / n_exponent)
    else:
        c = (budget["tokens"] / d_scale) ** (1 / d_exponent)
    k = chosen.coefficients
    loss = None
    if "loss_scale" in k:
        loss = (c * k["share"] / k["unit"] / k["loss_scale"]) ** -k["loss_exponent"]
    return _answer(chosen, None, n_scale * c**n_exponent, d_scale * c**d_exponent, c, bowl=(), loss=loss)


def track(chosen: Law) -> tuple[tuple[float, float], tuple[float, float]]:
    """(scale, exponent) of N and of D as powers of C in FLOPs."""
    k = chosen.coefficients
    if chosen.form == "ratio":  # N / D = ratio (C / unit)^x with N D = C / 6
        n = ((k["ratio"] / 6) ** 0.5 * k["unit"] ** (-k["exponent"] / 2), (1 + k["exponent"]) / 2)
        return n, _rest(n)
    unit = k.get("unit", 1.0) / k.get("share", 1.0)

    def own(x: str) -> tuple[float, float] | None:
        if f"{x}_scale" not in k:
            return None
        exponent = k[f"{x}_exponent"]
        return k[f"{x}_scale"] / k.get(f"{x}_divisor", 1.0) * unit**-exponent, exponent

    by_n, by_d = own("n"), own("d")
    by_n = by_n or _rest(by_d)
    return by_n, by_d or _rest(by_n)


def _rest(other: tuple[float, float] | None) -> tuple[float, float]:
    """The other factor of N D = C / 6."""
    assert other is not None, "a law of this form has N or D"
    return 1 / (6 * other[0]), 1 - other[1]


def _answer(
    chosen: Law,
    curve: Curve | None,
    n: Number,
    d: Number,
    compute: Number,
    *,
    bowl: tuple[BowlPoint, ...],
    loss: Number | None = None,
    served_compute: Number | None = None,
) -> Allocation:
    total: Number | None = None
    if chosen.n == "total":
        total = n
    elif chosen.n == "non_embedding":
        total = typical_total(n)
    warnings = list(outside(chosen, compute=compute, parameters=n, tokens=d, tokens_per_parameter=d / n))
    if chosen.note:
        warnings.append(chosen.note)
    return Allocation(
        law=chosen,
        parameters=n,
        tokens=d,
        compute=compute,
        loss=curve.loss(n, d) if curve is not None else loss,
        total_parameters=total,
        epochs=d / curve.unique if isinstance(curve, Repeats) else None,
        served_compute=served_compute,
        bowl=bowl,
        warnings=tuple(warnings),
    )


def best_bits(name: object = "kumar-2024") -> float:
    """Bits (weights, activations and KV cache alike) of the best training run when FLOPs cost in proportion to bits.

    At the optimum the loss falls with C_eff = C f(P) / P only, f = N_eff / N, so P is where f / P is highest, whatever
    the budget (Kumar et al. 2024, arXiv:2411.04330).

    Raises: InputError when the law knows no precision.
    """
    chosen = law(name)
    if chosen.form != "precision":
        raise InputError(f"law {chosen.name}: knows no precision: choose from {', '.join(list_laws(form='precision'))}")
    low, high = fewest_bits(chosen) * (1 + 1e-9), 64.0
    golden = (5**0.5 - 1) / 2
    for _ in range(80):
        a, b = high - golden * (high - low), low + golden * (high - low)
        at_a, at_b = (effective_share(chosen, (p, p, p)) / p for p in (a, b))
        low, high = (low, b) if at_a > at_b else (a, high)
    return (low + high) / 2
