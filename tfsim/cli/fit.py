"""tfsim fit: a scaling law of the user's own runs, and how far to trust it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfsim.cli.options import Json, quantity, writable, writable_folder
from tfsim.cli.shell import new_app
from tfsim.errors import InputError, quote

if TYPE_CHECKING:
    from tfsim.scaling.fit_runs import Runs
    from tfsim.scaling.fit_study import Study

app = new_app()

_SHOWN = 8  # published laws, and rows of a list, on the screen; --json has all


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A CSV file, one training run a line.", metavar="RUNS.csv")],
    form: Annotated[
        str,
        typer.Option(
            help="chinchilla (default), chinchilla-outer, no-floor, kaplan, power-n, power-d, power-c, power-floor-n, "
            "power-floor-d, power-floor-c; isoflop (approach 2), envelope (approach 1).",
        ),
    ] = "chinchilla",
    params: Annotated[str | None, typer.Option(help="The column of parameters N.", metavar="COLUMN")] = None,
    tokens: Annotated[str | None, typer.Option(help="The column of training tokens D.", metavar="COLUMN")] = None,
    flops: Annotated[str | None, typer.Option(help="The column of training FLOPs C.", metavar="COLUMN")] = None,
    loss: Annotated[str | None, typer.Option(help="The column of final losses.", metavar="COLUMN")] = None,
    group: Annotated[str | None, typer.Option(help="The column that names isoFLOP groups.", metavar="COLUMN")] = None,
    n_means: Annotated[
        str, typer.Option(help="What N counts: total, non_embedding, with_head, active, ... (docs/scaling.md).")
    ] = "not_stated",
    c_means: Annotated[
        str, typer.Option(help="What C counts: 6nd (C = 6 N D; derives a missing column) or exact (your own count).")
    ] = "not_stated",
    exclude: Annotated[
        str | None,
        typer.Option(help="Runs to leave out: a 0/1 column that marks them, or rows from 0.", metavar="COLUMN|ROW,..."),
    ] = None,
    hold_out: Annotated[
        str | None,
        typer.Option(help="Runs to predict from the others: the largest 20%, or from 1e21 FLOPs on. Default 20%."),
    ] = None,
    bootstraps: Annotated[int, typer.Option(min=0, help="Refits for the errors, 0 for none.", metavar="N")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap's random numbers.", metavar="N")] = 0,
    out_law: Annotated[
        Path | None, typer.Option(help="Write the law here; --law of other commands takes it.", metavar="LAW.yaml")
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Write charts (PNG) into this folder.", metavar="DIR")] = None,
    json: Json = False,
) -> None:
    """Fit a scaling law to your own runs: coefficients with errors, checks, held-out score, published laws beside.

    Columns are found by their usual names (N, params, tokens, flops, val_loss, isoflop_budget, ...) unless named.
    """
    from tfsim.scaling import read_runs, study
    from tfsim.scaling.laws import looks_like_path

    named = {"N": params, "D": tokens, "C": flops, "loss": loss, "group": group}
    runs = read_runs(
        data,
        columns={field: column for field, column in named.items() if column is not None},
        exclude=_rows(exclude),
        n_means=n_means,
        c_means=c_means,
    )
    share, from_c = _held(hold_out)
    if out_law is not None and not looks_like_path(str(out_law)):
        raise InputError(f"--out-law: {quote(str(out_law))} does not end in .yaml: --law would not know it for a file")
    if out_law is not None:
        writable(out_law, "out-law")
    if plots is not None:
        writable_folder(plots, "plots")
    with _progress(f"{bootstraps:,} bootstraps") as progress:
        found = study(
            runs, form, name=out_law.stem if out_law else data.stem, bootstraps=bootstraps, seed=seed,
            hold_out=share, from_c=from_c, progress=progress,
        )  # fmt: skip
    written = _write(found, out_law, plots)
    if json:
        from tfsim.cli.output import print_json

        print_json(found.to_dict() | {"written": written})
        return
    _print(found, data.name)
    for path in written:
        print(f"Written: {path}")


def _rows(text: str | None) -> str | list[int] | None:
    """--exclude: a column's name, or rows."""
    parts = [part.strip() for part in (text or "").split(",")]
    return [int(part) for part in parts] if text and all(part.isdecimal() for part in parts) else text


def _held(text: str | None) -> tuple[float | None, float | None]:
    """--hold-out as a share of the runs, or as FLOPs."""
    if text is None:
        return None, None
    if not text.strip().endswith("%"):
        return None, quantity(text, "flops", "--hold-out")
    try:
        percent = float(text.strip()[:-1])
    except ValueError:
        percent = 0.0
    if not 0 < percent < 100:
        raise InputError(f"--hold-out: {quote(text)} is not a percentage between 0% and 100%")
    return percent / 100, None


@contextmanager
def _progress(words: str) -> Iterator[Callable[[int, int], None] | None]:
    """What a bootstrap reports to: a bar on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words)
        yield lambda done, wanted: bar.update(task, completed=done, total=wanted)


def _write(found: "Study", out_law: Path | None, plots: Path | None) -> list[Path]:
    """Write the law and the charts that were asked for; their paths."""
    from tfsim.files import write_bytes, write_text
    from tfsim.scaling import law_text

    written = []
    if out_law is not None:
        write_text(out_law, law_text(found.law))
        written.append(out_law)
    if plots is not None:
        from tfsim.plots.fit_study import study_charts
        from tfsim.plots.style import image

        charts = [(plots / f"{name}.png", image(figure, "png")) for name, figure in study_charts(found)]
        try:
            plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--plots: {plots}: cannot make this folder: {error.strerror or error}") from None
        for path, picture in charts:
            write_bytes(path, picture)
            written.append(path)
    return written


def _print(found: "Study", source: str) -> None:
    from tfsim.cli.output import facts

    facts(_facts(found), title=f"{source}: {found.formula}")
    _print_coefficients(found)
    _print_groups(found)
    _print_optima(found)
    _print_published(found)


def _facts(found: "Study") -> Iterator[tuple[str, str]]:
    from tfsim.scaling.fit_law import Fit

    runs = found.runs
    yield "runs fitted", f"{len(runs):,}"
    if runs.excluded:
        yield "left out", f"{_listed(runs, runs.excluded)}: {runs.excluded_why}"
    if isinstance(found.found, Fit) and found.found.suspects():
        yield "far off, kept", f"{_listed(runs, found.found.suspects())}: over 5 robust standard deviations"
    yield "columns", ", ".join(f"{field} = {column}" for field, column in runs.columns.items())
    yield "counts", found.law.convention
    if "not_stated" in (runs.n_means, runs.c_means):
        yield "", "say what N and C count with --n-means and --c-means: laws and budgets are compared by it"
    if isinstance(found.found, Fit):
        check = found.found.check
        yield (
            "optimiser",
            (
                f"{check.agreeing} of {check.starts} starts agree on the minimum; gradient there {check.gradient:.0e} "
                "of its scale"
            ),
        )
        yield "error on the runs", f"{found.found.mape:.2%} of the loss, mean absolute"
    yield "held out", _held_words(found)
    if found.parabola_bias is not None:
        yield (
            "parabola's bias",
            (f"{found.parabola_bias:+.4f} of the exponent on this grid without noise, were the chinchilla form true"),
        )


def _listed(runs: "Runs", rows: Sequence[int]) -> str:
    shown = ", ".join(runs.where(row) for row in rows[:_SHOWN])
    return f"{len(rows)} run{'s' * (len(rows) != 1)}, {shown}{', ...' if len(rows) > _SHOWN else ''}"


def _held_words(found: "Study") -> str:
    held = found.held_out
    if held is None:
        return f"no score: {found.held_out_why}"
    what = "runs" if held.of == "loss" else "groups' optima"
    told = (
        f"{held.n} {what} of {held.from_c:.3g} FLOPs or more, predicted from the smaller: "
        f"{held.mape:.2%} mean absolute, {held.bias:+.2%} bias"
    )
    exponent = {c.name: c.value for c in found.coefficients}.get("a" if held.of == "loss" else "exponent")
    return told if held.a is None or exponent is None else f"{told}; exponent {held.a:.3f}, with them {exponent:.3f}"


def _print_coefficients(found: "Study") -> None:
    from tfsim.cli.output import table

    boot = found.bootstrap
    rows = [
        [c.name, f"{c.value:.5g}", *([] if boot is None else [f"{x:.3g}" for x in (c.standard_error, c.low, c.high)])]
        for c in found.coefficients
    ]
    columns = ["", "value", *([] if boot is None else ["standard error", "2.5 %", "97.5 %"])]
    title = "Coefficients"
    if boot is not None:
        title += f": {boot.n:,} bootstraps, seed {boot.seed}"
        title += f", {boot.unconverged:,} without a minimum" if boot.unconverged else ""
    if any(c.name == "a" for c in found.coefficients):
        title += "; a: N_opt ~ C^a"
    table(columns, rows, title=title)


def _print_groups(found: "Study") -> None:
    from tfsim.cli.output import table
    from tfsim.scaling.fit_isoflop import IsoFlop
    from tfsim.units import format_count

    if not isinstance(found.found, IsoFlop):
        return
    rows = [
        [g.name, g.n, f"{g.C:.3g}", *((None, None, g.left_out) if g.left_out else
         (format_count(g.optimum), f"{g.loss:.4f}", f"{g.off_centre:.2f} from the middle of its grid"))]
        for g in found.found.groups
    ]  # fmt: skip
    outside = f"; {len(found.found.outside)} runs in none" if found.found.outside else ""
    table(["group", "runs", "FLOPs", "N_opt", "loss there", ""], rows, title=f"isoFLOP groups{outside}")


def _print_optima(found: "Study") -> None:
    from tfsim.cli.output import table
    from tfsim.units import format_count

    def cell(value: float, band: tuple[float, float] | None) -> str:
        return format_count(value) + (f" ({format_count(band[0])} to {format_count(band[1])})" if band else "")

    rows = [
        [f"{o.compute:.3g}", cell(o.parameters, o.parameters_band), cell(o.tokens, o.tokens_band),
         f"{o.tokens / o.parameters:.3g}"]
        for o in found.optima
    ]  # fmt: skip
    if rows:
        columns = ["FLOPs", "N (80 %)", "D (80 %)", "D/N"]
        table(columns, rows, title="Compute-optimal: at the largest run, 10x, 100x")


def _print_published(found: "Study") -> None:
    from tfsim.cli.output import table
    from tfsim.units import format_count

    scores = found.published
    if not scores:
        return
    rows = [
        [s.law, s.n_means, f"{s.mape:.2%}", f"{s.bias:+.2%}", f"{s.mape_scaled:.2%}", format_count(s.parameters)]
        for s in scores[:_SHOWN]
    ]
    more = f"; {len(scores) - _SHOWN} more in --json" if len(scores) > _SHOWN else ""
    columns = ["law", "its N", "error", "bias", "error after one factor", f"N_opt at {scores[0].compute:.3g}"]
    table(columns, rows, title=f"Published laws on these runs{more}")
