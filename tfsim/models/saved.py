"""What a pass keeps for its backward pass, by layer and in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfsim.models.decoder import FIRST, Segment
from tfsim.models.evoformer import given_bytes
from tfsim.models.spec import AlignmentFrontend, ModelSpec
from tfsim.operators.core import Tensor, kept_for_backward, total
from tfsim.units import Number


def last_period(layers: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest run of layers that repeats at the end of the pattern; all layers when nothing repeats."""
    for period in range(1, len(layers) // 2 + 1):
        if layers[-period:] == layers[-2 * period : -period]:
            return layers[-period:]
    return layers


def _mean(values: list[Number]) -> Number:
    whole, n = total(values), len(values)
    return whole // n if isinstance(whole, int) and whole % n == 0 else whole / n


@dataclass(frozen=True)
class Saved:
    """Bytes kept for the backward pass: ``by_block`` per layer of each kind, ``fixed`` the rest of the total (below 0
    where the first layer reads data, which is no activation: a checkpointed Evoformer); ``per_layer``: the slope in
    depth, of one layer in each stack."""

    by_block: dict[str, Number]
    fixed: Number
    per_layer: Number
    total: Number


def saved_activations(spec: ModelSpec, parts: Sequence[Segment], recompute: str) -> Saved:
    """Saved bytes per block kind and in all. With ``full`` recomputation a block keeps only its input."""
    by_block: dict[str, Number] = {}
    shared: dict[str, Tensor] = {}
    ends: Number = 0
    for part in parts:
        kept = kept_for_backward(part.operators, selective=recompute == "selective")
        if not part.layer:
            ends = ends + kept.bytes
            if recompute == "full":
                ends = ends - _not_kept(spec, part)
        elif recompute == "full":
            by_block[part.name] = part.stream.bytes
            shared |= {t.name: t for t in part.given}
        else:
            by_block[part.name] = kept.bytes
            shared |= kept.shared
    fixed = ends + total(t.bytes for t in shared.values())
    if isinstance(spec.frontend, AlignmentFrontend):
        first = next(part for part in parts if part.name == spec.layer_blocks[0])
        fixed = fixed - given_bytes(first.operators, first.stream, recompute)
    ran = [stack for stack in spec.stacks if stack[0] in by_block]  # encoders and towers rest while decoding
    per_layer = total(_mean([by_block[name] for name in last_period(stack)]) for stack in ran)
    whole = fixed + total(by_block[name] for stack in ran for name in stack)
    return Saved(by_block, fixed, per_layer, whole)


def _not_kept(spec: ModelSpec, part: Segment) -> Number:
    """What an end need not keep when the first layer runs again from its input: a norm or relative biases that it makes
    itself, and the width by which an fp32 stream is wider than the embedding that starts it."""
    names = ("relative_bias", "embedding_norm") if spec.embedding_norm_in_layer else ("relative_bias",)
    bytes_ = kept_for_backward(op for op in part.operators if op.name in names).bytes
    if part.name == FIRST and spec.residual_fp32:
        bytes_ = bytes_ + part.stream.bytes - part.operators[-1].output.bytes
    return bytes_
