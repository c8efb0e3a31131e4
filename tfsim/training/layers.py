"""One layer (or end) of a model on one device: seconds, parameters and kept bytes, for arrays of shapes.

Distinct layer shapes are few, because pp, dp and the ZeRO stage do not change them: each is evaluated once, then
gathered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tfsim.hardware import System
from tfsim.models.decoder import Segment, segments
from tfsim.models.parts import MATRIX_GROUPS
from tfsim.models.shape import Shape, Shards
from tfsim.models.spec import ModelSpec
from tfsim.operators.backward import backward, recompute
from tfsim.operators.core import Operator, Style, kept_for_backward, total
from tfsim.software import Precision, Software
from tfsim.timing import Groups, exposed_dispatch, operator_time
from tfsim.timing.collectives import Group
from tfsim.training.plan import RECOMPUTE, Grid
from tfsim.units import Array, Number

LIMITS = ("compute", "memory", "launch")
NETWORKS = ("tp", "ep", "etp")


@dataclass(frozen=True)
class LayerCost:
    """What one micro-batch costs in one layer of a kind (or in the embedding or head), arrays over plans.

    ``kernels[phase][limit]``: seconds of kernels bound by compute, memory or launch; ``network[phase][group]``: exposed
    collectives; ``dense``/``expert``: parameters on one device, of which ``tied`` by name are those that other segments
    use too, and ``frozen`` (of either) those that are not learned; ``tensors``: how many tensors are learned;
    ``saved[mode]``: bytes kept per micro-batch; ``tables``: storages kept once per device however many layers use them;
    ``boundary``: bytes of the activation handed to the next layer.
    """

    kernels: dict[str, dict[str, Array]]
    network: dict[str, dict[str, Array]]
    dense: Array
    expert: Array
    tensors: Array
    tied: dict[str, Array]
    frozen: tuple[Array, Array]
    saved: dict[str, Array]
    tables: dict[str, Array]
    boundary: Array


def compute_spec(model: ModelSpec, policy: Precision) -> ModelSpec:
    """The model with its matmuls in the policy's formats: block matmuls in ``matmul``, all else in ``compute``."""
    formats = {} if policy.matmul == policy.compute else dict.fromkeys(MATRIX_GROUPS, policy.matmul)
    blocks = {name: block.model_copy(update={"formats": {}}) for name, block in model.blocks.items()}
    beside = {"encoder": model.encoder, "vision": model.vision}
    inner = {name: None if spec is None else compute_spec(spec, policy) for name, spec in beside.items()}
    return model.model_copy(update={"dtype": policy.compute, "formats": formats, "blocks": blocks, **inner})


def layer_costs(
    model: ModelSpec, system: System, grid: Grid, policy: Precision, style: Software
) -> tuple[dict[str, LayerCost], NDArray[np.intp]]:
    """LayerCost of every segment over the distinct layer shapes of ``grid``, and each plan's index into them."""
    keys = np.stack([grid.tp, grid.ep, grid.etp, grid.micro_batch, grid.seq_len, grid.images], axis=1)
    distinct, index = np.unique(keys, axis=0, return_inverse=True)
    tp, ep, etp, micro_batch, seq_len, images = distinct.T
    shards = Shards(tp=tp, ep=ep, etp=etp, sequence_parallel=True)
    operators = Style(policy.compute, style.pointwise, style.attention)
    # scores in memory are computed in full, and masked after
    causal: Literal["full", "halved"] = "halved" if style.attention == "fused" else "full"
    shape = Shape(micro_batch, seq_len, causal=causal, images=images, shards=shards, style=operators)
    groups = Groups({"tp": Group(tp, 1), "ep": Group(ep, etp), "etp": Group(etp, 1)})
    parts = segments(compute_spec(model, policy), shape, loss=True)
    costs = {part.name: _cost(part, shape, system, operators, style, groups) for part in parts}
    return costs, np.reshape(index, -1)


def _cost(
    part: Segment,
    shape: Shape,
    system: System,
    operators: Style,
    style: Software,
    groups: Groups,
) -> LayerCost:
    size = np.broadcast(shape.batch, shape.seq_len).shape
    forward = list(part.operators)
    phases: dict[str, list[Operator]] = {"forward": forward, "backward": backward(forward, operators)}
    for mode in RECOMPUTE:
        phases[f"recompute_{mode}"] = recompute(forward, mode) if part.layer else []
    kernels: dict[str, dict[str, Array]] = {}
    network: dict[str, dict[str, Array]] = {}
    for phase, ops in phases.items():
        kernels[phase], network[phase] = _phase(ops, system, style, groups, size)
    weights = [w for op in forward for w in op.weights]
    boundary = _full(part.stream.bytes, size)
    kept = {mode: kept_for_backward(forward, selective=mode == "selective") for mode in ("none", "selective")}
    saved = {mode: _full(what.bytes, size) for mode, what in kept.items()}
    saved["full"] = boundary if part.layer else saved["none"]
    return LayerCost(
        kernels,
        network,
        dense=_full(total(w.elements for w in weights if w.group != "moe_routed"), size),
        expert=_full(total(w.elements for w in weights if w.group == "moe_routed"), size),
        frozen=tuple(  # type: ignore[arg-type]
            _full(total(w.elements for w in weights if not w.trained and (w.group == "moe_routed") is expert), size)
            for expert in (False, True)
        ),
        tensors=_full(total(w.copies if w.group == "moe_routed" else 1 for w in weights if w.trained), size),
        tied={w.name: _full(w.elements, size) for w in weights if w.shared},
        saved=saved,
        tables={name: _full(tensor.bytes, size) for name, tensor in kept["none"].shared.items()},
        boundary=boundary,
    )


def _phase(
    ops: Iterable[Operator], system: System, style: Software, groups: Groups, size: tuple[int, ...]
) -> tuple[dict[str, Array], dict[str, Array]]:
    kernels = {limit: np.zeros(size) for limit in LIMITS}
    network = {name: np.zeros(size) for name in NETWORKS}
    launched = np.zeros(size)
    for op in ops:
        time = operator_time(op, system, style, groups)
        if op.comm is not None:
            network[op.comm.group] = network[op.comm.group] + time.network
            continue
        kernels["compute"] = kernels["compute"] + time.compute
        kernels["memory"] = kernels["memory"] + time.memory
        kernels["launch"] = kernels["launch"] + time.launch
        launched = launched + time.kernels
    busy: Array = sum(kernels.values(), np.zeros(size))
    kernels["launch"] = kernels["launch"] + exposed_dispatch(busy, launched, style)
    return kernels, network


def _full(x: Number, size: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.asarray(x, float), size)
