"""Recurrent layers: the input's products at once, then one step after another."""

from __future__ import annotations

from tfsim.models.parts import BlockContext
from tfsim.models.spec.recurrent import Recurrent
from tfsim.operators.core import Operator, Tensor
from tfsim.operators.matmul import linear
from tfsim.operators.recurrent import CELLS, recurrence


def recurrent(context: BlockContext, mixer: Recurrent, x: Tensor) -> list[Operator]:
    """g_t = W x_t + b + U h_(t-1) + c for all gates; h_t = cell(g_t, h_(t-1))."""
    shape, style = context.shape, context.shape.style
    fmt = context.fmt("rnn", "rnn")
    inputs = linear(
        "rnn.input",
        x,
        tokens=shape.tokens,
        n=CELLS[mixer.cell].gates * mixer.d_hidden,
        k=context.spec.d_model,
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
