"""pointwise: norms, softmax, activations, rotary embedding, lookups and residuals.

``timing`` kernel: the first kernels of serving engines, one element per thread, for the models with gated feed-forward
and RMSNorm; torch's own kernels for the others (``gated`` 0). ``timing`` host: torch's kernels, one call at a time.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfsim.timing.host import HostConstants, timed_seconds
from tfsim.timing.machine import Machine
from tfsim.timing.memory import (
    OPERATIONS,
    MemoryConstants,
    gather_seconds,
    kernels_seconds,
    layer_norm_seconds,
    published,
    softmax_seconds,
)
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, no_faults, where

# Table's op -> elements moved per element of [rows, cols], for the roofline
_MOVED = {
    "softmax": 2,
    "layernorm": 2,
    "gelu": 2,
    "emb": 2,
    "input_layernorm": 2,
    "post_attention_layernorm": 2,
    "attn_rope": 2,
    "mlp_act": 3,
    "add": 3,
}


def _ops(timing: str, frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, *(((frame["timing"] == timing) & (frame["op"] == op), op) for op in _MOVED))


def _kernels(frame: pd.DataFrame, machine: Machine, c: MemoryConstants, op: str) -> Array:
    rows, columns = frame["rows"].to_numpy(float), frame["cols"].to_numpy(float)
    gated = (frame["gated"] == 1).to_numpy()
    if op == "softmax":
        return softmax_seconds(rows, columns, machine, c)
    if op == "layernorm":
        return layer_norm_seconds(rows, columns, machine, c)
    if op == "emb":
        return gather_seconds(rows, columns, machine, c, vectorised=False)
    if op in ("input_layernorm", "post_attention_layernorm"):
        scalar = kernels_seconds(OPERATIONS["norm", "scalar"], rows, columns, machine, c)
        return np.where(gated, scalar, layer_norm_seconds(rows, columns, machine, c))
    if op == "mlp_act":
        scalar = kernels_seconds(OPERATIONS["gated_activation", "scalar"], rows, columns, machine, c)
        return np.where(gated, scalar, kernels_seconds(OPERATIONS["activation", "fused"], rows, columns, machine, c))
    key = {"gelu": ("activation", "fused"), "add": ("add", "fused"), "attn_rope": ("rotary", "scalar")}[op]
    return kernels_seconds(OPERATIONS[key], rows, columns, machine, c)


def _host(frame: pd.DataFrame, machine: Machine, c: HostConstants, op: str) -> Array:
    return timed_seconds(_kernels(frame, machine, MemoryConstants(), op), c)


def _roofline(frame: pd.DataFrame, machine: Machine, op: str) -> Array:
    moved = np.where((op == "mlp_act") & (frame["gated"] == 0), 2, _MOVED[op])
    seconds: Array = 2 * moved * frame["rows"].to_numpy(float) * frame["cols"].to_numpy(float) / machine.bandwidth
    return seconds


POINTWISE = Table(
    "pointwise",
    frozenset({"device", "timing", "op", "rows", "cols", "gated", "time_s"}),
    (
        Part(
            "memory", MemoryConstants, lambda f: _ops("kernel", f), _kernels, _roofline, fits_on=(), published=published
        ),
        Part("host", HostConstants, lambda f: _ops("host", f), _host, _roofline, fits_on=("llmcompass",)),
    ),
    no_faults,
    group=("source", "device", "op"),
)
