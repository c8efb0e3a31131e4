"""What the page of a compute-optimal sizing shows beyond the screen: its tables, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tfsim.reports.sizing import CHEAPEST, bowl_rows, law_rows
from tfsim.scaling import Range, Spread, law, spread_over
from tfsim.units import format_count, format_percent

if TYPE_CHECKING:
    from tfsim.sizing import OtherLaw, SizingEstimate


@dataclass(frozen=True)
class Table:
    """A titled table of words, its columns named by the first row's keys, and a note below."""

    title: str
    rows: Sequence[dict[str, str]]
    note: str = ""


def standing_laws(e: SizingEstimate) -> list[OtherLaw]:
    """The other laws, less those kept only for comparison with their own source."""
    return [other for other in e.others if not law(other.law).instead]


def laws_spread(e: SizingEstimate) -> Spread:
    """Quantiles of N (all parameters) and D over the law in use and the others that stand."""
    others = standing_laws(e)
    names = [e.law.name, *(other.law for other in others)]
    n = np.array([float(e.parameters), *(other.total_parameters for other in others)])
    d = np.array([e.tokens, *(other.tokens for other in others)])
    return spread_over(names, n, d)


def how_far(e: SizingEstimate) -> str:
    """How far the question lies from the budgets that the law was fitted on."""
    if "compute" not in e.law.fitted:
        return f"law {e.law.name}, whose runs are not known"
    low, high = e.law.fitted["compute"]
    runs = f"law {e.law.name}, fitted on runs of {low:.2g} to {high:.2g} FLOP".replace("e+", "e")
    if e.compute > high:
        return f"{runs} and asked {e.compute / high:.3g} times above them"
    return f"{runs}" + (
        f" and asked {low / e.compute:.3g} times below them" if e.compute < low else " and asked within"
    )


def sizing_tables(e: SizingEstimate) -> list[Table]:
    """How sure, the shape, other sizes, every law, and the laws left out."""
    found = [_how_sure(e), Table("The shape", _shape_rows(e))]
    if rows := bowl_rows(e):
        note = "To the same loss: tokens, FLOPs, days and cost of a model of this size that becomes as good. "
        note += "Loss, same spending: how good it becomes for what the answer costs."
        found.append(Table("Other sizes", rows, note if e.cheapest is None else f"{note} {CHEAPEST}."))
    if rows := law_rows(e, None):
        by_size = sorted(rows, key=lambda row: _size(e, row["law"]))
        marked = [row | {"law": row["law"] + (" *" if law(row["law"]).instead else "")} for row in by_size]
        found.append(Table("Every law", marked, "* for comparison with its own source only: the spread leaves it out."))
    if e.left_out:
        found.append(Table("Laws left out", [{"law": name, "why": why} for name, why in e.left_out.items()]))
    return found


def _size(e: SizingEstimate, name: str) -> float:
    return next(other.total_parameters for other in e.others if other.law == name)


def _how_sure(e: SizingEstimate) -> Table:
    between = laws_spread(e)
    own = f"{e.law.name}, 80 %"
    laws = f"{len(between.laws)} laws, 80 %"
    band, loss = e.band, e.loss_band
    rows = [
        {
            "": "parameters N",
            "here": format_count(e.parameters),
            own: _ends(None if band is None else band.parameters),
            laws: _ends(between.parameters),
        },
        {
            "": "tokens D",
            "here": format_count(e.tokens),
            own: _ends(None if band is None else band.tokens),
            laws: _ends(between.tokens),
        },
        {
            "": "D / N",
            "here": f"{e.tokens_per_parameter:.3g}",
            own: _ends(None if band is None else band.tokens_per_parameter),
            laws: _ends(between.tokens_per_parameter),
        },
        {
            "": "loss",
            "here": "-" if e.loss is None else f"{e.loss:.3f}",
            own: "-" if loss is None else f"{loss.low:.3f} to {loss.high:.3f} (median {loss.middle:.3f})",
            laws: "not comparable: other data",
        },
    ]
    note = (
        f"The band of {e.law.name}: {e.band_because}. It says how far chance in the runs moves the best N and D (and "
        "the loss of this model), not whether the law still holds far beyond them; the spread between laws, most "
        "fitted on other runs, is the wider and more honest of the two there."
    )
    return Table("How sure", rows, note)


def _ends(found: Range | None) -> str:
    if found is None:
        return "-"
    low, middle, high = (format_count(float(x)) for x in (found.low, found.middle, found.high))
    return f"{low} to {high} (median {middle})"


def _shape_rows(e: SizingEstimate) -> list[dict[str, str]]:
    shape = e.shape
    ffn = "SwiGLU" if shape.experts == 1 else f"{shape.experts} experts of SwiGLU, top {shape.top_k}"
    facts = {
        "layers": f"{shape.n_layers:,}",
        "d_model": f"{shape.d_model:,}",
        "n_heads": f"{shape.n_heads:,}, each {shape.d_head} wide",
        "n_kv_heads": f"{shape.n_kv_heads:,}",
        "d_ff": f"{shape.d_ff:,} ({ffn})",
        "vocab_size": f"{shape.vocab_size:,}{', tied' if shape.tied_embeddings else ''}",
        "seq_len": f"{e.seq_len:,}",
        "parameters": f"{e.parameters:,}",
    }
    if e.active_parameters != e.parameters:
        facts["active parameters"] = f"{e.active_parameters:,}"
    facts["in the token tables"] = format_percent(shape.embedding_share)
    return [{"dimension": name, "value": value} for name, value in facts.items()]


def sizing_terms(e: SizingEstimate) -> dict[str, str]:
    """The conventions of the answer in words."""
    counts = {
        "total": "all parameters, both token tables included",
        "non_embedding": "the parameters outside the token tables",
        "with_head": "the parameters without the input table",
        "active": "the parameters that a token uses, both tables included",
        "active_non_embedding": "the parameters that a token uses, without the tables",
        "compute_per_6d": "C / 6D: what the training FLOPs imply",
        "exact_flops_per_token_by_6": "exact C / 6D, attention and head counted",
        "flops_per_token_by_6": "M / 6, M the FLOPs per token without the tables (DeepSeek)",
        "not_stated": "not said by its source",
    }
    flops = {
        "6nd": "6 x N x D, N as this law counts it: neither attention nor recomputation",
        "exact": "the architecture's own operators, causal attention halved, without recomputation",
        "m_times_d": "M x D, M = 72 layers d_model^2 + 12 layers d_model seq_len",
    }
    return {
        f"N of {e.law.name}": counts.get(e.law.n, e.law.n.replace("_", " ")),
        "D": e.law.d,
        f"C of {e.law.name}": flops.get(e.law.c, e.law.c.replace("_", " ")),
        "loss": f"{e.law.loss}; losses of laws fitted on other data or tokenizers do not compare",
        "counts": "each other law is asked for this run's FLOPs in its own count of C and answers in its own N; "
        "'all parameters' is the whole of a shape of that N",
        "80 %": "from the 10th to the 90th percentile, each quantity by itself",
        "source of the law": e.law.source,
    }
