"""Every kind of operator has a formula or is named here as one that takes the roofline; every formula has a kind."""

from __future__ import annotations

from tfsim.models.decoder import segments
from tfsim.models.load import list_models, load_model
from tfsim.models.shape import Shape
from tfsim.operators.backward import backward
from tfsim.operators.core import Style
from tfsim.timing import cpu_operators, kernels

# torch's own scans in eager code, and the choice of keys of sparse attention: no table measures them
ROOFLINE = {"scan", "index_scores"}
CPU_ROOFLINE = {"index_scores", "delta_rule", "linear_attention", "selective_scan", "state_space_dual"}


def kinds() -> set[str]:
    """Kinds of the operators of one model of each family, in eager and in fused code."""
    families = {model.family: model.name for model in list_models()}
    models = [load_model(name) for name in families.values()]
    found = {"optimizer"}  # of a step, not of a model
    for mode in ("eager", "fused"):
        style = Style("bf16", mode, mode)
        for model in models:
            for part in segments(model, Shape(1, 16, style=style), loss=True):
                ops = [*part.operators, *backward(part.operators, style)]
                found |= {op.kind for op in ops if op.comm is None}
            for part in segments(model, Shape(1, 1, past_len=16, phase="decode", style=style)):
                found |= {op.kind for op in part.operators if op.comm is None}
    return found


def test_every_kind_has_a_formula_and_every_formula_a_kind() -> None:
    found = kinds()
    assert found - set(kernels._FORMULAS) == ROOFLINE
    assert set(kernels._FORMULAS) <= found
    assert found - set(cpu_operators._FORMULAS) == CPU_ROOFLINE
    assert set(cpu_operators._FORMULAS) <= found
