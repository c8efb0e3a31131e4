"""The training estimate: time, memory, money and energy of one job, or of arrays of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsim import economics
from tfsim.models.conventions import conventions_of, training_flops
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec
from tfsim.operators.backward import recompute as recomputed
from tfsim.operators.core import total
from tfsim.plain import plain_fields
from tfsim.training.confidence import confidence
from tfsim.training.job import Job, notes
from tfsim.training.plan import NUMERIC, RECOMPUTE, Grid
from tfsim.training.step import Evaluated
from tfsim.training.verdict import verdict
from tfsim.units import Array, format_bytes, format_percent, format_time


@dataclass(frozen=True)
class TrainingEstimate:
    """Training of one model on one system. Numbers, or arrays of the broadcast shape of the arguments.

    ``images``: per sequence (0: the text part alone); ``image_tower`` in ``time``: the tower's work in the
    slowest stage.
    ``time``: seconds of one step by part (sums to ``step_time_s``); ``bounds``: the same seconds by what limits them;
    ``memory``: bytes on the fullest device by part (sums to ``memory_bytes``); a plan may need ``usable_bytes`` of the
    ``capacity_bytes`` (the rest is lost to fragments). ``mfu``: by FLOP convention, against the dense ``peak_flops`` of
    the matmul format; ``hfu`` adds recomputation to ``exact``. ``reasons``: why a plan cannot be, else empty.
    ``cost_usd``, ``energy_kwh``, ``carbon_kg`` cover ``tokens``; None without tokens (or a price).
    """

    model: str
    system: str
    devices: Any
    seq_len: Any
    global_batch: Any
    images: Any
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
    usable_bytes: int
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
    notes: tuple[str, ...]
    confidence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return plain_fields(self)

    def __repr__(self) -> str:
        if isinstance(self.step_time_s, float):
            return (
                f"TrainingEstimate({self.model} on {self.devices} x {self.system}:"
                f" step {format_time(self.step_time_s)},"
                f" MFU {format_percent(self.mfu['exact'])} (exact), {format_bytes(self.memory_bytes)} per device,"
                f" {'fits' if self.fits else 'does not fit'})"
            )
        return f"TrainingEstimate({self.model} on {self.system}, shape {np.shape(self.step_time_s)})"


def _recomputed_flops(model: ModelSpec, seq_len: Array, images: Array, mode: Array) -> Array:
    """FLOPs per sequence of the forward work done again, in the exact convention."""
    parts = segments(model, Shape(1, seq_len, causal="halved", images=images))
    per_mode = [
        np.broadcast_to(
            np.asarray(
                total(op.flops * p.repeat for p in parts if p.layer for op in recomputed(p.operators, name)),
                float,
            ),
            np.shape(seq_len),
        )
        for name in RECOMPUTE
    ]
    chosen: Array = np.take_along_axis(np.stack(per_mode), mode.astype(int)[None], axis=0)[0]
    return chosen


def estimate(
    job: Job,
    grid: Grid,
    shape: tuple[int, ...],
    result: Evaluated,
    reasons: NDArray[np.object_],
    tokens: Array | None,
    charges: economics.Rates,
) -> TrainingEstimate:
    """The estimate of evaluated plans, given back in ``shape`` (Python numbers when that is ())."""

    def out(values: Any) -> Any:
        array = np.asarray(values).reshape(shape)
        return array.item() if shape == () else array

    def whole(values: Array) -> Any:
        return int(values[0]) if shape == () else values.reshape(shape)

    def each(table: Mapping[str, Any]) -> dict[str, Any]:
        return {name: out(values) for name, values in table.items()}

    step_tokens = grid.global_batch * grid.seq_len
    need = np.asarray(total(result.memory.values()), float)
    peak = job.system.device.matmul_peak(job.policy.matmul).flop_per_s
    flops = {
        name: np.asarray(training_flops(job.model, grid.seq_len, name, images=grid.images), float)
        for name in conventions_of(job.model, job.images)
    }
    available = result.step_s * grid.devices * peak / grid.global_batch  # FLOPs per sequence at the peak
    again = _recomputed_flops(job.model, grid.seq_len, grid.images, grid.recompute)
    steps = None if tokens is None else np.ceil(tokens / step_tokens)
    seconds = None if steps is None else steps * result.step_s
    # on the shaped results, so that arrays of prices broadcast as well
    spent = None if seconds is None else economics.cost(charges, whole(grid.devices), out(seconds))
    return TrainingEstimate(
        model=job.model.name,
        system=job.system.name,
        devices=whole(grid.devices),
        seq_len=whole(grid.seq_len),
        global_batch=whole(grid.global_batch),
        images=whole(grid.images),
        plan={name: whole(getattr(grid, name)) for name in NUMERIC}
        | {"recompute": out(np.array(RECOMPUTE, dtype=object)[grid.recompute.astype(int)])},
        precision=job.policy.name,
        software=job.style.name,
        step_time_s=out(result.step_s),
        tokens_per_s=out(step_tokens / result.step_s),
        tokens_per_s_per_device=out(step_tokens / result.step_s / grid.devices),
        flops_per_token=each({name: values / grid.seq_len for name, values in flops.items()}),
        mfu=each({name: values / available for name, values in flops.items()}),
        hfu=out((flops["exact"] + again) / available),
        peak_flops=peak,
        time=each(result.time),
        bounds=each(result.bounds),
        bottleneck=out(_largest_name(result.bounds)),
        memory=each(result.memory),
        memory_bytes=out(need),
        capacity_bytes=job.capacity,
        usable_bytes=job.usable,
        fits=out(need <= job.usable),
        verdict=verdict(job, grid, result) if shape == () else "",
        reasons=out(reasons),
        tokens=None if tokens is None else out(tokens),
        steps=None if steps is None else out(steps),
        train_time_s=None if seconds is None else out(seconds),
        days=None if seconds is None else out(seconds / 86400),
        device_hours=None if spent is None else spent.device_hours,
        cost_usd=None if spent is None else spent.usd,
        energy_kwh=None if spent is None else spent.energy_kwh,
        carbon_kg=None if spent is None else spent.carbon_kg,
        rates=charges,
        notes=notes(job),
        confidence=confidence(job),
    )


def _largest_name(parts: Mapping[str, Array]) -> NDArray[np.str_]:
    """Per element, the name of the largest part."""
    names = np.array(list(parts))
    largest: NDArray[np.str_] = names[np.argmax(np.stack([np.nan_to_num(v) for v in parts.values()]), axis=0)]
    return largest
