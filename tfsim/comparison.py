"""The same job for several architectures side by side: size, work, traffic, depth, memory and time against context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from tfsim.errors import InputError, choice
from tfsim.hardware import System, require_system
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.spec import ModelSpec, require_model
from tfsim.operators.core import kept_for_backward, total
from tfsim.serving.workload import COMPUTE_DTYPES, served
from tfsim.software import Software, software
from tfsim.timing import Groups, exposed_dispatch, operator_time
from tfsim.units import Array, as_number, maximum

QUANTITIES = {
    "flops_per_token": "FLOPs per token",
    "bytes_per_token": "memory traffic per token",
    "train_memory_bytes": "weights + kept activations",
    "infer_memory_bytes": "serving memory",
    "train_s": "time of forward and backward",
    "prefill_s": "time of a prefill",
    "decode_s": "time of one decoded token",
}
"""Columns of ``compare`` that grow with the context, in words."""


@dataclass(frozen=True)
class Case:
    """A model run in a software style; ``standard``: its attention keeps the scores in memory."""

    model: ModelSpec
    style: Software
    standard: bool = False

    @property
    def label(self) -> str:
        """The model's name, and how its attention runs where that is not the usual way."""
        return f"{self.model.name} (standard attention)" if self.standard else self.model.name


def compare(
    models: Sequence[Any],
    system: Any,
    *,
    seq_lens: Any,
    batch: Any = 1,
    dtype: str = "bf16",
    software_name: str = "fused",
) -> pd.DataFrame:
    """One row per case and context length, on one device of ``system``; nothing is cut over devices.

    A model with attention is a case twice: with a fused kernel (FlashAttention), and with standard attention, whose
    scores are in memory. Weights of 16 and 32 bits are held in ``dtype``, quantised ones as published. Columns:

    - model, seq_len, parameters
    - flops_per_token, bytes_per_token: of the forward pass; bytes of memory traffic
    - sequential_depth: operators of a forward pass, run one after another, each step of a recurrence by itself
    - cache_bytes: KV cache (to an encoder's output too, as long as the decoder's) or state
    - train_memory_bytes: weights, and what a forward pass keeps
    - infer_memory_bytes: weights, cache or state, and the largest operator's tensors of a prefill, which asks only for
      its last token's logits
    - train_s (forward and backward, no optimizer), prefill_s, decode_s (one token after seq_len)
    - train_fits, infer_fits: memory that the device does not have is not refused, but said

    decode_s and cache_bytes are NaN where nothing is decoded.
    Raises InputError for a malformed argument, or a figure the device lacks.
    """
    machine = require_system(system)
    if isinstance(models, str) or not isinstance(models, Sequence) or not models:
        raise InputError("models: give one loaded model or more")
    lengths = np.unique(np.asarray(as_number(seq_lens, "seq_lens", at_least=1, whole=True), float))
    size = as_number(batch, "batch", at_least=1, whole=True)
    if not isinstance(size, int):
        raise InputError("batch: give one number")
    style, compute = software(software_name), choice("dtype", dtype, COMPUTE_DTYPES)
    cases = [case for model in models for case in _cases(served(require_model(model), compute, None, None), style)]
    labels = [case.label for case in cases]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise InputError(f"models: {twice} is given twice")
    return pd.concat([_case(case, machine, lengths, size, compute) for case in cases], ignore_index=True)


def _cases(model: ModelSpec, style: Software) -> list[Case]:
    scored = any(block.mixer is not None and block.mixer.score_width for block in model.blocks.values())
    standard = [Case(model, replace(style, attention="eager"), standard=True)] if scored else []
    return [Case(model, style), *standard]


def _case(case: Case, system: System, lengths: Array, batch: int, dtype: str) -> pd.DataFrame:
    # one length at a time: recurrences and caches need whole numbers, and lengths are few
    frame = pd.DataFrame([_row(case, system, int(n), batch, dtype) for n in lengths])
    frame.insert(0, "model", case.label)
    frame.insert(2, "parameters", parameters(case.model).total)
    return frame


def _row(case: Case, system: System, length: int, batch: int, dtype: str) -> dict[str, Any]:
    model, style = case.model, case.style
    capacity = system.device.require("capacity_bytes")

    def counted(phase: Any, **job: Any) -> Counts:
        how: dict[str, Any] = {"attention": style.attention, "style": style.pointwise, "dtype": dtype}
        source = length if model.reads_source else None
        return count(model, batch=batch, phase=phase, causal="halved", encoder_len=source, **how, **job)

    training, prefill = counted("forward_backward", seq_len=length), counted("forward", seq_len=length, logits="last")
    forward = [(op, repeat) for _, repeat, op in training.operators if op.phase == "forward"]
    cached, decode = math.nan, math.nan
    if model.decodes:
        cached = float(np.asarray(prefill.kv_bytes + prefill.cross_bytes + prefill.state_bytes))
        decode = _seconds(counted("decode", seq_len=1, past_len=length), system, style)
    live = maximum(*(kept_for_backward([op]).bytes + op.output.bytes for _, _, op in prefill.operators))
    weights = training.weight_bytes
    train_memory, infer_memory = weights + training.saved_bytes, weights + (cached if model.decodes else 0) + live
    return {
        "seq_len": length,
        "flops_per_token": total(op.flops * n for op, n in forward) / (batch * length),
        "bytes_per_token": total(op.bytes_moved * n for op, n in forward) / (batch * length),
        "sequential_depth": int(np.asarray(total(op.dims.get("steps", 1) * n for op, n in forward))),
        "cache_bytes": cached,
        "train_memory_bytes": train_memory,
        "infer_memory_bytes": infer_memory,
        "train_s": _seconds(training, system, style),
        "prefill_s": _seconds(prefill, system, style),
        "decode_s": decode,
        "train_fits": bool(train_memory <= capacity),
        "infer_fits": bool(infer_memory <= capacity),
    }


def _seconds(counts: Counts, system: System, style: Software) -> float:
    times = [(operator_time(op, system, style, Groups()), repeat) for _, repeat, op in counts.operators]
    busy = total(time.seconds * repeat for time, repeat in times)
    kernels = total(time.kernels * repeat for time, repeat in times)
    return float(np.asarray(busy + exposed_dispatch(busy, kernels, style)))


@dataclass(frozen=True)
class Crossing:
    """``winner`` becomes better than ``loser`` in ``quantity`` somewhere between two context lengths."""

    quantity: str
    winner: str
    loser: str
    after: int
    by: int


def crossings(table: pd.DataFrame) -> list[Crossing]:
    """Where one case overtakes another as the context grows, for each of QUANTITIES (less is better in all)."""
    found: list[Crossing] = []
    names = list(dict.fromkeys(table["model"]))
    for quantity in QUANTITIES:
        wide = table.pivot(index="seq_len", columns="model", values=quantity)
        lengths = [int(n) for n in wide.index]
        for first, second in combinations(names, 2):
            lead = np.sign((wide[first] - wide[second]).to_numpy())  # NaN where one of them has no such figure
            for k in np.nonzero(lead[1:] * lead[:-1] < 0)[0]:
                winner, loser = (first, second) if lead[k + 1] < 0 else (second, first)
                found.append(Crossing(quantity, winner, loser, lengths[k], lengths[k + 1]))
    return found
