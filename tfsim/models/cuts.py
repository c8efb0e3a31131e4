"""Into how many parts a model can be cut: what tensor and expert parallelism must divide."""

from __future__ import annotations

from typing import Any

from tfsim.models.spec import MLA, DenseFFN, ModelSpec
from tfsim.units import Number, maximum, minimum


def cut_faults(model: ModelSpec, *, tp: Number, ep: Number, etp: Number) -> list[tuple[Any, str]]:
    """Everything that can be wrong with cutting ``model`` so: (where it is wrong, in words with fields in braces).

    Heads and widths must divide evenly; KV heads may also be replicated (tp a multiple of them).
    """
    faults: list[tuple[Any, str]] = []
    for block in model.blocks.values():
        mixer, ffn = block.mixer, block.ffn
        faults.append((mixer.n_heads % tp != 0, f"tp {{tp}} does not divide the {mixer.n_heads} attention heads"))
        if not isinstance(mixer, MLA):
            kv = mixer.n_kv_heads
            apart = maximum(kv, tp) % minimum(kv, tp) != 0
            faults.append((apart, f"tp {{tp}} neither divides nor is a multiple of the {kv} KV heads"))
        if isinstance(ffn, DenseFFN):
            faults.append((ffn.d_ff % tp != 0, f"tp {{tp}} does not divide d_ff {ffn.d_ff}"))
        else:
            faults.append((ffn.n_experts % ep != 0, f"ep {{ep}} does not divide the {ffn.n_experts} experts"))
            faults.append((ffn.d_ff % etp != 0, f"{{etp}} ways do not divide the expert width {ffn.d_ff}"))
    if all(isinstance(block.ffn, DenseFFN) for block in model.blocks.values()):
        faults.append((ep > 1, "ep {ep}: the model has no experts to spread"))
    return faults
