"""What one device holds while serving, and how many sequences that leaves room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfsim.models.counts import layer_cache_bytes, layer_state_bytes, weights_of
from tfsim.models.decoder import FIRST, LAST, Segment, segments
from tfsim.models.shape import Shape
from tfsim.models.stages import Stage
from tfsim.operators.core import kept_for_backward, total
from tfsim.serving.passes import over_stages
from tfsim.serving.plans import Plan
from tfsim.serving.workload import Engine, Load
from tfsim.units import Number, floor_div, maximum, minimum

LOGIT_BYTES = 4
PARTS = ("weights", "kv_cache", "workspace", "runtime_reserve")


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest device of a replica. ``kv_cache``: of all sequences at their full length;
    ``workspace``: activations of a prefill pass and fp32 logits for sampling; ``runtime_reserve``: driver, context and
    communication buffers; ``usable``: memory_utilization x ``capacity``; ``kv_bytes_per_sequence``: at full length, on
    that device."""

    weights: Number
    kv_cache: Number
    workspace: Number
    runtime_reserve: Number
    total: Number
    usable: Number
    capacity: Number
    kv_bytes_per_sequence: Number

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Footprint:
    """Bytes of one plan that do not depend on the batch, from which Memory and concurrency follow."""

    engine: Engine
    load: Load
    plan: Plan
    parts: tuple[Segment, ...]
    workspace: Number

    def weights(self, stage: Stage) -> Number:
        """Weights of a stage; a tied embedding is held once per device."""
        alone = [part for part in self.parts if part.name in (FIRST, LAST) and part.name in stage.counts]
        ends = total(weight.bytes for weight, _ in weights_of(alone))
        inner = (
            stage.counts[part.name] * total(weight.bytes for weight, _ in weights_of([part]))
            for part in self.parts
            if part.name not in (FIRST, LAST) and part.name in stage.counts
        )
        return ends + total(inner)

    def cache(self, stage: Stage) -> Number:
        """KV cache of one sequence at its full length, and its recurrent states."""
        model, tokens = self.engine.model, self.load.input_len + self.load.output_len
        dtype, tp = self.engine.dtype, self.plan.tp
        return total(
            n
            * (
                layer_cache_bytes(model, name, tokens=tokens, dtype=dtype, tp=tp)
                + layer_state_bytes(model, name, dtype=dtype, tp=tp)
            )
            for name, n in stage.counts.items()
            if name in model.blocks
        )

    def logits(self, stage: Stage) -> Number:
        """Logits of one sequence, gathered on one device for sampling."""
        return self.engine.model.vocab_size * LOGIT_BYTES if LAST in stage.counts else 0

    @property
    def reserve(self) -> Number:
        """Bytes of driver, context and communication buffers."""
        return int(self.engine.system.device.require("runtime_reserve_bytes"))

    @property
    def capacity(self) -> Number:
        """Bytes a program can address per device."""
        return int(self.engine.system.device.require("capacity_bytes"))

    @property
    def usable(self) -> Number:
        """Bytes the engine may use per device."""
        share = floor_div(self.capacity * self.engine.memory_utilization, 1)
        return int(share) if isinstance(share, float) else share

    def max_concurrency(self) -> Number:
        """Sequences that the fullest stage has room for, each at its full length (so none is ever evicted)."""

        def room(stage: Stage) -> Number:
            free = self.usable - self.weights(stage) - self.workspace - self.reserve
            return maximum(0, floor_div(free, self.cache(stage) + self.logits(stage)))

        return over_stages(self.engine.model, self.plan.pp, room, minimum)

    def memory(self, batch: Number) -> Memory:
        """Bytes on the fullest device with ``batch`` sequences."""
        model, pp = self.engine.model, self.plan.pp

        def needed(stage: Stage) -> Number:
            return self.weights(stage) + batch * (self.cache(stage) + self.logits(stage))

        fullest = over_stages(model, pp, needed)

        def there(value: Any) -> Number:
            return over_stages(model, pp, lambda stage: value(stage) * (needed(stage) >= fullest))

        weights, cache = there(self.weights), there(self.cache)
        workspace = fullest - weights - batch * cache + self.workspace
        return Memory(
            weights=weights,
            kv_cache=batch * cache,
            workspace=workspace,
            runtime_reserve=self.reserve,
            total=fullest + self.workspace + self.reserve,
            usable=self.usable,
            capacity=self.capacity,
            kv_bytes_per_sequence=cache,
        )


def footprint(engine: Engine, load: Load, plan: Plan) -> Footprint:
    """The Footprint of a plan.

    Workspace: two copies of the residual stream and the largest operator's input and output, for as many prompt tokens
    as one prefill pass takes. An estimate: engines measure it when they start.
    Raises: InputError when the device has no published capacity or reserve.
    """
    per_pass = minimum(engine.max_prefill_tokens, load.prompts_per_pass(engine) * load.input_len)
    images = load.images * load.prompts_per_pass(engine)
    shape = Shape(1, per_pass, causal="halved", logits="last", images=images, shards=plan.shards, style=engine.style)
    parts = segments(engine.model, shape)
    stream = per_pass * engine.model.d_model * engine.style.act
    # an operator's inputs, and its scores where attention is eager, are what it would keep for a backward pass
    live = (kept_for_backward([op]).bytes + op.output.bytes for part in parts for op in part.operators)
    largest = maximum(*live)
    return Footprint(engine, load, plan, parts, 2 * stream + largest)
