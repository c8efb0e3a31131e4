"""``train`` and ``search_plans``: the questions people ask about training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tfsim import economics
from tfsim.errors import InputError, quote
from tfsim.operators.core import total
from tfsim.training.estimate import TrainingEstimate, estimate
from tfsim.training.job import Job, read_job, with_tokens
from tfsim.training.plan import NUMERIC, RECOMPUTE, Grid, first_reason, impossible, make_grid, plan_fields
from tfsim.training.search import candidates
from tfsim.training.step import Evaluated, evaluate
from tfsim.units import Array, as_number, common_shape


def train(
    model: Any,
    system: Any,
    *,
    devices: Any = None,
    seq_len: Any = None,
    global_batch: Any,
    images: Any = 0,
    plan: Mapping[str, Any] | Literal["auto"] = "auto",
    tokens: Any = None,
    precision: str = "bf16",
    software: str = "fused",
    price: Any = None,
    power: Any = None,
    pue: Any = None,
    carbon: Any = None,
    provider: str | None = None,
    term: str = "on-demand",
) -> TrainingEstimate:
    """Estimate training of ``model`` (a ModelSpec) on ``devices`` of ``system`` (a System).

    devices: default one node. seq_len: tokens per sequence, default what its frontend makes, else its max_seq_len.
    global_batch: sequences per step. images: per sequence, through the model's image tower; their tokens are part of
    seq_len.
    plan: any of tp, pp, dp, ep, etp, micro_batch, zero_stage, recompute; or ``auto``, the fastest plan that fits.
    tokens: of the whole run. precision, software: see tfsim.software. price [$/device-hour], power [W/device], pue,
    carbon [kg/kWh] (numbers, arrays, or text with a unit) replace the system's; provider, term choose its quote.
    Every number may be an array; arrays broadcast (with ``auto`` each job is searched), and a plan that cannot be
    has NaN and its reason in ``reasons``.
    Raises InputError for malformed input or a scalar plan that cannot be; a plan that does not fit is returned with
    ``fits`` False and a ``verdict`` that says what would.
    """
    job = read_job(model, system, devices, seq_len, global_batch, images, precision, software)
    charges = economics.rates(job.system, price, power, pue, carbon, provider, term)
    run = None if tokens is None else as_number(tokens, "tokens", at_least=1)
    given = plan_fields(plan) if isinstance(plan, Mapping) else {}
    if not isinstance(plan, Mapping) and not (isinstance(plan, str) and plan == "auto"):
        raise InputError(f"plan: {quote(plan)} is neither 'auto' nor a mapping of plan fields")
    money = {
        "price": charges.price_usd_per_device_hour,
        "power": charges.power_w_per_device,
        "pue": charges.pue,
        "carbon": charges.carbon_kg_per_kwh,
    }
    common_shape(**job.sizes, **given, tokens=run, **money)
    grid, shape = make_grid(**job.sizes, plan=plan) if isinstance(plan, Mapping) else _best_plans(job)
    if run is not None:
        grid, shape, run = with_tokens(grid, shape, run)
    reasons = impossible(job.model, grid, job.system)
    if shape == ():
        first_reason(reasons)
    return estimate(job, grid, shape, _evaluate_possible(job, grid, reasons), reasons, run, charges)


def search_plans(
    model: Any,
    system: Any,
    *,
    devices: int | None = None,
    seq_len: int | None = None,
    global_batch: int,
    images: int = 0,
    plan: Mapping[str, Any] | None = None,
    precision: str = "bf16",
    software: str = "fused",
) -> pd.DataFrame:
    """All possible plans of one job, best first: those that fit by step time, then the others by memory.

    ``plan`` fixes some fields, each to a value or a list of values. Columns: plan fields, step_time_s, memory_bytes,
    fits, and the parts of the step as seconds (forward_s, ...).
    Raises InputError when no plan is possible at all, with the first reason.
    """
    job = read_job(model, system, devices, seq_len, global_batch, images, precision, software)
    if plan is not None and not isinstance(plan, Mapping):
        raise InputError(f"plan: {quote(plan)} is not a mapping of plan fields")
    for name, value in job.sizes.items():
        if not isinstance(value, int):
            raise InputError(f"{name}: {quote(value)} is not one number: a search is of one job")
    found = _searched(job, **job.sizes, fixed=plan or {})
    if found is None:
        raise _nothing_possible(job, plan or {})
    grid, result = found
    need = np.asarray(total(result.memory.values()), float)
    table: dict[str, Any] = {name: getattr(grid, name).astype(int) for name in NUMERIC}
    table["recompute"] = np.array(RECOMPUTE, dtype=object)[grid.recompute.astype(int)]
    parts = {f"{name}_s": seconds for name, seconds in result.time.items()}  # "recompute" is a plan field too
    return pd.DataFrame(
        table | {"step_time_s": result.step_s, "memory_bytes": need, "fits": need <= job.usable} | parts
    )


def _searched(
    job: Job, devices: int, seq_len: int, global_batch: int, images: int, fixed: Mapping[str, Any]
) -> tuple[Grid, Evaluated] | None:
    """Every possible plan of one job and what it takes, best first; None when there is none."""
    sizes = {"devices": devices, "seq_len": seq_len, "global_batch": global_batch, "images": images}
    grid = candidates(job.model, job.system, job.style, **sizes, fixed=fixed)
    if not len(grid):
        return None
    result = evaluate(job.model, job.system, grid, job.policy, job.style)
    need = np.asarray(total(result.memory.values()), float)
    fits = need <= job.usable
    order = np.lexsort((need, np.where(fits, result.step_s, np.inf), ~fits))
    return grid.select(order), result.select(order)


def _nothing_possible(job: Job, fixed: Mapping[str, Any]) -> InputError:
    """Why no plan is possible: what is wrong with the plainest one, or that nothing divides."""
    grid, _ = make_grid(**job.sizes, plan={})
    reason = impossible(job.model, grid, job.system)[0]
    words = f" with {', '.join(f'{k} {v}' for k, v in fixed.items())}" if fixed else ""
    if reason and not fixed:
        return InputError(f"no plan is possible: {reason}")
    return InputError(
        f"no plan{words} divides {job.devices:,} devices, {job.global_batch:,} sequences and"
        f" {job.model.n_layers} layers: change devices, global_batch or the fixed fields"
    )


def _best_plans(job: Job) -> tuple[Grid, tuple[int, ...]]:
    """The fastest plan that fits for each job, else the one that needs least memory; the plainest plan, with its
    reason to come, where none is possible. Raises InputError for a scalar job without one."""
    columns = np.broadcast_arrays(*(np.asarray(x, float) for x in job.sizes.values()))
    chosen: list[Grid] = []
    for row in zip(*(np.ravel(c) for c in columns), strict=True):
        sizes = {name: int(value) for name, value in zip(job.sizes, row, strict=True)}
        found = _searched(job, **sizes, fixed={})
        if found is None and columns[0].shape == ():
            raise _nothing_possible(job, {})
        chosen.append(found[0].select(np.array([0])) if found else make_grid(**sizes, plan={})[0])
    return Grid.join(chosen), columns[0].shape


def _evaluate_possible(job: Job, grid: Grid, reasons: NDArray[np.object_]) -> Evaluated:
    """Evaluate the possible plans; NaN for the others."""
    good = np.nonzero(reasons == "")[0]
    part = evaluate(job.model, job.system, grid.select(good), job.policy, job.style)

    def spread(values: Array) -> Array:
        out = np.full(len(grid), np.nan)
        out[good] = values
        return out

    return part.map(spread)
