"""Linear layers: dense and grouped (one matrix per expert)."""

from __future__ import annotations

from dataclasses import replace

from tfsim.operators.core import Operator, Style, Tensor, Weight, activation
from tfsim.operators.formats import FORMATS
from tfsim.units import Number


def linear(
    name: str,
    x: Tensor,
    *,
    tokens: Number,
    n: Number,
    k: Number,
    style: Style,
    group: str,
    component: str,
    fmt: str = "bf16",
    bias: bool = False,
    bias_fmt: str = "bf16",
    weight: Weight | None = None,
) -> Operator:
    """y = x W^T (+ b): [tokens, k] x [n, k]. FLOPs 2 tokens n k (the bias is not counted); keeps its input.

    ``weight`` replaces the layer's own matrix (a tied embedding); ``bias_fmt``: biases stay out of quantisation.
    """
    matrix = weight or Weight(f"{name}.weight", group, n, k, fmt=fmt)
    weights: tuple[Weight, ...] = (matrix,)
    if bias:
        weights += (Weight(f"{name}.bias", group, n, fmt=bias_fmt, bias=True),)
    return Operator(
        name,
        "matmul",
        component,
        activation(f"{name}.out", tokens * n, style),
        dims={"m": tokens, "n": n, "k": k},
        flops=2 * tokens * n * k,
        read=tokens * k * style.act,
        write=tokens * n * style.act,
        weights=weights,
        saves=(x,),
        rate=matmul_rate(matrix.fmt, style),
    )


def matmul_rate(fmt: str, style: Style) -> str:
    """The format whose matrix rate applies: the weights' where activations are quantised alike, else the pass's dtype.

    8- and 4-bit float formats and int8 are assumed to run on the matching units (W8A8, W4A4); weight-only integer
    formats are expanded to the activation dtype first.
    """
    return style.dtype if FORMATS[fmt].weight_only or FORMATS[fmt].bits >= 16 else fmt


def grouped_linear(
    name: str,
    x: Tensor,
    *,
    rows: Number,
    n: Number,
    k: Number,
    experts: Number,
    experts_read: Number,
    style: Style,
    fmt: str,
    bias: bool,
    bias_fmt: str = "bf16",
    component: str = "moe_experts",
    group: str = "moe_routed",
) -> Operator:
    """One [n, k] matrix per expert applied to ``rows`` routed tokens in all; ``experts_read`` of them are read."""
    matrix = Weight(f"{name}.weight", group, n, k, experts, fmt)
    weights: tuple[Weight, ...] = (matrix,)
    if bias:
        weights += (Weight(f"{name}.bias", group, n, 1, experts, bias_fmt, bias=True),)
    return Operator(
        name,
        "grouped_matmul",
        component,
        activation(f"{name}.out", rows * n, style),
        dims={"m": rows, "n": n, "k": k, "groups": experts_read},
        flops=2 * rows * n * k,
        read=rows * k * style.act,
        write=rows * n * style.act,
        weights=weights,
        weights_read=experts_read * replace(matrix, copies=1).bytes,
        saves=(x,),
        rate=matmul_rate(fmt, style),
    )
