"""The training estimate: time, memory, money and energy of one job, or of arrays of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tfsim import economics
from tfsim.errors import InputError
from tfsim.hardware import System
from tfsim.models.conventions import CONVENTIONS, training_flops
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec
from tfsim.operators.backward import recompute as recomputed
from tfsim.operators.core import total
from tfsim.software import Precision, Software, precision, software
from tfsim.training.plan import NUMERIC, RECOMPUTE, Grid, first_reason, impossible, make_grid
from tfsim.training.search import candidates
from tfsim.training.step import Evaluated, evaluate
from tfsim.training.verdict import verdict
from tfsim.units import Array, as_number, format_bytes, format_percent, format_time

CONFIDENCE = (
    "uncalibrated roofline: the published runs in reports/first_check.md took 1.4 times the predicted step (median);"
    " read times as optimistic"
)


@dataclass(frozen=True)
class TrainingEstimate:
    """Training of one model on one system. Numbers, or arrays of the broadcast shape of the arguments.

    ``time``: seconds of one step by part (sums to ``step_time_s``); ``bounds``: the same seconds by what limits them;
    ``memory``: bytes on the fullest device by part (sums to ``memory_bytes``), of ``capacity_bytes`` usable;
    ``mfu``: by FLOP convention, against the dense ``peak_flops`` of the matmul format; ``hfu`` adds recomputation to
    ``exact``. ``cost_usd``, ``energy_kwh``, ``carbon_kg`` cover ``tokens``; None without tokens (or a price).
    """

    model: str
    system: str
    devices: Any
    seq_len: Any
    global_batch: Any
    plan: dict[str, Any]
    precision: str
    software: str
    step_time_s: Any
    tokens_per_s: Any
    tokens_per_s_per_device: Any
    flops_per_token: dict[str, Any]
    mfu: dict[str, Any]
    hfu: Any
    peak_flops: float
    time: dict[str, Any]
    bounds: dict[str, Any]
    bottleneck: Any
    memory: dict[str, Any]
    memory_bytes: Any
    capacity_bytes: int
    fits: Any
    verdict: str
    reasons: Any
    tokens: Any
    steps: Any
    train_time_s: Any
    days: Any
    device_hours: Any
    cost_usd: Any
    energy_kwh: Any
    carbon_kg: Any
    rates: economics.Rates
    confidence: str = CONFIDENCE

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["rates"] = self.rates.to_dict()
        return out

    def __repr__(self) -> str:
        if isinstance(self.step_time_s, float):
            return (
                f"TrainingEstimate({self.model} on {self.devices} x {self.system}:"
                f" step {format_time(self.step_time_s)},"
                f" MFU {format_percent(self.mfu['exact'])} (exact), {format_bytes(self.memory_bytes)} per device,"
                f" {'fits' if self.fits else 'does not fit'})"
            )
        return f"TrainingEstimate({self.model} on {self.system}, shape {np.shape(self.step_time_s)})"


def train(
    model: ModelSpec,
    system: System,
    *,
    devices: Any = None,
    seq_len: Any = None,
    global_batch: Any,
    plan: Mapping[str, Any] | Literal["auto"] = "auto",
    tokens: Any = None,
    precision: str = "bf16",
    software: str = "fused",
    price: Any = None,
    power: Any = None,
    pue: Any = None,
    carbon: Any = None,
) -> TrainingEstimate:
    """Estimate training of ``model`` on ``devices`` of ``system``.

    devices: default one node. seq_len: tokens per sequence, default the model's max_seq_len. global_batch: sequences
    per step. plan: fields of ``Plan`` (tp, pp, dp, ep, etp, micro_batch, zero_stage, recompute) or ``auto``, the
    fastest plan that fits. tokens: of the whole run. price [$/device-hour], power [W/device], pue, carbon [kg/kWh]
    replace the system's. Every number may be an array; arrays broadcast (with ``auto``, each job is searched).
    Raises InputError for impossible input; a plan that merely does not fit is returned with ``fits`` False.
    """
    job = _job(model, system, devices, seq_len, global_batch)
    policy, style = _precision(precision), _software(software)
    charges = economics.rates(system, price=price, power=power, pue=pue, carbon=carbon)
    run_tokens = None if tokens is None else as_number(tokens, "tokens", at_least=1)
    if plan == "auto":
        grid, shape = _best_plans(model, system, job, policy, style)
    elif isinstance(plan, Mapping):
        grid, shape = make_grid(*job, plan)
    else:
        raise InputError(f"plan: {plan!r} is neither 'auto' nor a mapping of plan fields")
    if run_tokens is not None:
        grid, shape, run_tokens = _with_tokens(grid, shape, run_tokens)
    reasons = impossible(model, grid, system.max_devices)
    if shape == ():
        first_reason(reasons)
    result = _evaluate_possible(model, system, grid, reasons, policy, style)
    return _estimate(model, system, grid, shape, result, reasons, policy, style, run_tokens, charges)


def search_plans(
    model: ModelSpec,
    system: System,
    *,
    devices: int | None = None,
    seq_len: int | None = None,
    global_batch: int,
    plan: Mapping[str, Any] | None = None,
    precision: str = "bf16",
    software: str = "fused",
) -> pd.DataFrame:
    """All possible plans of a job, best first: those that fit by step time, then the others by memory.

    ``plan`` fixes some fields. Columns: plan fields, step_time_s, memory_bytes, fits, and the
    parts of the step as seconds (forward_s, ...).
    Raises InputError when no plan is possible at all.
    """
    n, seq, batch = (int(x) for x in _job(model, system, devices, seq_len, global_batch))
    grid = candidates(model, system, devices=n, seq_len=seq, global_batch=batch, fixed=plan or {})
    if not len(grid):
        fixed = f" with {', '.join(f'{k} {v}' for k, v in plan.items())}" if plan else ""
        raise InputError(
            f"no plan divides {n:,} devices, {batch:,} sequences and {model.n_layers} layers{fixed}:"
            " change devices or global_batch"
        )
    found = evaluate(model, system, grid, _precision(precision), _software(software))
    need = np.asarray(total(found.memory.values()), float)
    table = {name: getattr(grid, name).astype(int) for name in NUMERIC}
    table["recompute"] = np.array(RECOMPUTE, dtype=object)[grid.recompute.astype(int)]
    frame = pd.DataFrame(
        table
        | {"step_time_s": found.step_s, "memory_bytes": need, "fits": need <= system.device.require("capacity_bytes")}
        | {f"{name}_s": seconds for name, seconds in found.time.items()}  # "recompute" is a plan field too
    )
    order = np.lexsort((frame.memory_bytes, np.where(frame.fits, frame.step_time_s, np.inf), ~frame.fits))
    return frame.iloc[order].reset_index(drop=True)


def _job(model: ModelSpec, system: System, devices: Any, seq_len: Any, global_batch: Any) -> tuple[Any, Any, Any]:
    if seq_len is None and model.max_seq_len is None:
        raise InputError("seq_len: give the tokens per sequence; the model states no max_seq_len")
    return (
        as_number(system.devices_per_node if devices is None else devices, "devices", at_least=1, whole=True),
        as_number(model.max_seq_len if seq_len is None else seq_len, "seq_len", at_least=1, whole=True),
        as_number(global_batch, "global_batch", at_least=1, whole=True),
    )


# the keyword arguments of train() shadow these two functions
_precision, _software = precision, software


def _best_plans(
    model: ModelSpec, system: System, job: tuple[Any, Any, Any], policy: Precision, style: Software
) -> tuple[Grid, tuple[int, ...]]:
    """The fastest plan that fits for each job; where none fits, the one that needs least memory."""
    columns = np.broadcast_arrays(*(np.asarray(x, float) for x in job))
    chosen: list[dict[str, float]] = []
    for devices, seq_len, global_batch in zip(*(np.ravel(c) for c in columns), strict=True):
        table = search_plans(
            model,
            system,
            devices=int(devices),
            seq_len=int(seq_len),
            global_batch=int(global_batch),
            precision=policy.name,
            software=style.name,
        )
        best = table.iloc[0]
        row = {name: float(best[name]) for name in NUMERIC}
        chosen.append(row | {"recompute": float(RECOMPUTE.index(best["recompute"]))})
    arrays = {name: np.array([row[name] for row in chosen]) for name in (*NUMERIC, "recompute")}
    return Grid(*(np.ravel(c) for c in columns), **arrays), columns[0].shape


def _with_tokens(grid: Grid, shape: tuple[int, ...], tokens: Any) -> tuple[Grid, tuple[int, ...], Array]:
    """Broadcast the tokens of the run against the jobs."""
    index, spread = np.broadcast_arrays(np.arange(len(grid), dtype=float).reshape(shape), np.asarray(tokens, float))
    return grid.select(np.ravel(index).astype(int)), index.shape, np.ravel(spread)


def _evaluate_possible(
    model: ModelSpec, system: System, grid: Grid, reasons: NDArray[np.object_], policy: Precision, style: Software
) -> Evaluated:
    """Evaluate the possible plans; NaN for the others."""
    good = np.nonzero(reasons == "")[0]
    part = evaluate(model, system, grid.select(good), policy, style)

    def spread(values: Array) -> Array:
        out = np.full(len(grid), np.nan)
        out[good] = values
        return out

    def all_of(table: dict[str, Array]) -> dict[str, Array]:
        return {name: spread(values) for name, values in table.items()}

    return Evaluated(
        spread(part.step_s), all_of(part.time), all_of(part.bounds), all_of(part.memory), spread(part.stage)
    )


def _recomputed_flops(model: ModelSpec, seq_len: Array, mode: Array) -> Array:
    """FLOPs per sequence of the forward work done again, in the exact convention."""
    parts = segments(model, Shape(1, seq_len, causal="halved"))
    per_mode = [
        np.broadcast_to(
            np.asarray(
                total(
                    op.flops * p.repeat for p in parts if p.name in model.blocks for op in recomputed(p.operators, name)
                ),
                float,
            ),
            np.shape(seq_len),
        )
        for name in RECOMPUTE
    ]
    chosen: Array = np.take_along_axis(np.stack(per_mode), mode.astype(int)[None], axis=0)[0]
    return chosen


def _estimate(
    model: ModelSpec,
    system: System,
    grid: Grid,
    shape: tuple[int, ...],
    result: Evaluated,
    reasons: NDArray[np.object_],
    policy: Precision,
    style: Software,
    tokens: Array | None,
    charges: economics.Rates,
) -> TrainingEstimate:
    def out(values: Any) -> Any:
        array = np.asarray(values).reshape(shape)
        return array.item() if shape == () else array

    def whole(values: Array) -> Any:
        return int(values[0]) if shape == () else values.reshape(shape)

    device = system.device
    step_tokens = grid.global_batch * grid.seq_len
    peak = device.matmul_peak(policy.matmul).flop_per_s
    capacity = int(device.require("capacity_bytes"))
    need = np.asarray(total(result.memory.values()), float)
    per_sequence = {name: np.asarray(training_flops(model, grid.seq_len, name), float) for name in CONVENTIONS}
    done = result.step_s * grid.devices * peak / grid.global_batch
    mfu = {name: flops / done for name, flops in per_sequence.items()}
    again = _recomputed_flops(model, grid.seq_len, grid.recompute)
    steps = None if tokens is None else np.ceil(tokens / step_tokens)
    seconds = None if steps is None else steps * result.step_s
    fits = need <= capacity
    names = np.array(list(result.bounds))
    worst = names[np.argmax(np.stack([np.nan_to_num(v) for v in result.bounds.values()]), axis=0)]
    memory = {name: out(values) for name, values in result.memory.items()}
    words = verdict(model, system, grid, result, capacity, policy, style) if shape == () else ""

    def maybe(values: Any) -> Any:
        return None if values is None else out(values)

    # on the shaped results, so that arrays of prices broadcast as well
    spent = None if seconds is None else economics.cost(charges, whole(grid.devices), out(seconds))

    return TrainingEstimate(
        model=model.name,
        system=system.name,
        devices=whole(grid.devices),
        seq_len=whole(grid.seq_len),
        global_batch=whole(grid.global_batch),
        plan={name: whole(getattr(grid, name)) for name in NUMERIC}
        | {"recompute": out(np.array(RECOMPUTE, dtype=object)[grid.recompute.astype(int)])},
        precision=policy.name,
        software=style.name,
        step_time_s=out(result.step_s),
        tokens_per_s=out(step_tokens / result.step_s),
        tokens_per_s_per_device=out(step_tokens / result.step_s / grid.devices),
        flops_per_token={name: out(flops / grid.seq_len) for name, flops in per_sequence.items()},
        mfu={name: out(values) for name, values in mfu.items()},
        hfu=out((per_sequence["exact"] + again) / done),
        peak_flops=peak,
        time={name: out(values) for name, values in result.time.items()},
        bounds={name: out(values) for name, values in result.bounds.items()},
        bottleneck=out(worst),
        memory=memory,
        memory_bytes=out(need),
        capacity_bytes=capacity,
        fits=out(fits),
        verdict=words,
        reasons=out(reasons),
        tokens=maybe(tokens),
        steps=maybe(steps),
        train_time_s=maybe(seconds),
        days=None if seconds is None else out(seconds / 86400),
        device_hours=spent and spent.device_hours,
        cost_usd=spent and spent.usd,
        energy_kwh=spent and spent.energy_kwh,
        carbon_kg=spent and spent.carbon_kg,
        rates=charges,
    )
