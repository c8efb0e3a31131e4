"""Write reports/measured/ladder.md and its charts from the committed runs of `tfsim measure ladder`.

Run: python tools/ladder_report.py   (seconds, no torch: nothing is trained here)
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfsim.files import write_bytes, write_text  # noqa: E402
from tfsim.measure.ladder_plan import LENGTH  # noqa: E402
from tfsim.measure.ladder_source import make_source  # noqa: E402
from tfsim.plots.fit_study import study_charts  # noqa: E402
from tfsim.plots.style import INK, image  # noqa: E402
from tfsim.scaling import optimal, read_runs, study  # noqa: E402
from tfsim.scaling.fit_isoflop import IsoFlop  # noqa: E402
from tfsim.scaling.fit_law import Fit  # noqa: E402
from tfsim.scaling.fit_study import Coefficient, Study  # noqa: E402

FOLDER = ROOT / "reports" / "measured"
BOOTSTRAPS = 2000
FORMS = {"chinchilla": "approach 3", "isoflop": "approach 2"}


def studies(path: Path) -> dict[str, Study]:
    """Approaches 3 and 2 on the runs of a ladder, the largest budget held out."""
    runs = read_runs(path, n_means="total", c_means="6nd")
    largest = 0.9 * float(runs.column("C").max())
    return {form: study(runs, form, name="ladder", bootstraps=BOOTSTRAPS, from_c=largest) for form in FORMS}


def page(table: pd.DataFrame, found: dict[str, Study], sweep: pd.DataFrame, seeds: pd.DataFrame) -> str:
    """The page."""
    parts = [
        _head(table),
        _fits(found),
        _optima(found),
        _extrapolation(found),
        _floor(found["chinchilla"]),
        _noise(table, seeds),
        _sweep(sweep),
        _runs(table, found["chinchilla"]),
    ]
    return "\n\n".join(parts) + "\n"


def _head(table: pd.DataFrame) -> str:
    source = make_source()
    made = _paragraph(
        "Written by `python tools/ladder_report.py` from `ladder.csv`: the runs of `tfsim measure ladder`,",
        f"trained one by one between other work on a 2-core AMD EPYC with torch 2.13. {len(table)} runs,",
        f"{table['flops'].sum():.2g} FLOPs of matrix products, {table['cpu_seconds'].sum():,.0f} s of processor",
        "time. Parameters and FLOPs in the file are tfsim's, and equal torch's own in every run. `tfsim fit",
        "ladder.csv --n-means total --c-means 6nd` gives the same fits.",
    )
    text = _paragraph(
        "The text is a random language of 256 tokens (docs/measure.md) whose entropy is known:",
        f"{source.entropy:.4f} nats per token given two tokens before it, {source.floor(LENGTH):.4f} as the models",
        f"see it, in sequences of {LENGTH}. No model can have a lower loss.",
    )
    legend = _paragraph(
        "Dots: trained models. Lines: the fitted law along 6 N D = C; rings: where it is lowest. Dashed: the",
        "text's entropy.",
    )
    picture = "![isoFLOP curves](ladder-isoflop.png)"
    return "\n\n".join(["# A scaling law from models trained here", made, text, picture, legend])


def _fits(found: dict[str, Study]) -> str:
    surface, groups = found["chinchilla"], found["isoflop"]
    assert isinstance(surface.found, Fit) and isinstance(groups.found, IsoFlop)
    check, worst = surface.found.check, np.abs(np.expm1(surface.found.residuals)).max()
    rows = [[c.name, *_numbers(c), FORMS[form]] for form, s in found.items() for c in s.coefficients]
    before = _paragraph(
        f"`{surface.formula}` (approach 3), and parabolas through each budget (approach 2), with 95 % intervals of",
        f"{BOOTSTRAPS:,} bootstraps over the runs:",
    )
    after = _paragraph(
        f"Approach 3 is off by {surface.found.mape:.2%} of the loss on average over the runs, at most {worst:.2%};",
        f"{check.agreeing} of {check.starts} starts agree on the minimum. On this grid of sizes approach 2's",
        f"exponent would be off by {groups.parabola_bias:+.3f} were approach 3 exactly true.",
    )
    first, below = make_source().first, surface.runs.loss < make_source().first
    stages = _paragraph(
        f"A model that knows only what follows the last token can reach {first:.3f}; to go below, attention must",
        f"find the token before. {below.sum()} runs, from {surface.runs.column('C')[below].min():.2g} FLOPs on,",
        f"are below, {np.expm1(surface.found.residuals[below]).mean():.1%} under the fit. That is probably a",
        "second stage of learning, which a sum of two powers does not know: here the law's form, not noise,",
        "limits the fit.",
    )
    table = _table(["coefficient", "fitted", "low", "high", "by"], rows)
    return "\n\n".join(["## The fits", before, table, after, stages])


def _numbers(c: Coefficient) -> list[str]:
    """Value and interval."""
    return [f"{x:.4g}" if 1e-3 < abs(x) < 1e4 else f"{x:.3g}" for x in (c.value, c.low, c.high)]


def _optima(found: dict[str, Study]) -> str:
    surface, parabolas = found["chinchilla"], found["isoflop"].found
    assert isinstance(parabolas, IsoFlop)
    rows = []
    for group in parabolas.groups:
        best = optimal(surface.law, compute=group.C)
        n, d = float(best.parameters), float(best.tokens)
        sizes = [f"{group.optimum:,.0f}", f"{n:,.0f}", f"{group.optimum / n - 1:+.0%}"]
        rows.append([f"{group.C:.2g}", *sizes, f"{d / n:.0f}", f"{group.loss:.4f}", f"{best.loss:.4f}"])
    heads = ["FLOPs", "best N, approach 2", "approach 3", "differ", "D/N, approach 3", "loss, approach 2", "approach 3"]
    return "\n\n".join(["## The best size for a budget", _table(heads, rows), "![best size](ladder-optimum.png)"])


def _extrapolation(found: dict[str, Study]) -> str:
    surface, parabolas = found["chinchilla"].held_out, found["isoflop"].held_out
    assert surface is not None and surface.a is not None and parabolas is not None
    text = _paragraph(
        f"Approach 3 fitted without the {surface.n} runs of the largest budget, four times the next, predicts",
        f"their losses with a mean error of {surface.mape:.2%} (bias {surface.bias:+.2%}, worst",
        f"{np.abs(surface.errors).max():.2%}); its exponent a is then {surface.a:.3f}. Approach 2, from two",
        f"groups, predicts the largest budget's best size {parabolas.bias:+.0%} off.",
    )
    heading = "## The largest budget, predicted from the two smaller"
    return "\n\n".join([heading, text, "![predicted and measured](ladder-predicted.png)"])


def _floor(surface: Study) -> str:
    e = next(c for c in surface.coefficients if c.name == "E")
    true, lowest = make_source().floor(LENGTH), surface.runs.loss.min()
    inside = "inside" if e.low <= true <= e.high else "outside"
    text = _paragraph(
        f"Extrapolated to an endless model on endless text, the fit says E = {e.value:.3f} ({e.low:.3f} to",
        f"{e.high:.3f}). The truth is {true:.3f}: {inside} the interval, the fit {e.value - true:+.3f} off. The",
        f"lowest loss trained is {lowest:.3f}, still {lowest - true:.3f} above the truth, so the rest of the way",
        "down is the form's word.",
    )
    return f"## The floor, fitted and true\n\n{text}"


def _noise(table: pd.DataFrame, seeds: pd.DataFrame) -> str:
    spread = seeds.groupby("width")["loss"].agg(["count", "mean", "std"])
    rows = [[w, int(r["count"]), f"{r['mean']:.4f}", f"{r['std']:.4f}"] for w, r in spread.iterrows()]
    text = _paragraph(
        f"Of the held-out text: at most {table['loss_se'].max():.4f} nats (standard error; it is the same text for",
        "all runs, so most of it is common to them). Of weights and training text, by other seeds at",
        f"{seeds['C'].mean():.2g} FLOPs:",
    )
    return "\n\n".join(["## Noise", text, _table(["width", "seeds", "mean loss", "standard deviation"], rows)])


def _sweep(sweep: pd.DataFrame) -> str:
    rates = sorted((sweep["learning_rate"] * sweep["width"]).round(6).unique())
    rows = []
    for (width, batch), cases in sweep.groupby(["width", "batch_tokens"]):
        by_rate = {round(r.learning_rate * width, 6): f"{r.loss:.4f}" for r in cases.itertuples()}
        rows.append([width, f"{cases['D'].iloc[0]:,}", batch, *(by_rate.get(rate, "") for rate in rates)])
    heads = ["width", "tokens", "batch [tokens]", *(f"rate {rate:g}/width" for rate in rates)]
    text = _paragraph(
        "Rate 0.3 / width and batch 0.4 sqrt(D) tokens (128 at least) were set beforehand, from such a sweep on",
        "an earlier language of the same kind. This one (`ladder_sweep.csv`: one budget, two sizes) checks them:",
        "a higher rate gains little at width 24 and loses at width 8, larger batches lose everywhere; smaller",
        "ones were not tried. Losses:",
    )
    return "\n\n".join(["## Learning rate and batch", text, _table(heads, rows)])


def _runs(table: pd.DataFrame, surface: Study) -> str:
    assert isinstance(surface.found, Fit)
    fitted = surface.found.predict(N=table["N"].to_numpy(float), D=table["D"].to_numpy(float))
    rows = [
        [f"{r.C:.2g}", r.width, f"{r.N:,}", f"{r.D:,}", f"{r.D / r.N:.3g}", r.batch_tokens, f"{r.loss:.4f}", f"{p:.4f}",
         f"{p / r.loss - 1:+.2%}"]
        for r, p in zip(table.itertuples(), fitted, strict=True)
    ]  # fmt: skip
    heads = ["FLOPs", "width", "N", "D", "D/N", "batch", "loss", "fitted", "error"]
    return f"## The runs\n\n{_table(heads, rows)}"


def _paragraph(*lines: str) -> str:
    return textwrap.fill(" ".join(lines), 120, break_on_hyphens=False, break_long_words=False)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(map(str, cells)) + " |"

    return "\n".join([line(heads), line(["---:"] * len(heads)), *map(line, rows)])


def charts(found: dict[str, Study]) -> Iterator[tuple[str, bytes]]:
    """A file name and its picture each."""
    for name, figure in study_charts(found["chinchilla"]):
        if name == "isoflop":
            figure.axes[0].axhline(make_source().floor(LENGTH), color=INK, linewidth=1, linestyle="--")
            figure.axes[0].set_title("Trained here: loss by size at three budgets", loc="left", fontweight="bold")
            figure.axes[0].set_ylabel("loss [nats per token]")
        if name in ("isoflop", "optimum", "predicted"):
            yield f"ladder-{name}.png", image(figure, "png", dpi=110)


def main() -> None:
    """Write the page."""
    found = studies(FOLDER / "ladder.csv")
    tables = [pd.read_csv(FOLDER / f"{name}.csv") for name in ("ladder", "ladder_sweep", "ladder_seeds")]
    write_text(FOLDER / "ladder.md", page(tables[0], found, *tables[1:]))
    for name, picture in charts(found):
        write_bytes(FOLDER / name, picture)


if __name__ == "__main__":
    main()
