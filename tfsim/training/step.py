"""Step time and memory of training plans.

1F1B pipelines (Narayanan et al. 2021): with m micro-batches a step takes (m - 1) turns of the slowest stage plus one
turn through every stage. Gradients are synchronised after the last micro-batch (ZeRO-2 and 3: after every one, for
gradients are kept sharded; Rajbhandari et al. 2020) and hide behind the passes of as many micro-batches, all but one
layer's share; ZeRO-3 also gathers the weights of every layer for every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsim.hardware import System
from tfsim.models.decoder import FIRST, LAST
from tfsim.models.spec import VISION, ModelSpec
from tfsim.models.stages import Stage, stages
from tfsim.operators.core import total
from tfsim.operators.optimizer import optimizer_step
from tfsim.software import Precision, Software
from tfsim.timing import Groups, operator_time
from tfsim.timing.collectives import Group, collective_seconds
from tfsim.training.layers import LIMITS, LayerCost, layer_costs
from tfsim.training.plan import RECOMPUTE, Grid
from tfsim.units import Array

COMPUTE_PARTS = ("forward", "backward", "recompute", "image_tower")
TURN_PARTS = (*COMPUTE_PARTS, "tensor_parallel", "expert_parallel", "pipeline_transfer")
TIME_PARTS = (*TURN_PARTS, "pipeline_bubble", "data_parallel", "optimizer")
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "reserve")
NETWORK_PARTS = {"tp": "tensor_parallel", "ep": "expert_parallel", "etp": "expert_parallel"}
BOUNDS = ("compute", "memory", "launch", "network", "bubble")


@dataclass(frozen=True)
class Evaluated:
    """Arrays over plans. ``time``: seconds of a step by part, summing to ``step_s``; ``memory``: bytes of the fullest
    device by part; ``bounds``: the same seconds by what limits them; ``stage``: index of the fullest stage."""

    step_s: Array
    time: dict[str, Array]
    bounds: dict[str, Array]
    memory: dict[str, Array]
    stage: Array

    def map(self, change: Callable[[Array], Array]) -> Evaluated:
        """Every array changed alike."""
        return Evaluated(
            change(self.step_s),
            {name: change(values) for name, values in self.time.items()},
            {name: change(values) for name, values in self.bounds.items()},
            {name: change(values) for name, values in self.memory.items()},
            change(self.stage),
        )

    def select(self, chosen: NDArray[Any]) -> Evaluated:
        """The chosen elements."""
        return self.map(lambda values: values[chosen])


def evaluate(model: ModelSpec, system: System, grid: Grid, policy: Precision, style: Software) -> Evaluated:
    """Step time and memory of every plan of ``grid`` (plans must be possible).

    Raises InputError when the hardware profile lacks a figure that is needed.
    """
    costs, index = layer_costs(model, system, grid, policy, style)
    size = len(grid)
    time = {part: np.zeros(size) for part in TIME_PARTS}
    bounds = {part: np.zeros(size) for part in BOUNDS}
    memory = {part: np.zeros(size) for part in MEMORY_PARTS}
    stage = np.zeros(size)
    for pp in np.unique(grid.pp):
        here = np.nonzero(grid.pp == pp)[0]
        part = _one_depth(model, system, grid.select(here), policy, style, costs, index[here], int(pp))
        for target, source in ((time, part.time), (bounds, part.bounds), (memory, part.memory)):
            for name, values in source.items():
                target[name][here] = values
        stage[here] = part.stage
    return Evaluated(np.asarray(total(time.values()), float), time, bounds, memory, stage)


@dataclass(frozen=True)
class _Turn:
    """One micro-batch through one stage, forward and backward: seconds by part and by bound."""

    time: dict[str, Array]
    bounds: dict[str, Array]

    @property
    def seconds(self) -> Array:
        return np.asarray(total(self.time.values()), float)


def _one_depth(
    model: ModelSpec,
    system: System,
    grid: Grid,
    policy: Precision,
    style: Software,
    costs: dict[str, LayerCost],
    index: NDArray[np.intp],
    pp: int,
) -> Evaluated:
    kinds = stages(model, pp)
    turns = [_turn(stage, system, grid, costs, index, pp) for stage in kinds]
    seconds = np.stack([turn.seconds for turn in turns])
    slowest = np.argmax(seconds, axis=0)
    m = grid.n_micro_batches
    through = total(seconds[i] * stage.alike for i, stage in enumerate(kinds))
    time = {name: m * _pick(slowest, [turn.time[name] for turn in turns]) for name in turns[0].time}
    bounds = {name: m * _pick(slowest, [turn.bounds[name] for turn in turns]) for name in turns[0].bounds}
    bubble = np.maximum(through - seconds.max(axis=0), 0)
    syncs = [
        _synchronisation(stage, turn, system, grid, policy, style, costs, index)
        for stage, turn in zip(kinds, turns, strict=True)
    ]
    # stages synchronise side by side: the step waits for the longest
    worst = np.argmax(np.stack([s.data_parallel + s.optimizer for s in syncs]), axis=0)
    time |= {
        "pipeline_bubble": bubble,
        "data_parallel": _pick(worst, [s.data_parallel for s in syncs]),
        "optimizer": _pick(worst, [s.optimizer for s in syncs]),
    }
    bounds["bubble"] = bubble
    bounds["network"] = bounds["network"] + time["data_parallel"]
    bounds["memory"] = bounds["memory"] + time["optimizer"]
    held = [_memory(model, stage, system, grid, policy, costs, index, pp) for stage in kinds]
    fullest = np.argmax(np.stack([np.asarray(total(h.values()), float) for h in held]), axis=0)
    memory = {name: _pick(fullest, [h[name] for h in held]) for name in MEMORY_PARTS}
    return Evaluated(
        np.asarray(total(time.values()), float),
        time,
        bounds,
        memory,
        np.array([stage.index for stage in kinds], float)[fullest],
    )


def _pick(choice: NDArray[np.intp], options: list[Array]) -> Array:
    picked: Array = np.take_along_axis(np.stack(options), choice[None], axis=0)[0]
    return picked


def _turn(
    stage: Stage, system: System, grid: Grid, costs: dict[str, LayerCost], index: NDArray[np.intp], pp: int
) -> _Turn:
    zeros = np.zeros(len(grid))
    time = dict.fromkeys(TURN_PARTS, zeros)
    bounds = dict.fromkeys(BOUNDS, zeros)
    for name, repeat in stage.counts.items():
        cost = costs[name]
        for phase in ("forward", "backward", "recompute"):
            kernels = {limit: _of_phase(cost.kernels, phase, limit, grid, index) * repeat for limit in LIMITS}
            part = "image_tower" if name.startswith(VISION) else phase
            time[part] = time[part] + total(kernels.values())
            for limit, value in kernels.items():
                bounds[limit] = bounds[limit] + value
            for group, network in NETWORK_PARTS.items():
                moved = _of_phase(cost.network, phase, group, grid, index) * repeat
                time[network] = time[network] + moved
                bounds["network"] = bounds["network"] + moved
    if pp > 1:
        boundary = costs[FIRST].boundary[index]
        hop = collective_seconds("p2p", boundary, Group(grid.pp, grid.tp * grid.dp), system)
        time["pipeline_transfer"] = zeros + 2 * hop
        bounds["network"] = bounds["network"] + time["pipeline_transfer"]
    return _Turn(time, bounds)


def _of_phase(table: dict[str, dict[str, Array]], phase: str, name: str, grid: Grid, index: NDArray[np.intp]) -> Array:
    if phase != "recompute":
        return table[phase][name][index]
    modes = np.stack([table[f"recompute_{mode}"][name] for mode in RECOMPUTE])
    chosen: Array = modes[grid.recompute.astype(int), index]
    return chosen


@dataclass(frozen=True)
class _Sync:
    data_parallel: Array
    optimizer: Array


def _stage_parameters(stage: Stage, costs: dict[str, LayerCost], index: NDArray[np.intp]) -> tuple[Array, Array]:
    dense = total(costs[name].dense[index] * repeat for name, repeat in stage.counts.items())
    held: set[str] = set()
    for name in stage.counts:  # a tied embedding is held once where several of its uses are
        for weight, elements in costs[name].tied.items():
            dense = dense - (elements[index] if weight in held else 0)
            held.add(weight)
    expert = total(costs[name].expert[index] * repeat for name, repeat in stage.counts.items())
    return np.asarray(dense, float), np.asarray(expert, float)


def _learned_parameters(stage: Stage, costs: dict[str, LayerCost], index: NDArray[np.intp]) -> tuple[Array, Array]:
    """Those with gradients and optimizer states: all but what is frozen beside adapters."""
    held = _stage_parameters(stage, costs, index)
    frozen = [total(costs[name].frozen[i][index] * n for name, n in stage.counts.items()) for i in range(2)]
    return held[0] - frozen[0], held[1] - frozen[1]


def _synchronisation(
    stage: Stage,
    turn: _Turn,
    system: System,
    grid: Grid,
    policy: Precision,
    style: Software,
    costs: dict[str, LayerCost],
    index: NDArray[np.intp],
) -> _Sync:
    """Exposed gradient and weight traffic of data parallelism, and the optimizer's pass over its states."""
    dense, expert = _learned_parameters(stage, costs, index)
    sharded, gathered = grid.zero_stage >= 1, grid.zero_stage >= 3
    m = grid.n_micro_batches
    reduce, gather, reduce_all = np.zeros(len(grid)), np.zeros(len(grid)), np.zeros(len(grid))
    shard = np.zeros(len(grid))
    for count, replicas, stride in ((dense, grid.dp, grid.tp), (expert, grid.expert_dp, grid.ep * grid.etp)):
        group = Group(replicas, stride)
        reduce = reduce + collective_seconds("reduce_scatter", count * policy.gradients, group, system)
        gather = gather + collective_seconds("all_gather", count * policy.weights, group, system)
        reduce_all = reduce_all + collective_seconds("all_reduce", count * policy.gradients, group, system)
        shard = shard + count / np.where(sharded, replicas, 1)
    # sharded gradients (2, 3) are reduced after every micro-batch, gathered weights (3) before every pass
    every = np.where(grid.zero_stage >= 2, m, 1)
    piece = np.where(sharded, reduce + np.where(gathered, 2, 1) * gather, reduce_all)
    comm = np.where(sharded, every * reduce + np.where(gathered, 2 * m, 1) * gather, reduce_all)
    cover = every * total(turn.time[name] for name in COMPUTE_PARTS)
    n_pieces = max(1, total(stage.counts.values()))
    exposed = np.maximum(comm - cover, piece / n_pieces) if style.overlap else comm
    update = optimizer_step(
        shard, gradient=policy.gradients, master=policy.master, moments=policy.moments, weight=policy.weights,
        tensors=np.asarray(total(costs[name].tensors[index] * repeat for name, repeat in stage.counts.items()), float),
    )  # fmt: skip
    seconds = operator_time(update, system, style, Groups()).seconds
    return _Sync(np.asarray(exposed, float), np.asarray(seconds, float))


def _memory(
    model: ModelSpec,
    stage: Stage,
    system: System,
    grid: Grid,
    policy: Precision,
    costs: dict[str, LayerCost],
    index: NDArray[np.intp],
    pp: int,
) -> dict[str, Array]:
    """Bytes on one device of a stage, by part."""
    dense, expert = _stage_parameters(stage, costs, index)
    learned = _learned_parameters(stage, costs, index)
    z = grid.zero_stage

    def held(size: int, from_stage: int, of: tuple[Array, Array] = learned) -> Array:
        shares = (
            count / np.where(z >= from_stage, n, 1) for count, n in zip(of, (grid.dp, grid.expert_dp), strict=True)
        )
        return np.asarray(size * total(shares), float)

    in_flight = np.minimum(grid.n_micro_batches, pp - stage.index)
    modes = grid.recompute.astype(int)

    def saved(name: str) -> Array:
        kept_by_mode: Array = np.stack([costs[name].saved[mode] for mode in RECOMPUTE])[modes, index]
        return kept_by_mode

    layers = {name for stack in model.stacks for name in stack}
    blocks = [name for name in stage.counts if name in layers]
    kept = total(saved(name) * stage.counts[name] for name in stage.counts)
    tables = {name: table[index] for n in blocks for name, table in costs[n].tables.items()}
    # a layer under full recomputation comes back whole while it is differentiated
    again = np.where(
        grid.recompute == RECOMPUTE.index("full"), _largest([costs[n].saved["none"][index] for n in blocks]), 0
    )
    # ZeRO-3 holds two layers' gathered weights, the one that runs and the one prefetched, where there are two
    held_layers = min(2, total(stage.counts[n] for n in blocks))
    layer = _largest([costs[n].dense[index] + costs[n].expert[index] for n in blocks]) if blocks else 0 * dense
    whole = np.where((z >= 3) & (grid.dp > 1), held_layers * policy.weights * layer, 0)
    logits = _logits_gradient(model, grid, policy) if LAST in stage.counts else 0 * dense
    reserve = system.device.require("runtime_reserve_bytes")
    return {
        "weights": held(policy.weights, 3, (dense, expert)),
        "gradients": held(policy.gradients, 2),
        "optimizer": held(policy.master + policy.moments, 1),
        "activations": in_flight * np.asarray(kept, float),
        "workspace": again + whole + logits + total(tables.values()),
        "reserve": np.full(len(grid), float(reserve)),
    }


def _largest(options: list[Array]) -> Array:
    return np.max(np.stack(options), axis=0) if options else np.zeros(1)


def _logits_gradient(model: ModelSpec, grid: Grid, policy: Precision) -> Array:
    """The fp32 gradient of the logits, alive while the head is differentiated."""
    return grid.micro_batch * grid.seq_len * np.ceil(model.vocab_size / grid.tp) * 4
