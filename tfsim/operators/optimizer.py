"""The optimizer's pass over its states."""

from __future__ import annotations

from tfsim.operators.core import Operator, Tensor
from tfsim.units import Number


def optimizer_step(
    elements: Number, *, gradient: int, master: int, moments: int, weight: int, tensors: Number = 1
) -> Operator:
    """One fused Adam step (Kingma and Ba 2015) over ``elements`` parameters of one device, in ``tensors`` tensors;
    bytes per parameter each.

    Reads the gradient, the master copy and the moments, writes the latter two and the weights as used.
    """
    return Operator(
        "optimizer",
        "optimizer",
        "other",
        Tensor("weights", elements, weight),
        dims={"elements": elements, "passes": 1, "tensors": tensors},
        vector_flops=12 * elements,
        read=elements * (gradient + master + moments),
        write=elements * (master + moments + weight),
        rate="fp32",
        phase="optimizer",
    )
