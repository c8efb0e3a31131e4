"""How a model tells positions apart, in words, and how far that reaches."""

from __future__ import annotations

from tfsim.models.spec import ModelSpec
from tfsim.models.spec.base import Rope, RopeScaling


def describe_positions(model: ModelSpec) -> str:
    """Every scheme of the model's own stack: "RoPE of base 500,000, llama3 x 8 from 8,192 trained tokens".

    Tables end where their rows do (learned); computed ones (sinusoidal, RoPE, ALiBi, relative biases) have no end of
    their own: there what the model was trained for, ``max_seq_len``, is the limit.
    """
    schemes = []
    if model.positions is not None:
        kind = "fixed table" if model.positions.frozen else "learned table"
        schemes.append(f"{kind}, ends at {model.positions.n_positions:,} rows")
    if model.sinusoidal:
        schemes.append("sinusoidal (Vaswani et al. 2017), computed")
    if model.relative_positions is not None:
        relative = model.relative_positions
        schemes.append(f"relative {relative.kind}, {relative.n_buckets:,} distances (farther ones share the last)")
    mixers = [block.mixer for block in model.blocks.values() if block.mixer is not None]
    ropes = dict.fromkeys(rope for mixer in mixers if (rope := getattr(mixer, "rope", None)) is not None)
    schemes += [_rope(rope) for rope in ropes]
    if any(getattr(mixer, "alibi", False) for mixer in mixers):
        schemes.append("ALiBi (Press et al. 2022): a slope per head, computed")
    return "; ".join(schemes) or "none: order comes from a recurrence, the mask or the input"


def _rope(rope: Rope) -> str:
    part = "" if rope.rotary_dim is None else f" of {rope.rotary_dim} dimensions"
    return f"RoPE{part}, base {rope.theta:,.0f}" + ("" if rope.scaling is None else _scaling(rope.scaling))


def _scaling(scaling: RopeScaling) -> str:
    factor = "" if scaling.factor is None else f" x {scaling.factor:g}"
    trained = scaling.original_max_seq_len
    return f", {scaling.kind}{factor}" + ("" if trained is None else f" from {trained:,} trained tokens")
