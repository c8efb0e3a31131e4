"""From measured rows to the constants of the CPU formulas (tfsim.timing.cpu) and to the network between processes, with
the error that each fit leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tfsim.measure.hardware import MIXED, smallest
from tfsim.timing.constants import constant
from tfsim.timing.cpu import (
    FUNCTIONS,
    CpuAttentionConstants,
    CpuConvConstants,
    CpuDispatchConstants,
    CpuFftConstants,
    CpuMatmulConstants,
    CpuMemoryConstants,
    CpuOptimizerConstants,
    cpu_attention_seconds,
    cpu_matmul_seconds,
    cpu_memory_seconds,
    cpu_optimizer_seconds,
)
from tfsim.timing.fit import fit
from tfsim.timing.links import Wires, plain_seconds
from tfsim.timing.machine import Machine
from tfsim.units import Array

# Which measured operation stands for a dispatch constant, and by how many kernels its smallest case divides.
_DISPATCH: dict[str, tuple[tuple[str, ...], int]] = {
    "linear": (("linear",), 1),
    "product": (("matmul",), 1),
    "attention": (("fused", "causal"), 1),
    "eager_attention": (("eager",), 1),
    "norm": (("layer_norm",), 1),
    "chained": (("rms_norm",), 6),
    "pointwise": (("add", "mul", "relu", "silu"), 1),
    "erf": (("gelu",), 1),
    "softmax": (("softmax",), 1),
    "loss": (("cross_entropy",), 1),
    "embedding": (("embedding",), 1),
    "conv1d": (("conv1d",), 1),
    "fft": (("fft",), 1),
}
# Streams through memory and what is evaluated per element: forward, then backward. As torch's kernels do them.
_WORK: dict[str, tuple[tuple[int, str], tuple[int, str]]] = {
    "add": ((3, ""), (0, "")),
    "mul": ((3, ""), (6, "")),
    "relu": ((2, ""), (3, "")),
    "copy": ((2, ""), (2, "")),
    "sigmoid": ((2, "exp"), (3, "")),
    "silu": ((2, "exp"), (3, "exp")),
    "gelu": ((2, "erf"), (3, "erf")),
    "gelu_tanh": ((2, "tanh"), (3, "tanh")),
    "complex_exp": ((4, "cexp"), (0, "")),
    "softmax": ((2, "exp"), (3, "")),
    "layer_norm": ((2, "norm"), (3, "norm")),
    "cross_entropy": ((2, "exp"), (4, "exp")),
}


def calibration(rows: pd.DataFrame, machine: Machine) -> dict[str, dict[str, Any]]:
    """Constants by class and variant, with what they were fitted on and the error they leave: the ``calibration`` of a
    device profile. ``rows``: of ``measure_operations`` on a CPU, complete or ``quick``.
    """
    rows = rows[rows["kind"] != "all_reduce"]
    found: dict[str, dict[str, Any]] = {"cpu_dispatch": {}}
    dispatch: dict[str, CpuDispatchConstants] = {}
    for phase in ("inference", "forward", "backward"):
        dispatch[phase] = _dispatch_of(rows, phase)
        found["cpu_dispatch"][phase] = _dispatch_table(dispatch[phase], rows[rows["phase"] == phase])
    overhead = _overheads(rows, dispatch)
    rows = rows[rows["kind"] != "mixed"]
    for kind, variant, cls, chosen, seconds in (
        ("cpu_memory", "fp32", CpuMemoryConstants, _memory_rows(rows), _memory_seconds),
        *(
            (f"cpu_{kind}", dtype, cls, rows[rows["kind"].isin(kinds) & (rows["dtype"] == dtype)], seconds)
            for dtype in rows["dtype"].unique()
            for kind, kinds, cls, seconds in (
                ("matmul", ("matmul", "batched_matmul"), CpuMatmulConstants, _matmul_seconds),
                ("attention", ("attention",), CpuAttentionConstants, _attention_seconds),
            )
        ),
        ("cpu_conv", "fp32", CpuConvConstants, rows[rows["kind"] == "conv1d"], _conv_seconds),
        ("cpu_fft", "fp32", CpuFftConstants, rows[rows["kind"] == "fft"], _fft_seconds),
        *(
            ("cpu_optimizer", name, CpuOptimizerConstants, rows[rows["name"] == name], _optimizer_seconds)
            for name in ("adamw", "adamw_fused")
        ),
    ):
        if kind == "cpu_attention":
            # one query per head is bound by the bytes of its keys, which is no matter of this class
            chosen = chosen[(chosen["name"] != "eager") & (chosen["q_len"] > 1)]
        if len(chosen):
            found.setdefault(kind, {})[variant] = _fitted(cls, chosen, overhead[chosen.index], seconds, machine)
    return found


@dataclass(frozen=True, slots=True)
class _Network:
    """``hop``: seconds of a step of an all-reduce; ``link``: bytes/s that a process sends."""

    hop: float = constant(1e-4, 1e-7, 1e-1, unit="s")
    link: float = constant(1e9, 1e6, 1e13, unit="bytes/s")


def network(rows: pd.DataFrame, library: str) -> dict[str, Any]:
    """The level of a system that joins the processes of an all-reduce, from ``rows`` of kind "all_reduce" by size:
    latency and bandwidth that the formula of such levels (``plain_seconds``) fits them with, and the error it leaves.

    What a call costs and what a hop does cannot be told apart in one size of group: all of it counts as hops.
    """
    ranks = int(rows["ranks"].iloc[0])
    sizes, measured = (rows[name].to_numpy(float) for name in ("bytes", "time_s"))

    def seconds(c: _Network, index: NDArray[np.int64]) -> Array:
        return plain_seconds("all_reduce", sizes[index], ranks, Wires("switch", c.link, c.link, 0, c.hop))

    found = fit(_Network, seconds, measured)
    error = np.median(np.abs(seconds(found, np.arange(len(rows))) / measured - 1))
    figure = {
        "source": "measured",
        "note": f"all-reduce of {ranks} processes over {library}, {len(rows)} sizes, median error {error:.0%}",
    }
    return {
        "name": library,
        "link": "pcie",
        "size": ranks,
        "topology": "switch",
        "bandwidth": {"value": f"{found.link:.4g} B/s", **figure},
        "efficiency": {"value": 1.0, "source": "measured", "note": "the bandwidth is an achieved one"},
        "latency": {"value": f"{found.hop:.4g} s", **figure},
        "call_latency": {"value": "0 s", "source": "measured", "note": "counted as hops"},
    }


def _fitted(
    cls: type[Any],
    rows: pd.DataFrame,
    overhead: pd.Series[float],
    seconds: Callable[[pd.DataFrame, Machine, Any], Array],
    machine: Machine,
) -> dict[str, Any]:
    measured: Array = rows["time_s"].to_numpy(float)
    dispatch: Array = np.asarray(overhead, float)

    def predicted(values: Any, index: NDArray[np.int64]) -> Array:
        return dispatch[index] + seconds(rows.iloc[index], machine, values)

    found = fit(cls, predicted, measured)
    error = np.abs(predicted(found, np.arange(len(rows))) / measured - 1)
    return _table({f.name: getattr(found, f.name) for f in fields(cls)}, len(rows), error)


def _table(values: dict[str, float], rows: int, error: Array) -> dict[str, Any]:
    return {
        "constants": {name: float(f"{value:.4g}") for name, value in values.items()},
        "fitted_on": {"rows": rows},
        "error": {"median_ape": round(float(np.median(error)), 4), "p90_ape": round(float(np.quantile(error, 0.9)), 4)},
    }


def _dispatch_of(rows: pd.DataFrame, phase: str) -> CpuDispatchConstants:
    """Medians of the smallest case of each operation; where a phase was not measured, of the forward pass."""
    values = {}
    for name, (operations, parts) in _DISPATCH.items():
        times = []
        for operation in operations:
            of = rows[(rows["name"] == operation) & (rows["dtype"] == "fp32")]
            one = of[of["phase"] == phase]
            one = one if len(one) else of[of["phase"] == "forward"]
            if len(one):
                times.append(float(one["time_s"].min()) / parts)
        values[name] = float(np.median(times))
    return CpuDispatchConstants(**values, mixed=_mixing(rows, phase))


def _mixing(rows: pd.DataFrame, phase: str) -> float:
    """How much longer small operations take in turn than each over and over."""
    of = rows[(rows["phase"] == phase) & (rows["dtype"] == "fp32")]
    alone = of[of["name"].isin(MIXED)]
    times = alone["time_s"].to_numpy(float)
    once = smallest(alone["name"].tolist(), alone["elements"].tolist()).values()
    together = float(of.loc[of["kind"] == "mixed", "time_s"].iloc[0])
    return max(1.0, together / float(sum(times[i] for i in once)))


def _dispatch_table(c: CpuDispatchConstants, rows: pd.DataFrame) -> dict[str, Any]:
    """A dispatch is a median, not a fit: its error is the spread of the rows it was read from."""
    values = {f.name: getattr(c, f.name) for f in fields(c)}
    smallest = rows.loc[rows.groupby("name")["time_s"].idxmin()]
    return _table(values, len(smallest), smallest["spread"].to_numpy(float) / 2)


def _overheads(rows: pd.DataFrame, dispatch: dict[str, CpuDispatchConstants]) -> pd.Series[float]:
    """The dispatch of each row [s]."""
    constant_of = {operation: (name, parts) for name, (ops, parts) in _DISPATCH.items() for operation in ops}
    named = rows["name"].map(lambda n: constant_of.get(n, ("pointwise", 1)))
    values = [
        0.0 if kind == "optimizer" else getattr(dispatch[phase], name) * parts
        for kind, phase, (name, parts) in zip(rows["kind"], rows["phase"], named, strict=True)
    ]
    return pd.Series(values, index=rows.index)


def _memory_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Streams and kernels; the gradient of a sum is handed on without a kernel."""
    nothing = (rows["name"] == "add") & (rows["phase"] == "backward")
    return rows[(rows["kind"] == "stream") | (rows["name"].isin(_WORK) & ~nothing)]


def _memory_seconds(rows: pd.DataFrame, machine: Machine, c: Any) -> Array:
    backward = (rows["phase"] == "backward").to_numpy()
    stream = (rows["kind"] == "stream").to_numpy()
    work = [
        _WORK.get(name, ((0, ""), (0, "")))[back] for name, back in zip(rows["name"], backward.astype(int), strict=True)
    ]
    elements = rows["elements"].to_numpy(float)
    streams = np.where(stream, rows["streams"].to_numpy(float), np.array([w[0] for w in work], float))
    moved = 4 * elements * streams
    evaluations = {f: elements * np.array([w[1] == f for w in work]) for f in FUNCTIONS}
    return cpu_memory_seconds(
        np.where(backward, 0, moved), machine, c,
        elements=elements, cold=np.where(backward, moved, 0), evaluations=evaluations,
    )  # fmt: skip


def _matmul_seconds(rows: pd.DataFrame, machine: Machine, c: Any) -> Array:
    m, n, k = (rows[name].to_numpy(float) for name in ("m", "n", "k"))
    batch = rows["copies"].to_numpy(float)
    dtype = str(rows["dtype"].iloc[0])

    def product(a: Array, b: Array, inner: Array) -> Array:
        weights = cpu_matmul_seconds(a, b, inner, machine, c, dtype=dtype)
        return np.where(
            np.isnan(batch), weights, cpu_matmul_seconds(a, b, inner, machine, c, dtype=dtype, copies=batch)
        )

    backward = product(m, k, n) + product(n, k, m)
    return np.where(rows["phase"] == "backward", backward, product(m, n, k))


def _attention_seconds(rows: pd.DataFrame, machine: Machine, c: Any) -> Array:
    heads, q_len, kv_len, width = (rows[n].to_numpy(float) for n in ("heads", "q_len", "kv_len", "d_head"))
    heads = heads * rows["batch"].to_numpy(float)
    times = [
        cpu_attention_seconds(
            heads, q_len, kv_len, width, machine, c,
            dtype=str(rows["dtype"].iloc[0]), backward=b, masked=(rows["name"] == "causal").to_numpy(),
        )
        for b in (False, True)
    ]  # fmt: skip
    return np.where(rows["phase"] == "backward", times[1], times[0])


def _optimizer_seconds(rows: pd.DataFrame, machine: Machine, c: Any) -> Array:
    return cpu_optimizer_seconds(rows["tensors"].to_numpy(float), rows["elements"].to_numpy(float), c)


def _fft_seconds(rows: pd.DataFrame, machine: Machine, c: Any) -> Array:
    """Two real transforms and an inverse one of each channel; of a batch, two, for the kernel is transformed once. The
    gradient takes as many again for each factor."""
    batch, channels, length = (rows[name].to_numpy(float) for name in ("batch", "channels", "length"))
    n = 2 * length
    work: Array = (2 * batch + 1) * channels * n * np.log2(n) * np.where(rows["phase"] == "backward", 2, 1)
    time: Array = work * c.butterfly
    return time


def _conv_seconds(rows: pd.DataFrame, machine: Machine, c: Any) -> Array:
    time: Array = rows["elements"].to_numpy(float) * np.where(rows["phase"] == "backward", c.gradient, c.element)
    return time
