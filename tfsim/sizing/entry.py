"""``size``: what model, on how much data, for this budget?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from tfsim.economics import rates
from tfsim.errors import InputError, quote
from tfsim.hardware import require_system
from tfsim.scaling import Allocation
from tfsim.sizing.by_law import (
    Placed,
    band_of,
    best_parameters,
    bowl_of,
    by_law,
    cheapest_of,
    curve,
    other_laws,
)
from tfsim.sizing.estimate import ServingBill, SizingEstimate
from tfsim.sizing.lifetime import best_lifetime
from tfsim.sizing.question import SEQ_LEN, VOCABULARY, Question, read_question
from tfsim.sizing.runs import BATCH_LAW, GUESSED_MFU, USUAL_DAYS, Runs, batch_of, hours, model_name, solve
from tfsim.sizing.shapes import ModelShape, shape_of
from tfsim.sizing.warnings import of_other_sizes, of_repeats, of_the_law, of_the_pace, of_the_run
from tfsim.software import precision as precision_policy
from tfsim.software import software as software_style
from tfsim.training import TrainingEstimate
from tfsim.training.plan import plan_fields
from tfsim.units import format_count, format_time, format_tokens

DAY = 86400.0
_USUAL = {"precision": "bf16", "software": "fused"}


def size(
    budget: Any = None,
    *,
    system: Any = None,
    devices: Any = None,
    deadline: Any = None,
    params: Any = None,
    tokens: Any = None,
    loss: Any = None,
    law: Any = None,
    seq_len: Any = SEQ_LEN,
    vocab_size: Any = VOCABULARY,
    unique_tokens: Any = None,
    serve_tokens: Any = None,
    experts: Any = None,
    top_k: Any = None,
    granularity: Any = None,
    bits: Any = None,
    global_batch: Any = None,
    plan: Mapping[str, Any] | Literal["auto"] = "auto",
    precision: str = "bf16",
    software: str = "fused",
    price: Any = None,
    power: Any = None,
    pue: Any = None,
    carbon: Any = None,
) -> SizingEstimate:
    """The model, its tokens, its loss and its training run for a budget or a target.

    One of: budget - FLOPs in the law's count ("1e24flops", or a number; "100 PF-days"), dollars ("$5M") or
    device-hours ("200k GPU-hours"); params (all parameters); tokens; loss; or budget with params or tokens (the rest of
    the budget), params with tokens or loss, devices with deadline (a budget of device-hours).
    system: a System to train on; dollars and device-hours need one. devices: default the fewest nodes (a power of two)
    that end by the deadline, 60 days unless given. global_batch: sequences per step, default the Step Law's.
    serve_tokens: served over the model's life (prompts and answers, tfsim.serve's default requests): N is then the one
    of the lowest loss for a budget of dollars or device-hours that pays for both, or the cheapest to train and serve
    at the loss that the other questions lead to.
    law: a name or a Law, default refit-240, or the law that knows unique_tokens (Muennighoff), experts
    (Ludziejewski), bits (Kumar). experts, top_k: a mixture; the law counts experts / top_k. granularity: Krajewski's.
    plan: "auto" or fields of tfsim.train; the shape divides by its tp and pp. precision, software, price, power, pue,
    carbon: as in tfsim.train.

    Dollars and device-hours buy FLOPs at the speed that tfsim.train finds for the shape itself: N decides the speed,
    the speed the FLOPs, the FLOPs N.

    Raises: InputError for malformed or contradictory input, and a budget for which there is no model.
    """
    if not isinstance(plan, Mapping) and plan != "auto":
        raise InputError(f"plan: {quote(plan)} is neither 'auto' nor a mapping of plan fields")
    q = read_question(
        budget=budget, params=params, tokens=tokens, loss=loss, system=system, devices=devices, deadline=deadline,
        law_name=law, seq_len=seq_len, vocab_size=vocab_size, unique_tokens=unique_tokens, experts=experts,
        top_k=top_k, bits=bits, granularity=granularity, global_batch=global_batch, serve_tokens=serve_tokens,
        plan=plan_fields(plan) if isinstance(plan, Mapping) else plan,
    )  # fmt: skip
    runs = None
    charges = {"price": price, "power": power, "pue": pue, "carbon": carbon}
    how = {"precision": precision_policy(precision).name, "software": software_style(software).name}
    if system is None:
        _about_a_system(charges | {name: value for name, value in how.items() if value != _USUAL[name]})
    else:
        for name, value in charges.items():
            if value is not None and not isinstance(value, str | int | float):
                raise InputError(f"{name}: {quote(value)} is not one number, nor text with a unit")
        runs = Runs(require_system(system), rates(system, **charges), charges, precision, software, plan)
    return _estimate(q, runs, _choose(q, runs))


def _about_a_system(given: Mapping[str, Any]) -> None:
    """Raises: InputError for what means nothing without a system."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name}: is about a system: name it with system")


@dataclass(frozen=True)
class Choice:
    """A shape and its tokens; on a system also devices and batch."""

    shape: ModelShape
    tokens: float
    allocation: Allocation | None
    devices: int | None = None
    batch: int | None = None
    devices_because: str = ""
    batch_because: str = ""
    warnings: tuple[str, ...] = ()
    serving: ServingBill | None = None


def _choose(q: Question, runs: Runs | None) -> Choice:
    if runs is None:
        return Choice(*by_law(q))
    if q.spends_hours:
        return _by_hours(q, runs)
    alone = _placed(q, runs, *by_law(q))
    return alone if q.serve_tokens is None else _with_serving(q, runs, alone, None)


def _placed(q: Question, runs: Runs, shape: ModelShape, tokens: float, found: Allocation | None) -> Choice:
    """The run of a model whose tokens are known: its devices and batch."""
    limit = q.deadline or USUAL_DAYS * DAY
    # no run is faster than the peak: from here on up, so that the devices are the fewest
    devices = q.devices or runs.devices_for(float(shape.exact_flops_per_token) * tokens / runs.peak, limit)
    while True:
        batch = q.global_batch or batch_of(tokens, shape.seq_len, devices)
        with _in_time(q, runs, devices):
            step = runs.step(shape, devices, batch)
        enough = step.fits and tokens / step.tokens_per_s <= limit
        more = None if q.devices or enough else runs.more_devices(devices)
        if more is None:
            break
        devices = more
    return Choice(shape, tokens, found, devices, batch, _devices_words(q, runs, devices, enough), _batch_words(q))


@contextmanager
def _in_time(q: Question, runs: Runs, devices: int) -> Iterator[None]:
    """Raises: what is wrong with so many devices, naming the deadline where it is what asked for them."""
    try:
        yield
    except InputError as error:
        if q.deadline is None or q.devices is not None:
            raise
        raise InputError(
            f"deadline: {format_time(q.deadline)} takes {devices:,} devices of {runs.system.name}, and on those"
            f" {error}; give a later deadline or a smaller budget"
        ) from None


def _by_hours(q: Question, runs: Runs) -> Choice:
    """Shape and tokens that device time buys."""
    assert q.budget is not None
    device_s = q.budget.amount * 3600 / (runs.price() if q.budget.unit == "dollars" else 1.0)
    limit = q.deadline or USUAL_DAYS * DAY
    devices = q.devices or runs.devices_for(device_s, limit)
    warnings: tuple[str, ...] = ()
    if q.deadline and devices * limit < device_s * (1 - 1e-9):
        share = devices * limit / device_s
        warnings = (
            f"the budget cannot be spent by the deadline: all {devices:,} devices that {runs.system.name} joins spend"
            f" {share:.1%} of it",
        )
        device_s *= share
    while True:
        with _in_time(q, runs, devices):
            choice = _solved(q, runs, device_s, devices)
        assert choice.batch is not None
        fits = bool(runs.step(choice.shape, devices, choice.batch).fits)
        more = None if q.devices or fits else runs.more_devices(devices)
        if more is None:
            break
        devices = more
    enough = fits and device_s <= devices * limit * (1 + 1e-9)
    choice = replace(choice, devices_because=_devices_words(q, runs, devices, enough))
    if q.serve_tokens is not None:
        choice = _with_serving(q, runs, choice, device_s)
    return replace(choice, warnings=warnings)


def _with_serving(q: Question, runs: Runs, alone: Choice, device_s: float | None) -> Choice:
    """The choice that pays for serving too: of ``device_s`` in all, or at the loss of ``alone``."""
    surface = curve(q.law, q.facts)
    assert surface is not None and alone.devices is not None and alone.batch is not None and q.serve_tokens is not None
    aim: dict[str, float | None] = {"loss": None, "device_s": device_s}
    if device_s is None:
        aim["loss"] = float(surface.loss(float(alone.shape.parameters(q.law.n)), alone.tokens))
    best, same = best_lifetime(q, runs, alone.shape, alone.devices, alone.batch, **aim)
    chosen = _placed(q, runs, best.shape, best.tokens, None)
    if device_s is not None:
        assert chosen.devices is not None and chosen.batch is not None
        tokens = _whole_steps(q, runs, best.shape, chosen.devices, chosen.batch, device_s - best.serve_s)
        chosen = replace(chosen, tokens=tokens)
    bill = ServingBill(
        tokens=q.serve_tokens,
        device_hours=hours(best.serve_s),
        cost_usd=runs.usd(best.serve_s),
        estimate=runs.serving(best.shape),
        alone_parameters=int(alone.shape.total),
        alone_tokens=same.tokens,
        alone_device_hours=hours(same.train_s + same.serve_s),
        alone_loss=same.loss,
    )
    return replace(chosen, serving=bill)


def _solved(q: Question, runs: Runs, device_s: float, devices: int) -> Choice:
    n, d = _first_guess(q, device_s * GUESSED_MFU * runs.peak)
    batch = q.global_batch or batch_of(d, q.architecture.seq_len, devices)

    def following(x: float) -> float:
        """ln N that the FLOPs bought at the speed of exp(x) parameters ask for."""
        shape = shape_of(math.exp(x), q.law.n, q.architecture)
        bought = runs.affordable_tokens(shape, devices, batch, device_s)
        if q.tokens is not None:
            return x + math.log(bought / q.tokens)
        return math.log(float(best_parameters(q, float(shape.flops_per_token(q.law)) * bought).parameters))

    if q.params is not None:
        shape = shape_of(q.params, "total", q.architecture)
    else:
        shape = shape_of(math.exp(solve(following, math.log(n))), q.law.n, q.architecture)
    tokens = _whole_steps(q, runs, shape, devices, batch, device_s)
    if q.tokens is not None:
        tokens = min(tokens, q.tokens)  # shapes come in steps: some of the budget may be left
    found = None
    if q.params is None and q.tokens is None:
        found = best_parameters(q, float(shape.flops_per_token(q.law)) * tokens)
    return Choice(shape, tokens, found, devices, batch, batch_because=_batch_words(q))


def _whole_steps(q: Question, runs: Runs, shape: ModelShape, devices: int, batch: int, device_s: float) -> float:
    """Tokens of the steps that so many device-seconds buy. Raises: InputError when that is none."""
    steps = math.floor(device_s / (devices * float(runs.step(shape, devices, batch).step_time_s)))
    if steps < 1:
        raise InputError(f"budget: {q.budget} buys less than one step of {batch:,} sequences on {devices:,} devices")
    return float(steps * batch * shape.seq_len)


def _first_guess(q: Question, flops: float) -> tuple[float, float]:
    """N (in the law's count) and D to begin looking with."""
    if q.params is not None:
        return q.params, max(1.0, flops / (6 * q.params))
    if q.tokens is not None:
        return max(1.0, flops / (6 * q.tokens)), q.tokens
    found = best_parameters(q, max(1.0, flops))
    return float(found.parameters), float(found.tokens)


def _devices_words(q: Question, runs: Runs, devices: int, enough: bool) -> str:
    """Why so many; ``enough``: they hold the model and end in time."""
    if q.devices is not None:
        return "as asked"
    if not enough and runs.more_devices(devices) is None:
        return f"the most nodes (a power of two) that {runs.system.name} joins"
    limit = "the deadline" if q.deadline else f"{USUAL_DAYS:g} days"
    return f"fewest nodes (a power of two) that hold it and end within {limit}"


def _batch_words(q: Question) -> str:
    if q.global_batch is not None:
        return "as asked"
    return f"{BATCH_LAW}, x a power of two of the devices"


def _estimate(q: Question, runs: Runs | None, chosen: Choice) -> SizingEstimate:
    shape, tokens, law = chosen.shape, chosen.tokens, q.law
    n = float(shape.parameters(law.n))
    surface = curve(law, q.facts)
    compute = float(shape.flops_per_token(law)) * tokens
    run: TrainingEstimate | None = None
    if runs is not None and chosen.devices is not None and chosen.batch is not None:
        run = runs.whole(shape, chosen.devices, chosen.batch, tokens)
    loss = None if surface is None else float(surface.loss(n, tokens))
    if surface is None and chosen.allocation is not None and chosen.allocation.loss is not None:
        loss = float(chosen.allocation.loss)
    placed = Placed(shape, tokens, runs, chosen.devices, chosen.batch, None if run is None else run.days)
    bowl = bowl_of(q, placed)
    by_the_law = chosen.allocation is not None and q.serve_tokens is None
    cheapest = cheapest_of(q, placed, bowl) if by_the_law and run is not None and run.fits else None
    others, left_out = other_laws(q, shape, tokens)
    best, loss_band, because = band_of(q, n, compute)
    unique = q.facts.get("unique_tokens")
    epochs = None if unique is None else tokens / float(unique)
    warnings = [
        *chosen.warnings,
        *of_the_law(q, compute, n, tokens),
        *of_repeats(surface, n, tokens, epochs, loss),
        *of_the_run(q, run, runs),
        *of_the_pace(q, run, runs, shape, tokens, surface),
        *of_other_sizes(run, bowl, cheapest, loss),
    ]
    return SizingEstimate(
        asked=_asked(q),
        budget=q.budget,
        law=law,
        convention=law.convention,
        facts=q.facts,
        allocation=chosen.allocation,
        shape=shape,
        model=shape.spec(model_name(shape)),
        parameters=int(shape.total),
        active_parameters=int(shape.active),
        law_parameters=n,
        tokens=tokens,
        tokens_per_parameter=tokens / n,
        loss=loss,
        epochs=epochs,
        compute=compute,
        exact_flops=float(shape.exact_flops_per_token) * tokens,
        seq_len=shape.seq_len,
        system=None if run is None else run.system,
        devices=chosen.devices,
        devices_because=chosen.devices_because,
        global_batch=chosen.batch,
        batch_because=chosen.batch_because,
        training=run,
        days=None if run is None else run.days,
        device_hours=None if run is None else run.device_hours,
        cost_usd=None if run is None else run.cost_usd,
        energy_kwh=None if run is None else run.energy_kwh,
        carbon_kg=None if run is None else run.carbon_kg,
        achieved_flops_per_device=None if run is None else run.mfu["exact"] * run.peak_flops,
        mfu=None if run is None else run.mfu["exact"],
        serving=chosen.serving,
        total_cost_usd=_total(run, chosen.serving),
        band=best,
        loss_band=loss_band,
        band_because=because,
        bowl=bowl,
        cheapest=cheapest,
        others=others,
        left_out=left_out,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _total(run: TrainingEstimate | None, serving: ServingBill | None) -> float | None:
    """Dollars of both bills; None without a price."""
    if run is None or run.cost_usd is None:
        return None
    return float(run.cost_usd) + (0.0 if serving is None else float(serving.cost_usd or 0))


def _asked(q: Question) -> str:
    parts = []
    if q.budget is not None:
        parts.append(str(q.budget))
    if q.params is not None:
        parts.append(f"{format_count(q.params)} parameters")
    if q.tokens is not None:
        parts.append(format_tokens(q.tokens))
    if q.loss is not None:
        parts.append(f"loss {q.loss:g}")
    return ", ".join(parts)
