"""scans: Mamba-2 and gated-delta kernels, in prefill and for one token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from tfsim.timing.machine import Machine
from tfsim.timing.scans import (
    ChunkedConstants,
    RaggedConstants,
    StreamConstants,
    UpdateConstants,
    chunked_delta_seconds,
    conv1d_seconds,
    conv1d_update_seconds,
    recurrent_delta_seconds,
    state_space_dual_seconds,
)
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, no_faults, where

_ELEMENT = 2  # bytes: all rows are bf16
# Per class of constants, the kernels (table's name -> variant).
_STREAM = {"fused_recurrent_gated_delta_rule": "recurrent_delta"}
_UPDATE = {"causal_conv1d_update": "conv1d_update"}
_RAGGED = {"causal_conv1d_fn": "conv1d", "mamba_chunk_scan_combined": "state_space_dual"}
_CHUNKED = {"chunk_gated_delta_rule": "chunked_delta"}


def _variants(kernels: dict[str, str]) -> Callable[[pd.DataFrame], pd.Series[str]]:
    return lambda frame: where(frame, *((frame["kernel"] == kernel, name) for kernel, name in kernels.items()))


def _columns(frame: pd.DataFrame, *names: str) -> tuple[Array, ...]:
    return tuple(frame[name].to_numpy(float) for name in names)


def _channels(frame: pd.DataFrame) -> Array:
    """Mamba-2 convolves x, B and C; the gated-delta rows convolve the keys alone (aiconfigurator's collect_gdn.py)."""
    heads, dim, groups, state, keys, d_key = _columns(
        frame, "nheads", "head_dim", "n_groups", "d_state", "num_k_heads", "head_k_dim"
    )
    return np.where(frame["kind"] == "mamba2", heads * dim + 2 * groups * state, keys * d_key)


def _seconds(frame: pd.DataFrame, machine: Machine, c: Any, variant: str) -> Array:
    batch, length, taps = _columns(frame, "batch_size", "seq_len", "d_conv")
    keys, values, d_key, d_value = _columns(frame, "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    heads, dim, groups, state, chunk = _columns(frame, "nheads", "head_dim", "n_groups", "d_state", "chunk_size")
    if variant == "conv1d":
        return conv1d_seconds(batch, length, _channels(frame), machine, c)
    if variant == "conv1d_update":
        return conv1d_update_seconds(batch, _channels(frame), taps, machine, c)
    if variant == "chunked_delta":
        return chunked_delta_seconds(batch, length, keys, values, d_key, d_value, machine, c)
    if variant == "recurrent_delta":
        return recurrent_delta_seconds(batch, values, d_key, d_value, machine, c)
    return state_space_dual_seconds(batch, length, heads, dim, groups, state, chunk, machine, c)


def _roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    """Inputs, outputs and states once through memory; FLOPs of the chunked forms at the bf16 peak."""
    batch, length, taps = _columns(frame, "batch_size", "seq_len", "d_conv")
    keys, values, d_key, d_value = _columns(frame, "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    heads, dim, groups, state, chunk = _columns(frame, "nheads", "head_dim", "n_groups", "d_state", "chunk_size")
    tokens = batch * length
    flops: Array = np.zeros(len(frame))
    if variant == "conv1d":
        moved = 2 * tokens * _channels(frame) * _ELEMENT
    elif variant == "conv1d_update":
        moved = batch * _channels(frame) * 2 * taps * _ELEMENT
    elif variant == "chunked_delta":
        moved = tokens * (2 * keys * d_key + 2 * values * d_value) * _ELEMENT
        flops = tokens * values * (6 * d_key * d_value + 64 * (4 * d_key + 4 * d_value))
    elif variant == "recurrent_delta":
        moved = batch * values * d_key * d_value * 6
    else:
        moved = tokens * (2 * heads * dim + 2 * groups * state) * _ELEMENT
        flops = tokens * heads * (chunk * (state * groups / heads + dim) + 4 * dim * state)
    return np.maximum(flops / machine.peak("bf16"), moved / machine.bandwidth)


SCANS = Table(
    "scans",
    frozenset({"device", "timing", "kind", "kernel", "batch_size", "seq_len", "d_conv", "nheads", "head_dim",
               "n_groups", "d_state", "chunk_size", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim",
               "time_s"}),
    (
        Part("stream_scan", StreamConstants, _variants(_STREAM), _seconds, _roofline),
        Part("update_scan", UpdateConstants, _variants(_UPDATE), _seconds, _roofline),
        Part("ragged_scan", RaggedConstants, _variants(_RAGGED), _seconds, _roofline),
        Part("chunked_scan", ChunkedConstants, _variants(_CHUNKED), _seconds, _roofline),
    ),
    no_faults,
    group=("device", "kind", "kernel"),
)  # fmt: skip
