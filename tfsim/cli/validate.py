"""tfsim validate: predictions against published measurements."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tfsim.cli.options import Json
from tfsim.cli.shell import new_app

app = new_app("Predicted against measured: rows used and skipped, median and 90th percentile of the error.")


@app.callback()
def root() -> None:
    """Predicted against measured: rows used and skipped, median and 90th percentile of the error."""


@app.command()
def operators(
    data: Annotated[Path, typer.Option("--data", help="A CSV file of measurements, or a folder of them.")],
    device: Annotated[str | None, typer.Option(help="Only this device.", metavar="NAME")] = None,
    op: Annotated[str | None, typer.Option(help="Only this operator table, such as gemm or attention.")] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Predict each device from its relatives' constants, not its own.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write a line per row here (CSV).", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Operator times: each row's kernel predicted from its sizes and the hardware, beside a pure roofline."""
    from tfsim.validation.operators.run import rows_as_csv, validate_operators

    report = validate_operators(data, device=device, op=op, leave_out=leave_out)
    if out is not None:
        from tfsim.files import write_text

        write_text(out, rows_as_csv(report))
    if json:
        from tfsim.cli.output import print_json

        print_json(report.to_dict())
        return
    from tfsim.cli.output import table

    for name, groups in report.groups.items():
        keys = [key for key in groups[0] if key not in _STATISTICS]
        rows = [[*(group[key] for key in keys), *_figures(group)] for group in groups]
        table([*keys, "rows", "used", "median", "p90", "bias", "roofline"], rows, title=name)
    table(["all", "rows", "used", "median", "p90", "bias", "roofline"], [["", *_figures(report.overall)]])
    if report.overall["skipped"]:
        table(["rows", "skipped because"], [[n, reason] for reason, n in report.overall["skipped"].items()])


_STATISTICS = ("rows", "used", "skipped", "median_ape", "p90_ape", "bias", "baseline_median_ape")


def _figures(group: dict[str, Any]) -> list[object]:
    shares = (group[key] for key in ("median_ape", "p90_ape", "bias", "baseline_median_ape"))
    return [group["rows"], group["used"], *(None if x is None else f"{100 * x:.1f} %" for x in shares)]


@app.command()
def measured(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="What tfsim measure models wrote; default: the results that ship.", metavar="FILE"),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="Machine they ran on: a profile (tfsim measure hardware) or a system's name; default with the results"
            " that ship: theirs.",
            metavar="SYSTEM",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a line per row and quantity here (CSV).", metavar="FILE")
    ] = None,
    json: Json = False,
) -> None:
    """Real runs on one machine: counts must be equal; step times and peak memory, predicted with --on.

    Without --data: the runs of tfsim's own report (reports/measured), on the machine they were made on.
    """
    from tfsim.files import data_dir
    from tfsim.hardware import load_system
    from tfsim.measure.models import specification
    from tfsim.validation.measured.run import lines_as_csv, validate_measured

    if data is None:
        data, on = data_dir("measured") / "runs.csv", on or str(data_dir("measured") / "machine.yaml")
    report = validate_measured(data, None if on is None else load_system(on), specification)
    if out is not None:
        from tfsim.files import write_text

        write_text(out, lines_as_csv(report))
    if json:
        from tfsim.cli.output import print_json

        print_json(report.to_dict())
        return
    _print_measured(report.to_dict())


def _print_measured(report: dict[str, Any]) -> None:
    from tfsim.cli.output import table

    counts = report["counts"]
    if counts["compared"]:
        print(f"counts: {counts['equal']:,} of {counts['compared']:,} equal (parameters, FLOPs, kept bytes, cache)")
    else:
        print("counts: the file has none to compare (parameters, flops, saved_bytes, cache_bytes)")
    if counts["unequal"]:
        table(list(counts["unequal"][0]), [list(line.values()) for line in counts["unequal"]], title="not equal")
    titles = {"time_s": "time of a step", "peak_memory_bytes": "peak memory of a training step"}
    columns = ["mode", "model", "phase", "rows", "used", "median", "p90", "bias", "spread", "roofline"]
    for quantity, title in titles.items():
        for whole in [one for one in report["sets"] if one["quantity"] == quantity]:
            same = [g for g in report["groups"] if all(g[key] == whole[key] for key in ("quantity", "set", "mode"))]
            rows = [[*(g[key] for key in columns[:3]), *_measured_figures(g)] for g in same if g["used"]]
            if rows:
                rows.append([whole["mode"], "all", "", *_measured_figures(whole)])
                table(columns, rows, title=f"{title}: {whole['set'].replace('_', '-')} cases")
        skipped = (report if quantity == "time_s" else report["memory"])["skipped"]
        if skipped:
            table(["rows", f"{title}: skipped because"], [[n, reason] for reason, n in skipped.items()])


def _measured_figures(group: dict[str, Any]) -> list[object]:
    shares = (group[key] for key in ("median_ape", "p90_ape", "bias", "median_spread", "baseline_median_ape"))
    return [group["rows"], group["used"], *(None if x is None else f"{100 * x:.1f} %" for x in shares)]
