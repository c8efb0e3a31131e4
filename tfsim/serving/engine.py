"""``serve``: how fast, how many at once, and at what cost a system serves a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsim.economics import SECONDS_PER_HOUR, Rates, cost, rates, token_cost
from tfsim.models.images import TOWER_WHOLE
from tfsim.models.spec import VISION_LEFT_OUT
from tfsim.operators.formats import FORMATS
from tfsim.serving.estimate import Phase, ServingEstimate, fit_words
from tfsim.serving.memory import Memory
from tfsim.serving.passes import PassTime
from tfsim.serving.plans import Plan, plan_faults, possible, read_plan
from tfsim.serving.search import best_plan, fitting, nearest_fit, refuse_impossible
from tfsim.serving.steady import steady
from tfsim.serving.workload import Engine, Load, make_engine, read_load
from tfsim.timing import basis
from tfsim.units import Number, common_shape, floor_div, maximum

MAX_BATCH = 512
MAX_PREFILL_TOKENS = 8192


def serve(
    model: Any,
    system: Any,
    *,
    devices: Any = 1,
    plan: Any = "auto",
    input_len: Any = None,
    output_len: Any = None,
    batch: Any = None,
    images: Any = None,
    dtype: str | None = None,
    weights_dtype: str | None = None,
    kv_dtype: str | None = None,
    software: str = "graph",
    memory_utilization: Any = 0.9,
    max_batch: Any = MAX_BATCH,
    max_prefill_tokens: Any = MAX_PREFILL_TOKENS,
    price: Any = None,
    power: Any = None,
    pue: Any = None,
    carbon: Any = None,
    provider: str | None = None,
    term: str = "on-demand",
) -> ServingEstimate:
    """Latency, throughput, memory and cost of serving ``model`` on ``devices`` of ``system`` under steady load.

    plan: "auto" (or None) takes the plan with the most output tokens/s per device (a pipeline only where it is 1.25
    times faster); or a mapping with any of tp, pp, ep, 1 where left out.
    input_len, output_len: tokens per request, default 2,000 and 300. batch: sequences at once on each replica; default
    as many as memory holds at full length, up to ``max_batch``. images: per request, whose tokens are part of
    input_len; default none. A model that acts decodes one control step by default: the tokens of an action after one
    image and an instruction of 32 tokens, one robot at a time. devices, batch, lengths, images and plan fields may be
    arrays: everything broadcasts, an impossible plan's figures are NaN, and an element equals the scalar call.

    dtype: of activations (default fp16 where the model is, else bf16). weights_dtype, kv_dtype: a number format for
    the blocks' matrices and the KV cache instead of the model's own. software: see tfsim.software.
    memory_utilization: share of the device's memory the engine uses. max_prefill_tokens: prompt tokens per prefill
    pass. price ($/device-hour), power (W), pue, carbon (kg CO2e/kWh): numbers or text with a unit, instead of the
    profile's.

    Raises: InputError for a malformed argument, a scalar plan that cannot be, or a figure the profile lacks. A plan
    that does not fit is no error: ``fits`` is False and ``verdict`` says what would.
    """
    engine = make_engine(
        model,
        system,
        dtype=dtype,
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype,
        software_name=software,
        memory_utilization=memory_utilization,
        max_batch=max_batch,
        max_prefill_tokens=max_prefill_tokens,
    )
    load = read_load(engine.model, devices, input_len, output_len, batch, images)
    known = rates(system, price, power, pue, carbon, provider, term)
    asked = asked_numbers(engine, load, known)
    common_shape(**asked)
    auto = plan is None or (isinstance(plan, str) and plan == "auto")
    chosen = best_plan(engine, load) if auto else read_plan(plan)
    cut = {"tp": chosen.tp, "pp": chosen.pp, "ep": chosen.ep}
    common_shape(**asked, **cut)
    if common_shape(devices=load.devices, **cut) == ():
        refuse_impossible(plan_faults(engine.model, engine.system, load.devices, chosen), load.devices, chosen)
    return _estimate(engine, load, chosen, known)


def asked_numbers(engine: Engine, load: Load, known: Rates) -> dict[str, Any]:
    """All numbers of a question by name, to see whether they broadcast."""
    share, most, prefill = engine.limits
    return {
        "devices": load.devices,
        "input_len": load.input_len,
        "output_len": load.output_len,
        "batch": load.batch,
        "images": load.images,
        "memory_utilization": share,
        "max_batch": most,
        "max_prefill_tokens": prefill,
        "price": known.price_usd_per_device_hour,
        "power": known.power_w_per_device,
        "pue": known.pue,
        "carbon": known.carbon_kg_per_kwh,
    }


def _estimate(engine: Engine, load: Load, plan: Plan, known: Rates) -> ServingEstimate:
    found = steady(engine, load, plan)
    allowed = possible(engine.model, engine.system, load.devices, plan)
    fits = np.asarray(allowed & fitting(found))
    replicas = maximum(1, floor_div(load.devices, plan.devices))  # 0 only where the plan is impossible, so masked
    requests = replicas * found.batch / found.period_s
    tokens = requests * load.output_len
    everything = requests * (load.input_len + load.output_len)
    itl = found.period_s / load.output_len
    control = found.prefill.seconds + (load.output_len - 1) * found.step_s
    hour = cost(known, load.devices, SECONDS_PER_HOUR)
    shape = common_shape(fits=fits, tokens=tokens, usd=hour.usd, carbon=hour.carbon_kg)

    def give(mask: Any) -> Callable[[Number], Number]:
        return lambda x: _masked(x, mask, shape)

    def maybe(x: Number | None) -> Number | None:
        return None if x is None else speed(x)

    speed, size, fact = give(fits), give(allowed), give(True)
    each = token_cost(known, load.devices, tokens)
    memory = Memory(**{f.name: size(getattr(found.memory, f.name)) for f in fields(Memory)})
    return ServingEstimate(
        confidence=f"{basis(engine.system.device)}; without queueing or engine overhead",
        model=engine.model.name,
        system=engine.system.name,
        software=engine.software.name,
        dtype=engine.dtype,
        weights_dtype="+".join(engine.block_formats),
        kv_dtype=engine.kv_dtype,
        devices=fact(load.devices),
        tp=fact(plan.tp),
        pp=fact(plan.pp),
        ep=fact(plan.ep),
        replicas=size(replicas),
        batch=size(found.batch),
        input_len=fact(load.input_len),
        output_len=fact(load.output_len),
        images=fact(load.images),
        fits=bool(fits) if shape == () else np.array(np.broadcast_to(fits, shape)),
        verdict=_verdict(engine, load, plan, memory, np.broadcast_to(fits, shape)),
        max_concurrency=size(found.max_concurrency),
        memory=memory,
        prefill=_phase(found.prefill, 0, speed),
        decode=_phase(found.decode, found.wait_s, speed),
        ttft_ms=speed(1e3 * found.prefill.seconds),
        tpot_ms=speed(1e3 * found.step_s),
        itl_ms=speed(1e3 * itl),
        request_latency_s=speed(found.prefill.seconds + (load.output_len - 1) * itl),
        requests_per_s=speed(requests),
        output_tokens_per_s=speed(tokens),
        total_tokens_per_s=speed(everything),
        output_tokens_per_s_per_device=speed(tokens / load.devices),
        tokens_per_s_per_user=speed(1 / itl),
        control_hz=speed(1 / control) if engine.model.action_tokens else None,
        rates=known,
        usd_per_hour=None if hour.usd is None else fact(hour.usd),
        usd_per_million_output_tokens=maybe(each.usd_per_million),
        usd_per_million_tokens=maybe(token_cost(known, load.devices, everything).usd_per_million),
        joules_per_output_token=maybe(each.joules_per_token),
        kwh_per_million_output_tokens=maybe(each.kwh_per_million),
        carbon_g_per_million_output_tokens=maybe(each.carbon_g_per_million),
        cost_note="; ".join(known.unknown),
        notes=tuple(_notes(engine, load)),
    )


def _masked(x: Number, mask: Any, shape: tuple[int, ...]) -> Number:
    """``x`` in the shape of the answer, NaN where there is none; Python numbers in a scalar answer."""
    if shape != ():
        return np.array(np.broadcast_to(np.where(mask, np.asarray(x, float), np.nan), shape))
    if not bool(mask):
        return float("nan")
    return x if isinstance(x, int | float) and not isinstance(x, np.generic) else np.asarray(x).item()


def _phase(found: PassTime, wait: Number, give: Callable[[Number], Number]) -> Phase:
    limits = {name: give(seconds) for name, seconds in found.limits.items()}
    operators = {name: give(seconds) for name, seconds in found.operators.items()}
    return Phase(give(found.seconds + wait), **limits, wait=give(wait), operators=operators)


def _notes(engine: Engine, load: Load) -> list[str]:
    """What a reader should know about the answer."""
    notes = []
    if engine.model.vision is not None:
        notes.append(TOWER_WHOLE if np.any(load.images) else VISION_LEFT_OUT)
    longest, context = engine.model.max_seq_len, load.input_len + load.output_len
    if longest is not None and np.any(context > longest):
        notes.append(f"input_len + output_len exceeds the model's max_seq_len of {longest:,}")
    for fmt in engine.block_formats:
        if not FORMATS[fmt].weight_only:
            rate = engine.system.device.matmul_peak(fmt)
            if rate.reason is not None:
                notes.append(f"{engine.system.device.name}, {fmt} matrices: {rate.reason}")
    return notes


def _verdict(engine: Engine, load: Load, plan: Plan, memory: Memory, fits: NDArray[np.bool_]) -> Any:
    """In words, for a scalar answer with the nearest plan that fits; an array of words otherwise (without it)."""
    shape = fits.shape
    if shape == ():
        words = fit_words(memory, _label(plan.tp, plan.pp), engine.model.kept_words)
        if words.startswith("fits"):
            return words
        return f"{words}; nearest plan that fits: {nearest_fit(engine, load, plan)}"
    verdicts = np.full(shape, "fits", dtype=object)
    values = (memory.total, memory.usable, memory.weights, memory.kv_cache, memory.workspace, memory.runtime_reserve)
    columns = [np.broadcast_to(np.asarray(x, float), shape) for x in (*values, load.devices, plan.tp, plan.pp, plan.ep)]
    faults = [
        (np.broadcast_to(bad, shape), words)
        for bad, words in plan_faults(engine.model, engine.system, load.devices, plan)
    ]
    for at in zip(*np.nonzero(~fits), strict=True):
        total, usable, weights, cache, workspace, reserve, devices, tp, pp, ep = (float(c[at]) for c in columns)
        wrong = [words for bad, words in faults if bad[at]]
        if wrong:
            verdicts[at] = "impossible plan: " + wrong[0].format(
                devices=f"{devices:g}", tp=f"{tp:g}", pp=f"{pp:g}", ep=f"{ep:g}"
            )
        else:
            one = Memory(weights, cache, workspace, reserve, total, usable, usable, 0)
            verdicts[at] = fit_words(one, _label(tp, pp), engine.model.kept_words)
    return verdicts


def _label(tp: Number, pp: Number) -> str:
    return f"tp {float(tp):g} x pp {float(pp):g}" if float(pp) > 1 else f"tp {float(tp):g}"
