"""gemm: C[m, n] = A[m, k] B[k, n] by number format, one matrix or ``groups`` of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfsim.hardware import Device
from tfsim.operators.formats import weight_bytes
from tfsim.timing.machine import Machine
from tfsim.timing.matmul import MatmulConstants, matmul_seconds
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, no_faults, where

# Table's dtype -> (format of the weights, format the matrix units run at, format of the activations in memory)
FORMATS = {
    "bfloat16": ("bf16", "bf16", "bf16"),
    "float16": ("fp16", "fp16", "fp16"),
    "fp16": ("fp16", "fp16", "fp16"),
    "fp8": ("fp8", "fp8", "fp8"),
    "fp8_block": ("fp8_block", "fp8", "fp8"),
    "fp8_block_kernel": ("fp8_block", "fp8", "fp8"),
    "nvfp4": ("nvfp4", "nvfp4", "nvfp4"),
    "sq": ("int8", "int8", "int8"),
    "int8_wo": ("int8", "bf16", "bf16"),
    "int4_wo": ("int4_g128", "bf16", "bf16"),
}
# The measurements rotate this many copies of B, so that a small one does not stay in the cache.
COPIES = 5


def _variant(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, *((frame["dtype"] == name, name) for name in FORMATS))


def _seconds(frame: pd.DataFrame, machine: Machine, c: MatmulConstants, variant: str) -> Array:
    m, n, k = (frame[x].to_numpy(float) for x in "mnk")
    stored, runs, passes = FORMATS[variant]
    weight = weight_bytes(stored, n, k) / (n * k)
    act = weight_bytes(passes, m, k) / (m * k)
    return matmul_seconds(
        m, n, k, machine, c, dtype=runs, weight_bytes=weight, input_bytes=act, reuse=COPIES * weight * n * k
    )


def _roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    m, n, k = (frame[x].to_numpy(float) for x in "mnk")
    stored, runs, passes = FORMATS[variant]
    moved = weight_bytes(stored, n, k) + weight_bytes(passes, m, k) + 2 * m * n
    return np.maximum(2 * m * n * k / machine.peak(runs), moved / machine.bandwidth)


def _borrow(variant: str) -> str:
    return {"float16": "bfloat16", "fp16": "bfloat16", "fp8_block_kernel": "fp8_block"}.get(variant, variant)


def _faults(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    return no_faults(frame, device)


GEMM = Table(
    "gemm",
    frozenset({"device", "timing", "dtype", "groups", "m", "n", "k", "time_s"}),
    (Part("matmul", MatmulConstants, _variant, _seconds, _roofline, borrow=_borrow),),
    _faults,
    group=("source", "device", "dtype"),
)
