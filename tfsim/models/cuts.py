"""Into how many parts a model can be cut: what tensor and expert parallelism must divide."""

from __future__ import annotations

from math import gcd
from typing import Any

from tfsim.models.spec import DenseFFN, ModelSpec, MoE
from tfsim.units import Number, maximum, minimum


def cut_faults(model: ModelSpec, *, tp: Number, ep: Number, etp: Number) -> list[tuple[Any, str]]:
    """Everything that can be wrong with cutting ``model`` so: (where it is wrong, in words with fields in braces).

    Heads and widths must divide evenly; KV heads may also be replicated (tp a multiple of them).
    """
    faults: list[tuple[Any, str]] = []
    for block in model.all_blocks.values():
        mixer, ffn = block.mixer, block.ffn
        if mixer is not None:
            parts = f"{mixer.n_parts} {mixer.part_names[0]}"
            whole = f"tp {{tp}}: a {mixer.kind} mixer is not cut by tensor parallelism"
            uneven = f"tp {{tp}} does not divide the {parts}"
            faults.append((mixer.n_parts % tp != 0, whole if mixer.n_parts == 1 else uneven))
        if mixer is not None and mixer.n_kv_parts is not None:
            kv = mixer.n_kv_parts
            apart = maximum(kv, tp) % minimum(kv, tp) != 0
            faults.append((apart, f"tp {{tp}} neither divides nor is a multiple of the {kv} {mixer.part_names[1]}"))
        if isinstance(ffn, DenseFFN):
            faults.append((ffn.d_ff % tp != 0, f"tp {{tp}} does not divide d_ff {ffn.d_ff}"))
        elif isinstance(ffn, MoE):
            faults.append((ffn.n_experts % ep != 0, f"ep {{ep}} does not divide the {ffn.n_experts} experts"))
            faults.append((ffn.d_ff % etp != 0, f"{{etp}} ways do not divide the expert width {ffn.d_ff}"))
    if expert_count(model) is None:
        faults.append((ep > 1, "ep {ep}: the model has no experts to spread"))
    return faults


def head_count(model: ModelSpec) -> int:
    """The parts every mixer of the model can be cut into: the greatest common divisor of their heads."""
    return gcd(*(block.mixer.n_parts for block in model.all_blocks.values() if block.mixer is not None))


def expert_count(model: ModelSpec) -> int | None:
    """The greatest common divisor of the expert counts; None without experts."""
    counts = [block.ffn.n_experts for block in model.all_blocks.values() if isinstance(block.ffn, MoE)]
    return gcd(*counts) if counts else None
