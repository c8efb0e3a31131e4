"""One replica under steady load: prefill and decode passes interleaved (continuous batching).

A replica always holds ``batch`` sequences. While one of them generates its ``output_len`` tokens, all of them do: the
period is output_len - 1 decode steps (the first token comes out of the prefill) plus one prefill for each of the
``batch`` sequences, and it yields batch x output_len tokens (Orca, Yu et al. 2022, gives the scheduling). Prompts share
prefill passes of up to max_prefill_tokens. Steps are timed at the average context, input_len + output_len / 2.

In a pipeline of pp stages the sequences form up to pp micro-batches, one in each stage: a step takes the longer of one
micro-batch's way through all stages and all micro-batches' turns in the slowest stage. Prefills then cost the slowest
stage's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfsim.models.shape import Shape
from tfsim.serving.memory import Memory, footprint
from tfsim.serving.passes import PassTime, pass_time
from tfsim.serving.plans import Plan
from tfsim.serving.workload import Engine, Load
from tfsim.units import Number, ceil_div, floor_div, maximum, minimum, where


@dataclass(frozen=True)
class Steady:
    """What ``steady`` finds. ``prefill``: the pass of one prompt on an idle replica; ``decode``: the pass of one
    micro-batch; ``step_s``: until every sequence has its next token; ``wait_s``: the part of it spent waiting for the
    slowest pipeline stage; ``prefill_share_s``: engine time per prompt under load; ``period_s``: in which a replica
    completes ``batch`` requests."""

    batch: Number
    max_concurrency: Number
    memory: Memory
    prefill: PassTime
    decode: PassTime
    step_s: Number
    wait_s: Number
    prefill_share_s: Number
    period_s: Number


def prefill_pass(engine: Engine, plan: Plan, load: Load, prompts: Number) -> PassTime:
    """The pass that reads ``prompts`` whole prompts, their images first: causal attention as executed, logits of the
    last token only."""
    how: dict[str, Any] = {"causal": "halved", "logits": "last", "shards": plan.shards, "style": engine.style}
    return pass_time(engine, plan, Shape(prompts, load.input_len, images=load.images, **how))


def decode_pass(engine: Engine, plan: Plan, context: Number, sequences: Number) -> PassTime:
    """The pass that gives each of ``sequences`` one token after ``context`` cached ones."""
    shape = Shape(sequences, 1, context, phase="decode", shards=plan.shards, style=engine.style)
    return pass_time(engine, plan, shape)


def steady(engine: Engine, load: Load, plan: Plan) -> Steady:
    """Memory, prefill, decode step and period of one replica; arrays broadcast.

    Where nothing fits the batch counts as 1: the caller masks those times.
    Raises: InputError when the hardware profile lacks a figure.
    """
    held = footprint(engine, load, plan)
    room = held.max_concurrency()
    batch = load.batch if load.batch is not None else maximum(1, minimum(room, engine.max_batch))
    each = ceil_div(batch, minimum(plan.pp, batch))
    in_flight = ceil_div(batch, each)  # five sequences in four stages are three micro-batches of two, not four
    decode = decode_pass(engine, plan, load.input_len + floor_div(load.output_len, 2), each)
    wait = where(in_flight > 1, maximum(0, in_flight * decode.heaviest - decode.seconds), 0)
    step = decode.seconds + wait
    together = minimum(load.prompts_per_pass(engine), batch)
    share = prefill_pass(engine, plan, load, together).heaviest / together
    return Steady(
        batch=batch,
        max_concurrency=room,
        memory=held.memory(batch),
        prefill=prefill_pass(engine, plan, load, 1),
        decode=decode,
        step_s=step,
        wait_s=wait,
        prefill_share_s=share,
        # a first token takes as long as any other, even where few prefills fill the gaps of a pipeline
        period_s=(load.output_len - 1) * step + maximum(step, batch * share),
    )
