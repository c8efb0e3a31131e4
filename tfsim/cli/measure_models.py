"""tfsim measure models: real runs of small torch models, beside their specifications."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tfsim.cli.measuring import Device, Threads, progress_bar
from tfsim.cli.options import Json, writable
from tfsim.errors import InputError


def models(
    out: Annotated[Path | None, typer.Option(help="Write a line per case here (CSV).", metavar="FILE")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without the longest and the held-out cases, under a minute.")
    ] = False,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile", help="Then a case per model and phase as torch.compile makes it (half a minute each, or more)."
        ),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--models", help="Only this model; may be repeated.", metavar="NAME")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="development (formulas were refined on it) or held_out; default: both, --quick: the first.",
            metavar="NAME",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the cases, and measure nothing.")] = False,
    device: Device = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure forward passes, training steps and cached decode steps of small models of every family.

    A line per case: time, its spread, FLOPs and kept bytes as torch counts them, peak memory. What tfsim says of the
    same cases: tfsim validate measured.
    """
    from tfsim.errors import choice
    from tfsim.measure.models import FAMILIES, SETS, cases

    names = list(dict.fromkeys(only or FAMILIES))
    for one in sets or ():
        choice("set", one, SETS)
    which = [one for one in SETS if one in (sets or (SETS[:1] if quick else SETS))]
    chosen = [case for one in which for name in names for case in cases(name, one, quick=quick)]
    if list_:
        _list(names, chosen, json)
        return
    if out is not None:
        writable(out, "out")
    rows = _measured(chosen, device, threads, quick, compile)
    if out is not None:
        import pandas as pd

        from tfsim.files import write_text

        write_text(out, pd.DataFrame(rows).to_csv(index=False))
    if json:
        from tfsim.cli.output import print_json

        print_json(rows)
        return
    _print(rows, out)


def _measured(
    chosen: list[Any], device: str | None, threads: int | None, quick: bool, compiled: bool
) -> list[dict[str, Any]]:
    from tfsim.measure.backend import backend

    where = backend(device, threads)
    from tfsim.measure.runs import SECONDS, Mode, measure_models

    # the shortest of each phase: compiling takes as long whatever the size, and launches are what it saves
    first = {(case.model, case.phase): case for case in reversed(chosen)}
    plans: dict[Mode, list[Any]] = {"eager": chosen, "compile": list(reversed(first.values())) if compiled else []}
    rows: list[dict[str, Any]] = []
    with progress_bar("measuring") as progress:
        for mode, some in plans.items():
            for case, row in zip(some, measure_models(some, where, mode=mode, seconds=SECONDS[quick]), strict=True):
                rows.append(row)
                if progress is not None:
                    progress(len(rows), sum(map(len, plans.values())), f"{case.model} {case.phase}")
    if not any(row.get("time_s") for row in rows):
        raise InputError("no case could be measured: " + str(rows[0].get("error", "")))
    return rows


def _list(names: list[str], chosen: list[Any], json: bool) -> None:
    from dataclasses import asdict

    if json:
        from tfsim.cli.output import print_json

        print_json([asdict(case) for case in chosen])
        return
    from tfsim.cli.output import table

    rows = [list(asdict(case).values()) for case in chosen]
    table(
        ["model", "phase", "batch", "new", "cached", "encoder", "set"],
        rows,
        title=f"{len(chosen)} cases of {len(names)} models",
    )


def _print(rows: list[dict[str, Any]], out: Path | None) -> None:
    from tfsim.cli.output import table
    from tfsim.units import format_bytes, format_flops, format_percent, format_time

    cells = []
    for row in rows:
        time = format_time(row["time_s"]) if row.get("time_s") else row.get("error")
        spread = format_percent(row["spread"]) if row.get("time_s") else None
        work = format_flops(row["flops"]) if "flops" in row else None
        memory = format_bytes(row["peak_memory_bytes"]) if "peak_memory_bytes" in row else None
        shape = f"{row['batch']} x {row['seq_len']}" + (f" after {row['past_len']}" if row["past_len"] else "")
        cells.append([row["model"], row["mode"], row["phase"], shape, time, spread, work, memory])
    where = rows[0]
    title = f"{where['device']}, {where['threads']} threads, torch {where['torch']}" + (
        f": written to {out}" if out else ""
    )
    table(["model", "mode", "phase", "shape", "time", "spread", "FLOPs", "peak memory"], cells, title=title)
