"""Runs the cases of ``cases`` on this machine: a table of operations and their seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from tfsim.measure.backend import Backend, Progress, facts
from tfsim.measure.cases import PHASES, Case, Made, cases
from tfsim.measure.clock import timed
from tfsim.measure.collectives import measure_all_reduce

BEYOND = 4
"""A stream of more than this many times the last-level cache shows the memory's bandwidth."""
_TURNS = 4  # of the mixed operations
_COLD = 4  # copies of the weights take this many times the last-level cache, so that each is read from memory
_COPIES = 32  # at most
_FLOPS = 4e8  # a chain of copies does about this much at most
_SECONDS = {True: 0.06, False: 0.25}  # per case, quick or not
DIMS = (
    "m", "n", "k", "copies", "rows", "columns", "batch", "heads", "q_len", "kv_len", "d_head", "table", "channels",
    "length", "tensors", "elements", "streams", "bytes",
)  # fmt: skip


def measure_operations(
    where: Backend,
    *,
    dtypes: tuple[str, ...] = ("fp32",),
    quick: bool = False,
    ranks: int = 1,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Seconds of every case: one row each, with the columns ``kind``, ``name``, ``phase``, ``dtype``, its sizes
    (``DIMS``), ``flops``, ``elements``, ``held_bytes``, ``time_s`` (median of one copy), ``spread`` (interquartile
    range over median), ``samples`` and ``threads``. ``ranks``: processes that sum a tensor together, measured too.

    Raises InputError where the processes cannot.
    """
    todo = cases(where, dtypes, quick=quick)
    cache = facts(where).last_cache
    # first, for processes that cannot meet should not cost what was measured before
    rows = measure_all_reduce(where, ranks, quick=quick) if ranks > 1 else []
    for done, case in enumerate(todo):
        if progress:
            progress(done, len(todo), f"{case.name} {case.phase}")
        rows.append(_row(case, where, cache, _SECONDS[quick]))
    rows += _mixed(todo, where, _SECONDS[quick])
    rows += _streams(where, cache, quick)
    return pd.DataFrame(rows)


def _row(case: Case, where: Backend, cache: float, seconds: float) -> dict[str, Any]:
    copies = _copies(case, cache)
    time = timed(_chain(case, where, copies), where, seconds)
    return {
        "kind": case.kind, "name": case.name, "phase": case.phase, "dtype": case.dtype,
        **{name: case.dims.get(name) for name in DIMS}, "flops": case.flops, "elements": case.elements,
        "held_bytes": case.held, "copies_timed": copies, "time_s": time.median / copies, "spread": time.spread,
        "samples": time.samples, "threads": where.threads,
    }  # fmt: skip


MIXED = (
    "linear", "layer_norm", "add", "gelu", "silu", "relu", "mul", "softmax", "rms_norm", "embedding", "cross_entropy",
    "fused", "eager", "matmul", "copy",
)  # fmt: skip
"""Operations that take turns in the row "mixed", each at its smallest size."""


def smallest(names: Any, elements: Any) -> dict[str, int]:
    """Per name, the index of its smallest case."""
    found: dict[str, int] = {}
    for index, (name, size) in enumerate(zip(names, elements, strict=True)):
        if name not in found or size < elements[found[name]]:
            found[name] = index
    return found


def _mixed(todo: list[Case], where: Backend, seconds: float) -> list[dict[str, Any]]:
    """Small operations in turn, each in a module of its own, as in a model: none finds its own instructions and tables
    in the nearest caches, which it does when it is timed over and over."""

    class Part(where.torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self, call: Callable[..., Any]) -> None:
            super().__init__()
            self.call = call

        def forward(self, *inputs: Any) -> Any:
            return self.call(*inputs)

    rows = []
    for phase in PHASES:
        chosen = [c for c in todo if c.phase == phase and c.name in MIXED and c.dtype == todo[0].dtype]
        turns = [chosen[i] for i in smallest([c.name for c in chosen], [c.elements for c in chosen]).values()]
        time = timed(
            _chain_of(
                [(Part(call), x) for _ in range(_TURNS) for call, x in (case.make(where) for case in turns)],
                phase,
                where,
            ),
            where,
            seconds,
        )
        rows.append(
            {"kind": "mixed", "name": "mixed", "phase": phase, "dtype": todo[0].dtype, "elements": 0, "flops": 0,
             "held_bytes": 0, "copies_timed": _TURNS, "time_s": time.median / _TURNS, "spread": time.spread,
             "samples": time.samples, "threads": where.threads}
        )  # fmt: skip
    return rows


def _copies(case: Case, cache: float) -> int:
    """Copies that are timed together: as many as make their weights, or what they keep for the backward pass, several
    times the cache, so that these come from memory; at most 32, and not more than a quarter of a second's work."""
    if case.kind == "optimizer":  # many tensors at once
        return 1
    kept = case.held + (8 * case.elements if case.phase == "backward" else 0)
    wanted = max(4, _COLD * cache / kept) if kept else _COPIES
    work = case.flops + 100 * case.elements
    return int(max(1, min(_COPIES, wanted, _FLOPS // max(work, 1))))


def _chain(case: Case, where: Backend, copies: int) -> Callable[[], object]:
    """A call that runs ``copies`` copies of the operation one after the other."""
    if case.phase == "forward" and case.held == 0:  # an input that was just written is still in the cache
        made = [case.make(where)] * copies
    else:
        made = [case.make(where) for _ in range(copies)]
    return _chain_of(made, case.phase, where)


def _chain_of(made: list[Made], phase: str, where: Backend) -> Callable[[], object]:
    torch = where.torch
    if phase == "backward":
        return _backward(made, torch)
    if phase == "forward":
        for _, inputs in made:
            _want_gradients(inputs)

    def run() -> None:
        with torch.set_grad_enabled(phase == "forward"):
            for call, inputs in made:
                call(*inputs)

    return run


def _want_gradients(inputs: list[Any]) -> list[Any]:
    return [x.requires_grad_() if x.is_floating_point() else x for x in inputs]


def _backward(made: list[Made], torch: Any) -> Callable[[], object]:
    """The backward pass of all copies, from one root that hands each its gradient to one end that drops those of the
    inputs: as inside a model, where an input is another operation's result. Parameters keep theirs, as in a step."""

    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, leaf: Any, *inputs: Any) -> Any:
            return tuple(x.clone() for x in inputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return (None,) * (1 + len(gradients))

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *outputs: Any) -> Any:
            ctx.gradients = tuple(torch.ones_like(y) for y in outputs)
            return outputs[0].new_zeros(())

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return ctx.gradients

    leaf = torch.zeros(1, requires_grad=True)
    real = [x for _, inputs in made for x in inputs if x.is_floating_point() and not x.requires_grad]
    inner = iter(Ends.apply(leaf, *real) if real else ())
    outputs = []
    for call, inputs in made:
        outputs.append(call(*[next(inner) if x.is_floating_point() and not x.requires_grad else x for x in inputs]))
    root = Root.apply(*outputs)
    parameters = [x for _, inputs in made for x in inputs if x.requires_grad]
    parameters += [p for call, _ in made if isinstance(call, torch.nn.Module) for p in call.parameters()]

    def backward() -> None:
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(root, retain_graph=True)

    return backward


def stream_sizes(cache: float, *, quick: bool) -> list[int]:
    """Bytes of a stream, from 4 KiB to 256 MiB, or further where a copy (two) must exceed a cache of ``cache`` bytes
    ``BEYOND`` times over to come from memory."""
    sizes = [2**e for e in range(12, 29, 4 if quick else 2)]
    while 2 * sizes[-1] <= BEYOND * cache:
        sizes.append(2 * sizes[-1])
    return sizes


def _streams(where: Backend, cache: float, quick: bool) -> list[dict[str, Any]]:
    """Copy (two streams) and triad a + s b (three) by size, into memory that is there and into fresh memory."""
    torch = where.torch
    rows = []
    for size in stream_sizes(cache, quick=quick):
        a, b, c = (torch.zeros(size // 4, device=where.device) for _ in range(3))
        calls: dict[str, tuple[int, Callable[[], object]]] = {
            "copy": (2, lambda: a.copy_(b)),  # noqa: B023  (called within the iteration)
            "triad": (3, lambda: torch.add(a, b, alpha=0.5, out=c)),  # noqa: B023
            "fresh": (3, lambda: torch.add(a, b, alpha=0.5)),  # noqa: B023
        }
        for name, (streams, call) in calls.items():
            with torch.no_grad():
                time = timed(call, where, _SECONDS[quick])
            rows.append(
                {"kind": "stream", "name": name, "phase": "inference", "dtype": "fp32", "streams": streams,
                 "bytes": streams * size, "elements": size // 4, "flops": 0, "held_bytes": 0, "copies_timed": 1,
                 "time_s": time.median, "spread": time.spread, "samples": time.samples, "threads": where.threads}
            )  # fmt: skip
    return rows
