"""Parallel plans as arrays, and why a plan cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsim.errors import InputError, choice, quote
from tfsim.hardware import System
from tfsim.models.cuts import cut_faults
from tfsim.models.spec import ModelSpec
from tfsim.units import Array, as_number

RECOMPUTE = ("none", "selective", "full")
NUMERIC = ("tp", "pp", "dp", "ep", "etp", "micro_batch", "zero_stage")
PLAN_FIELDS = (*NUMERIC, "recompute")


@dataclass(frozen=True)
class Grid:
    """Jobs and plans, one per element of equally long arrays.

    ``devices`` = tp x pp x dp; ``ep`` and ``etp`` cut the experts over the same tp x dp devices; ``global_batch`` and
    ``micro_batch`` in sequences (micro_batch per data-parallel rank); ``images`` per sequence;
    ``recompute``: index into RECOMPUTE.
    """

    devices: Array
    seq_len: Array
    global_batch: Array
    images: Array
    tp: Array
    pp: Array
    dp: Array
    ep: Array
    etp: Array
    micro_batch: Array
    zero_stage: Array
    recompute: Array

    def __len__(self) -> int:
        return int(self.tp.size)

    def select(self, chosen: NDArray[Any]) -> Grid:
        """The chosen elements."""
        return Grid(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    @staticmethod
    def join(grids: Sequence[Grid]) -> Grid:
        """Grids one after the other."""
        return Grid(*(np.concatenate([getattr(grid, f.name) for grid in grids]) for f in fields(Grid)))

    @property
    def n_micro_batches(self) -> Array:
        """Micro-batches per step and data-parallel rank."""
        return self.global_batch / (self.dp * self.micro_batch)

    @property
    def expert_dp(self) -> Array:
        """Replicas of each expert."""
        return self.tp * self.dp / (self.ep * self.etp)


def plan_fields(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The fields a user gave, checked. Raises InputError for an unknown field or a value that cannot be."""
    for key in plan:
        choice("plan field", key, PLAN_FIELDS)
    given: dict[str, Any] = {}
    for key, value in plan.items():
        if key == "recompute":
            words = [value] if isinstance(value, str) else value
            if not isinstance(words, list | tuple) or not words:
                raise InputError(f"plan.recompute: {quote(value)} is not one of {', '.join(RECOMPUTE)}")
            modes = [float(RECOMPUTE.index(choice("plan.recompute", word, RECOMPUTE))) for word in words]
            given[key] = modes[0] if isinstance(value, str) else np.array(modes)
        else:
            least = 0 if key == "zero_stage" else 1
            given[key] = as_number(value, f"plan.{key}", at_least=least, whole=True)
    return given


def make_grid(
    devices: Any, seq_len: Any, global_batch: Any, images: Any, plan: Mapping[str, Any]
) -> tuple[Grid, tuple[int, ...]]:
    """Broadcast a job and a plan into a Grid; also the shape to give results back in.

    Defaults: one device per dimension, dp = what is left of the devices, micro-batches of one sequence, optimizer
    states sharded (zero_stage 1), no recomputation, experts cut like everything else unless spread (etp 1).
    Raises InputError for malformed fields.
    """
    given = plan_fields(plan)
    tp, pp, ep = (given.get(key, 1) for key in ("tp", "pp", "ep"))
    dp = given.get("dp")
    if dp is None:
        dp = np.maximum(1, np.floor(np.asarray(devices, float) / (np.asarray(tp, float) * np.asarray(pp, float))))
    etp = given.get("etp")
    if etp is None:
        etp = np.where(np.asarray(ep, float) > 1, 1.0, np.asarray(tp, float))
    columns = np.broadcast_arrays(
        *(
            np.asarray(x, float)
            for x in (
                devices,
                seq_len,
                global_batch,
                images,
                tp,
                pp,
                dp,
                ep,
                etp,
                given.get("micro_batch", 1),
                given.get("zero_stage", 1),
                given.get("recompute", 0),
            )
        )
    )
    shape = columns[0].shape
    return Grid(*(np.ravel(c).astype(float) for c in columns)), shape


def impossible(model: ModelSpec, grid: Grid, system: System) -> NDArray[np.object_]:
    """Per plan, the first reason it cannot run, or an empty string."""
    reasons = np.full(len(grid), "", dtype=object)

    def refuse(bad: NDArray[np.bool_], words: str) -> None:
        for i in np.nonzero(bad & (reasons == ""))[0]:
            values = {f.name: f"{getattr(grid, f.name)[i]:,.0f}" for f in fields(grid)}
            reasons[i] = words.format(**values)

    most = system.most_devices
    if most is not None:
        refuse(grid.devices > most, f"{system.name} joins at most {most:,} devices, not {{devices}}")
    whole = grid.tp * grid.pp * grid.dp == grid.devices
    refuse(~whole, "tp {tp} x pp {pp} x dp {dp} is not the {devices} devices")
    refuse(grid.pp > len(model.all_layers), f"pp {{pp}} is more than the {len(model.all_layers)} layers")
    refuse(
        (grid.global_batch % (grid.dp * grid.micro_batch)) != 0,
        "global_batch {global_batch} is not a multiple of dp {dp} x micro_batch {micro_batch}",
    )
    refuse(grid.zero_stage > 3, "zero_stage {zero_stage} is not 0, 1, 2 or 3")
    for bad, words in cut_faults(model, tp=grid.tp, ep=grid.ep, etp=grid.etp):
        refuse(np.asarray(bad), words)
    spread = (grid.tp * grid.dp) % (grid.ep * grid.etp) != 0
    refuse(spread, "ep {ep} x etp {etp} does not divide tp {tp} x dp {dp}")
    return reasons


def first_reason(reasons: NDArray[np.object_]) -> None:
    """Raise InputError with the only plan's reason, when it has one."""
    if reasons.size == 1 and reasons[0]:
        raise InputError(f"impossible plan: {reasons[0]}")
