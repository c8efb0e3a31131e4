"""Collectives: what one device sends during a pass."""

from __future__ import annotations

from tfsim.operators.core import CollectiveKind, Comm, Operator, Routed, Tensor
from tfsim.units import Number, where

# the collective that carries the gradient back: the transpose of the forward one
_BACKWARD: dict[CollectiveKind, CollectiveKind] = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
    "p2p": "p2p",
}


def collective(
    name: str,
    kind: CollectiveKind,
    group: str,
    x: Tensor,
    *,
    devices: Number,
    bytes: Number,
    backward: CollectiveKind | None = None,
    routed: Routed | None = None,
) -> Operator:
    """One collective over ``devices`` members of ``group``; it vanishes (0 bytes) when the group is one device.

    ``backward`` defaults to the transpose; Megatron's f and g (Shoeybi et al. 2019) are all-reduces one way only.
    ``routed``: the tokens of an exchange between experts.
    """
    message = where(devices > 1, bytes, 0)
    comm = Comm(kind, group, message, _BACKWARD.get(kind, "none") if backward is None else backward, routed)
    return Operator(name, "collective", "other", x, dims={"devices": devices}, comm=comm)
