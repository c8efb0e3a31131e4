"""Time of a matrix product on one device, in closed form.

C[m, n] = A[m, k] B[k, n], with m tokens, n outputs and k inputs. A kernel covers C with tiles; a tile loops over k (or
over a share of it, split-K) on one core; tiles run in waves over the cores. Four things bound the time: the matrix
units, the energy of their work at the power limit, the operands that a core can take in, and the bytes that must come
from memory or from the last-level cache. A power limit holds on an average over a while, so that a short kernel ends
before the clock has come down all the way. The kernel library's choice of tile and split is the fastest of a short
menu, as a library's heuristics are tuned to be. Sources: NVIDIA, "Matrix multiplication background"
(tile and wave quantisation); CUTLASS documentation, "Efficient GEMM" (split-K).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

# Tiles (rows of tokens x outputs) of current libraries on GPUs, and the waves that a split of k fills up.
TILES = ((64, 64), (128, 64), (128, 128), (128, 256))
SPLITS = (0, 1, 2, 4)
_TILE = 128 * 128  # the tile that ``fill`` is told for
_BLOCK = 8192  # products at a time: their arrays stay in a core's cache
# How long a kernel lasts for which the clock has come down half of the way [s]. Fitted, it trades against the energy:
# the same rows then leave products ten times longer than any measured at a third or at all of what they sustain.
BURST = 2e-3
_K_PER_SPLIT = 256  # a share of k shorter than this is not worth a core


@dataclass(frozen=True, slots=True)
class MatmulConstants:
    """Fitted constants of a matmul kernel family on a device.

    ``launch``: a kernel of no work. ``fill``: filling, draining and writing a tile of 128 x 128. ``energy``: of a FLOP
    with all that feeds it, met in full by a kernel that lasts; ``at_once``: the share of it that the shortest kernel
    meets (one of ``BURST`` seconds meets half of the rest). ``wave``: how much of a part-filled last wave is lost.
    ``intake``: operand bytes that a core takes in per clock, ``draw``: of those that come from memory or the cache the
    first time; ``feed``: how much of the lesser of computing and taking in does not hide behind the greater.
    ``memory``: achieved fraction of the bandwidth. ``resident``: fraction of the cache that a working set may fill and
    stay; ``cache_speed``: the cache's bandwidth over the memory's. ``serial``: how much of the lesser of what the cores
    do and what the memory brings does not hide behind the greater. ``split``: a second kernel that adds the shares of
    k; ``split_speed``: its bandwidth over the memory's.
    """

    launch: float = constant(2.5e-6, 0.3e-6, 2e-5, unit="s")
    fill: float = constant(1e-6, 1e-8, 2e-5, unit="s")
    energy: float = constant(6e-13, 1e-14, 5e-12, unit="J per FLOP")
    at_once: float = constant(0.7, 0.02, 1)
    wave: float = constant(0.3, 0.02, 1)
    intake: float = constant(120, 5, 600, unit="bytes per clock")
    memory: float = constant(0.85, 0.3, 1)
    draw: float = constant(40, 5, 600, unit="bytes per clock")
    feed: float = constant(0.1, 0.01, 1)
    resident: float = constant(0.5, 0.02, 2)
    cache_speed: float = constant(1.5, 1, 8)
    serial: float = constant(0.2, 0.01, 1)
    split: float = constant(2e-6, 1e-7, 5e-5, unit="s")
    split_speed: float = constant(2, 0.2, 6)


@dataclass(frozen=True, slots=True)
class QuantisedMatmulConstants(MatmulConstants):
    """A matmul that first quantises its activations, by a kernel with a ``launch`` of its own: ``prepare_speed`` is
    what they reach of the memory's bandwidth (activations that have just been written lie in the cache: above 1),
    ``prepare_row`` what a core takes for a row however short."""

    prepare_speed: float = constant(0.8, 0.1, 4)
    prepare_row: float = constant(3e-7, 1e-9, 2e-5, unit="s")


def quantise_seconds(m: Number, k: Number, machine: Machine, c: QuantisedMatmulConstants, *, bytes: Number) -> Array:
    """Seconds to quantise [m, k] activations from 2 bytes to ``bytes`` per element (scales included)."""
    moved = np.asarray(m, float) * k * (2 + np.asarray(bytes, float))
    rows = m * c.prepare_row / machine.cores
    return np.asarray(c.launch + np.maximum(rows, moved / (c.prepare_speed * machine.bandwidth)))


def matmul_seconds(
    m: Number,
    n: Number,
    k: Number,
    machine: Machine,
    c: MatmulConstants,
    *,
    dtype: str,
    weight_bytes: Number,
    input_bytes: Number,
    output_bytes: Number = 2,
    reuse: Number = 0,
) -> Array:
    """Seconds of [m, k] x [k, n] on ``machine`` (all sizes broadcast).

    ``dtype``: the format that the matrix units run at. ``weight_bytes``, ``input_bytes``, ``output_bytes``: per element
    of B, A and C (scales included). ``reuse``: bytes that pass between two uses of B (0: B comes from memory, as in any
    model larger than the cache).

    Raises InputError for a format the device lacks.
    """
    given = (m, n, k, weight_bytes, input_bytes, output_bytes, reuse)
    sizes = np.stack(np.broadcast_arrays(*(np.asarray(x, float) for x in given)))
    flat = sizes.reshape(len(given), -1)
    peak = machine.peak(dtype)
    pieces = range(0, max(flat.shape[1], 1), _BLOCK)
    times = [_fastest(flat[:, i : i + _BLOCK], machine, c, peak) for i in pieces]
    seconds: Array = c.launch + np.concatenate(times).reshape(sizes.shape[1:])
    return seconds


def _fastest(sizes: Array, machine: Machine, c: MatmulConstants, peak: Number) -> Array:
    """The fastest tile and split of each product; ``sizes``: rows as given to ``matmul_seconds``."""
    m, n, k, b_bytes, a_bytes, c_bytes, between = sizes
    weights, passed = n * k * b_bytes, m * k * a_bytes + m * n * c_bytes
    held = np.zeros_like(m)
    if between.any():
        inside = (between + passed) / (c.resident * machine.cache)
        held = np.where(between > 0, 1 / (1 + inside**4), 0)
    carried = (weights + passed) / (machine.bandwidth * (held * c.cache_speed + (1 - held) * c.memory))
    drawn = (weights + passed) / (c.draw * machine.clock)  # by one core alone
    gathered = m * n * (8 / (machine.bandwidth * c.split_speed))
    limit = k / _K_PER_SPLIT
    # what tiles pad multiplies zeros, which takes little power
    powered = m * n * k * (2 * c.energy / machine.tdp)
    best: Array = np.full_like(m, np.inf)
    for rows, columns in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        work = k * (2 * rows * columns * machine.cores / peak)  # seconds of a tile that one core computes alone
        taken = k * a_bytes * ((rows + columns) / (c.intake * machine.clock))
        fill = c.fill * rows * columns / _TILE
        # more shares than this take longer to add up than they save
        most = np.maximum(1, np.minimum(limit, np.sqrt((work + taken + drawn / tiles) / gathered)))
        for target in SPLITS:
            shares = np.clip(np.floor(machine.cores * target / tiles), 1, most) if target else 1.0
            waves = tiles * shares / machine.cores
            turns = np.maximum(1, waves + c.wave * (np.ceil(waves) - waves))
            free = turns * (work / shares + fill)  # at the full clock
            limited = powered * (c.at_once + (1 - c.at_once) * free / (free + BURST))
            compute = _soft_maximum(free, limited)
            intake = turns * taken / shares
            inside = np.maximum(compute, intake) + c.feed * np.minimum(compute, intake)
            memory = np.maximum(carried, drawn / np.minimum(tiles * shares, machine.cores))
            time = np.maximum(inside, memory) + c.serial * np.minimum(inside, memory)
            if target:
                time = time + np.where(shares > 1, c.split + shares * gathered, 0)
            best = np.minimum(best, time)
    return best


def _soft_maximum(a: Array, b: Array) -> Array:
    """The fourth root of the sum of fourth powers: the clock gives way smoothly as the power nears its limit."""
    square_a, square_b = a * a, b * b
    soft: Array = np.sqrt(np.sqrt(square_a * square_a + square_b * square_b))
    return soft
