"""Products of two activations: batched matrix products that no weight takes part in."""

from __future__ import annotations

from tfsim.operators.core import Operator, Style, Tensor, activation
from tfsim.units import Number


def batched_product(
    name: str, a: Tensor, b: Tensor, *, copies: Number, m: Number, n: Number, k: Number, component: str, style: Style
) -> Operator:
    """``copies`` products [m, k] x [k, n]: FLOPs 2 copies m n k; both factors are kept, and both get a gradient."""
    return Operator(
        name,
        "batched_product",
        component,
        activation(f"{name}.out", copies * m * n, style),
        dims={"m": m, "n": n, "k": k, "copies": copies},
        flops=2 * copies * m * n * k,
        read=copies * (m + n) * k * style.act,
        write=copies * m * n * style.act,
        saves=(a, b),
        rate=style.dtype,
    )
