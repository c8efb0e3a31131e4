"""Time of scans and recurrences: kernels whose parts wait for each other.

A kernel starts ``blocks`` independent thread blocks, as many at a time as the cores hold; a block works through its
``steps`` one after the other. So a few blocks take the latency of their steps, many take turns, and in either case the
bytes must pass through memory (or the last-level cache, where they fit):

    seconds = launch + softmax( turns x (start + steps x step), bytes / speed )

with turns = blocks / (cores x held), at least one. Chunked forms of a recurrence (Mamba-2's state-space duality, Dao
and Gu 2024, section 6; the gated delta rule, Yang et al. 2024, section 3) carry the state from chunk to chunk: those
steps are dependent, and only batch x heads of them run side by side. A recurrence by steps (LSTM, GRU) depends in all
of it.

Block shapes are those of the public kernels: causal-conv1d (a row of one channel per block of 128 threads x 8
elements), flash-linear-attention (chunks of 64, columns of the state in blocks of 64) and
mamba_ssm (chunks of the model's ``chunk_size``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

_ROW = 1024  # elements of a sequence that a block of the causal convolution holds
_VECTOR = 8  # elements of one 16-byte access
_CHUNK = 64  # chunk of the gated delta rule
_COLUMNS = 64  # columns of the state that a block of the chunked delta rule owns
_EXPONENTIALS = 16  # per clock and core
_UPDATE = 64  # channels of a block of the one-token convolution


@dataclass(frozen=True, slots=True)
class StreamConstants:
    """Fitted constants of a kernel that waits for its bytes alone.

    ``launch``: the kernel with no work [s]. ``memory``: achieved fraction of the bandwidth. ``cache``: bytes that a
    core gets from the last-level cache per clock. ``resident``: fraction of the cache that the bytes may fill and stay.
    """

    launch: float = constant(4e-6, 1e-6, 4e-5, unit="s")
    memory: float = constant(0.8, 0.6, 0.95)
    cache: float = constant(20, 5, 40, unit="bytes per clock")
    resident: float = constant(0.7, 0.3, 1.2)


@dataclass(frozen=True, slots=True)
class UpdateConstants(StreamConstants):
    """Of a kernel of many small blocks. ``turn``: what a block keeps a core [clocks]. ``sharp``: exponent of the soft
    maximum of the launch and all else (1: one after the other)."""

    turn: float = constant(100, 5, 2000, unit="clocks")
    sharp: float = constant(1.5, 1, 8)


@dataclass(frozen=True, slots=True)
class ScanConstants(StreamConstants):
    """Of a kernel whose blocks work step by step. ``held``: blocks that a core runs at a time. ``start``: a block's
    fixed cost, ``step``: one of its steps [clocks]. ``sharp``: exponent of the soft maximum."""

    held: float = constant(8, 0.5, 64)
    start: float = constant(2000, 50, 200000, unit="clocks")
    step: float = constant(1000, 20, 200000, unit="clocks")
    sharp: float = constant(3, 1.2, 8)


@dataclass(frozen=True, slots=True)
class RaggedConstants(ScanConstants):
    """Of a kernel that has a slower path for lengths it does not divide: ``ragged``, how much longer a block takes."""

    ragged: float = constant(1.3, 1, 3)


@dataclass(frozen=True, slots=True)
class ChunkedConstants(ScanConstants):
    """Of kernels that carry a state from chunk to chunk beside the work inside chunks. ``carry``: one step of it
    [clocks], ``carriers``: such chains that a core runs at a time."""

    carry: float = constant(1500, 20, 50000, unit="clocks")
    carriers: float = constant(1, 0.3, 32)


def conv1d_seconds(
    batch: Number, length: Number, channels: Number, machine: Machine, c: RaggedConstants, *, element: Number = 2
) -> Array:
    """Seconds of a causal depthwise convolution over [batch, channels, length], each element read and written once.

    A block convolves one channel of one sequence. Sequences of at most half a block's width take blocks of half as
    many threads; those that are no multiple of 8 cannot be read by 16-byte accesses.
    """
    batch, length, channels = _arrays(batch, length, channels)
    narrow = np.where(length <= _ROW / 2, 2.0, 1.0)
    cost = (c.start + c.step * np.ceil(length / _ROW)) * np.where(length % _VECTOR, c.ragged, 1)
    moved = 2 * batch * length * channels * element
    return _kernel(batch * channels / narrow, cost, moved, machine, c)


def conv1d_update_seconds(
    batch: Number, channels: Number, width: Number, machine: Machine, c: UpdateConstants, *, element: Number = 2
) -> Array:
    """Seconds of one token's causal convolution of ``width`` taps: the state of width - 1 inputs shifts by one."""
    batch, channels, width = _arrays(batch, channels, width)
    moved = batch * channels * element * (2 * (width - 1) + 2)
    turns = batch * np.ceil(channels / _UPDATE) / machine.cores * c.turn / machine.clock
    work = _softer(turns, _transfer(moved, moved, machine, c), 3)
    return _softer(np.asarray(c.launch), work, c.sharp)


def chunked_delta_seconds(
    batch: Number,
    length: Number,
    key_heads: Number,
    value_heads: Number,
    d_key: Number,
    d_value: Number,
    machine: Machine,
    c: ChunkedConstants,
    *,
    element: Number = 2,
) -> Array:
    """Seconds of the chunked gated delta rule over [batch, length] with ``value_heads`` states of d_key x d_value.

    Per token and head, the kernels write w, u and the new values and read each again, read q, k and v and write the
    output, solve a chunk x chunk triangle (fp32 and its inverse), and write and read one state per chunk.
    """
    batch, length, key_heads = _arrays(batch, length, key_heads)
    value_heads, d_key, d_value = _arrays(value_heads, d_key, d_value)
    chunks = np.ceil(length / _CHUNK)
    tokens = batch * length * value_heads
    per_token = element * (3 * d_key + 7 * d_value) + 6 * np.minimum(length, _CHUNK)
    states = 2 * batch * value_heads * chunks * d_key * d_value * element
    inputs = 4 * batch * length * key_heads * d_key * element
    tile = np.minimum(length, _CHUNK) / _CHUNK
    moved = tokens * per_token + states + inputs
    # from one kernel to the next pass w, u and the states, or the new values, the states and q and k
    between = tokens * element * (d_key + 2 * d_value) + states / 2 + inputs / 4
    blocks, cost = batch * value_heads * chunks, c.start + c.step * tile
    parallel = _kernel(blocks, cost, moved, machine, c, between=between)
    return parallel + _carried(batch * value_heads * np.ceil(d_value / _COLUMNS), chunks, machine, c)


def recurrent_delta_seconds(
    batch: Number,
    value_heads: Number,
    d_key: Number,
    d_value: Number,
    machine: Machine,
    c: StreamConstants,
    *,
    state_in: Number = 2,
    state_out: Number = 4,
) -> Array:
    """Seconds of one token's gated delta rule: the state is read once (``state_in`` bytes an element) and written once
    (``state_out``: the kernel keeps it in fp32)."""
    batch, value_heads, d_key, d_value = _arrays(batch, value_heads, d_key, d_value)
    return state_step_seconds(
        batch * value_heads * d_key * d_value * (np.asarray(state_in, float) + state_out), machine, c
    )


def state_step_seconds(moved: Number, machine: Machine, c: StreamConstants, *, reuse: Number = 0) -> Array:
    """Seconds of one token's step of a recurrence that moves ``moved`` bytes, mostly its state in and out.

    ``reuse``: bytes that pass between two uses of the state (infinite: it comes from memory, as in a model of many
    layers; 0: a benchmark that repeats one call).
    """
    (moved,) = _arrays(moved)
    time: Array = c.launch + _transfer(moved, moved + np.asarray(reuse, float), machine, c)
    return time


def state_space_dual_seconds(
    batch: Number,
    length: Number,
    heads: Number,
    head_dim: Number,
    groups: Number,
    state: Number,
    chunk: Number,
    machine: Machine,
    c: RaggedConstants,
    *,
    element: Number = 2,
) -> Array:
    """Seconds of Mamba-2's chunked scan (state-space duality) as one fused kernel: a block takes one head of one
    sequence from chunk to chunk, keeping its state on chip, so blocks fill the cores in whole waves.

    ``step`` is a chunk of 128 tokens with a state of 128 x 64. Inputs and outputs pass through memory once.
    """
    batch, length, heads, head_dim = _arrays(batch, length, heads, head_dim)
    groups, state, chunk = _arrays(groups, state, chunk)
    chunks = np.ceil(length / chunk)
    passed = batch * length * element * (2 * heads * head_dim + 2 * groups * state)
    moved = passed + 4 * batch * heads * head_dim * state
    work = chunk * state * head_dim / (128 * 128 * 64)
    cost = (c.start + c.step * work * chunks) * np.where(length % chunk, c.ragged, 1)
    blocks = np.ceil(batch * heads / np.asarray(machine.cores, float)) * machine.cores
    return _kernel(blocks, cost, moved, machine, c)


def selective_scan_seconds(
    batch: Number,
    length: Number,
    channels: Number,
    state: Number,
    machine: Machine,
    c: RaggedConstants,
    *,
    element: Number = 2,
) -> Array:
    """Seconds of Mamba's selective scan (Gu and Dao 2023, section 3.3.2): one block per channel and sequence scans in
    chunks of 2048; the input, its step size, the gate and the output pass once, the state stays on chip.

    Bounded below by its arithmetic in fp32, for each of ``state`` values: eight operations, and an exponential of which
    a core does 16 a clock (CUDA C++ Programming Guide, table of arithmetic throughput). No public table measures it;
    constants are those of the causal convolution, whose blocks it shares.
    """
    batch, length, channels, state = _arrays(batch, length, channels, state)
    moved = batch * length * element * (4 * channels + 2 * state)
    cost = c.start + c.step * np.ceil(length / (2 * _ROW)) * 2
    time = _kernel(batch * channels, cost, moved, machine, c)
    steps = batch * length * channels * state
    time = np.maximum(time, c.launch + steps / (_EXPONENTIALS * machine.cores * machine.clock))
    vector = machine.vector.get("fp32")
    return time if vector is None else np.maximum(time, c.launch + 8 * steps / np.asarray(vector, float))


def _arrays(*values: Number) -> tuple[Array, ...]:
    return tuple(np.asarray(v, float) for v in values)


def _kernel(
    blocks: Array,
    cost: Array | float,
    moved: Array,
    machine: Machine,
    c: ScanConstants,
    *,
    between: Array | None = None,
) -> Array:
    """``blocks`` of ``cost`` clocks each, moving ``moved`` bytes in all; launch included. ``between``: bytes that must
    stay cached to be found there again (all of them)."""
    turns = np.maximum(1, blocks / (machine.cores * c.held))
    memory = _transfer(moved, moved if between is None else between, machine, c)
    return c.launch + _softer(turns * cost / machine.clock, memory, c.sharp)


def _transfer(moved: Array, kept: Array, machine: Machine, c: StreamConstants) -> Array:
    """Seconds to pass ``moved`` bytes, found in the cache as far as ``kept`` bytes fit in it."""
    held = 1 / (1 + (kept / (c.resident * machine.cache)) ** 4)
    slow = c.memory * machine.bandwidth
    fast = np.maximum(slow, c.cache * machine.cores * machine.clock)
    time: Array = moved / (held * fast + (1 - held) * slow)
    return time


def _softer(a: Array, b: Array, sharp: float) -> Array:
    """Soft maximum."""
    both: Array = (a**sharp + b**sharp) ** (1 / sharp)
    return both


def _carried(chains: Array, steps: Array, machine: Machine, c: ChunkedConstants) -> Array:
    """A state carried through ``steps`` dependent steps in each of ``chains``."""
    time: Array = steps * c.carry / machine.clock * np.maximum(1, chains / (machine.cores * c.carriers))
    return time
