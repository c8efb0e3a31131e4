"""Time of attention on one device, in closed form: prefill, encoder and backward; decode and latent attention.

Prefill (FlashAttention: Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608): a work item is a tile of
query rows of one head of one sequence. It walks over the keys that its rows may see; each (row, key) pair costs two
matrix products and one exponential, in units that overlap in part. Cores take the items in turns, and a launch lasts
at least as long as its longest item. A variable-length launch (`mixed_seconds`) takes decodes as sequences of one row.

Decode (split-KV: Dao et al. 2023, "Flash-Decoding"; multi-block XQA of TensorRT-LLM): a work item is a share of the
keys of one key-value head, which query heads of its group use together. Items run side by side on all cores; a second
step merges the shares. Latent attention (DeepSeek-V2, arXiv:2405.04434) decodes like one key-value head of 576 numbers
per token that all query heads share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

_FEWEST_KEYS, _MOST_KEYS = 32, 256  # that a tile takes in at once
_ALIGNED = 16  # rows of a matrix instruction: query heads of a decode item are padded to it
_START = 3e-6  # seconds of a kernel of no work, as a profiler shows it (hardware.md section 2: 1.9 to 2.6 us a GEMM)
_UNLIMITED = 1e12  # keys
_TRIPS = 1e-6  # seconds: two accesses to memory, of about 0.5 us each on current GPUs
BACKWARD = 2.5  # five matrix products for the forward pass's two (Dao 2023, section 3.1)
BACKWARD_SPEED = 0.8  # of the forward pass's matrix rate: FlashAttention-2 and 3, figures 5 and 6 of the papers


@dataclass(frozen=True, slots=True)
class Kernel:
    """A generation of prefill kernels.

    ``rows``: queries of a tile, ``few_rows`` of one for sequences that are no longer; ``key_bytes``: scratchpad that it
    fills with keys at once. ``serial``: a tile does its products, their feeding and its exponentials one after the
    other, so that they overlap only with those of other tiles on its core; ``overlap``: exponent of the soft maximum of
    the three on a busy core. ``feeding``: of a row; 1 where a warp reads the keys for 16 rows, less where for more.
    """

    rows: int
    few_rows: int
    key_bytes: int
    serial: bool
    overlap: float
    trips: float
    feeding: float = 1


# FlashAttention-3 and TensorRT-LLM's kernels for Hopper and Blackwell: two or three groups of warps share a tile.
FLASH3 = Kernel(128, 64, 16384, False, 4, 0)
# FlashAttention-2 and TensorRT-LLM's kernels before Hopper: four warps of 16 rows.
FLASH2 = Kernel(64, 64, 16384, True, 2, _TRIPS)
# FlashAttention-2 without a causal mask, as for decodes alone, on compute capabilities 8.6 and 8.9: warps of 32 rows,
# half the keys ("128 x 32 is the fastest for non-causal": flash_fwd_launch_template.h, head size 128).
FLASH2_FLAT = Kernel(128, 128, 8192, False, 2, _TRIPS, 0.5)


@dataclass(frozen=True, slots=True)
class PrefillConstants:
    """Fitted constants of a prefill kernel family on a device.

    ``launch``: the kernels of an attention call with no work [s]. ``fill``: start and end of a tile [s]. ``pace``:
    how fast a core's instructions can feed its matrix units, whatever those could do; ``wide``: how much longer
    that takes per doubling of the head size above 128. ``exponentials``: softmax elements of a core. ``mask``: time
    added to a key that is masked element by element. ``memory``: achieved fraction of the bandwidth. ``resident``:
    fraction of the cache that activations may fill and stay; ``cache_speed``: bandwidth of the cache over that of the
    memory. ``prepare``: passes over q, k and v before the kernel (rotary embedding, cache). ``sharp``: exponent of the
    soft maximum of work and memory.
    """

    launch: float = constant(1.2e-5, 1e-6, 3e-5, unit="s")
    fill: float = constant(1.5e-6, 1e-7, 2e-5, unit="s")
    pace: float = constant(1500, 50, 1e6, unit="FLOPs per clock per core")
    wide: float = constant(1, 0.5, 4)
    exponentials: float = constant(12, 1, 1e4, unit="per clock per core")
    mask: float = constant(0.3, 0.01, 3)
    memory: float = constant(0.85, 0.7, 1)
    resident: float = constant(0.5, 0.05, 1.5)
    cache_speed: float = constant(2, 1.5, 8)
    prepare: float = constant(1, 0.2, 8, unit="passes")
    sharp: float = constant(3, 2, 8)


def prefill_seconds(
    batch: Number,
    heads: Number,
    kv_heads: Number,
    q_len: Number,
    kv_len: Number,
    d_qk: Number,
    d_v: Number,
    machine: Machine,
    c: PrefillConstants,
    *,
    dtype: str,
    kv_bytes: Number = 2,
    act_bytes: Number = 2,
    causal: bool | Array = True,
    window: Number = 0,
    whole_call: bool = False,
    kernel: Kernel = FLASH3,
) -> Array:
    """Seconds of softmax(q k^T) v for ``q_len`` queries against ``kv_len`` keys per sequence (all sizes broadcast).

    ``dtype``: the format that the matrix units run at; ``kv_bytes``, ``act_bytes``: per element of the keys and values
    and of q and the output. ``causal``: the queries are the last of the keys; else every query sees every key.
    ``window``: keys that a query sees (0: all). ``whole_call``: with the kernels around attention (rotary embedding,
    cache write), as an inference engine calls it; else the attention kernel alone. ``kernel``: its generation.

    Raises InputError for a format the device lacks.
    """
    batch, heads, kv_heads, q_len, kv_len, d_qk, d_v, window = (
        np.asarray(x, float) for x in (batch, heads, kv_heads, q_len, kv_len, d_qk, d_v, window)
    )
    items, mean, longest = _tiles(
        batch, heads, q_len, kv_len, d_qk, d_v, machine, c, dtype, np.asarray(causal, bool), window, kernel
    )
    work = np.maximum(np.ceil(items / machine.cores) * mean, longest)
    fresh = batch * q_len * ((heads + kv_heads) * d_qk + kv_heads * d_v) * act_bytes
    passed = batch * (q_len * heads * act_bytes + kv_len * kv_heads * kv_bytes) * (d_qk + d_v)
    speed = _speed(fresh + passed, machine, c)
    around = c.launch + c.prepare * fresh / speed if whole_call else _START
    return around + (work**c.sharp + (passed / speed) ** c.sharp) ** (1 / c.sharp)


def mixed_seconds(
    chunk: Number,
    prefix: Number,
    decodes: Number,
    kv_len: Number,
    heads: Number,
    kv_heads: Number,
    d: Number,
    machine: Machine,
    c: PrefillConstants,
    *,
    dtype: str,
    kernel: Kernel = FLASH2,
) -> Array:
    """Seconds of one launch of a variable-length kernel over a chunk of ``chunk`` new tokens after ``prefix`` and
    ``decodes`` sequences of one new token and ``kv_len`` keys each (all sizes broadcast; 2-byte numbers).

    A new token of a decode takes a tile to itself, for each query head. Tiles run head after head, all sequences of
    one before those of the next. So the query heads of a group share their keys as far as the cores hold several heads'
    sequences at a time; the others read them again, from the cache where one head's keys of all sequences fit.
    The grid is as high as the longest sequence: most tiles of the decodes are empty, but start.
    """
    chunk, prefix, decodes, kv_len, heads, kv_heads, d = (
        np.asarray(x, float) for x in (chunk, prefix, decodes, kv_len, heads, kv_heads, d)
    )

    def tiles(batch: Array, new: Array, keys: Array, causal: bool) -> tuple[Array, Array, Array]:
        return _tiles(
            batch, heads, np.maximum(1, new), np.maximum(1, keys), d, d, machine, c, dtype, np.asarray(causal),
            np.zeros_like(d), kernel,
        )  # fmt: skip

    keys, first, any_decode = chunk + prefix, np.minimum(1, chunk), np.minimum(1, decodes)
    tall, mean, longest = tiles(first, chunk, keys, True)
    flat, each, alone = tiles(decodes, np.ones_like(chunk), kv_len, False)
    # one of a tile's two trips to memory, two of them at once on a core
    empty = decodes * heads * np.maximum(0, np.ceil(chunk / kernel.rows) - 1) * kernel.trips / 4
    spread = np.minimum(0.5 * longest, flat * each / machine.cores) * (tall > machine.cores)  # an uneven last turn
    prefill = np.maximum(np.ceil(tall / machine.cores) * mean, longest * first)
    decode = np.maximum(np.ceil(flat / machine.cores) * each, alone * any_decode)
    together = np.where(tall + flat <= machine.cores, np.maximum(prefill, decode), prefill + decode + spread)
    work = together + empty / machine.cores

    of_head = decodes * kv_len * 2 * d * 2
    side_by_side = np.clip(machine.cores / np.maximum(1, decodes), 1, heads / kv_heads)
    again = heads / kv_heads / side_by_side - 1
    fresh = 2 * ((chunk + decodes) * heads * 2 + keys * first * kv_heads * 2) * d + of_head * kv_heads
    moved = fresh / _speed(fresh, machine, c) + again * of_head * kv_heads / _speed(of_head * c.resident, machine, c)
    seconds: Array = _START + (work**c.sharp + moved**c.sharp) ** (1 / c.sharp)
    return seconds


def _tiles(
    batch: Array,
    heads: Array,
    q_len: Array,
    kv_len: Array,
    d_qk: Array,
    d_v: Array,
    machine: Machine,
    c: PrefillConstants,
    dtype: str,
    causal: Array,
    window: Array,
    kernel: Kernel,
) -> tuple[Array, Array, Array]:
    """Tiles of a launch, seconds of a core for one on average, and of the longest by itself."""
    rows = np.where(q_len <= kernel.few_rows, kernel.few_rows, kernel.rows)
    element = 1 if dtype == "fp8" else 2
    stride = np.clip(kernel.key_bytes / (padded(d_qk) * element), _FEWEST_KEYS, _MOST_KEYS)
    keys, longest = _walked(q_len, kv_len, rows, stride, causal, window)
    tiles = np.ceil(q_len / rows)
    # under a window all keys pass the mask, under a plain causal mask those of the diagonal
    checked = np.where(
        (window > 0) & (window < kv_len),
        1,
        np.where(causal, np.minimum(1, tiles * rows / np.maximum(1, keys)), 0),
    )
    flops = 2 * (padded(d_qk) + padded(d_v))
    product = flops * machine.cores / machine.peak(dtype)
    feed = kernel.feeding * flops / (c.pace * machine.clock) * c.wide ** np.maximum(0, np.log2(padded(d_qk) / 128))
    exponential = 1 / (c.exponentials * machine.clock)
    o = kernel.overlap
    together = (product**o + feed**o + exponential**o) ** (1 / o)
    alone = product + feed + exponential if kernel.serial else together
    pairs = rows * (1 + c.mask * checked)  # per key, with what the mask adds
    start = kernel.trips + c.fill
    return batch * heads * tiles, start + keys / tiles * pairs * together, start + longest * pairs * alone


def padded(d: Array) -> Array:
    """The head size that a kernel is built for: multiples of 64 up to 256, of 256 above."""
    return np.where(d <= 256, np.ceil(d / 64) * 64, np.ceil(d / 256) * 256)


def _walked(
    q_len: Array, kv_len: Array, rows: Array, stride: Array, causal: Array, window: Array
) -> tuple[Array, Array]:
    """Keys that all tiles of a head walk over, and the longest walk of one tile.

    Tile i of n (from 0) under a causal mask after a prefix of p keys ends at p + (i + 1) rows, on average half a stride
    further where a stride is longer than a tile; a window bounds the walk to itself, the tile's rows and both edges.
    """
    n = np.ceil(q_len / rows)
    whole = np.ceil(kv_len / stride) * stride
    prefix = np.maximum(0, kv_len - q_len)
    height = np.where(n > 1, rows, q_len)
    edge = np.maximum(0, stride - np.where(n > 1, rows, 1)) / 2
    bound = np.where(window > 0, window + height + 2 * edge, _UNLIMITED)
    free = np.clip(np.floor((bound - prefix - edge) / height), 0, n)  # tiles that the window does not bound
    keys = free * (prefix + edge) + height * free * (free + 1) / 2 + (n - free) * bound
    longest = np.minimum(np.minimum(prefix + n * height + edge, bound), whole)
    return np.where(causal, np.minimum(keys, n * whole), n * whole), np.where(causal, longest, whole)


def backward_seconds(
    batch: Number,
    heads: Number,
    kv_heads: Number,
    q_len: Number,
    kv_len: Number,
    d_qk: Number,
    d_v: Number,
    machine: Machine,
    c: PrefillConstants,
    *,
    dtype: str,
    causal: bool | Array = True,
    window: Number = 0,
    kernel: Kernel = FLASH3,
) -> Array:
    """Seconds of the backward pass of `prefill_seconds` (a kernel alone): the scores are computed again, then dV, dP,
    dQ and dK, at ``BACKWARD_SPEED`` of the forward rate. No table measures it; both figures are the papers'."""
    forward = prefill_seconds(
        batch,
        heads,
        kv_heads,
        q_len,
        kv_len,
        d_qk,
        d_v,
        machine,
        c,
        dtype=dtype,
        causal=causal,
        window=window,
        kernel=kernel,
    )
    return _START + (forward - _START) * BACKWARD / BACKWARD_SPEED


@dataclass(frozen=True, slots=True)
class DecodeConstants:
    """Fitted constants of a decode kernel family on a device.

    ``launch``: the kernels of an attention call with no work [s]. ``fill``: a core's time for an item without keys
    [s], and ``head`` for each of its query heads of size 128 [s]. ``intake``: bytes of keys and values that a core
    takes in per clock; ``stream``: that one item can. ``pace``: how fast its instructions can feed the matrix
    units. ``share``: keys that are worth an item of their own; ``crowd``: items that a split aims for, per core.
    ``merge``: the step that merges the shares [s]. ``regroup``: the copies that put the query heads of a group side
    by side [s]. ``memory``, ``resident``, ``cache_speed``, ``sharp``: as in `PrefillConstants`.
    """

    launch: float = constant(5e-6, 1e-6, 3e-5, unit="s")
    fill: float = constant(1e-6, 1e-7, 2e-5, unit="s")
    head: float = constant(5e-8, 1e-9, 1e-6, unit="s")
    intake: float = constant(40, 2, 2000, unit="bytes per clock")
    stream: float = constant(10, 1, 2000, unit="bytes per clock")
    pace: float = constant(1000, 20, 1e6, unit="FLOPs per clock per core")
    share: float = constant(256, 32, 1e6, unit="keys")
    crowd: float = constant(2, 0.5, 32, unit="items per core")
    merge: float = constant(2e-6, 1e-7, 2e-5, unit="s")
    regroup: float = constant(2e-7, 1e-8, 1e-5, unit="s")
    memory: float = constant(0.85, 0.2, 1)
    resident: float = constant(0.5, 0.02, 4)
    cache_speed: float = constant(1.5, 1, 8)
    sharp: float = constant(3, 1, 8)


def decode_seconds(
    batch: Number,
    heads: Number,
    kv_heads: Number,
    kv_len: Number,
    d_qk: Number,
    d_v: Number,
    machine: Machine,
    c: DecodeConstants,
    *,
    dtype: str,
    key_bytes: Number,
    packed: Number,
    window: Number = 0,
    reuse: Number = np.inf,
    fed: Number = 1,
) -> Array:
    """Seconds of one new query per sequence against ``kv_len`` keys (all sizes broadcast).

    ``key_bytes``: of one key and value of one key-value head, as cached. ``packed``: query heads of a group in one item
     (1: a kernel per query head). ``window``: keys that the query sees (0: all). ``reuse``: bytes that pass
    between two uses of this cache (infinite: it comes from memory, as with the layers of a model; 0: the cache of a
    benchmark that repeats one call). ``fed``: 1 where instructions feed the matrix units and each
    query head takes its time, as in TensorRT-LLM's kernel; 0 for FlashAttention-3's, where the units of Hopper read
    keys from the scratchpad by themselves, for all query heads at once.

    Raises InputError for a format the device lacks.
    """
    batch, heads, kv_heads, kv_len, d_qk, d_v, window, key_bytes, between = (
        np.asarray(x, float) for x in (batch, heads, kv_heads, kv_len, d_qk, d_v, window, key_bytes, reuse)
    )
    keys = np.where(window > 0, np.minimum(window, kv_len), kv_len)
    group = heads / kv_heads
    together = np.minimum(group, packed)
    items = batch * kv_heads * np.ceil(group / together)
    # the number of shares is chosen for the whole cache, windows or not
    most = np.maximum(1, kv_len / c.share)
    shares = np.clip(c.crowd * machine.cores / items, 1, most)
    length = keys / shares
    rows = np.ceil(together / _ALIGNED) * _ALIGNED
    flops = rows * 2 * (d_qk + d_v)
    feeds = np.asarray(fed, float)
    product = flops * (machine.cores / machine.peak(dtype) + feeds / (c.pace * machine.clock))  # one after the other
    start = c.fill + feeds * together * (d_qk + d_v) / 256 * c.head
    per_key = np.maximum(key_bytes / (c.intake * machine.clock), product)
    side_by_side = items * shares / machine.cores * (start + length * per_key)
    alone = length * np.maximum(key_bytes / (c.stream * machine.clock), product)
    moved = batch * (kv_heads * keys * key_bytes + heads * (d_qk + d_v) * 2)
    memory = moved / _speed(between + moved, machine, c)
    regroup = np.where((batch > 1) & (kv_heads > 1) & (together > 1), c.regroup, 0)
    bound = (side_by_side**c.sharp + alone**c.sharp + memory**c.sharp) ** (1 / c.sharp)
    return c.launch + regroup + c.merge * (1 - 1 / most) + bound


def _speed(working_set: Array, machine: Machine, c: PrefillConstants | DecodeConstants) -> Array:
    """Bytes/s of data last used ``working_set`` bytes ago: of the cache where they fit, else of the memory."""
    held = 1 / (1 + (working_set / (c.resident * machine.cache)) ** 4)
    return machine.bandwidth * (held * c.cache_speed + (1 - held) * c.memory)
