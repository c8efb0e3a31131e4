"""At which rate a device multiplies matrices of a given number format."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tfsim.errors import unknown

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4")

ALIASES = {
    "double": "fp64",
    "float64": "fp64",
    "float": "fp32",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_block": "fp8",
    "fp8_channel": "fp8",
    "mxfp8": "fp8",
    "mxfp6": "fp6",
    "mxfp4": "fp4",
    "nvfp4": "fp4",
}

# What runs instead when a device has no rate for a format: tried in this order, with the reason.
# "vector:" is the rate of the vector units.
_SUBSTITUTES: dict[str, tuple[tuple[str, str], ...]] = {
    "fp64": (("vector:fp64", "no fp64 matrix unit: vector units"),),
    "fp32": (("vector:fp32", "no fp32 matrix unit: vector units"),),
    "tf32": (
        ("fp32", "no tf32 mode: fp32 matrix rate"),
        ("vector:fp32", "no tf32 mode: fp32 on vector units"),
    ),
    "bf16": (
        ("fp16", "no bf16 matrix unit: counted at the fp16 rate, same width"),
        ("vector:bf16", "no matrix unit: vector units"),
        ("vector:fp16", "no matrix unit: fp16 vector units"),
        ("vector:fp32", "no 16-bit unit: fp32 vector units"),
    ),
    "fp16": (
        ("bf16", "no fp16 matrix rate: counted at the bf16 rate, same width"),
        ("vector:fp16", "no matrix unit: vector units"),
        ("vector:fp32", "no 16-bit unit: fp32 vector units"),
    ),
    "fp8": (("bf16", "no fp8 unit: stored in 8 bits, multiplied in 16"),),
    "fp6": (
        ("fp8", "no fp6 unit: multiplied at the fp8 rate"),
        ("bf16", "no fp6 unit: stored in 6 bits, multiplied in 16"),
    ),
    "fp4": (("bf16", "no fp4 unit: stored in 4 bits, multiplied in 16"),),
    "int8": (("bf16", "no int8 unit: stored in 8 bits, multiplied in 16"),),
    "int4": (("bf16", "no int4 unit: stored in 4 bits, multiplied in 16"),),
}

# XLA multiplies fp32 inputs in one bf16 pass unless a higher precision is asked for
# (jax.lax.Precision.DEFAULT), and TPU vector units never do matrix work.
_TPU_SUBSTITUTES: dict[str, tuple[tuple[str, str], ...]] = {
    "fp32": (("bf16", "TPU default precision: one bf16 pass"),),
    "tf32": (("bf16", "TPU default precision: one bf16 pass"),),
}

EfficiencyClass = Literal["bf16", "fp8", "fp4"]


class MatmulRate(NamedTuple):
    """A matrix-multiplication rate and the format it belongs to."""

    flop_per_s: float
    """Dense rate [FLOP/s]."""
    dtype: str
    """The format that executes: the one asked for, or its documented substitute."""
    reason: str | None
    """Why a substitute executes; None when the format asked for has its own unit."""


def canonical_dtype(name: str) -> str:
    """The canonical name of a number format.

    Raises: InputError for an unknown format.
    """
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key not in DTYPES:
        raise unknown("dtype", name, [*DTYPES, *ALIASES])
    return key


def matmul_rate(matrix: Mapping[str, float], vector: Mapping[str, float], kind: str, dtype: str) -> MatmulRate | None:
    """The rate at which `dtype` (canonical) matrices are multiplied; None when nothing can.

    `matrix` and `vector` hold the known peak rates [FLOP/s] per format. A format without a rate
    falls back as documented in docs/hardware.md: 8-bit and smaller to the 16-bit rate (weights
    are widened first), bf16 and fp16 to each other, fp32 to the vector units (one bf16 pass on a
    TPU), tf32 to fp32.
    """
    if dtype in matrix:
        return MatmulRate(matrix[dtype], dtype, None)
    substitutes = _SUBSTITUTES[dtype]
    if kind == "tpu":
        substitutes = _TPU_SUBSTITUTES.get(dtype, substitutes)
    for name, reason in substitutes:
        if name.startswith("vector:"):
            rate = vector.get(name.removeprefix("vector:"))
            if rate is not None:
                return MatmulRate(rate, name.removeprefix("vector:"), reason)
        elif name in matrix:
            return MatmulRate(matrix[name], name, reason)
        elif name == "bf16":
            below = matmul_rate(matrix, vector, kind, "bf16")
            if below is not None:
                return below._replace(reason=reason)
    return None


def efficiency_class(dtype: str) -> EfficiencyClass:
    """Which measured matmul fraction of a device a format (canonical) uses: by its width."""
    if dtype in ("fp4", "int4"):
        return "fp4"
    if dtype in ("fp8", "fp6", "int8"):
        return "fp8"
    return "bf16"
