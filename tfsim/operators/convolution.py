"""Convolutions that turn an image or a recording into a sequence, as the matrix product they are."""

from __future__ import annotations

from tfsim.operators.core import Operator, Style, Tensor, Weight, activation
from tfsim.units import Number


def convolution(
    name: str,
    x: Tensor | None,
    *,
    positions: Number,
    n: Number,
    k: Number,
    style: Style,
    bias: bool,
    read: Number,
    fmt: str = "bf16",
) -> Operator:
    """``n`` filters of ``k`` values at ``positions`` places; FLOPs 2 positions n k. ``read``: elements of the input.

    ``x`` None: the input is data, which nobody keeps and which needs no gradient.
    """
    weights: tuple[Weight, ...] = (Weight(f"{name}.weight", "embed_other", n, k, fmt=fmt),)
    if bias:
        weights += (Weight(f"{name}.bias", "embed_other", n, fmt=fmt, bias=True),)
    return Operator(
        name,
        "convolution",
        "embed_frontend",
        activation(f"{name}.out", positions * n, style),
        dims={"m": positions, "n": n, "k": k, "data": 1 if x is None else 0},
        flops=2 * positions * n * k,
        read=read * style.act,
        write=positions * n * style.act,
        weights=weights,
        saves=() if x is None else (x,),
        rate=style.dtype,
    )
