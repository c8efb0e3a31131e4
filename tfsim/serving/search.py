"""The best plan for each load, and the nearest plan that fits: one vectorised evaluation of all candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsim.errors import InputError
from tfsim.serving.memory import footprint
from tfsim.serving.plans import LARGEST_PP, Plan, candidates, possible
from tfsim.serving.steady import Steady, steady
from tfsim.serving.workload import Engine, Load, served
from tfsim.units import Array, Number

SMALLER_FORMATS = ("fp8", "int4_g128")
# A pipeline must be this much faster to be preferred: prefill and decode passes of unequal length leave bubbles between
# its stages that ``steady`` does not see.
PIPELINE_MARGIN = 1.25


def best_plan(engine: Engine, load: Load) -> Plan:
    """Per load, the plan with the best ``merit`` among those that fit, ties to the shorter step.

    Where none fits: the possible plan that needs the least memory per device.
    Raises: InputError when no plan is possible at all.
    """
    engine, wide = _with_axis(engine, load)
    plans = candidates(engine.model, engine.system, load.devices)
    allowed = possible(engine.model, engine.system, wide.devices, plans)
    found = steady(engine, wide, plans)
    rate = merit(wide, plans, found)
    size = np.broadcast_shapes(allowed.shape, np.shape(rate))
    fits = np.broadcast_to(allowed & fitting(found), size)
    step = np.broadcast_to(np.asarray(found.step_s, float), size)
    score = np.where(fits, rate, -np.inf)
    best = score == np.max(score, axis=-1, keepdims=True)
    chosen = np.argmin(np.where(best & fits, step, np.inf), axis=-1)
    need = np.broadcast_to(np.where(allowed, np.asarray(found.memory.total, float), np.inf), size)
    index = np.where(fits.any(axis=-1), chosen, np.argmin(need, axis=-1))
    if np.ndim(index) == 0:
        return Plan(*(int(np.asarray(column)[index]) for column in (plans.tp, plans.pp, plans.ep)))
    return Plan(*(np.asarray(column)[index] for column in (plans.tp, plans.pp, plans.ep)))


def fitting(found: Steady) -> NDArray[np.bool_]:
    """Where the batch has room."""
    return np.asarray(np.asarray(found.batch) <= np.asarray(found.max_concurrency))


def merit(load: Load, plan: Plan, found: Steady) -> Array:
    """What plans are ranked by: output tokens/s per device, of a pipeline divided by PIPELINE_MARGIN."""
    speed = np.asarray(found.batch * load.output_len / found.period_s / plan.devices, float)
    return np.where(np.asarray(plan.pp) > 1, speed / PIPELINE_MARGIN, speed)


def _with_axis(engine: Engine, load: Load) -> tuple[Engine, Load]:
    """The engine and the load with a last axis for the candidates."""

    def wide(x: Number) -> Array:
        return np.asarray(x, float)[..., None]

    share, most, prefill = map(wide, engine.limits)
    batch = None if load.batch is None else wide(load.batch)
    images = wide(load.images) if np.any(load.images) else 0
    return (
        replace(engine, memory_utilization=share, max_batch=most, max_prefill_tokens=prefill),
        Load(wide(load.devices), wide(load.input_len), wide(load.output_len), batch, images),
    )


def nearest_fit(engine: Engine, load: Load, plan: Plan) -> str:
    """What would fit instead of a scalar ``plan`` that does not, in words: a smaller batch, another plan on the same
    devices, more devices, or a smaller weight format."""
    options: list[str] = []
    batch = load.batch if load.batch is not None else 1
    room = footprint(engine, load, plan).max_concurrency()
    if room >= 1:
        options.append(f"batch {room:,.0f} with this plan")
    same = _smallest(engine, load, candidates(engine.model, engine.system, load.devices), load.devices, batch)
    if same is not None:
        options.append(f"{_words(same)} on these devices")
    else:
        more = _more_devices(engine, load, batch)
        if more is not None:
            options.append(f"{_words(more)}, {int(more.devices):,} devices")
        options += _smaller_format(engine, load, batch)
    return "; ".join(options) if options else "none found: use a smaller model or shorter sequences"


def _more_devices(engine: Engine, load: Load, batch: Number) -> Plan | None:
    """The smallest plan that fits when devices are free to choose."""
    limit = engine.system.max_devices or 8 * LARGEST_PP
    plans = candidates(engine.model, engine.system, np.array([2.0**i for i in range(int(limit).bit_length())]))
    return _smallest(engine, load, plans, plans.devices, batch)


def _smaller_format(engine: Engine, load: Load, batch: Number) -> list[str]:
    for fmt in SMALLER_FORMATS:
        smaller = replace(engine, model=served(engine.model, engine.dtype, fmt, None))
        found = _smallest(smaller, load, candidates(smaller.model, smaller.system, load.devices), load.devices, batch)
        if found is not None:
            return [f"weights_dtype {fmt} with {_words(found)} on these devices"]
    return []


def _smallest(engine: Engine, load: Load, plans: Plan, devices: Any, batch: Number) -> Plan | None:
    """The first of ``plans`` (fewest devices per replica) that is possible and has room for ``batch``."""
    rooms = np.asarray(footprint(engine, load, plans).max_concurrency(), float)
    ok = possible(engine.model, engine.system, devices, plans) & (rooms >= batch)
    if not ok.any():
        return None
    first = int(np.argmax(np.broadcast_to(ok, np.shape(plans.tp))))
    return Plan(*(int(np.asarray(column)[first]) for column in (plans.tp, plans.pp, plans.ep)))


def _words(plan: Plan) -> str:
    text = f"tp {plan.tp}"
    text += f" x pp {plan.pp}" if plan.pp > 1 else ""
    return text + (f", ep {plan.ep}" if plan.ep > 1 else "")


def refuse_impossible(faults: list[tuple[Any, str]], devices: Number, plan: Plan) -> None:
    """Raise InputError with the first fault of a scalar plan."""
    for bad, words in faults:
        if bad:
            raise InputError("impossible plan: " + words.format(devices=devices, tp=plan.tp, pp=plan.pp, ep=plan.ep))
