"""Feed-forward networks: dense and gated; sparse ones are in ``experts``."""

from __future__ import annotations

from tfsim.models.parts import BlockContext
from tfsim.models.spec import DenseFFN
from tfsim.operators.core import Operator, Tensor
from tfsim.operators.elementwise import activate, gate
from tfsim.operators.matmul import linear
from tfsim.units import Number, ceil_div


def mlp(context: BlockContext, ffn: DenseFFN, x: Tensor, *, prefix: str, group: str, component: str) -> list[Operator]:
    """Two matrices around an activation, or three with a gate; widths are cut by tensor parallelism."""
    shape, d_model = context.shape, context.spec.d_model
    style, tokens = shape.style, shape.tokens
    width = ceil_div(ffn.d_ff, shape.shards.tp)

    def matrix(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        label = f"{prefix}{name}"
        return linear(
            label,
            of,
            tokens=tokens,
            n=n,
            k=k,
            style=style,
            group=group,
            component=component,
            fmt=context.fmt(label, group),
            bias=ffn.bias,
            bias_fmt=context.spec.dtype,
        )

    ops: list[Operator] = []
    if not ffn.gated:
        ops.append(matrix("up_proj", x, width, d_model))
        ops.append(activate(f"{prefix}act", ffn.activation, ops[0].output, elements=tokens * width, style=style))
    else:
        if ffn.fused_gate_up:
            ops.append(matrix("gate_up_proj", x, 2 * width, d_model))
        else:
            ops += [matrix("gate_proj", x, width, d_model), matrix("up_proj", x, width, d_model)]
        ops += gate(
            f"{prefix}gate", ops[0].output, ops[-1].output, ffn.activation, elements=tokens * width, style=style
        )
    ops.append(matrix("down_proj", ops[-1].output, d_model, width))
    return ops
