"""Time of memory-bound kernels: pointwise operations, norms, softmax, rotary embedding, lookups, loss, optimizer.

Two things bound such a kernel. Its bytes come from the last-level cache, where they fit, or from memory. And every
access takes a latency, of which a core hides only as much as it has threads: ``threads`` threads that each have ``b``
bytes under way move threads x b per latency (Little's law). Kernels of 16-byte accesses are bound by the bytes, kernels
that fetch one 2-byte element per thread by the latency, and a long row that one block walks alone takes a latency per
step however fast the memory is:

    seconds = launch + softmax( turns x steps x rounds x latency, bytes / speed )

with turns = blocks / (cores x blocks held), at least one; a block of 1024 threads takes columns / (1024 x elements per
access) steps along its row. An operation that a framework does not fuse is the sum of its kernels.

The constants are public figures of the memory and the threads, not fitted to measured kernels: see ``MemoryConstants``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tfsim.hardware import Device
from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

_BLOCK = 1024  # threads of a block
_MOST_BLOCKS = 24  # blocks that a core can hold, however small
_NORM_BLOCKS = 16  # rows that a core normalises at a time: blocks of 128 threads
_FEW_INDICES = 16  # torch's index_select: up to this many rows are copied one after the other


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """What the datasheet does not say of memory-bound kernels; set by hand from public microbenchmarks
    (te42kyfo/gpu-benches), not fitted.

    ``launch``: the shortest kernel [s] (1.9-2.6 us). ``memory``: fraction of the bandwidth that a stream triad reaches
    (A100 0.86, L40 0.93, A40 0.95, MI210 0.80). ``cache``: bytes per clock and core from the last-level cache (A100 and
    H100 35, MI210 24, L40 15). ``latency``: one access under load, with the arithmetic and the store that wait for it
    [clocks] (an idle access takes 630-660 on H100, L40 and MI210). ``threads``: of a core. ``resident``: fraction of
    the cache that stays. ``sharp``: exponent of the soft maximum.
    """

    launch: float = constant(2e-6, 1e-6, 4e-6, unit="s")
    memory: float = constant(0.88, 0.5, 1)
    cache: float = constant(35, 5, 60, unit="bytes per clock")
    latency: float = constant(1000, 300, 2000, unit="clocks")
    threads: float = constant(2048, 1024, 2048)
    resident: float = constant(0.7, 0.2, 1)
    sharp: float = constant(1.5, 1.2, 4)


PUBLISHED = MemoryConstants()


def published(device: Device) -> MemoryConstants:
    """The published figures of ``device``'s kind: cards with GDDR memory have caches that are large and slow."""
    return PUBLISHED if device.profile.memory.type.startswith("HBM") else replace(PUBLISHED, cache=15)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel over [rows, columns]. ``bytes``: moved per element of 2-byte activations. ``vector``: elements of
    one access. ``rounds``: latencies of one step that wait for each other. ``rows``: a block walks one row (else blocks
    share the elements evenly), of at most ``block`` threads; ``reduce``: latencies that a row adds once (a sum
    over its threads)."""

    bytes: float
    vector: int = 8
    rounds: float = 1
    rows: bool = False
    reduce: float = 0
    block: int = _BLOCK


def kernel_seconds(
    kernel: Kernel, rows: Number, columns: Number, machine: Machine, c: MemoryConstants = PUBLISHED
) -> Array:
    """Seconds of one kernel over [rows, columns] (sizes broadcast)."""
    rows, columns = np.asarray(rows, float), np.asarray(columns, float)
    wide = kernel.block * kernel.vector
    if kernel.rows:
        threads = np.clip(np.ceil(columns / kernel.vector), 32, kernel.block)
        blocks, steps = rows, np.ceil(columns / wide)
    else:
        threads = np.asarray(float(kernel.block))
        blocks, steps = rows * columns / wide, np.asarray(1.0)
    at_once = np.minimum(_MOST_BLOCKS, c.threads / threads) * machine.cores
    clocks = (steps * kernel.rounds + kernel.reduce) * c.latency
    waiting = np.maximum(1, blocks / at_once) * clocks / machine.clock
    moved = rows * columns * kernel.bytes
    return c.launch + (waiting**c.sharp + (moved / _speed(moved, machine, c)) ** c.sharp) ** (1 / c.sharp)


def kernels_seconds(
    kernels: tuple[Kernel, ...], rows: Number, columns: Number, machine: Machine, c: MemoryConstants = PUBLISHED
) -> Array:
    """Seconds of an operation that is several kernels, one after the other."""
    total: Array = np.zeros(np.broadcast(np.asarray(rows), np.asarray(columns)).shape)
    for kernel in kernels:
        total = total + kernel_seconds(kernel, rows, columns, machine, c)
    return total


def bytes_seconds(moved: Number, machine: Machine, c: MemoryConstants = PUBLISHED, *, kernels: Number = 1) -> Array:
    """Seconds to move ``moved`` bytes by ``kernels`` kernels of 16-byte accesses: what is known of an operator is its
    traffic (optimizer step, cross-entropy, copies)."""
    moved, kernels = np.asarray(moved, float), np.asarray(kernels, float)
    each = moved / np.maximum(kernels, 1)
    return kernels * c.launch + moved / _speed(each, machine, c)


def gather_seconds(
    rows: Number,
    columns: Number,
    machine: Machine,
    c: MemoryConstants = PUBLISHED,
    *,
    vectorised: bool = True,
    element: Number = 2,
) -> Array:
    """Seconds of an embedding lookup: ``rows`` rows of a table copied.

    ``vectorised``: rows copied by 16-byte accesses; else, as torch's ``index_select`` did, an index and then one
    element per thread, with 1024 threads a core. Either way up to 16 rows go one after the other.
    """
    rows, columns = np.asarray(rows, float), np.asarray(columns, float)
    moved = 2 * rows * columns * np.asarray(element, float)
    if vectorised:
        waiting = np.maximum(1, rows * columns / (8 * c.threads * machine.cores)) * 1.2 * c.latency
    else:
        waiting = np.maximum(1, rows * columns / (_BLOCK * machine.cores)) * 1.8 * c.latency
    waiting = np.where(rows <= _FEW_INDICES, rows * (0.6 if vectorised else 1) * c.latency, waiting) / machine.clock
    time: Array = c.launch + (waiting**c.sharp + (moved / _speed(moved, machine, c)) ** c.sharp) ** (1 / c.sharp)
    return time


def _speed(moved: Array, machine: Machine, c: MemoryConstants) -> Array:
    """Bytes per second that ``moved`` bytes come with: mostly of the cache where they fit, else of the memory."""
    held = 1 / (1 + (moved / (c.resident * machine.cache)) ** 4)
    fast = np.maximum(c.cache * machine.cores * machine.clock, c.memory * machine.bandwidth)
    speed: Array = held * fast + (1 - held) * c.memory * machine.bandwidth
    return speed


def layer_norm_seconds(rows: Number, columns: Number, machine: Machine, c: MemoryConstants = PUBLISHED) -> Array:
    """Seconds of torch's own LayerNorm kernel over the last dimension.

    It reads a row for its mean and variance and again for the result: again from memory, where the rows in flight do
    not fit in the cache.
    """
    short = kernels_seconds(OPERATIONS["layer_norm", "fused"], rows, columns, machine, c)
    in_flight = 2 * np.minimum(np.asarray(rows, float), _NORM_BLOCKS * machine.cores) * np.asarray(columns, float)
    long = kernels_seconds(OPERATIONS["long_layer_norm", "fused"], rows, columns, machine, c)
    return np.where(in_flight > machine.cache, long, short)


def softmax_seconds(rows: Number, columns: Number, machine: Machine, c: MemoryConstants = PUBLISHED) -> Array:
    """Seconds of a softmax over the last dimension: rows of up to 1024 elements stay in registers."""
    short = kernels_seconds(OPERATIONS["softmax", "fused"], rows, columns, machine, c)
    long = kernels_seconds(OPERATIONS["long_softmax", "fused"], rows, columns, machine, c)
    return np.where(np.asarray(columns) <= _BLOCK, short, long)


_CAST, _WIDE, _SCALE = Kernel(6), Kernel(8), Kernel(4)

# Operations by how they are executed. ``fused``: current kernels with 16-byte accesses; ``scalar``: the first kernels
# of serving engines, one element per thread; ``eager``: torch operations one by one (RMSNorm: cast, square, mean, add,
# rsqrt, scale in fp32, cast, weight; rotary per tensor: product, negation, concatenation, product, sum).
OPERATIONS: dict[tuple[str, str], tuple[Kernel, ...]] = {
    ("add", "fused"): (Kernel(6),),
    ("add_norm", "fused"): (Kernel(8, rows=True, reduce=2),),
    ("norm", "fused"): (Kernel(4, rows=True, reduce=2),),
    ("norm", "scalar"): (Kernel(4, vector=1, rounds=1.3, rows=True, reduce=0.5),),
    ("norm", "eager"): (_CAST, _WIDE, Kernel(4, rows=True, reduce=2), Kernel(0), Kernel(0), _WIDE, _CAST, _SCALE),
    ("activation", "fused"): (Kernel(4),),
    ("gated_activation", "fused"): (Kernel(6),),
    ("gated_activation", "scalar"): (Kernel(6, vector=1, rows=True),),
    ("gated_activation", "eager"): (_SCALE, Kernel(6)),
    ("rotary", "fused"): (Kernel(4, vector=2, rows=True, reduce=0.5),),
    ("rotary", "scalar"): (Kernel(4, vector=1, rows=True),),
    ("layer_norm", "fused"): (Kernel(4, vector=4, rows=True, reduce=2, block=128),),
    ("long_layer_norm", "fused"): (Kernel(6, vector=4, rows=True, reduce=2, block=128),),
    # of a transposed tensor: product with the cosine, negation of a half, concatenation, product, sum; its tables
    ("rotary", "eager"): (
        *(Kernel(moved, vector=1, rounds=1.3) for moved in (4, 2, 4, 4, 6)),
        *(Kernel(0),) * 7,
    ),
    # logits to fp32, then the index of the largest
    ("greedy", "eager"): (_CAST, Kernel(4, rows=True, reduce=2)),
    ("softmax", "fused"): (Kernel(4, rows=True, reduce=2),),
    # longer rows than a block holds in registers are read for the maximum, for the sum and for the result
    ("long_softmax", "fused"): (Kernel(8, rows=True, rounds=3, reduce=2),),
}
