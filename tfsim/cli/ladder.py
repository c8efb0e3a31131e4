"""tfsim measure ladder: train tiny models here, for a scaling law of one's own."""

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfsim.cli.options import Json, writable
from tfsim.errors import InputError, quote

if TYPE_CHECKING:
    import pandas as pd

_LIST = "comma-separated"


def ladder(
    out: Annotated[Path, typer.Option(help="Write a line per run here (CSV).", metavar="FILE")] = Path("ladder.csv"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer, smaller runs: under a minute.")] = False,
    sizes: Annotated[str | None, typer.Option(help=f"Widths of the models, {_LIST}.", metavar="LIST")] = None,
    budgets: Annotated[str | None, typer.Option(help=f"Training FLOPs, 6 N D, {_LIST}.", metavar="LIST")] = None,
    learning_rates: Annotated[
        str | None, typer.Option(help=f"Peak learning rates at width 1, {_LIST}; divided by the width.", metavar="LIST")
    ] = None,
    batches: Annotated[
        str | None, typer.Option(help=f"Tokens per step, {_LIST}; default by the run's tokens.", metavar="LIST")
    ] = None,
    seeds: Annotated[str, typer.Option(help=f"Seeds of weights and text, {_LIST}.", metavar="LIST")] = "0",
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.", metavar="NAME")] = "cpu",
    workers: Annotated[int | None, typer.Option(help="Runs at a time on a CPU; default: torch's threads.")] = None,
    json: Json = False,
) -> None:
    """Train a ladder of tiny language models on generated text; the CSV is what `tfsim fit` takes.

    Several values of one option are all combined: --learning-rates 0.15,0.3,0.6 is a sweep.
    """
    from tfsim.cli.measuring import progress_bar
    from tfsim.files import write_text
    from tfsim.measure.ladder import ladder as train
    from tfsim.measure.ladder_plan import BUDGETS, LEARNING_RATE, LENGTH, QUICK_BUDGETS, QUICK_WIDTHS, WIDTHS, plan
    from tfsim.measure.ladder_source import make_source

    runs = plan(
        _whole(sizes, "--sizes") or (QUICK_WIDTHS if quick else WIDTHS),
        _numbers(budgets, "--budgets") or (QUICK_BUDGETS if quick else BUDGETS),
        learning_rates=_numbers(learning_rates, "--learning-rates") or (LEARNING_RATE,),
        batches=_whole(batches, "--batches") or (None,),
        seeds=_whole(seeds, "--seeds"),
    )
    writable(out, "out")
    with progress_bar("training models") as show:

        def land(rows: "pd.DataFrame") -> None:
            write_text(out, rows.to_csv(index=False))  # a ladder that is interrupted keeps what it has
            if show:
                show(len(rows), len(runs), "")

        found = train(runs, device=device, workers=workers, progress=land)
    floor = make_source().floor(LENGTH)
    if json:
        from tfsim.cli.output import print_json

        print_json({"floor": floor, "rows": found.to_dict("records"), "written": out})
        return
    _print(found, floor)
    print(f"Written: {out}")


def _numbers(text: str | None, option: str) -> list[float]:
    """The numbers of a list such as "6e10, 2.4e11"; none when the option was not given."""
    found = []
    for part in (text or "").split(",") if text is not None else ():
        try:
            found.append(float(part))
        except ValueError:
            raise InputError(f"{option}: {quote(part.strip())} is not a number") from None
    return found


def _whole(text: str | None, option: str) -> list[int]:
    """The same for whole numbers."""
    for number in (found := _numbers(text, option)):
        if not number.is_integer():
            raise InputError(f"{option}: {number:g} is not a whole number")
    return [int(number) for number in found]


def _print(found: "pd.DataFrame", floor: float) -> None:
    from tfsim.cli.output import facts, table

    rows = found.to_dict("records")
    for budget in dict.fromkeys(row["group"] for row in rows):
        table(
            ["width", "N", "D", "D/N", "batch", "rate", "seed", "loss", "+-", "above the floor", "CPU s"],
            [_cells(row, floor) for row in rows if row["group"] == budget],
            title=f"{budget} FLOPs (6 N D)",
        )
    facts(
        [
            ("runs", f"{len(found)}, {found['C'].sum():.3g} FLOPs, {found['cpu_seconds'].sum():.0f} s of CPU"),
            ("floor", f"{floor:.4f} nats per token: the text's own entropy, which no model can beat"),
        ]
    )


def _cells(row: "dict[Hashable, Any]", floor: float) -> list[object]:
    return [
        row["width"], f"{row['N']:,}", f"{row['D']:,}", f"{row['D'] / row['N']:.3g}", row["batch_tokens"],
        f"{row['learning_rate']:.3g}", row["seed"], f"{row['loss']:.4f}", f"{row['loss_se']:.4f}",
        f"{row['loss'] - floor:.4f}", f"{row['cpu_seconds']:.1f}",
    ]  # fmt: skip
