"""Time of operators on a CPU that runs them one by one, as eager PyTorch does. Constants come from
``tfsim measure hardware`` on that machine (docs/measure.md).

The thread that dispatches an operator also executes it, so nothing hides: a time is the sum of

- the dispatch: Python, the dispatcher, allocation, the recording of a gradient, per operator;
- bytes: from the last-level cache where they fit, else from memory; ``cold`` bytes (weights, what a forward pass kept
  for its backward pass) come from memory whatever their size, for a step passes through more than the cache holds;
- arithmetic: matrix FLOPs at a fraction of the peak, evaluations of exp, tanh and erf at so many seconds each;
- for matrix products, packing: operands are copied into blocks that suit the vector units, once each, and the result is
  written out (Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication", section 4).

Small operators run on one core: threads share work of ``GRAIN`` elements (at::parallel_for), or where it pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

FUNCTIONS = ("exp", "tanh", "erf", "cexp", "norm")
"""What operators count evaluations of."""
_KEYS = 512  # of one block of the fused attention kernel
GRAIN = 32768
"""Elements that torch gives a thread at least (ATen/Parallel.h: internal::GRAIN_SIZE)."""


def _dispatch() -> float:
    value: float = constant(1e-5, 1e-7, 1e-2, unit="s")
    return value


@dataclass(frozen=True, slots=True)
class CpuDispatchConstants:
    """Seconds of an operation so small that dispatching it is all there is, as models call it: module, views, kernels.

    Variants: "inference" (nothing recorded), "forward" (recorded for a gradient), "backward". ``linear``; ``product``:
    a batched product; ``attention`` and ``eager_attention``: with heads split off and merged; ``norm``: LayerNorm;
    ``chained``: one kernel of a chain that torch has no operation for (RMSNorm written out); ``pointwise``: an addition
    or activation; ``erf``: GELU, which torch hands to oneDNN; ``softmax``; ``loss``: cross-entropy; ``embedding``;
    ``conv1d``: depthwise; ``fft``: a convolution by three transforms. ``mixed``: how much longer they take in turn, as
    in a model, than one over and over: by then its code has left the nearest caches.
    """

    linear: float = _dispatch()
    product: float = _dispatch()
    attention: float = _dispatch()
    eager_attention: float = _dispatch()
    norm: float = _dispatch()
    chained: float = _dispatch()
    pointwise: float = _dispatch()
    erf: float = _dispatch()
    softmax: float = _dispatch()
    loss: float = _dispatch()
    embedding: float = _dispatch()
    conv1d: float = _dispatch()
    fft: float = _dispatch()
    mixed: float = constant(1.2, 1, 10)


@dataclass(frozen=True, slots=True)
class CpuOptimizerConstants:
    """An AdamW step, "adamw" as torch runs it by default on a CPU or "adamw_fused". ``tensor``: seconds per
    parameter tensor; ``element``: per parameter, all cores together."""

    tensor: float = constant(1e-4, 1e-6, 1e-2, unit="s")
    element: float = constant(3e-9, 1e-11, 1e-7, unit="s")


@dataclass(frozen=True, slots=True)
class CpuFftConstants:
    """Real Fourier transforms. ``butterfly``: seconds per n log2 n of a transform of length n, all cores together."""

    butterfly: float = constant(1e-9, 1e-12, 1e-6, unit="s")


@dataclass(frozen=True, slots=True)
class CpuConvConstants:
    """Depthwise convolutions of a few taps. ``element``: seconds per result forward, ``gradient`` backward, all cores
    together."""

    element: float = constant(2e-9, 1e-12, 1e-6, unit="s")
    gradient: float = constant(8e-9, 1e-12, 1e-6, unit="s")


@dataclass(frozen=True, slots=True)
class CpuMemoryConstants:
    """Element by element work. ``cache``: bytes/s of one core from the caches; ``core``: from memory by one core alone;
    ``memory``: achieved fraction of the bandwidth by all; ``resident``: share of the last-level cache that stays;
    ``exp``, ``tanh``, ``erf``: seconds that one core takes for an element of a function built on it (SiLU and softmax,
    GELU's approximation, GELU), ``cexp`` of complex numbers; ``norm``: for an element of a norm."""

    cache: float = constant(2e10, 1e9, 1e12, unit="bytes/s")
    core: float = constant(1e10, 1e9, 1e12, unit="bytes/s")
    memory: float = constant(0.9, 0.1, 1)
    resident: float = constant(0.7, 0.1, 1.5)
    exp: float = constant(2e-9, 1e-11, 1e-7, unit="s")
    tanh: float = constant(5e-9, 1e-11, 1e-7, unit="s")
    erf: float = constant(2e-9, 1e-11, 1e-7, unit="s")
    cexp: float = constant(3e-8, 1e-10, 1e-6, unit="s")
    norm: float = constant(5e-10, 1e-12, 1e-7, unit="s")


@dataclass(frozen=True, slots=True)
class CpuMatmulConstants:
    """Matrix products. ``compute``: achieved fraction of the peak once operands are packed; ``weight``, ``activation``,
    ``output``: seconds per element that one core takes to pack and to write; ``fork``: what sharing a product among the
    cores costs; ``vector``: bytes/s of a matrix that meets a single row or column and is not packed, ``warm_vector``:
    of one that is an activation."""

    compute: float = constant(0.95, 0.05, 1)
    weight: float = constant(1e-9, 1e-12, 1e-7, unit="s")
    activation: float = constant(5e-10, 1e-12, 1e-7, unit="s")
    output: float = constant(5e-10, 1e-12, 1e-7, unit="s")
    fork: float = constant(5e-6, 1e-8, 1e-3, unit="s")
    vector: float = constant(1e10, 1e8, 1e12, unit="bytes/s")
    warm_vector: float = constant(2e10, 1e8, 1e12, unit="bytes/s")


@dataclass(frozen=True, slots=True)
class CpuAttentionConstants:
    """Fused attention (torch's scaled_dot_product_attention). ``compute``: fraction of the peak of its two products,
    ``backward`` of its five; ``pair``: seconds per pair of query and key, ``row``: per query of a head (the state
    of its softmax, scaling the result), all cores together."""

    compute: float = constant(0.8, 0.05, 1)
    backward: float = constant(0.5, 0.05, 1)
    pair: float = constant(5e-10, 2e-11, 1e-8, unit="s")
    row: float = constant(1e-7, 1e-9, 1e-5, unit="s")


def cores_at_work(elements: Number, machine: Machine) -> Array:
    """Cores that share ``elements`` of element by element work, by torch's grain size."""
    shares: Array = np.clip(np.ceil(np.asarray(elements, float) / GRAIN), 1, machine.cores)
    return shares


def cpu_memory_seconds(
    warm: Number,
    machine: Machine,
    c: CpuMemoryConstants,
    *,
    elements: Number,
    cold: Number = 0,
    evaluations: Mapping[str, Number] | None = None,
) -> Array:
    """Seconds of an element by element kernel over ``elements`` results, without its dispatch.

    ``warm`` bytes come from the cache where they fit, ``cold`` ones from memory; ``evaluations``: of ``FUNCTIONS``.
    All broadcast.
    """
    warm, cold = np.asarray(warm, float), np.asarray(cold, float)
    at_work = cores_at_work(elements, machine)
    memory = np.minimum(at_work * c.core, c.memory * machine.bandwidth)
    cache = np.maximum(at_work * c.cache, memory)
    held = 1 / (1 + (warm / (c.resident * machine.cache)) ** 4)
    time: Array = warm * (held / cache + (1 - held) / memory) + cold / memory
    for function, count in (evaluations or {}).items():
        time = time + np.asarray(count, float) * getattr(c, function) / at_work
    return time


def cpu_matmul_seconds(
    m: Number,
    n: Number,
    k: Number,
    machine: Machine,
    c: CpuMatmulConstants,
    *,
    dtype: str,
    copies: Number | None = None,
) -> Array:
    """Seconds of [m, k] x [k, n], without its dispatch; with ``copies``, of as many products of two activations (a
    matrix per head), else the second factor is a weight and comes from memory. Sizes broadcast. A product takes at
    least what one of its rows or columns alone does, for both read the larger matrix.

    Raises InputError for a format the device lacks.
    """
    m, n, k, many = (np.asarray(x, float) for x in (m, n, k, 1 if copies is None else copies))
    pack, stream = (c.weight, c.vector) if copies is None else (c.activation, c.warm_vector)
    compute = 2 * m * n * k / (machine.peak(dtype) / machine.cores * c.compute)
    alone = many * (compute + n * k * pack + m * k * c.activation + m * n * c.output)
    blocked = np.minimum(alone, alone / machine.cores + c.fork)
    streamed = many * np.maximum(2 * m * n * k / machine.peak(dtype), 4 * np.maximum(n, m) * k / stream)
    time: Array = np.where((m == 1) | (n == 1), streamed, np.maximum(streamed, blocked))
    return time


def cpu_attention_seconds(
    heads: Number,
    q_len: Number,
    kv_len: Number,
    width: Number,
    machine: Machine,
    c: CpuAttentionConstants,
    *,
    dtype: str,
    backward: bool = False,
    masked: Any = False,
) -> Array:
    """Seconds of fused attention of ``heads`` heads in all, ``width`` wide, without its dispatch; broadcasts.

    ``backward``: five products instead of two. ``masked`` (an array of such): causal. The kernel walks the keys in
    blocks of 512 and leaves out only those that no query of a block sees (ATen/native/cpu/FlashAttentionKernel.cpp), so
    a causal mask saves nothing up to 512 keys, and half of the pairs in the limit.

    Raises InputError for a format the device lacks.
    """
    heads, q_len, kv_len, width = (np.asarray(x, float) for x in (heads, q_len, kv_len, width))
    blocks = np.ceil(kv_len / _KEYS)
    pairs = heads * q_len * kv_len * np.where(masked, (blocks + 1) / (2 * blocks), 1)
    products, share = (5, c.backward) if backward else (2, c.compute)
    each = 2 * products * width / (machine.peak(dtype) * share) + (2 if backward else 1) * c.pair
    time: Array = pairs * each + heads * q_len * c.row
    return time


def cpu_optimizer_seconds(tensors: Number, elements: Number, c: CpuOptimizerConstants) -> Array:
    """Seconds of an AdamW step over ``elements`` parameters in ``tensors`` tensors."""
    time: Array = np.asarray(tensors, float) * c.tensor + np.asarray(elements, float) * c.element
    return time
