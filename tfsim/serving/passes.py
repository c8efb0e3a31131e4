"""The time of one forward pass of one replica: each operator once, then sums over layers and pipeline stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfsim.models.decoder import segments
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec
from tfsim.models.stages import Stage, stages
from tfsim.operators.core import total
from tfsim.serving.plans import Plan
from tfsim.serving.workload import Engine
from tfsim.timing import exposed_dispatch, operator_time
from tfsim.timing.collectives import collective_seconds
from tfsim.units import Number, maximum, minimum, where

LIMITS = ("compute", "memory", "network", "launch")
HOP, DISPATCH = "pipeline_hop", "host_dispatch"


@dataclass(frozen=True)
class PassTime:
    """Seconds of one pass: ``limits``: by what bounds each operator; ``operators``: by operator name,
    and what they wait for the host; ``heaviest``: of
    the slowest pipeline stage (the whole pass without a pipeline). Hops between stages count as network."""

    limits: dict[str, Number]
    operators: dict[str, Number]
    heaviest: Number

    @property
    def seconds(self) -> Number:
        """From the first stage to the last."""
        return total(self.limits.values())


def pass_time(engine: Engine, plan: Plan, shape: Shape) -> PassTime:
    """Time of one pass of ``shape`` through all stages of a replica.

    Raises: InputError when the hardware profile lacks a figure that the pass needs.
    """
    limits: dict[str, Number] = dict.fromkeys(LIMITS, 0)
    operators: dict[str, Number] = {}
    each: dict[str, Number] = {}  # an image tower is not among them while it rests
    for part in segments(engine.model, shape):
        busy: Number = 0
        kernels: Number = 0
        for op in part.operators:
            time = operator_time(op, engine.system, engine.software, plan.groups, recorded=False)
            for name in LIMITS:
                limits[name] = limits[name] + getattr(time, name) * part.repeat
            operators[op.name] = operators.get(op.name, 0) + time.seconds * part.repeat
            busy, kernels = busy + time.seconds, kernels + time.kernels
        waiting = exposed_dispatch(busy, kernels, engine.software)
        limits["launch"] = limits["launch"] + waiting * part.repeat
        operators[DISPATCH] = operators.get(DISPATCH, 0) + waiting * part.repeat
        each[part.name] = busy + waiting
    hop = _hop_seconds(engine, plan, shape)
    limits["network"] = limits["network"] + hop * (plan.pp - 1)
    operators[HOP] = hop * (plan.pp - 1)
    heaviest = over_stages(
        engine.model, plan.pp, lambda stage: total(n * each.get(name, 0) for name, n in stage.counts.items())
    )
    return PassTime(limits, operators, heaviest + hop)


def _hop_seconds(engine: Engine, plan: Plan, shape: Shape) -> Number:
    """Handing the activations of a pass to the next stage; 0 without a pipeline."""
    message = shape.tokens * engine.model.d_model * shape.style.act
    return collective_seconds("p2p", message, plan.groups.of("pp"), engine.system)


def over_stages(
    model: ModelSpec, pp: Number, value: Callable[[Stage], Number], largest: Callable[..., Number] = maximum
) -> Number:
    """The largest (or by ``largest`` the smallest) ``value`` among the pipeline stages, for each of ``pp``."""
    cut = minimum(pp, model.n_layers)
    if isinstance(cut, int | float):
        return largest(*(value(stage) for stage in stages(model, int(cut))))
    found: Number = 0
    for degree in np.unique(cut):
        found = where(cut == degree, largest(*(value(stage) for stage in stages(model, int(degree)))), found)
    return found
