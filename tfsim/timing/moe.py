"""Time of the experts of a mixture on one device, in closed form.

A grouped product multiplies the rows of each expert by that expert's own matrix in one kernel: every expert rounds up
to whole tiles, the tiles of all experts run in waves over the cores, and the matrix of every expert that has a row
passes from memory once. A fused layer is a chain of kernels: routing, sorting, two grouped products, the activation
between them and the weighted sum; besides the products it moves token copies through memory. Sources: TensorRT-LLM and
vLLM fused mixtures (the chain); DeepSeek, DeepGEMM (grouped products: masked, contiguous, block-scaled fp8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

# Rows and outputs of the tiles of current grouped kernels.
TILES = ((16, 32), (16, 64), (16, 128), (32, 128), (64, 64), (64, 128), (128, 128), (128, 256))
# Kernels of a fused layer: routing, sort, permute, product, activation, product, weighted sum.
KERNELS = 7
ROUTING = 2  # of them choose the experts and sort by them
# Where matrix units do not apply scales, vector units add up the products of scaled blocks (DeepGEMM): operations per
# output (scales, multiply-add, and the matrix units' wait for them), and the block's steps of k.
_BLOCK_OPS, _BLOCK = 5, 128


@dataclass(frozen=True, slots=True)
class MoEConstants:
    """Fitted constants of the grouped kernels of a mixture on a device.

    ``launch``: a kernel of no work [s]; ``KERNELS`` of them make a fused layer. ``fill``: filling and draining a tile's
    pipeline [s]. ``throttle``: time added to the matrix units by operand delivery and the clock under load. ``rows``:
    shortest tile that pays: a shorter one takes as long. ``memory``: achieved fraction of the bandwidth for weights.
    ``sharp``: exponent of the soft maximum of compute and memory. ``resident``: fraction of the cache that weights used
    again may fill and stay; ``cache_speed``: its bandwidth over the memory's. ``move``: achieved fraction of the
    bandwidth for token copies. ``route``: a router's score of a token [s]; ``expert``: an expert of the router in
    sorting and scheduling [s].
    """

    launch: float = constant(4e-6, 0.3e-6, 1.5e-5, unit="s")
    fill: float = constant(1e-6, 1e-8, 2e-5, unit="s")
    throttle: float = constant(0.3, 0.005, 3)
    rows: float = constant(24, 8, 128, unit="rows")
    memory: float = constant(0.8, 0.2, 1)
    sharp: float = constant(2, 1, 8)
    resident: float = constant(0.5, 0.02, 1)
    cache_speed: float = constant(1.5, 1, 6)
    move: float = constant(0.5, 0.05, 1)
    route: float = constant(1e-11, 1e-13, 1e-10, unit="s")
    expert: float = constant(1e-8, 1e-10, 2e-7, unit="s")


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens of the experts of one device, in groups of experts with like numbers of them (last axis).

    ``rows``: tokens of an expert of the group; ``experts``: experts in it, possibly a fraction (an expectation).
    Experts without tokens belong to no group.
    """

    rows: Array
    experts: Array

    @property
    def copies(self) -> Array:
        """Token copies of the device."""
        copies: Array = (self.rows * self.experts).sum(-1)
        return copies

    @property
    def touched(self) -> Array:
        """Experts with tokens."""
        touched: Array = self.experts.sum(-1)
        return touched


def even_load(copies: Number, touched: Number) -> Load:
    """``copies`` token copies spread evenly over ``touched`` experts."""
    experts = np.maximum(np.asarray(touched, float), 1e-9)
    return Load((np.asarray(copies, float) / experts)[..., None], experts[..., None])


def grouped_seconds(
    load: Load,
    n: Number,
    k: Number,
    machine: Machine,
    c: MoEConstants,
    *,
    dtype: str,
    weight_bytes: Number,
    input_bytes: Number,
    output_bytes: Number = 2,
    blocks: bool = False,
    align: int = 1,
    reuse: Number = 0,
) -> Array:
    """Seconds of one grouped product [rows, k] x [k, n] per expert of ``load`` (sizes broadcast).

    ``dtype``: the format that the matrix units run at. ``weight_bytes``, ``input_bytes``, ``output_bytes``: per element
    (scales included). ``blocks``: both operands carry scales per block of k. ``align``:
    rows of an expert are padded to a multiple of this. ``reuse``: bytes that pass between two uses of the weights (0:
    they come from memory).

    Raises InputError for a format the device lacks.
    """
    return c.launch + _product(
        load, n, k, machine, c, machine.peak(dtype), weight_bytes, input_bytes, output_bytes, blocks, align, reuse
    )


def moe_seconds(
    tokens: Number,
    experts: Number,
    load: Load,
    hidden: Number,
    inter: Number,
    machine: Machine,
    c: MoEConstants,
    *,
    dtype: str,
    weight_bytes: Number,
    input_bytes: Number,
    gated: Number = True,
    blocks: bool = False,
    passed: Number | None = None,
    reuse: Number = 0,
) -> Array:
    """Seconds of a fused layer of experts on one device: routing, gate and up, activation, down, weighted sum.

    ``tokens``: that the device routes and writes; ``experts``: that the router scores, on all devices; ``inter``: width
    of an expert on this device; ``gated``: whether a gate doubles the first product; ``passed``: token copies that the
    kernels around the products pass over (None: those of the device's experts); the rest as in ``grouped_seconds``.
    Activations enter and leave in 2 bytes.
    """
    first = np.asarray(inter, float) * np.where(np.asarray(gated, bool), 2, 1)
    peak = machine.peak(dtype)
    up = _product(load, first, hidden, machine, c, peak, weight_bytes, input_bytes, 2, blocks, 1, reuse)
    down = _product(load, hidden, inter, machine, c, peak, weight_bytes, input_bytes, 2, blocks, 1, reuse)
    copies = load.copies if passed is None else np.asarray(passed, float)
    # read and written: tokens permuted in, the activation, token copies summed into tokens
    permuted = copies * hidden * (2 + np.asarray(input_bytes, float))
    activated = copies * (first * 2 + inter * np.asarray(input_bytes, float))
    summed = (copies + np.asarray(tokens, float)) * hidden * 2
    moved = move_seconds(permuted + activated + summed, machine, c)
    routed = route_seconds(tokens, experts, c)
    seconds: Array = KERNELS * c.launch + routed + up + down + moved
    return seconds


def move_seconds(moved: Number, machine: Machine, c: MoEConstants) -> Array:
    """Seconds that the kernels around the products of a layer take for ``moved`` bytes, launches apart."""
    seconds: Array = np.asarray(moved, float) / (machine.bandwidth * c.move)
    return seconds


def route_seconds(tokens: Number, experts: Number, c: MoEConstants) -> Array:
    """Seconds to choose among ``experts`` for each of ``tokens`` and to sort by them, launches apart."""
    seconds: Array = np.asarray(experts, float) * (c.expert + np.asarray(tokens, float) * c.route)
    return seconds


def _product(
    load: Load, n: Number, k: Number, machine: Machine, c: MoEConstants, peak: Number, weight_bytes: Number,
    input_bytes: Number, output_bytes: Number, blocks: bool, align: int, reuse: Number,
) -> Array:  # fmt: skip
    n, k, b_bytes, a_bytes, between = (
        np.asarray(x, float)[..., None] for x in (n, k, weight_bytes, input_bytes, reuse)
    )
    heights, columns = (np.array(side, float) for side in zip(*TILES, strict=True))
    padded = np.ceil(load.rows / align) * align
    per_expert = np.ceil(padded[..., None] / heights)
    tiles = np.maximum((load.experts[..., None] * per_expert).sum(-2) * np.ceil(n / columns), 1e-9)
    passed = load.copies[..., None] * (k * a_bytes + n * output_bytes)
    weights = load.touched[..., None] * n * k * b_bytes
    held = np.where(between > 0, 1 / (1 + ((between + passed) / (c.resident * machine.cache)) ** 4), 0)
    full = machine.bandwidth * c.memory
    carried = weights * (held / (machine.bandwidth * c.cache_speed) + (1 - held) / full) + passed / full
    work = 2 * np.maximum(heights, c.rows) * columns * machine.cores
    step = work / peak * (1 + c.throttle)
    if blocks and not _scales_blocks(machine):
        step = step + work / 2 * _BLOCK_OPS / _BLOCK / machine.vector["fp32"]
    compute = np.ceil(tiles / machine.cores) * (step * k + c.fill)
    seconds: Array = ((compute**c.sharp + carried**c.sharp) ** (1 / c.sharp)).min(-1)
    return seconds


def _scales_blocks(machine: Machine) -> bool:
    """Whether the matrix units apply scales of blocks themselves: those that multiply 4-bit blocks natively."""
    return bool(np.all(np.asarray(machine.peak("nvfp4")) > machine.peak("fp8")))
