"""Time of operators on a CPU that runs them one by one, as eager PyTorch does. Constants come from
``tfsim measure hardware`` on that machine (docs/measure.md).

The thread that dispatches an operator also executes it, so nothing hides: a time is the sum of

- the dispatch: Python, the dispatcher, allocation, the recording of a gradient, per operator;
- bytes: from the last-level cache where they fit, else from memory; ``cold`` bytes (weights, what a forward pass kept
  for its backward pass) come from memory whatever their size, for a step passes through more than the cache holds;
- arithmetic: matrix FLOPs at a fraction of the peak, evaluations of exp, tanh and erf at so many seconds each;
- for matrix products, packing: operands are copied into blocks that suit the vector units, once each, and the result is
  written out (Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication", section 4).

Small operators run on one core: threads share work of ``GRAIN`` elements (at::parallel_for) or some FLOPs upwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.timing.constants import constant
from tfsim.timing.machine import Machine
from tfsim.units import Array, Number

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
    ``conv1d``: depthwise; ``fft``: a convolution by three transforms; ``rnn``, ``gru``, ``lstm``: one step of torch's
    own module.
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
    rnn: float = _dispatch()
    gru: float = _dispatch()
    lstm: float = _dispatch()


@dataclass(frozen=True, slots=True)
class CpuOptimizerConstants:
    """An AdamW step. ``tensor``: seconds per parameter tensor; ``element``: per parameter, all cores together."""

    tensor: float = constant(1e-4, 1e-6, 1e-2, unit="s")
    element: float = constant(3e-9, 1e-11, 1e-7, unit="s")


@dataclass(frozen=True, slots=True)
class CpuMemoryConstants:
    """Element by element work. ``cache``: bytes/s of one core from the caches; ``core``: from memory by one core alone;
    ``memory``: achieved fraction of the bandwidth by all; ``resident``: share of the last-level cache that stays;
    ``exp``, ``tanh``, ``erf``: seconds of one evaluation on one core."""

    cache: float = constant(2e10, 1e9, 1e12, unit="bytes/s")
    core: float = constant(1e10, 1e9, 1e12, unit="bytes/s")
    memory: float = constant(0.9, 0.1, 1)
    resident: float = constant(0.7, 0.1, 1.5)
    exp: float = constant(2e-9, 1e-11, 1e-7, unit="s")
    tanh: float = constant(5e-9, 1e-11, 1e-7, unit="s")
    erf: float = constant(2e-9, 1e-11, 1e-7, unit="s")


@dataclass(frozen=True, slots=True)
class CpuMatmulConstants:
    """Matrix products. ``compute``: achieved fraction of the peak once operands are packed; ``weight``, ``input``,
    ``output``: seconds per element of packing and writing, all cores together; ``alone``: FLOPs at which half of the
    other cores' help has set in; ``vector``: bytes/s of a matrix that meets a single row and is not packed;
    ``product``: seconds that each product of a batch adds."""

    compute: float = constant(0.95, 0.05, 1)
    weight: float = constant(5e-10, 1e-12, 1e-8, unit="s")
    input: float = constant(3e-10, 1e-12, 1e-8, unit="s")
    output: float = constant(3e-10, 1e-12, 1e-8, unit="s")
    alone: float = constant(3e5, 1e3, 1e8)
    vector: float = constant(1e10, 1e8, 1e12, unit="bytes/s")
    product: float = constant(3e-7, 1e-9, 1e-5, unit="s")


@dataclass(frozen=True, slots=True)
class CpuAttentionConstants:
    """Fused attention (torch's scaled_dot_product_attention). ``compute``: fraction of the peak of its two products,
    ``backward`` of its five; ``pair``: seconds per pair of query and key, all cores together (exp, mask, scaling);
    ``diagonal``: share of the masked pairs that a causal kernel still computes."""

    compute: float = constant(0.8, 0.05, 1)
    backward: float = constant(0.5, 0.05, 1)
    pair: float = constant(1e-9, 1e-12, 1e-7, unit="s")
    diagonal: float = constant(0.3, 0.01, 1)


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
    exp: Number = 0,
    tanh: Number = 0,
    erf: Number = 0,
) -> Array:
    """Seconds of an element by element kernel over ``elements`` results, without its dispatch.

    ``warm`` bytes come from the cache where they fit, ``cold`` ones from memory; ``exp``, ``tanh``, ``erf``:
    evaluations. All broadcast.
    """
    warm, cold = np.asarray(warm, float), np.asarray(cold, float)
    at_work = cores_at_work(elements, machine)
    memory = np.minimum(at_work * c.core, c.memory * machine.bandwidth)
    cache = np.maximum(at_work * c.cache, memory)
    held = 1 / (1 + (warm / (c.resident * machine.cache)) ** 4)
    moved = warm * (held / cache + (1 - held) / memory) + cold / memory
    worked = (np.asarray(exp, float) * c.exp + np.asarray(tanh, float) * c.tanh + np.asarray(erf, float) * c.erf) / at_work
    time: Array = moved + worked
    return time


def cpu_matmul_seconds(
    m: Number, n: Number, k: Number, machine: Machine, c: CpuMatmulConstants, *, dtype: str, copies: Number = 1
) -> Array:
    """Seconds of ``copies`` products [m, k] x [k, n], without their dispatch. Sizes broadcast.

    Raises InputError for a format the device lacks.
    """
    m, n, k, copies = (np.asarray(x, float) for x in (m, n, k, copies))
    flops = 2 * m * n * k * copies
    help_ = flops / (flops + c.alone)
    at_work = 1 + (machine.cores - 1) * help_
    compute = flops * machine.cores / (machine.peak(dtype) * c.compute * at_work)
    packing = copies * (n * k * c.weight + m * k * c.input + m * n * c.output) * machine.cores / at_work
    streamed = 4 * copies * np.maximum(n, m) * k / c.vector
    thin = (m == 1) | (n == 1)
    time: Array = compute + np.where(thin, np.minimum(streamed, packing), packing) + copies * c.product
    return time


def cpu_attention_seconds(
    pairs: Number,
    width: Number,
    machine: Machine,
    c: CpuAttentionConstants,
    *,
    dtype: str,
    backward: bool = False,
    all_pairs: Number | None = None,
) -> Array:
    """Seconds of fused attention over ``pairs`` (query, key) pairs of all heads, of ``all_pairs`` without a mask; heads
    of ``width``. Without its dispatch. ``backward``: five products instead of two.

    Raises InputError for a format the device lacks.
    """
    pairs = np.asarray(pairs, float)
    whole = pairs if all_pairs is None else np.asarray(all_pairs, float)
    done = pairs + c.diagonal * (whole - pairs)
    products, share = (5, c.backward) if backward else (2, c.compute)
    flops = 2 * products * done * np.asarray(width, float)
    time: Array = flops / (machine.peak(dtype) * share) + done * c.pair * (2 if backward else 1)
    return time


def cpu_optimizer_seconds(tensors: Number, elements: Number, c: CpuOptimizerConstants) -> Array:
    """Seconds of an AdamW step over ``elements`` parameters in ``tensors`` tensors."""
    time: Array = np.asarray(tensors, float) * c.tensor + np.asarray(elements, float) * c.element
    return time
