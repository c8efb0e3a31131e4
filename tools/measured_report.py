"""Write reports/measured: real runs on one machine beside what tfsim counts and predicts.

Run from the repository, with the runs and the profile of the machine they were made on:
    tfsim measure hardware --out reports/measured/machine.yaml
    tfsim measure models --out reports/measured/runs.csv
    python tools/measured_report.py
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfsim.files import write_text  # noqa: E402
from tfsim.hardware import load_system  # noqa: E402
from tfsim.measure.models import specification  # noqa: E402
from tfsim.plots.measured import predicted_and_measured  # noqa: E402
from tfsim.units import format_time  # noqa: E402
from tfsim.validation.measured.run import MeasuredReport, lines_as_csv, summary, validate_measured  # noqa: E402

FOLDER = ROOT / "reports" / "measured"
WORST = 12


def share(x: float | None, sign: bool = False) -> str:
    """As a percentage; - for none."""
    return "-" if x is None else f"{100 * x:{'+' if sign else ''}.0f} %"


def row(cells: list[Any]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def statistics(found: dict[str, Any]) -> list[Any]:
    """The cells of one group."""
    return [
        found["used"],
        share(found["median_ape"]),
        share(found["p90_ape"]),
        share(found["bias"], sign=True),
        share(found["median_spread"]),
        share(found["baseline_median_ape"]),
    ]


def of(report: MeasuredReport, quantity: str, which: str = "development") -> pd.DataFrame:
    """The lines of a quantity in one set of cases."""
    lines = report.of(quantity)
    return lines[lines["set"] == which]


def held_out(report: MeasuredReport) -> list[str]:
    """The held-out cases beside the others, in all and by model; nothing when they were not measured."""
    lines = report.of("time_s")
    if not (lines["set"] == "held_out").any():
        return []
    header = ["cases", "number", "median error", "90 % within", "bias", "repeats' spread", "roofline's error"]
    rows = [[name.replace("_", "-"), *statistics(summary(part))] for name, part in lines.groupby("set", sort=False)]
    held = of(report, "time_s", "held_out").groupby("model", sort=False)
    models = [[f"held-out {name}", *statistics(summary(part))] for name, part in held]
    return [
        "## Held-out cases",
        "",
        "Other widths, depths, batches and lengths of each model (`tfsim/measure/models/held_out`), measured once,"
        " after the formulas were settled: nobody looked at them before.",
        "",
        row(header),
        row(["---"] * len(header)),
        *(row(r) for r in (*rows, *models)),
        "",
    ]


def by(report: MeasuredReport, quantity: str, column: str) -> list[str]:
    """A table of a quantity's error per value of ``column``, and in all."""
    lines = of(report, quantity)
    header = [column, "cases", "median error", "90 % within", "bias", "repeats' spread", "roofline's error"]
    rows = [[name, *statistics(summary(part))] for name, part in lines.groupby(column, sort=False)]
    rows = [r for r in rows if r[1]]
    rows.append(["**all**", *statistics(summary(lines))])
    if quantity != "time_s":
        header, rows = header[:-2], [r[:-2] for r in rows]
    return [row(header), row(["---"] * len(header)), *(row(r) for r in rows), ""]


def sizes(report: MeasuredReport) -> list[str]:
    """Errors of step times by how long a step is."""
    lines = of(report, "time_s")
    edges = [0, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, float("inf")]
    rows = []
    for low, high in pairwise(edges):
        part = lines[(lines["measured"] >= low) & (lines["measured"] < high)]
        if len(part):
            label = f"from {format_time(low)}" if high == float("inf") else f"up to {format_time(high)}"
            rows.append([label, *statistics(summary(part))])
    header = ["time of a step", "cases", "median error", "90 % within", "bias", "repeats' spread", "roofline's error"]
    return [row(header), row(["---"] * len(header)), *(row(r) for r in rows), ""]


def worst(report: MeasuredReport) -> list[str]:
    """The cases furthest off, of the development set."""
    lines = of(report, "time_s")
    lines = lines[lines["skipped"] == ""].assign(ratio=lambda d: d["predicted"] / d["measured"])
    lines = lines.loc[(lines["ratio"] - 1).abs().sort_values(ascending=False).index[:WORST]]
    header = ["model", "phase", "batch", "new", "cached", "measured", "predicted", "predicted / measured"]
    rows = [
        [
            d.model,
            d.phase,
            d.batch,
            d.seq_len,
            d.past_len,
            format_time(d.measured),
            format_time(d.predicted),
            f"{d.ratio:.2f}",
        ]
        for d in lines.itertuples()
    ]
    return [row(header), row(["---"] * len(header)), *(row(r) for r in rows), ""]


def text(report: MeasuredReport, runs: pd.DataFrame, notes: str) -> str:
    """The page."""
    first, found = runs.iloc[0], report.to_dict()
    counts, times = found["counts"], report.of("time_s")
    machine = f"{first['threads']}-core {first['device']}, torch {str(first['torch']).split('+')[0]}"
    span = f"{format_time(times['measured'].min())} to {format_time(times['measured'].max())}"
    lines = [
        "# Measured here",
        "",
        f"{len(runs)} cases of {runs['model'].nunique()} small models (`tfsim/measure/models`), run in fp32 eager"
        f" PyTorch on one machine ({machine}): steps of {span}. Written by `tools/measured_report.py` from `runs.csv`"
        " and `machine.yaml`, which `tfsim measure models` and `tfsim measure hardware` wrote; every case is in"
        " `rows.csv`.",
        "",
        f"**Counts** (parameters, FLOPs, bytes kept for the backward pass, cache): {counts['equal']} of"
        f" {counts['compared']} equal what torch counts.",
        "",
        "![predicted against measured](predicted_measured.png)",
        "",
        "Constants come from micro-benchmarks of the machine alone (`tfsim measure hardware`); none was fitted to these"
        " models. *Repeats' spread*: distance of the quartiles of a case's repeats over their median.",
        "",
        *held_out(report),
        "## Time of a step, by model",
        "",
        *by(report, "time_s", "model"),
        "## By phase",
        "",
        *by(report, "time_s", "phase"),
        "## By how long a step is",
        "",
        *sizes(report),
        "## Peak memory of a training step",
        "",
        *by(report, "peak_memory_bytes", "model"),
        "## Where the prediction misses",
        "",
        *worst(report),
        notes.rstrip(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare and write."""
    report = validate_measured(FOLDER / "runs.csv", load_system(FOLDER / "machine.yaml"), specification)
    runs = pd.read_csv(FOLDER / "runs.csv")
    write_text(FOLDER / "rows.csv", lines_as_csv(report))
    write_text(FOLDER / "README.md", text(report, runs, (FOLDER / "misses.md").read_text(encoding="utf-8")))
    title = f"Real runs on a {runs['threads'][0]}-core CPU: {len(runs)} cases of {runs['model'].nunique()} models"
    predicted_and_measured(report.lines, title).savefig(FOLDER / "predicted_measured.png", dpi=150)


if __name__ == "__main__":
    main()
