"""The answer to a scenario in words and shares: what the screen, the Markdown and the HTML report all show.

A section has facts (a label and a few short texts) and bars (shares of a whole). How they look is up to the reader's
medium; what they say is decided here, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tfsim.comparison import QUANTITIES
from tfsim.economics import JOULES_PER_KWH, Rates
from tfsim.reports.words import two_units
from tfsim.units import (
    format_bytes,
    format_carbon,
    format_cost,
    format_count,
    format_days,
    format_energy,
    format_flop_rate,
    format_flops,
    format_money,
    format_percent,
    format_power,
    format_price,
    format_time,
    format_tokens,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from tfsim.models.facts import ModelFacts
    from tfsim.scenario import ComparisonAnswer, ScenarioResult, ServingAnswer, TrainingAnswer
    from tfsim.serving import ServingEstimate
    from tfsim.training import TrainingEstimate

LIMITS = ("compute", "memory", "network", "launch", "bubble", "wait")
MEANS = {
    "compute": "arithmetic of the matrix units",
    "memory": "memory bandwidth",
    "network": "exposed communication",
    "launch": "kernel launches",
    "bubble": "idle pipeline stages",
    "wait": "waiting for the slowest pipeline stage",
}
KWH_PER_MWH = 1000
G_PER_KG = 1000
BEYOND = " *"  # more memory than the device has
_SLIVER = 0.0005  # a part of a bar below this share is not drawn
Tone = Literal["plain", "good", "bad", "note"]


@dataclass(frozen=True)
class Fact:
    """One labelled line. ``aside``: said more quietly."""

    label: str
    pieces: tuple[str, ...]
    aside: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Part:
    """A part of a bar: its share of the whole bar, and what it amounts to. ``look``: index of its colour and fill."""

    name: str
    share: float
    words: str
    look: int


@dataclass(frozen=True)
class Bar:
    """Shares of one whole; what they leave free stays empty. ``limit``: the share there is room for, when less."""

    label: str
    parts: tuple[Part, ...]
    limit: float | None = None


@dataclass(frozen=True)
class Section:
    """A titled list of facts and bars."""

    title: str
    items: tuple[Fact | Bar, ...]


def sections(result: ScenarioResult) -> list[Section]:
    """Model, training, serving, comparison and sizing of a scenario, as far as it asks."""
    found = [] if result.facts is None else [model_section(result.facts)]
    if result.train is not None:
        found.append(training_section(result.train))
    if result.serve is not None:
        above = None if result.train is None else result.train.estimate.rates
        found.append(serving_section(result.serve, above))
    if result.compare is not None:
        found.append(comparison_section(result.compare))
    if result.size is not None:
        from tfsim.reports.sizing import sizing_sections  # which stands on this module

        found += sizing_sections(result.size.estimate)
    return found


def model_section(facts: ModelFacts) -> Section:
    """Sizes, bytes and FLOPs of a model."""
    p = facts.parameters
    one = len(facts.blocks) == 1
    weights = [f"{two_units(facts.weight_bytes)} as specified ({', '.join(facts.formats)})"]
    if facts.formats != (facts.dtype,):
        weights.append(f"{format_bytes(float(facts.weight_bytes_as))} in {facts.dtype}")
    active = [f"{format_count(p.active)} active per token"] if p.active != p.total else []
    return Section(
        f"Model: {facts.name}",
        (
            Fact(
                "parameters",
                (
                    format_count(p.total, 4),
                    *active,
                    f"{format_count(p.active_less_input_embedding, 4)} active less the input embedding",
                ),
            ),
            Fact("layers", (f"{facts.n_layers} x {facts.blocks[next(iter(facts.blocks))]}" if one else facts.layers,)),
            *([] if one else [Fact(f"  {name}", (words,)) for name, words in facts.blocks.items()]),
            Fact(
                "sizes",
                (
                    f"d_model {facts.d_model:,}",
                    *([f"input: {facts.reads}"] if facts.reads else []),
                    *(
                        [f"vocabulary {facts.vocab_size:,}{', tied' if facts.tied_embeddings else ''}"]
                        if facts.vocab_size
                        else []
                    ),
                    *([f"at most {facts.max_seq_len:,} tokens"] if facts.max_seq_len else []),
                ),
            ),
            *_image_facts(facts),
            Fact("weights", tuple(weights)),
            *_cache_facts(facts),
            Fact(
                "FLOPs/token",
                *_flops_words(facts.training_flops_per_token, f"training at {facts.seq_len:,} tokens"),
            ),
        ),
    )


def _image_facts(facts: ModelFacts) -> list[Fact]:
    """What an image costs, and what a robot is told, where the model has such parts."""
    found = []
    if facts.image_tower is not None:
        work = f"{format_flops(float(facts.tower_flops_per_image))} each in a tower of"
        size = f"{work} {format_count(facts.tower_parameters)} parameters"
        found.append(Fact("images", (f"{facts.tokens_per_image:,} tokens each", size)))
    if facts.action_tokens and facts.head is not None:
        found.append(Fact("head", (facts.head,)))
    return found


def _cache_facts(facts: ModelFacts) -> list[Fact]:
    """The cache that grows with the context and the state that does not, where the model has them."""
    each, sequence, state = facts.kv_bytes_per_token, facts.kv_bytes_per_sequence, facts.state_bytes_per_sequence
    found = []
    if facts.decodes and sequence:
        cached = f"{format_bytes(float(sequence))} per {facts.seq_len:,} tokens in {facts.kv_format}"
        found.append(Fact("KV cache", (f"{two_units(each)} per token", cached)))
    if state:
        found.append(Fact("state", (f"{two_units(state)} per sequence",)))
    return found


def training_section(answer: TrainingAnswer) -> Section:
    """Plan, time, memory and cost of training."""
    e = answer.estimate
    batch = f"{e.global_batch:,} per step = {format_tokens(e.global_batch * e.seq_len)}"
    tokens = [] if e.tokens is None else [format_tokens(e.tokens)]
    images = [_several(e.images, "image") + " each"] if e.images else []
    return Section(
        f"Training: {e.devices:,} x {answer.system.device.name} ({e.system})",
        (
            Fact("job", (*tokens, f"sequences of {e.seq_len:,}", *images, batch, e.precision, e.software)),
            Fact("plan", training_plan(e.plan), _how_found(answer)),
            Fact(
                "speed",
                (
                    f"{format_time(e.step_time_s)} per step",
                    f"{format_count(e.tokens_per_s)} tokens/s",
                    f"{e.tokens_per_s_per_device:,.0f} tokens/s per device",
                ),
            ),
            Fact(
                "MFU",
                (*(f"{format_percent(v)} {name}" for name, v in e.mfu.items()), f"HFU {format_percent(e.hfu)}"),
                f"of {format_flop_rate(e.peak_flops)}",
            ),
            Bar("step time", _shares(training_times(answer)["step"], e.step_time_s)),
            Bar("bound by", _shares(e.bounds, e.step_time_s, LIMITS)),
            _memory_bar(training_memory(answer), e.usable_bytes),
            _verdict(e.verdict, bool(e.fits)),
            *(_run(e) if e.fits else []),
            *(Fact("note", (note,), tone="note") for note in e.notes),
        ),
    )


def serving_section(answer: ServingAnswer, above: Rates | None = None) -> Section:
    """Latency, throughput, memory and cost of serving; rates equal to those ``above`` are not said again."""
    e = answer.estimate
    images = f", {_several(int(e.images), 'image')} of them" if e.images else ""
    load = (
        f"{e.input_len:,} tokens in{images}, {e.output_len:,} out",
        f"{e.weights_dtype} weights",
        f"{e.kv_dtype} KV cache",
    )
    plan = [f"tp {e.tp}", f"pp {e.pp}", *([f"ep {e.ep}"] if e.ep > 1 else [])]
    spread = f"{_several(int(e.replicas), 'replica')} of {_several(int(e.tp * e.pp), 'device')}"
    return Section(
        f"Serving: {e.devices:,} x {answer.system.device.name} ({e.system})",
        (
            Fact("load", (*load, f"software {e.software}")),
            Fact("plan", (", ".join(plan), spread)),
            *(_speeds(answer) if e.fits else []),
            _memory_bar(serving_memory(answer), float(e.memory.usable)),
            _verdict(e.verdict, bool(e.fits)),
            *(_prices(e) if e.fits else []),
            *(Fact("note", (note,), tone="note") for note in e.notes),
            *([] if e.rates == above else [Fact("at", rate_words(e.rates), tone="note")]),
        ),
    )


def comparison_section(answer: ComparisonAnswer) -> Section:
    """Who overtakes whom as the context grows, by quantity."""
    by_quantity: dict[str, list[str]] = {}
    for c in answer.crossings:
        words = f"{c.winner} passes {c.loser} between {c.after:,} and {c.by:,} tokens"
        by_quantity.setdefault(QUANTITIES[c.quantity], []).append(words)
    none = Fact("crossings", ("no case overtakes another between the given lengths",))
    return Section(
        f"Crossings as the context grows: one {answer.system.device.name} ({answer.system.name})",
        (tuple(Fact(name, (words,)) if i == 0 else Fact("", (words,))
              for name, found in by_quantity.items() for i, words in enumerate(found)) or (none,))
        + tuple(Fact("note", (note,), tone="note") for note in answer.notes),
    )  # fmt: skip


def comparison_rows(answer: ComparisonAnswer) -> list[dict[str, str]]:
    """A comparison as rows of a table, in words. Memory beyond the device's is marked."""

    def held(size: float, fits: bool) -> str:
        return format_bytes(size, digits=3) + ("" if fits else BEYOND)

    def known(value: float, words: Callable[[float], str]) -> str:
        return "-" if math.isnan(value) else words(value)

    return [
        {
            "model": row["model"],
            "context": f"{row['seq_len']:,}",
            "parameters": format_count(row["parameters"]),
            "FLOPs/token": format_count(row["flops_per_token"]),
            "bytes/token": format_bytes(row["bytes_per_token"], digits=3),
            "depth": format_count(row["sequential_depth"]),
            "cache or state": known(row["cache_bytes"], lambda x: format_bytes(x, digits=3)),
            "weights + kept": held(row["train_memory_bytes"], row["train_fits"]),
            "serving memory": held(row["infer_memory_bytes"], row["infer_fits"]),
            "fwd + bwd": format_time(row["train_s"]),
            "prefill": format_time(row["prefill_s"]),
            "decode": known(row["decode_s"], format_time),
        }
        for row in answer.table.to_dict(orient="records")
    ]


def training_memory(answer: TrainingAnswer) -> dict[str, float]:
    """Bytes on the fullest device by part."""
    return {_spaced(name): float(size) for name, size in answer.estimate.memory.items()}


def training_times(answer: TrainingAnswer) -> dict[str, dict[str, float]]:
    """Seconds of a step by part."""
    return {"step": {_spaced(name): float(seconds) for name, seconds in answer.estimate.time.items()}}


def serving_memory(answer: ServingAnswer) -> dict[str, float]:
    """Bytes on the fullest device by part."""
    held = answer.estimate.memory
    sizes = {"weights": held.weights, answer.kept: held.kv_cache, "workspace": held.workspace}
    return {name: float(size) for name, size in (*sizes.items(), ("reserve", held.runtime_reserve))}


def serving_times(answer: ServingAnswer) -> dict[str, dict[str, float]]:
    """Seconds of a prefill and of a decode step by what bounds them."""
    e = answer.estimate
    phases = {"prefill": e.prefill, "decode": e.decode}
    return {label: {name: float(getattr(p, name)) for name in p.LIMITS} for label, p in phases.items()}


def training_plan(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """A training plan in the words a user types."""
    experts = [f"{name} {plan[name]}" for name in ("ep", "etp")] if plan["ep"] > 1 else []
    degrees = ", ".join([*(f"{name} {plan[name]:,}" for name in ("tp", "pp", "dp")), *experts])
    rest = (f"ZeRO {plan['zero_stage']}", f"micro-batch {plan['micro_batch']}", f"recompute {plan['recompute']}")
    return (degrees, *rest)


def plan_rows(plans: DataFrame, best: TrainingEstimate) -> list[dict[str, str]]:
    """Plans of a search as rows of a table, in words; expert degrees only where a plan spreads experts. Days and money
    of the whole run, where ``best``, the estimate of the first plan, has them."""
    spread = ("ep", "etp") if (plans["ep"] > 1).any() else ()
    fields = ("tp", "pp", "dp", *spread, "micro_batch", "zero_stage", "recompute")
    return [
        {name: str(row[name]) for name in fields}
        | {
            "step time": format_time(row["step_time_s"]),
            "MFU (exact)": format_percent(best.mfu["exact"] * best.step_time_s / row["step_time_s"]),
            **_whole_run(best, row["step_time_s"] / best.step_time_s),
            "memory": format_bytes(row["memory_bytes"]),
            "fits": "yes" if row["fits"] else "no",
        }
        for row in plans.to_dict(orient="records")
    ]


def _whole_run(best: TrainingEstimate, times: float) -> dict[str, str]:
    """Days and money of a run that takes ``times`` as long as ``best``."""
    found = {} if best.days is None else {"days": format_days(float(times * best.days))}
    return found | ({} if best.cost_usd is None else {"cost": format_cost(float(times * best.cost_usd))})


def rate_words(rates: Rates) -> tuple[str, ...]:
    """Price, power, PUE and carbon intensity, each with where it comes from."""
    price, power, carbon = rates.price_usd_per_device_hour, rates.power_w_per_device, rates.carbon_kg_per_kwh
    return (
        _rate("price", price, rates.price_source, lambda x: f"{format_price(x)} per device"),
        _rate("power", power, rates.power_source, lambda x: f"{format_power(x, 4)} per device"),
        _rate("PUE", rates.pue, rates.pue_source, lambda x: f"PUE {x:g}"),
        _rate("carbon", carbon, rates.carbon_source, lambda x: f"{G_PER_KG * x:.3g} g CO2e/kWh"),
    )


def _rate(name: str, value: Any, source: str, words: Callable[[float], str]) -> str:
    return f"no {name}: {source}" if value is None else f"{words(float(value))} ({source})"


def _flops_words(flops: Mapping[str, Any], aside: str) -> tuple[tuple[str, ...], str]:
    """FLOPs by convention; a unit that all share is said once, in the aside."""
    words = {name: format_flops(float(value)).split(" ", 1) for name, value in flops.items()}
    units = {unit for _, unit in words.values()}
    if len(units) == 1:
        return tuple(f"{number} {name}" for name, (number, _) in words.items()), f"{units.pop()}, {aside}"
    return tuple(f"{number} {unit} {name}" for name, (number, unit) in words.items()), aside


def _how_found(answer: TrainingAnswer) -> str:
    if answer.plans is None:
        return "as given"
    n = len(answer.plans)
    return f"fastest of {n:,}" if answer.estimate.fits else f"leanest of {n:,}"


def _run(e: TrainingEstimate) -> list[Fact]:
    """What the whole run takes, when its tokens are known."""
    if e.tokens is None:
        return [Fact("whole run", ("give its tokens (--tokens 15T) for days, money, energy and carbon",), tone="note")]
    took = (
        f"{format_days(float(e.days))} days",
        f"{e.steps:,.0f} steps",
        f"{format_count(e.device_hours)} device-hours",
    )
    usd, kwh, carbon = e.cost_usd, e.energy_kwh, e.carbon_kg
    costs = (
        "price unknown" if usd is None else format_cost(float(usd)),
        "energy unknown" if kwh is None else energy_words(kwh),
        "carbon unknown" if carbon is None else format_carbon(carbon),
    )
    return [Fact("whole run", (*took, *costs)), Fact("at", rate_words(e.rates), tone="note")]


def energy_words(kwh: float) -> str:
    """Energy of a run, in MWh from one on."""
    if kwh < KWH_PER_MWH:
        return format_energy(kwh * JOULES_PER_KWH)
    mwh = kwh / KWH_PER_MWH
    return f"{mwh:,.0f} MWh" if mwh >= 100 else f"{mwh:,.3g} MWh"


def _speeds(answer: ServingAnswer) -> list[Fact | Bar]:
    """Latency, throughput, concurrency, and what bounds the two phases."""
    e = answer.estimate
    ttft, tpot, itl = (format_time(float(ms) / 1e3) for ms in (e.ttft_ms, e.tpot_ms, e.itl_ms))
    return [
        Fact("TTFT", (f"{ttft}",), "time to first token: one prefill on an idle engine, no queueing"),
        Fact(
            "TPOT",
            (f"{tpot}", f"{itl} under load"),
            f"time per output token of {_several(int(e.batch), 'sequence')}; with prefills",
        ),
        *_control(e),
        Fact(
            "throughput",
            (
                f"{e.output_tokens_per_s:,.0f} output tokens/s",
                f"{e.total_tokens_per_s:,.0f} with prompts",
                f"{_three(float(e.requests_per_s))} requests/s",
                f"{_three(float(e.tokens_per_s_per_user))} per user",
            ),
        ),
        Fact(
            "concurrency",
            (f"{e.batch:,} sequences per replica", f"memory allows {e.max_concurrency:,}"),
            f"each of {e.input_len + e.output_len:,} tokens",
        ),
        *_phases(answer),
    ]


def _control(e: ServingEstimate) -> list[Fact]:
    """How often a robot gets an action."""
    if e.control_hz is None:
        return []
    hz = float(e.control_hz)
    words = f"one step is a prefill and {e.output_len - 1:,} more tokens"
    return [Fact("control rate", (f"{_three(hz)} Hz", f"{format_time(1 / hz)} per step"), words)]


def _prices(e: ServingEstimate) -> list[Fact]:
    """Money, energy and carbon per token, of all devices."""
    usd, each, hour = e.usd_per_million_output_tokens, e.usd_per_million_tokens, e.usd_per_hour
    joules, grams = e.joules_per_output_token, e.carbon_g_per_million_output_tokens
    if usd is None or each is None or hour is None:
        money: tuple[str, ...] = ("price unknown",)
    else:
        prompts = f"{format_money(float(each))} counting prompts"
        money = (f"{format_money(float(usd))} per million output tokens", prompts, format_price(float(hour)))
    energy = "energy unknown" if joules is None else f"{_three(float(joules))} J per output token"
    carbon = (
        "carbon unknown" if grams is None else f"{format_carbon(float(grams) / G_PER_KG)} per million output tokens"
    )
    return [Fact("costs", money), Fact("energy", (energy, carbon))]


def _three(x: float) -> str:
    """Three digits, or whole numbers with thousands: 8.79, 112, 3,520."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _verdict(words: str, fits: bool) -> Fact:
    return Fact("verdict", (words,), tone="good" if fits else "bad")


def _shares(sizes: Mapping[str, Any], whole: float, order: Iterable[str] = ()) -> tuple[Part, ...]:
    """Parts above zero; those of ``order`` look the same in every bar."""
    return _parts(sizes, whole, lambda size: format_percent(size / whole), order)


def _phases(answer: ServingAnswer) -> list[Bar]:
    return [Bar(label, _shares(times, sum(times.values()), LIMITS)) for label, times in serving_times(answer).items()]


def _memory_bar(sizes: Mapping[str, float], capacity: float) -> Bar:
    """Parts of what is usable; of what is needed when that is more."""
    whole = max(capacity, sum(sizes.values()))
    shares = _parts(sizes, whole, lambda size: format_bytes(size, digits=3), ())
    return Bar("memory", shares, None if whole == capacity else capacity / whole)


def _parts(
    sizes: Mapping[str, Any], whole: float, words: Callable[[float], str], order: Iterable[str]
) -> tuple[Part, ...]:
    names = list(dict.fromkeys([*order, *sizes]))
    return tuple(
        Part(_spaced(name), float(sizes[name]) / whole, words(float(sizes[name])), names.index(name))
        for name in names
        if float(sizes.get(name, 0)) > _SLIVER * whole
    )


def _several(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def confidence(result: ScenarioResult) -> str:
    """How far to trust the numbers, as the estimates say it."""
    parts: dict[str, str] = {}
    if result.train is not None:
        parts["training"] = result.train.estimate.confidence
    if result.serve is not None:
        parts["serving"] = result.serve.estimate.confidence
    # both start with the kernels' times, which on one device are the same
    kernels = {text.partition("; ")[0] for text in parts.values()}
    if len(parts) == 2 and len(kernels) == 1:
        said = [*kernels, *(f"{name}: {text.partition('; ')[2]}" for name, text in parts.items())]
    else:
        said = [f"{name}: {text}" for name, text in parts.items()]
    said += [result.compare.confidence] if result.compare is not None else []
    if result.size is not None:
        from tfsim.reports.sizing_page import how_far

        sized = result.size.estimate
        said += [f"size: {how_far(sized)}"] + ([] if sized.training is None else [sized.training.confidence])
    return "; ".join(said) or "counts alone, which are exact"
