"""How a model is spread for serving, as numbers or arrays; and which plans cannot be.

A replica takes tp x pp devices; the devices left hold further replicas, which share nothing (data parallelism). Experts
may be spread over the tensor-parallel devices of a replica: ep divides tp, and each expert is cut tp / ep ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsim.errors import InputError, choice, quote
from tfsim.hardware import System
from tfsim.models.cuts import cut_faults, expert_count, head_count
from tfsim.models.shape import Shards
from tfsim.models.spec import ModelSpec
from tfsim.serving.workload import whole
from tfsim.timing import Groups
from tfsim.timing.collectives import Group
from tfsim.units import Number, floor_div, maximum, where

FIELDS = ("tp", "pp", "ep")
LARGEST_PP = 64


@dataclass(frozen=True)
class Plan:
    """Tensor, pipeline and expert parallel degrees."""

    tp: Number = 1
    pp: Number = 1
    ep: Number = 1

    @property
    def devices(self) -> Number:
        """Devices of one replica."""
        return self.tp * self.pp

    @property
    def etp(self) -> Number:
        """Ways each expert is cut (1 as well where ep does not divide tp: such a plan is refused)."""
        return maximum(1, floor_div(self.tp, self.ep))

    @property
    def shards(self) -> Shards:
        """As the models room takes it."""
        return Shards(tp=self.tp, ep=self.ep, etp=self.etp)

    @property
    def groups(self) -> Groups:
        """As the timing room takes it."""
        stride = where(self.pp > 1, self.tp, 1)
        return Groups({"tp": Group(self.tp, 1), "ep": Group(self.ep, 1), "pp": Group(self.pp, stride)})


def read_plan(plan: Any) -> Plan:
    """A Plan from a mapping with any of tp, pp, ep. Raises InputError."""
    if not isinstance(plan, Mapping):
        raise InputError(f"plan: {quote(plan)} is not 'auto' or a mapping of {', '.join(FIELDS)}")
    for key in plan:
        choice("plan field", key, FIELDS)
    return Plan(**{key: whole(value, f"plan.{key}") for key, value in plan.items()})


def plan_faults(model: ModelSpec, system: System, devices: Number, plan: Plan) -> list[tuple[Any, str]]:
    """Everything that can be wrong with a plan: (where it is wrong, in words with the plan's fields in braces)."""
    limit = system.most_devices
    faults: list[tuple[Any, str]] = [
        (plan.devices > devices, "tp {tp} x pp {pp} needs more than the {devices} devices"),
        (devices % plan.devices != 0, "{devices} devices are not a multiple of tp {tp} x pp {pp}"),
        (plan.pp > model.n_layers, f"pp {{pp}} is more than the {model.n_layers} layers"),
        (plan.tp % plan.ep != 0, "ep {ep} does not divide tp {tp}"),
    ]
    if limit is not None:
        faults.append((devices > limit, f"{system.name} joins at most {limit:,} devices, not {{devices}}"))
    return faults + cut_faults(model, tp=plan.tp, ep=plan.ep, etp=plan.etp)


def candidates(model: ModelSpec, system: System, devices: Number) -> Plan:
    """Every sensible plan for any of ``devices``, as arrays ordered by devices per replica, then pp.

    tp: divisors of the heads inside the innermost network domain; pp: divisors of a device count, up to 64; ep: 1
    or tp. A replica stays inside the network levels whose figures are published.
    """
    levels = system.levels
    counts = [int(n) for n in np.unique(np.asarray(devices, float))]
    heads = head_count(model)
    domain = min([max(counts), heads, *([levels[0].size or max(counts)] if levels else [1])])
    most = min(max(counts), model.n_layers, LARGEST_PP) if levels else 1
    tps = [d for d in range(1, domain + 1) if heads % d == 0]
    pps = [d for d in range(1, most + 1) if any(n % d == 0 for n in counts)]
    sparse = expert_count(model) is not None
    rows = {(tp, pp, ep) for tp in tps for pp in pps for ep in ((1, tp) if sparse else (1,))}
    sizes = {tp * pp for tp, pp, _ in rows if tp * pp <= max(counts)}
    joined = {size for size in sizes if _joins(system, size)}
    ordered = sorted(rows, key=lambda row: (row[0] * row[1], row[1], row[2]))
    return Plan(*np.array([row for row in ordered if row[0] * row[1] in joined], dtype=np.float64).T)


def _joins(system: System, size: int) -> bool:
    """Whether the system holds so many devices and the figures of the network between them are published."""
    try:
        system.levels_for(size)
    except InputError:
        return False
    return True


def possible(model: ModelSpec, system: System, devices: Number, plan: Plan) -> NDArray[np.bool_]:
    """Where a plan has no fault."""
    wrong: Any = np.zeros((), dtype=bool)
    for bad, _ in plan_faults(model, system, devices, plan):
        wrong = wrong | np.asarray(bad)
    return np.asarray(~wrong)
