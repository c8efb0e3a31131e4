"""Recurrent layers: the input's products at once, then one step after another."""

from __future__ import annotations

from tfsim.models.parts import BlockContext
from tfsim.models.spec.recurrent import Recurrent
from tfsim.operators.core import Operator, Tensor, activation, prefixed
from tfsim.operators.elementwise import pointwise, residual
from tfsim.operators.matmul import linear
from tfsim.operators.recurrent import CELLS, recurrence


def recurrent(context: BlockContext, mixer: Recurrent, x: Tensor) -> list[Operator]:
    """g_t = W x_t + b + U h_(t-1) + c for all gates; h_t = cell(g_t, h_(t-1))."""
    shape, style = context.shape, context.shape.style
    width = (mixer.d_input or context.spec.d_model) + mixer.attended
    ops: list[Operator] = []
    x = Tensor(x.name, shape.tokens * width, x.bytes_per_element)
    if mixer.attended:
        x = activation("rnn.joined", x.elements, style)
        ops.append(pointwise("rnn.join", "pointwise", x, vector_flops=0, style=style))
    layer = _one_direction(context, mixer, x, width)
    ops += layer
    if mixer.bidirectional:
        # the other direction reads a copy in reverse; its output is joined to this one's
        joined = activation("rnn.directions", 2 * shape.tokens * mixer.d_hidden, style)
        join = pointwise("rnn.join_directions", "pointwise", joined, vector_flops=0, style=style)
        ops += [*prefixed("reverse.", layer), join]
    if mixer.skip:
        ops.append(residual("rnn.skip", shape.tokens * mixer.d_hidden, style))
    return ops


def _one_direction(context: BlockContext, mixer: Recurrent, x: Tensor, width: int) -> list[Operator]:
    shape, style = context.shape, context.shape.style
    fmt = context.fmt("rnn", "rnn")
    inputs = linear(
        "rnn.input",
        x,
        tokens=shape.tokens,
        n=CELLS[mixer.cell].gates * mixer.d_hidden,
        k=width,
        style=style,
        group="rnn",
        component="rnn",
        fmt=fmt,
        bias=True,
        bias_fmt=context.spec.dtype,
    )
    steps = recurrence(
        "rnn",
        inputs.output,
        cell=mixer.cell,
        batch=shape.batch,
        steps=shape.seq_len,
        hidden=mixer.d_hidden,
        style=style,
        fmt=fmt,
    )
    return [inputs, *steps]
