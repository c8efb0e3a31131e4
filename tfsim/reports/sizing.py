"""The answer of ``tfsim size`` in words: sections for a panel or page, and the rows of its tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tfsim.reports.summary import Bar, Fact, Section, energy_words, rate_words, training_plan
from tfsim.scaling import law
from tfsim.units import (
    format_carbon,
    format_cost,
    format_count,
    format_days,
    format_flop_rate,
    format_flops,
    format_money,
    format_percent,
    format_time,
    format_tokens,
)

if TYPE_CHECKING:
    from tfsim.sizing import BowlSize, ModelShape, ServingBill, SizingEstimate
    from tfsim.training import TrainingEstimate

# One or two of each kind of law, for a screen; a report shows all.
COUNTS = {  # no parameters, but what stands for them
    "compute_per_6d": "C / 6D",
    "flops_per_token_by_6": "M / 6",
    "exact_flops_per_token_by_6": "exact C / 6D",
}
SHOWN_LAWS = ("besiroglu-2024", "chinchilla-1", "chinchilla-3", "muennighoff-2023", "porian-tuned", "llama-3",
              "deepseek-2024", "minicpm-2024", "kaplan", "refit-240")  # fmt: skip


def sizing_sections(e: SizingEstimate) -> list[Section]:
    """The model, its training on the system, and what to know before believing it."""
    found = [_model(e)]
    if e.training is not None:
        found.append(_training(e, e.training))
    if e.serving is not None:
        found.append(_serving(e, e.serving))
    if e.warnings:
        items = (Fact(str(i), (text,), tone="note") for i, text in enumerate(e.warnings, start=1))
        found.append(Section("Before you believe it", tuple(items)))
    return found


def shape_words(shape: ModelShape) -> tuple[str, ...]:
    """The dimensions of a shape."""
    ffn = f"SwiGLU {shape.d_ff:,}"
    if shape.experts > 1:
        ffn = f"{shape.experts} experts of {ffn}, top {shape.top_k}"
    tied = ", tied" if shape.tied_embeddings else ""
    return (
        f"{shape.n_layers} layers",
        f"d_model {shape.d_model:,}",
        f"{shape.n_heads} heads / {shape.n_kv_heads} KV heads of {shape.d_head}",
        ffn,
        f"vocabulary {shape.vocab_size:,}{tied}",
    )


def _model(e: SizingEstimate) -> Section:
    active = [f"{format_count(e.active_parameters)} active"] if e.active_parameters != e.parameters else []
    own = [] if e.law_parameters == e.parameters else [f"{format_count(e.law_parameters)} as the law counts"]
    epochs = [] if e.epochs is None else [f"{e.epochs:.3g} epochs"]
    band = () if e.loss_band is None else (f"80 %: {e.loss_band.low:.3f} to {e.loss_band.high:.3f}",)
    loss = [] if e.loss is None else [Fact("loss", (f"{e.loss:.3f}", *band))]
    return Section(
        f"Model: {e.model.name}",
        (
            Fact("law", (e.law.name, f"N {e.law.n}", f"D {e.law.d}", f"C {e.law.c}", f"loss {e.law.loss}")),
            Fact("parameters", (format_count(e.parameters, 4), *active, *own), _tables(e)),
            Fact("shape", shape_words(e.shape)),
            Fact("tokens", (format_tokens(e.tokens, 4), f"{e.tokens_per_parameter:.3g} per parameter", *epochs)),
            *loss,
            Fact("band", _band_words(e)),
            Fact(
                "FLOPs",
                (f"{format_flops(e.compute)} {e.law.c}, as the law counts", f"{format_flops(e.exact_flops)} exact"),
                f"x{e.exact_flops / e.compute:.3f} at {e.seq_len:,} tokens",
            ),
        ),
    )


def _band_words(e: SizingEstimate) -> tuple[str, ...]:
    """Where the law's best N and D lie when it is fitted again."""
    if e.band is None:
        return (e.band_because,)
    n, d = e.band.parameters, e.band.tokens
    return (
        f"best N {format_count(float(n.low))} to {format_count(float(n.high))}",
        f"D {format_count(float(d.low))} to {format_tokens(float(d.high))}",
        f"80 % of {e.band.draws:,} refits" if e.band.draws else f"80 %, {e.band_because}",
    )


def _tables(e: SizingEstimate) -> str:
    return f"{format_percent(e.shape.embedding_share)} of them token tables"


def _training(e: SizingEstimate, run: TrainingEstimate) -> Section:
    batch = f"{run.global_batch:,} sequences of {e.seq_len:,} = {format_tokens(run.global_batch * e.seq_len)}"
    usd, kwh, carbon = run.cost_usd, run.energy_kwh, run.carbon_kg
    costs = (
        "price unknown" if usd is None else format_cost(usd),
        "energy unknown" if kwh is None else energy_words(kwh),
        "carbon unknown" if carbon is None else format_carbon(carbon),
    )
    items: list[Fact | Bar] = [
        Fact("devices", (f"{run.devices:,}",), e.devices_because),
        Fact("batch", (batch,), e.batch_because),
        Fact("plan", (*training_plan(run.plan), run.precision, run.software)),
        Fact(
            "speed",
            (
                f"{format_time(run.step_time_s)} per step",
                f"{format_flop_rate(e.achieved_flops_per_device or 0.0)} per device",
                f"MFU {format_percent(run.mfu['exact'])} exact",
            ),
            f"of {format_flop_rate(run.peak_flops)}",
        ),
        Fact(
            "whole run",
            (
                f"{format_days(run.days)} days",
                f"{run.steps:,.0f} steps",
                f"{format_count(run.device_hours)} device-hours",
                *costs,
            ),
        ),
        Fact("memory", (run.verdict,), tone="good" if run.fits else "bad"),
        Fact("at", rate_words(run.rates)[:1], tone="note"),
    ]
    return Section(f"Training: {run.devices:,} devices of {run.system}", tuple(items))


def _serving(e: SizingEstimate, bill: ServingBill) -> Section:
    s = bill.estimate
    both = "price unknown" if e.total_cost_usd is None else f"{format_cost(e.total_cost_usd)} with training"
    money = "price unknown" if bill.cost_usd is None else format_cost(bill.cost_usd)
    each = s.usd_per_million_tokens
    rate = [] if each is None else [f"{format_money(float(each))} per million tokens, prompts counted"]
    alone = f"{format_count(bill.alone_parameters)} on {format_tokens(bill.alone_tokens)}"
    ours = (e.device_hours or 0.0) + bill.device_hours
    if not math.isfinite(bill.alone_loss):
        instead = (f"{format_count(bill.alone_parameters)}, best without serving, leaves nothing to train it",)
    elif e.budget is not None and e.budget.unit != "flops":
        instead = (f"{alone}, best without serving: loss {bill.alone_loss:.4f}",)
    else:
        instead = (f"{alone}, best without serving: {bill.alone_device_hours / ours - 1:+.1%} in all for this loss",)
    return Section(
        f"Serving {format_tokens(bill.tokens)} over the model's life",
        (
            Fact("plan", (f"{s.devices:,} devices: {s.replicas:,} replicas of tp {s.tp}", *rate),
                 f"requests of {s.input_len:,} in, {s.output_len:,} out"),
            Fact("bill", (f"{format_count(bill.device_hours)} device-hours", money, both)),
            Fact("instead of", instead),
        ),
    )  # fmt: skip


BOWL_TITLE = "Other sizes: to the same loss, and for the same spending"
CHEAPEST = "* least device time of those tried"


def bowl_title(e: SizingEstimate) -> str:
    """The title of the table of other sizes."""
    return BOWL_TITLE if e.cheapest is None else f"{BOWL_TITLE}; {CHEAPEST}"


def bowl_rows(e: SizingEstimate) -> list[dict[str, str]]:
    """Other sizes beside the answer by N, the cheapest marked, as rows of a table."""
    if not e.bowl:
        return []
    sizes = {b.factor: b for b in (*e.bowl, *(() if e.cheapest is None else (e.cheapest,)))}
    rows = {factor: _bowl_row(e, b) for factor, b in sizes.items()} | {1.0: _answer_row(e)}
    return [rows[factor] for factor in sorted(rows)]


def _answer_row(e: SizingEstimate) -> dict[str, str]:
    here = {
        "size": "1x",
        "parameters": format_count(e.parameters),
        "to the same loss": format_tokens(e.tokens),
        "FLOPs": format_flops(e.compute),
    }
    if e.days is not None:
        cost = "-" if e.total_cost_usd is None else format_cost(e.total_cost_usd)
        here |= {"days": format_days(e.days), "cost": cost}
    return here | {"loss, same spending": "-" if e.loss is None else f"{e.loss:.4f}"}


def _bowl_row(e: SizingEstimate, b: BowlSize) -> dict[str, str]:
    reached = math.isfinite(b.tokens)
    more = f"{b.extra_compute:+.1%}" if b.extra_compute < 9 else f"x{1 + b.extra_compute:,.3g}"
    row = {
        "size": f"{b.factor:.2g}x" + (" *" if b is e.cheapest else ""),
        "parameters": format_count(b.parameters),
        "to the same loss": format_tokens(b.tokens) if reached else "out of reach",
        "FLOPs": more if reached else "-",
    }
    if e.training is not None:
        row["days"] = format_days(b.days) if reached and b.days is not None else "-"
        row["cost"] = format_cost(b.cost_usd) if reached and b.cost_usd is not None else "-"
    return row | {"loss, same spending": f"{b.loss_same_budget:.4f}" if math.isfinite(b.loss_same_budget) else "-"}


def law_rows(e: SizingEstimate, names: tuple[str, ...] | None = SHOWN_LAWS) -> list[dict[str, str]]:
    """What other laws say of the same run, as rows of a table; None: every law that applies."""
    return [
        {
            "law": o.law,
            "N": format_count(o.parameters),
            "counts": COUNTS.get(o.n, o.n),
            "all parameters": format_count(o.total_parameters),
            "tokens": format_count(o.tokens),
            "C": f"{o.compute:.2e} {o.c.replace('m_times_d', 'MD')}".replace("e+", "e"),
            "loss": "-" if o.loss is None else f"{o.loss:.3f}",
        }
        for o in e.others
        if names is None or o.law in names
    ]


def laws_summary(e: SizingEstimate) -> str:
    """The spread over all laws in one line."""
    sizes = sorted((o.total_parameters, o.law) for o in e.others if not law(o.law).instead)
    if not sizes:
        return "no other law applies"
    (low, least), (high, most) = sizes[0], sizes[-1]
    return f"{len(sizes)} say {format_count(low)} ({least}) to {format_count(high)} ({most}); all with --json"
