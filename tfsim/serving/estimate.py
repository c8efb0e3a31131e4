"""What ``serve`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsim.economics import Rates
from tfsim.plain import plain, plain_fields
from tfsim.serving.memory import Memory
from tfsim.units import Number, format_bytes, format_money, format_time


@dataclass(frozen=True)
class Phase:
    """Where the time of a phase goes [s]: operators bound by compute, by memory, by the network, launch gaps, and
    waiting for the slowest pipeline stage; these five add up to ``seconds``. ``operators``: by operator name."""

    seconds: Number
    compute: Number
    memory: Number
    network: Number
    launch: Number
    wait: Number
    operators: dict[str, Number]

    LIMITS = ("compute", "memory", "network", "launch", "wait")

    @property
    def bound(self) -> Any:
        """The limit with the largest share: a word, or an array of words; "" where there is no estimate."""
        shares = np.stack(np.broadcast_arrays(*(np.asarray(getattr(self, name), float) for name in self.LIMITS)))
        words = np.where(np.isnan(shares).any(axis=0), "", np.array(self.LIMITS)[np.argmax(shares, axis=0)])
        return words.item() if words.ndim == 0 else words

    @property
    def shares(self) -> dict[str, Number]:
        """Fraction of the time per limit."""
        return {name: getattr(self, name) / self.seconds for name in self.LIMITS}

    def largest(self, n: int = 3) -> list[tuple[str, float]]:
        """The operators with the most time, summed over all elements: (name, share of the phase)."""
        sums = {name: float(np.nansum(seconds)) for name, seconds in self.operators.items()}
        whole = float(np.nansum(self.seconds))
        ranked = sorted(sums.items(), key=lambda item: -item[1])[:n]
        return [(name, seconds / whole) for name, seconds in ranked if whole > 0]


@dataclass(frozen=True)
class ServingEstimate:
    """Serving one model under steady load on ``devices``: numbers, or arrays where an argument was an array.

    ``batch``: sequences decoded at once on each of ``replicas``; ``max_concurrency``: sequences per replica that memory
    allows at full length. Where ``fits`` is False every performance figure is NaN (None in ``to_dict``).

    - ``ttft_ms``: time to first token of a request that reaches an idle replica: one prefill, no queueing;
    - ``tpot_ms``: one decode step of the whole batch, no prefill in between;
    - ``itl_ms``: mean time between the tokens of a sequence under full load, other requests' prefills included;
    - ``request_latency_s``: ttft + (output_len - 1) x itl;
    - ``output_tokens_per_s``, ``total_tokens_per_s`` (prompt tokens too), ``requests_per_s``: of all replicas;
    - ``control_hz``: actions per second of a robot that waits for each, 1 / (ttft + (output_len - 1) x tpot); None for
      a model that does not act;
    - ``*_per_million_*``, ``joules_per_output_token``: of all devices, at maximum power; None where a rate is unknown,
      and ``cost_note`` says what to give.
    """

    model: str
    system: str
    software: str
    dtype: str
    weights_dtype: str
    kv_dtype: str
    devices: Number
    tp: Number
    pp: Number
    ep: Number
    replicas: Number
    batch: Number
    input_len: Number
    output_len: Number
    images: Number
    fits: Any
    verdict: Any
    max_concurrency: Number
    memory: Memory
    prefill: Phase
    decode: Phase
    ttft_ms: Number
    tpot_ms: Number
    itl_ms: Number
    request_latency_s: Number
    requests_per_s: Number
    output_tokens_per_s: Number
    total_tokens_per_s: Number
    output_tokens_per_s_per_device: Number
    tokens_per_s_per_user: Number
    control_hz: Number | None
    rates: Rates
    usd_per_hour: Number | None
    usd_per_million_output_tokens: Number | None
    usd_per_million_tokens: Number | None
    joules_per_output_token: Number | None
    kwh_per_million_output_tokens: Number | None
    carbon_g_per_million_output_tokens: Number | None
    cost_note: str
    notes: tuple[str, ...]
    confidence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: arrays as lists, NaN as None, with what bounds each phase."""
        found = plain_fields(self)
        for name in ("prefill", "decode"):
            phase: Phase = getattr(self, name)
            found[name]["bound"] = plain(phase.bound)
        return found

    def __repr__(self) -> str:
        head = f"ServingEstimate: {self.model} on {self.system}, input {self.input_len}, output {self.output_len}"
        if not isinstance(self.fits, bool):
            return f"{head}: {np.size(self.fits)} cases, {int(np.sum(self.fits))} fit"
        lines = [
            head,
            f"  plan      tp {self.tp}, pp {self.pp}, ep {self.ep}; {self.replicas} replicas on {self.devices} devices",
        ]
        lines.append(f"  memory    {self.verdict}")
        if self.fits:
            usd = self.usd_per_million_output_tokens
            cost = "cost unknown" if usd is None else f"{format_money(float(usd))} per million output tokens"
            ttft, tpot, itl = (format_time(float(ms) / 1e3) for ms in (self.ttft_ms, self.tpot_ms, self.itl_ms))
            lines += [
                f"  batch     {self.batch} per replica (memory allows {self.max_concurrency})",
                f"  latency   TTFT {ttft}, TPOT {tpot} ({itl} under load)",
                f"  rate      {self.output_tokens_per_s:,.0f} output tokens/s,"
                f" {self.tokens_per_s_per_user:,.1f} per user; {cost}",
                f"  bound by  prefill: {self.prefill.bound}, decode: {self.decode.bound}",
            ]
        return "\n".join(lines)


def fit_words(memory: Memory, label: str, kept: str) -> str:
    """How a scalar memory need compares: "fits: ..." or "does not fit: needs X of Y per device, largest parts ...".
    ``kept``: what the model's cache is called."""
    need, have = format_bytes(float(memory.total)), format_bytes(float(memory.usable))
    if memory.total <= memory.usable:
        return f"fits: {need} of {have} per device"
    names = {"weights": "weights", "kv_cache": kept, "workspace": "workspace", "runtime_reserve": "runtime"}
    parts = sorted(((float(getattr(memory, key)), words) for key, words in names.items()), reverse=True)
    largest = ", ".join(f"{words} {format_bytes(size)}" for size, words in parts[:3])
    return f"does not fit: needs {need} of {have} per device ({label}), largest parts {largest}"
