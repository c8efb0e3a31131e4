"""Recurrent cells: T dependent steps, each a small product with the state of the step before.

Elman 1990 (h = tanh(x W + h U)), GRU (Cho et al. 2014), LSTM (Hochreiter and Schmidhuber 1997), as torch.nn lays them
out. The input's products do not wait for the state: they are one ordinary linear layer over all steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.operators.core import Operator, Style, Tensor, Weight, activation
from tfsim.operators.matmul import matmul_rate
from tfsim.units import Number


@dataclass(frozen=True)
class Cell:
    """A cell: ``gates`` matrices, ``states`` vectors carried from step to step; what it keeps per step beside the
    states it reads, in vectors of the hidden size (``eager``: torch's own cell; ``fused``: cuDNN's reserve space);
    ``kernels`` of a step besides its product, with ``sigmoids`` and ``tanhs`` of vectors among them."""

    gates: int
    states: int
    eager: int
    fused: int
    kernels: int
    sigmoids: int
    tanhs: int


CELLS: dict[str, Cell] = {
    # the output is the next state; both the tanh and the next product keep it
    "rnn": Cell(gates=1, states=1, eager=0, fused=0, kernels=2, sigmoids=0, tanhs=1),
    # reset and update gates in one storage with the candidate's product, its copy, the tanh, and h - n
    "gru": Cell(gates=3, states=1, eager=6, fused=4, kernels=10, sigmoids=2, tanhs=1),
    # four activated gates and tanh(c)
    "lstm": Cell(gates=4, states=2, eager=5, fused=4, kernels=10, sigmoids=3, tanhs=2),
}


def recurrence(
    name: str, gates: Tensor, *, cell: str, batch: Number, steps: Number, hidden: Number, style: Style, fmt: str
) -> list[Operator]:
    """``steps`` dependent steps over ``gates``, the input's products [batch, steps, gates x hidden].

    FLOPs 2 batch steps (gates hidden) hidden; the matrix is read again each step. ``dims``: m, n, k of one step.
    """
    kind = CELLS[cell]
    rows, width = batch * steps, kind.gates * hidden
    matrix = Weight(f"{name}.weight_hh", "rnn", width, hidden, fmt=fmt)
    bias = Weight(f"{name}.bias_hh", "rnn", width, fmt=fmt, bias=True)
    # every step reads a state: the first one zeros, the others the output before; tanh keeps its output, the last too
    states = rows * hidden + (batch * hidden if cell == "rnn" else 0)
    product = Operator(
        f"{name}.hidden",
        "recurrent",
        "rnn",
        activation(f"{name}.hidden.out", rows * width, style),
        dims={"m": batch, "n": width, "k": hidden, "steps": steps, "passes": steps},
        flops=2 * rows * width * hidden,
        read=rows * hidden * style.act,
        write=rows * width * style.act,
        weights=(matrix, bias),
        weights_read=steps * (matrix.bytes + bias.bytes),
        saves=(activation(f"{name}.states", states, style),),
        rate=matmul_rate(fmt, style),
    )
    kept = [activation(f"{name}.parts", rows * hidden * (kind.eager if style.eager else kind.fused), style)]
    if cell == "lstm":
        kept.append(activation(f"{name}.cells", rows * hidden, style))
    kernels = kind.kernels if style.eager else 1
    moved = rows * hidden * style.act
    return [
        product,
        Operator(
            f"{name}.cell",
            "recurrent_cell",
            "other",
            activation(f"{name}.out", rows * hidden, style),
            dims={
                "elements": rows * hidden,
                "steps": steps,
                "passes": steps * kernels,
                "exp": kind.sigmoids * rows * hidden,
                "tanh": kind.tanhs * rows * hidden,
            },
            vector_flops=10 * rows * width,
            # both products and the state in, the new states out; separate kernels pass through memory in between
            read=moved * (2 * kind.gates + kind.states + (kernels - 1)),
            write=moved * (kind.states + (kernels - 1)),
            saves=tuple(kept),
            rate=style.dtype,
        ),
    ]
