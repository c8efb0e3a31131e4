"""Low-rank adapters (Hu et al. 2021, LoRA, equation 3): y = W x + s B A x, where W is frozen and A, B are learned."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tfsim.operators.core import Operator, Style, activation
from tfsim.operators.elementwise import pointwise
from tfsim.operators.matmul import linear


def adapted(operators: Iterable[Operator], rank: int, targets: Collection[str], style: Style) -> list[Operator]:
    """The operators with their own matrices frozen (a shared one stays as it is), and adapters of ``rank`` beside those
    whose names are in ``targets``. A frozen matrix has no gradient, so that its input need not be kept."""
    found: list[Operator] = []
    for op in operators:
        base = _frozen(op)
        found.append(base)
        if op.name in targets:
            found += _adapter(op, rank, style)
    return found


def _frozen(op: Operator) -> Operator:
    if op.kind not in ("matmul", "grouped_matmul") or not op.weights or op.weights[0].shared:
        return op
    return replace(op, weights=tuple(replace(w, trained=False) for w in op.weights), saves=())


def _adapter(op: Operator, rank: int, style: Style) -> list[Operator]:
    """A x, B (A x), and the addition to W x of what that is scaled to."""
    matrix = op.weights[0]
    tokens, n, k = (op.dims[name] for name in ("m", "n", "k"))
    of = {"tokens": tokens, "style": style, "group": matrix.group, "component": op.component, "fmt": matrix.fmt}
    down = linear(f"{op.name}.lora_a", op.saves[0], n=rank, k=k, **of)  # type: ignore[arg-type]
    up = linear(f"{op.name}.lora_b", down.output, n=n, k=rank, **of)  # type: ignore[arg-type]
    out = activation(op.output.name, op.output.elements, style)
    passes = 2 if style.eager else 1
    joined = pointwise(
        f"{op.name}.adapted", "pointwise", out, vector_flops=2 * out.elements, inputs=2, passes=passes, style=style
    )
    return [down, up, joined]
