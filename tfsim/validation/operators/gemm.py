"""gemm: C[m, n] = A[m, k] B[k, n] by number format, one matrix or ``groups`` of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfsim.operators.formats import weight_bytes
from tfsim.timing.machine import Machine
from tfsim.timing.matmul import MatmulConstants, QuantisedMatmulConstants, matmul_seconds, quantise_seconds
from tfsim.units import Array
from tfsim.validation.operators.moe import GROUPED
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
QUANTISED = ("fp8", "fp8_block", "nvfp4", "sq")  # the time holds the quantisation of the activations
KERNEL_ONLY = {"fp8_block_kernel": "fp8_block"}  # the same kernel, its activations quantised before
# The measurements rotate this many copies of B, so that a small one does not stay in the cache.
COPIES = 5


def _variant(frame: pd.DataFrame) -> pd.Series[str]:
    one = frame["groups"] == 1
    plain = [name for name in FORMATS if name not in (*QUANTISED, *KERNEL_ONLY)]
    return where(frame, *((one & (frame["dtype"] == name), name) for name in plain))


def _variant_quantised(frame: pd.DataFrame) -> pd.Series[str]:
    one = frame["groups"] == 1
    return where(frame, *((one & (frame["dtype"] == name), name) for name in (*QUANTISED, *KERNEL_ONLY)))


def _seconds(frame: pd.DataFrame, machine: Machine, c: MatmulConstants, variant: str) -> Array:
    m, n, k = (frame[x].to_numpy(float) for x in "mnk")
    stored, runs, passes = FORMATS[variant]
    weight = weight_bytes(stored, n, k) / (n * k)
    act = weight_bytes(passes, m, k) / (m * k)
    return matmul_seconds(
        m, n, k, machine, c, dtype=runs, weight_bytes=weight, input_bytes=act, reuse=COPIES * weight * n * k
    )


def _quantised(frame: pd.DataFrame, machine: Machine, c: QuantisedMatmulConstants, variant: str) -> Array:
    m, k = (frame[x].to_numpy(float) for x in "mk")
    act = weight_bytes(FORMATS[variant][2], m, k) / (m * k)
    product = _seconds(frame, machine, c, variant)
    return product if variant in KERNEL_ONLY else product + quantise_seconds(m, k, machine, c, bytes=act)


def _roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    m, n, k = (frame[x].to_numpy(float) for x in "mnk")
    stored, runs, passes = FORMATS[variant]
    moved = weight_bytes(stored, n, k) + weight_bytes(passes, m, k) + 2 * m * n
    return np.asarray(np.maximum(2 * m * n * k / machine.peak(runs), moved / machine.bandwidth))


def _borrow(variant: str) -> str:
    return KERNEL_ONLY.get(variant, "bfloat16" if variant in ("float16", "fp16") else variant)


GEMM = Table(
    "gemm",
    frozenset({"device", "timing", "dtype", "groups", "m", "n", "k", "time_s"}),
    (
        Part("matmul", MatmulConstants, _variant, _seconds, _roofline, borrow=_borrow),
        Part("quantised_matmul", QuantisedMatmulConstants, _variant_quantised, _quantised, _roofline, borrow=_borrow),
        GROUPED,
    ),
    no_faults,
    group=("source", "device", "dtype"),
)
