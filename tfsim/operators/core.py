"""What an operator is: a handful of counts.

An operator is one kernel-sized piece of one forward pass. It knows the weights it holds, the FLOPs it executes, the
bytes it moves through memory, the tensors it keeps for the backward pass (named, so that a storage shared by two
operators counts once) and, for collectives, what it sends. Every dimension is a Python number or a float64 array; all
arithmetic broadcasts. Times are not here: ``tfsim.timing`` reads ``kind`` and ``dims``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tfsim.operators.formats import element_bytes, weight_bytes
from tfsim.units import Number


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named activation: ``elements`` of ``bytes_per_element`` each.

    Two tensors of one name are one storage. ``scope``: ``block`` tensors exist once per layer, ``model`` tensors once
    per model (rotary tables, masks) whatever the number of layers that save them. ``recomputable``: Megatron's
    selective recomputation drops it (Korthikanti et al. 2022, section 5: what is inside core attention).
    """

    name: str
    elements: Number
    bytes_per_element: Number
    scope: Literal["block", "model"] = "block"
    recomputable: bool = False

    @property
    def bytes(self) -> Number:
        """Bytes of the storage."""
        return self.elements * self.bytes_per_element


@dataclass(frozen=True, slots=True)
class Weight:
    """``copies`` matrices of ``rows`` x ``columns`` (output x input; a vector has one column) in number format ``fmt``.

    ``group``: the parameter group (``attn``, ``ffn_dense``, ``moe_routed``, ``norm``, ...).
    ``shared``: the name is global (a tied embedding), not one per layer. ``bias``: a bias of a linear layer.
    ``trained`` false: frozen, without gradient and optimizer state.
    """

    name: str
    group: str
    rows: Number
    columns: Number = 1
    copies: Number = 1
    fmt: str = "bf16"
    shared: bool = False
    bias: bool = False
    trained: bool = True

    @property
    def elements(self) -> Number:
        """Number of parameters."""
        return self.rows * self.columns * self.copies

    @property
    def bytes(self) -> Number:
        """Bytes as stored, quantisation scales included."""
        return self.copies * weight_bytes(self.fmt, self.rows, self.columns)


CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "none"]


@dataclass(frozen=True, slots=True)
class Routed:
    """What an exchange of tokens between experts moves: ``tokens`` of one device, each to ``top_k`` of ``experts`` in
    all; ``direction``: out to them, or back to be summed."""

    tokens: Number
    top_k: Number
    experts: Number
    direction: Literal["dispatch", "combine"]

    @property
    def gradient(self) -> Routed:
        """The gradients' exchange: those of a dispatch are summed, those of a sum sent out."""
        return replace(self, direction="combine" if self.direction == "dispatch" else "dispatch")


@dataclass(frozen=True, slots=True)
class Comm:
    """A collective over ``group`` (``tp``, ``ep``, ...): message ``bytes`` per device, 0 where the group is one device.

    all_reduce, reduce_scatter: bytes of the whole input buffer; all_gather: of the whole output; all_to_all: what one
    device sends and receives, its own share included. ``backward``: the collective that its gradient needs.
    ``routed``: the tokens behind an all_to_all between experts, where each goes to those that its router chose.
    """

    kind: CollectiveKind
    group: str
    bytes: Number
    backward: CollectiveKind
    routed: Routed | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a forward pass, counted for one device.

    ``flops``: matrix FLOPs, 2 per multiply-accumulate, under the causal convention of the count it belongs to;
    ``vector_flops``: elementwise work (not part of any FLOP total); ``read``/``write``: activation bytes through
    memory; weights are read on top. ``dims``: the sizes that timing needs, by kind. ``trained`` false: no gradient
    passes through it.
    """

    name: str
    kind: str
    component: str
    output: Tensor
    dims: Mapping[str, Number] = field(default_factory=dict)
    flops: Number = 0
    vector_flops: Number = 0
    read: Number = 0
    write: Number = 0
    weights: tuple[Weight, ...] = ()
    weights_read: Number | None = None
    saves: tuple[Tensor, ...] = ()
    comm: Comm | None = None
    rate: str = "bf16"
    trained: bool = True
    phase: Literal["forward", "backward", "recompute", "optimizer"] = "forward"

    @property
    def weight_bytes(self) -> Number:
        """Bytes of the weights it holds."""
        return total(w.bytes for w in self.weights)

    @property
    def bytes_moved(self) -> Number:
        """Bytes through memory: activations read and written, and weights read once (or ``weights_read`` of them)."""
        held = self.weight_bytes if self.weights_read is None else self.weights_read
        return self.read + self.write + held


def total(values: Iterable[Number]) -> Number:
    """Sum that keeps Python integers exact and broadcasts arrays."""
    result: Number = 0
    for value in values:
        result = result + value
    return result


@dataclass(frozen=True, slots=True)
class Style:
    """How operators are executed: activation ``dtype``; ``pointwise`` ``eager`` (one kernel per torch operation, each
    keeping its own inputs) or ``fused`` (norms, gates and the loss as single kernels); ``attention`` ``eager``
    (scores materialised) or ``fused`` (FlashAttention-like); ``dropout`` probability. ``sram``: bytes of on-chip memory
    that one attention head's tiles share: FlashAttention's (generation ``flash``) passes are then counted by the
    algorithm; None: q, k, v and out pass once, later passes hit the cache."""

    dtype: str = "bf16"
    pointwise: Literal["eager", "fused"] = "eager"
    attention: Literal["eager", "fused"] = "fused"
    dropout: float = 0.0
    sram: Number | None = None
    flash: Literal[1, 2, 3] = 2

    @property
    def act(self) -> Number:
        """Bytes of one activation element."""
        return element_bytes(self.dtype)

    @property
    def mask(self) -> Number:
        """Bytes that dropout's mask takes of an element: its factors in the activations' format in eager torch on a CPU
        (as the oracle ran), a boolean in a fused kernel, torch's own on a GPU too."""
        return self.act if self.eager else 1

    @property
    def eager(self) -> bool:
        """True when pointwise chains are separate kernels."""
        return self.pointwise == "eager"

    @property
    def low_precision(self) -> bool:
        """True when an fp32 copy of an activation is a second storage."""
        return bool(self.act < 4)


def activation(name: str, elements: Number, style: Style) -> Tensor:
    """A tensor in the pass's activation dtype."""
    return Tensor(name, elements, style.act)


def upcast(x: Tensor, style: Style) -> Tensor:
    """The fp32 copy of ``x``: ``x`` itself when it already is fp32."""
    return replace(x, name=f"{x.name}.fp32", bytes_per_element=4) if style.low_precision else x


def prefixed(prefix: str, operators: Iterable[Operator], *, keep: Iterable[str] = ()) -> list[Operator]:
    """The operators with ``prefix`` before their names and those of their weights and tensors, those in ``keep`` left
    out: so that two like parts of one layer do not share what only looks alike."""
    kept = frozenset(keep)

    def tensor(t: Tensor) -> Tensor:
        return t if t.name in kept else replace(t, name=prefix + t.name)

    return [
        replace(
            op,
            name=prefix + op.name,
            output=tensor(op.output),
            weights=tuple(w if w.shared else replace(w, name=prefix + w.name) for w in op.weights),
            saves=tuple(tensor(t) for t in op.saves),
        )
        for op in operators
    ]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a piece of a model keeps for its backward pass: ``bytes`` of its own storages, and ``shared`` ones (rotary
    tables) that exist once however many pieces keep them."""

    bytes: Number
    shared: dict[str, Tensor]


def kept_for_backward(operators: Iterable[Operator], *, selective: bool = False) -> Kept:
    """The storages kept for the backward pass, each once; ``selective`` leaves out what is computed again."""
    names: dict[str, Tensor] = {}
    for op in operators:
        for tensor in op.saves:
            if not (selective and tensor.recomputable):
                names.setdefault(tensor.name, tensor)
    own = total(t.bytes for t in names.values() if t.scope == "block")
    return Kept(own, {name: t for name, t in names.items() if t.scope == "model"})
