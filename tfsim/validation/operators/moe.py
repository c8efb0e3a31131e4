"""moe: layers of experts on one rank, fused or one grouped product, by number format and kernel generation."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from tfsim.hardware import Device
from tfsim.operators.formats import weight_bytes
from tfsim.timing.machine import Machine
from tfsim.timing.moe import Load, MoEConstants, even_load, grouped_seconds, moe_seconds
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, where

# Table's dtype -> (format of the weights, format the matrix units run at, bytes of an activation that they read,
# scales per block on both sides)
FORMATS = {
    "bfloat16": ("bf16", "bf16", 2.0, False),
    "fp8": ("fp8", "fp8", 1.0, False),
    "fp8_block": ("fp8_block", "fp8", 1.03, True),
    "fp8_block_kernel": ("fp8_block", "fp8", 1.03, True),
    "nvfp4": ("nvfp4", "nvfp4", 0.5625, False),
    "int4_wo": ("int4_g128", "bf16", 2.0, False),
    "w4a16_mxfp4": ("mxfp4", "bf16", 2.0, False),
    "w4a8_mxfp4_mxfp8": ("mxfp4", "fp8", 1.03, False),
}
MOST_EXPERTS = 100_000  # of a row: their loads are drawn one by one
# Groups of experts with like loads, and draws of a skewed load that they average.
GROUPS, DRAWS = 12, 8


def fused_variant(frame: pd.DataFrame) -> pd.Series[str]:
    """Number format and kernel generation of a fused layer: constants are fitted for each."""
    routed = frame["distribution"].astype(str).str.fullmatch(r"balanced|power_law_\d+(\.\d+)?")
    sized = (frame[["tokens", "topk", "moe_tp", "moe_ep"]] >= 1).all(axis=1) & (frame["topk"] <= frame["experts"])
    cut = (frame["moe_ep"] <= frame["experts"]) & (frame["experts"] <= MOST_EXPERTS)
    fused = (frame["part"] == "fused") & routed & sized & cut & frame["dtype"].isin(list(FORMATS))
    generation = where(frame, (frame["kernel"].str.endswith("min_latency"), "_min_latency"))
    return (frame["dtype"] + generation).where(fused, "")


def product_variant(frame: pd.DataFrame) -> pd.Series[str]:
    """A grouped product alone."""
    sized = frame["num_local_experts"].between(1, MOST_EXPERTS) & (frame["tokens_per_expert"] > 0)
    known = frame["part"].isin(["up", "down"]) & frame["phase"].isin(["decode", "prefill"]) & sized
    return where(frame, (known, "fp8_block_kernel"))


def _format(variant: str) -> tuple[str, str, float, bool]:
    return FORMATS[variant.removesuffix("_min_latency")]


def _weight(stored: str) -> float:
    return float(weight_bytes(stored, 4096, 4096)) / 4096**2


def _fused(frame: pd.DataFrame, machine: Machine, c: MoEConstants, variant: str) -> Array:
    tokens, experts, hidden, inter, tp, gated = (
        frame[x].to_numpy(float) for x in ("tokens", "experts", "hidden", "inter", "moe_tp", "gated")
    )
    load = loads(frame)
    stored, runs, act, blocks = _format(variant)
    width, weight = inter / tp, _weight(stored)
    # layers run over and over: what of their weights fits stays in the cache
    reuse = load.touched * hidden * width * (2 + gated) * weight
    # vLLM's Triton and Marlin kernels size the tensors between the products for the copies of all ranks
    everywhere = tokens * frame["topk"].to_numpy(float)
    passed = np.where(frame["kernel"].str.startswith("vllm"), everywhere, load.copies)
    return moe_seconds(
        tokens, experts, load, hidden, width, machine, c,
        dtype=runs, weight_bytes=weight, input_bytes=act, gated=gated, blocks=blocks, passed=passed, reuse=reuse,
    )  # fmt: skip


def _product(frame: pd.DataFrame, machine: Machine, c: MoEConstants, variant: str) -> Array:
    hidden, inter, up = (
        frame["hidden"].to_numpy(float),
        frame["inter"].to_numpy(float),
        (frame["part"] == "up").to_numpy(),
    )
    stored, runs, act, blocks = _format(variant)
    n, k = np.where(up, 2 * inter, hidden), np.where(up, hidden, inter)
    times = np.empty(len(frame))
    # contiguous groups are padded to whole tiles of 128 rows (DeepGEMM)
    for phase, align in (("decode", 1), ("prefill", 128)):
        rows = np.asarray(frame["phase"] == phase)
        load = loads(frame[rows])
        times[rows] = grouped_seconds(
            load, n[rows], k[rows], machine, c,
            dtype=runs, weight_bytes=_weight(stored), input_bytes=act, blocks=blocks, align=align,
        )  # fmt: skip
    return times


def _roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    load = loads(frame)
    hidden, inter, tp, gated = (frame[x].to_numpy(float) for x in ("hidden", "inter", "moe_tp", "gated"))
    matrices = np.select([frame["part"] == "up", frame["part"] == "down"], [2.0, 1.0], 2 + gated)
    stored, runs, act, _ = _format(variant)
    size = matrices * hidden * inter / tp
    moved = load.touched * size * _weight(stored) + load.copies * hidden * (act + 2)
    longer: Array = np.maximum(2 * load.copies * size / machine.peak(runs), moved / machine.bandwidth)
    return longer


def _faults(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    """Rows whose ``gated`` says two up matrices for experts that have one: it was filled from vLLM's kernel names,
    which do not tell. The widths are those of Nemotron 3 (squared ReLU); other chips' rows of them say one."""
    nemotron = [(2688, 1856), (2048, 5120)]
    wrong = np.logical_or.reduce([(frame["hidden"] == d) & (frame["inter"] == f) for d, f in nemotron])
    return where(frame, (wrong & (frame["gated"] == 1), "gated is 1 for experts without a gate (Nemotron 3 widths)"))


def loads(frame: pd.DataFrame) -> Load:
    """Loads of the rank that was timed: of skewed routing the fullest, of balanced routing the first."""
    columns = ("tokens", "topk", "experts", "moe_ep", "distribution", "phase", "num_local_experts", "tokens_per_expert")
    alone = frame.assign(phase=frame["phase"].where(frame["part"] != "fused"))  # a fused layer has no phase
    keys = zip(*(alone[c].tolist() for c in columns), strict=True)
    found = [_load(*key) for key in keys]
    return Load(
        np.array([rows for rows, _ in found]).reshape(-1, GROUPS),
        np.array([n for _, n in found]).reshape(-1, GROUPS),
    )


def _load(
    tokens: int, topk: int, experts: int, ep: int, distribution: str, phase: object, local: float, mean: float
) -> tuple[Array, Array]:
    if phase == "decode":
        return _masked(int(local), mean)
    if phase == "prefill":
        return _even(int(local), mean * local)
    if distribution == "balanced":
        return _balanced(int(tokens), int(topk), int(experts), int(ep))
    return _skewed(int(tokens), int(topk), int(experts), int(ep), float(distribution.removeprefix("power_law_")))


@cache
def _masked(local: int, mean: float) -> tuple[Array, Array]:
    """DeepGEMM's masked benchmark: an expert has floor(mean x U(0.7, 1.3)) tokens."""
    return _grouped(np.floor(mean * (0.7 + 0.6 * (np.arange(16 * local) + 0.5) / (16 * local))), 16)


def _even(experts: float, copies: float) -> tuple[Array, Array]:
    rows, n = np.zeros(GROUPS), np.zeros(GROUPS)
    rows[0], n[0] = copies / max(experts, 1e-9), experts
    return rows, n


@cache
def _balanced(tokens: int, topk: int, experts: int, ep: int) -> tuple[Array, Array]:
    """Token i picks experts i + j stride; fewer tokens than a stride spread over it. The rank has the first experts."""
    stride, local = -(-experts // topk), experts // ep
    if tokens >= stride:
        return _even(local, tokens * topk * local / experts)
    starts = np.arange(topk) * stride
    found = float(np.clip(np.ceil((local - starts) * tokens / stride), 0, tokens).sum())
    return _even(found, found)


@cache
def _skewed(tokens: int, topk: int, experts: int, ep: int, alpha: float) -> tuple[Array, Array]:
    """The fullest rank when popularity follows a power law cut off at both ends (aiconfigurator's "power_law").

    Popularity has density x**-alpha between 1 and 0.8 tokens (0.01 and 2 where there are fewer picks than experts);
    shares round to whole tokens, at most all of them, and what rounding leaves over goes to each rank in turn, to its
    emptiest expert.
    """
    rng = np.random.default_rng([tokens, topk, experts, ep])
    picks, local = tokens * topk, experts // ep
    low, high = (1.0, 0.8 * tokens) if picks > experts else (0.01, 2.0)
    a = 1 - alpha
    x = ((high**a - low**a) * rng.random((DRAWS, experts)) + low**a) ** (1 / a)
    counts = np.minimum(np.round(x / x.sum(1, keepdims=True) * picks), tokens).reshape(DRAWS, ep, local)
    left = picks - counts.sum((1, 2))
    each = np.floor((np.abs(left)[:, None] + np.arange(ep)[::-1]) / ep) * np.sign(left)[:, None]
    counts = np.sort(counts, axis=2)
    counts = np.where(each[..., None] > 0, _filled(counts, np.maximum(each, 0)), counts)
    counts[..., -1] = np.maximum(counts[..., -1] + np.minimum(each, 0), 0)
    fullest = counts.sum(2).argmax(1)
    return _grouped(counts[np.arange(DRAWS), fullest].ravel(), DRAWS)


def _filled(counts: Array, more: Array) -> Array:
    """Sorted counts [..., experts] after ``more`` tokens went one by one to the emptiest expert."""
    levels = (counts.cumsum(-1) + more[..., None]) / np.arange(1, counts.shape[-1] + 1)
    level = np.floor(levels.min(-1, keepdims=True))
    filled = np.maximum(counts, level)
    rest = more - (filled - counts).sum(-1)
    topped: Array = filled + (np.arange(counts.shape[-1]) < rest[..., None])
    return topped


def _grouped(counts: Array, draws: int) -> tuple[Array, Array]:
    """Counts of ``draws`` loads as ``GROUPS`` groups of like counts."""
    some = np.sort(counts[counts > 0])
    parts = np.array_split(some, GROUPS)
    return np.array([p.mean() if len(p) else 0.0 for p in parts]), np.array([len(p) / draws for p in parts])


def _several(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, ((frame["groups"] > 1) & (frame["dtype"] == "fp8_block_kernel"), "fp8_block_kernel"))


def _several_seconds(frame: pd.DataFrame, machine: Machine, c: MoEConstants, variant: str) -> Array:
    groups, m, n, k = (frame[x].to_numpy(float) for x in ("groups", "m", "n", "k"))
    stored, runs, act, blocks = _format(variant)
    return grouped_seconds(
        even_load(groups * m, groups), n, k, machine, c,
        dtype=runs, weight_bytes=_weight(stored), input_bytes=act, blocks=blocks,
    )  # fmt: skip


def _several_roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    groups, m, n, k = (frame[x].to_numpy(float) for x in ("groups", "m", "n", "k"))
    stored, runs, act, _ = _format(variant)
    moved = groups * (n * k * _weight(stored) + m * k * act + 2 * m * n)
    longer: Array = np.maximum(2 * groups * m * n * k / machine.peak(runs), moved / machine.bandwidth)
    return longer


def _kernel(variant: str) -> str:
    """Nobody's rows of the kernel alone are fitted on: it takes the constants of the fused layers."""
    return "fp8_block"


# Rows of the gemm table with ``groups`` > 1: m rows for each of them.
GROUPED = Part("moe", MoEConstants, _several, _several_seconds, _several_roofline, borrow=_kernel)

MOE = Table(
    "moe",
    frozenset({"device", "timing", "part", "dtype", "kernel", "gated", "tokens", "hidden", "inter", "topk", "experts",
               "moe_tp", "moe_ep", "distribution", "phase", "num_local_experts", "tokens_per_expert", "time_s"}),
    (
        Part("moe", MoEConstants, fused_variant, _fused, _roofline),
        Part("moe", MoEConstants, product_variant, _product, _roofline, borrow=_kernel),
    ),
    _faults,
    group=("source", "device", "dtype", "kernel"),
)  # fmt: skip
