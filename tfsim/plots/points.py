"""The operators of an estimate as points of a roofline: what they do per byte, and how fast they do it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfsim.hardware import System
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape, Shards
from tfsim.models.spec import ModelSpec
from tfsim.operators.backward import backward
from tfsim.operators.core import Operator, Style
from tfsim.scenario import ServingAnswer, ServingQuestion, TrainingAnswer
from tfsim.serving.plans import Plan
from tfsim.serving.workload import make_engine
from tfsim.software import Software, precision, software
from tfsim.timing import Groups, operator_time
from tfsim.timing.collectives import Group
from tfsim.training.layers import compute_spec
from tfsim.units import ceil_div

ELEMENTWISE = "norms, rotary, elementwise"
COMPONENTS = {
    "attn_proj": "attention projections",
    "attn_core": "attention",
    "ffn": "feed-forward",
    "moe_experts": "experts",
    "moe_shared": "shared expert",
    "router": "router",
    "head": "output head",
}


@dataclass(frozen=True)
class Point:
    """One operator on one device. ``intensity``: FLOPs per byte of memory traffic; ``flop_per_s``: achieved;
    ``seconds``: all its copies together; ``rate``: number format of its matrices, empty for elementwise work."""

    name: str
    component: str
    phase: str
    intensity: float
    flop_per_s: float
    seconds: float
    rate: str


def training_points(model: ModelSpec, answer: TrainingAnswer) -> list[Point]:
    """Forward and backward operators of one micro-batch on one device."""
    e = answer.estimate
    policy, style = precision(e.precision), software(e.software)
    operators = Style(policy.compute, style.pointwise, style.attention)
    tp, ep, etp = (int(e.plan[name]) for name in ("tp", "ep", "etp"))
    shards = Shards(tp=tp, ep=ep, etp=etp, sequence_parallel=True)
    shape = Shape(int(e.plan["micro_batch"]), int(e.seq_len), causal="halved", shards=shards, style=operators)
    groups = Groups({"tp": Group(tp, 1), "ep": Group(ep, etp)})
    found: list[Point] = []
    for part in segments(compute_spec(model, policy), shape, loss=True):
        passes = {"forward": list(part.operators), "backward": backward(part.operators, operators)}
        for phase, ops in passes.items():
            found += _points(ops, phase, part.repeat, answer.system, style, groups)
    return found


def serving_points(model: ModelSpec, question: ServingQuestion, answer: ServingAnswer) -> list[Point]:
    """Operators of one prompt's prefill and of one decode step on one device."""
    e = answer.estimate
    named = ("dtype", "weights_dtype", "kv_dtype", "memory_utilization", "max_batch", "max_prefill_tokens")
    asked: dict[str, Any] = {key: getattr(question, key) for key in named}
    engine = make_engine(model, answer.system, **asked, software_name=question.software)
    plan = Plan(int(e.tp), int(e.pp), int(e.ep))
    sequences = int(ceil_div(e.batch, min(plan.pp, e.batch)))  # a pipeline decodes in micro-batches
    context = int(e.input_len) + int(e.output_len) // 2
    how: dict[str, Any] = {"shards": plan.shards, "style": engine.style}
    shapes = {
        "prefill": Shape(1, int(e.input_len), causal="halved", logits="last", **how),
        "decode": Shape(sequences, 1, context, phase="decode", **how),
    }
    return [
        point
        for phase, shape in shapes.items()
        for part in segments(engine.model, shape)
        for point in _points(part.operators, phase, part.repeat, answer.system, engine.software, plan.groups)
    ]


def _points(
    ops: Iterable[Operator], phase: str, repeat: int, system: System, style: Software, groups: Groups
) -> list[Point]:
    found = []
    for op in ops:
        work, moved = float(op.flops or op.vector_flops), float(op.bytes_moved)
        if op.comm is not None or work <= 0 or moved <= 0:
            continue
        seconds = float(operator_time(op, system, style, groups).seconds)
        component = COMPONENTS.get(op.component, ELEMENTWISE) if op.flops else ELEMENTWISE
        rate = op.rate if op.flops else ""
        found.append(Point(op.name, component, phase, work / moved, work / seconds, seconds * repeat, rate))
    return found
