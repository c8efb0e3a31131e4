"""Predicted against measured operator times: rows, and statistics by group."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tfsim.errors import InputError, quote, unknown
from tfsim.hardware import Device, load_device
from tfsim.timing.constants import Fitted, constants
from tfsim.timing.machine import machine
from tfsim.validation.operators.table import WORDS, Part, Table, visible
from tfsim.validation.operators.tables import TABLES


@dataclass(frozen=True)
class OperatorReport:
    """``rows``: per table the rows with their predictions (see ``predict``); ``groups``: per table the statistics of
    each group; ``overall``: of all rows. Errors are shares: 0.07 is 7 %."""

    rows: dict[str, pd.DataFrame]
    groups: dict[str, list[dict[str, Any]]]
    overall: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the overall statistics, and ``groups`` with those of each group."""
        groups = [{"table": name, **group} for name, found in self.groups.items() for group in found]
        return {**self.overall, "groups": groups}


def validate_operators(
    data: str | Path, *, device: str | None = None, op: str | None = None, leave_out: bool = False
) -> OperatorReport:
    """Predicted against measured times of operators, for a file or a folder with the columns of the operator tables.

    ``device``, ``op``: only that device, only that table. ``leave_out``: each device from the constants of its
    relatives, as if it had not been measured.

    Raises InputError for missing or malformed files and unknown names.
    """
    wanted = None if device is None else load_device(device).name
    if op is not None and op not in TABLES:
        raise unknown("operator table", op, TABLES)
    rows: dict[str, pd.DataFrame] = {}
    groups: dict[str, list[dict[str, Any]]] = {}
    for file, table, frame in read_tables(data):
        if op is not None and table.name != op:
            continue
        chosen = frame if wanted is None else frame[frame["device"] == wanted]
        if not len(chosen):
            continue
        found = predict(table, chosen, without_own=leave_out)
        found.insert(0, "file", file)
        found.insert(1, "row", chosen.index)
        rows[file] = found
        groups[file] = grouped(found, table.group)
    if not rows:
        raise InputError(f"{data}: no rows of {wanted or 'any device'}{'' if op is None else f' for {op}'}")
    kept = ["time_s", "predicted", "baseline", "skipped"]
    return OperatorReport(rows, groups, statistics(pd.concat([r[kept] for r in rows.values()])))


def rows_as_csv(report: OperatorReport) -> str:
    """One line per input row: file, row, source, device, quantity, measured, predicted, lower, upper (empty: operator
    times carry no interval yet), baseline, skipped."""
    lines = [
        pd.DataFrame(
            {
                "file": rows["file"], "row": rows["row"], "id": rows.get("id", ""), "source": rows.get("source", ""),
                "device": rows["device"], "quantity": "time_s", "measured": rows["time_s"],
                "predicted": rows["predicted"], "lower": "", "upper": "", "baseline": rows["baseline"],
                "skipped": rows["skipped"],
            }
        )
        for rows in report.rows.values()
    ]  # fmt: skip
    return str(pd.concat(lines).to_csv(index=False))


def read_tables(data: str | Path) -> list[tuple[str, Table, pd.DataFrame]]:
    """(file name, table, rows) of a file, or of each file of a folder, whose columns are those of an operator table.

    A file without a ``source`` column is a user's own: its source is "".

    Raises InputError when there is none, or a file cannot be read.
    """
    path = Path(data)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.name.endswith((".csv", ".csv.gz")))
    elif path.is_file():
        files = [path]
    else:
        raise InputError(f"--data: {data}: no such file or folder")
    found = []
    for file in files:
        try:
            frame = pd.read_csv(file, low_memory=False, dtype=dict.fromkeys(WORDS, str))
        except (OSError, ValueError, gzip.BadGzipFile, EOFError) as error:
            raise InputError(f"{file}: cannot read as CSV: {str(error).splitlines()[0]}") from None
        if not isinstance(frame.index, pd.RangeIndex):
            raise InputError(f"{file}: lines have more cells than the header")
        table = table_of(frame)
        if table is not None:
            _check_numbers(file, table, frame)
            frame = frame if "source" in frame else frame.assign(source="")
            found.append((file.name, table, frame.assign(device=frame["device"].map(_canonical(frame["device"])))))
        elif path.is_file():
            raise InputError(f"{file}: the columns are those of no operator table; {_nearest(frame)}")
    if not found:
        raise InputError(f"{data}: no file with the columns of an operator table ({', '.join(TABLES)})")
    return found


def _canonical(names: pd.Series[str]) -> dict[str, str]:
    """The profile's name of each device of the library; a path, or a name that is unknown, stays as it is."""
    found = {}
    for name in names.dropna().unique():
        try:
            found[name] = load_device(load_device(str(name)).name).name
        except InputError:
            found[name] = name  # `predict` loads the path, or skips the rows and says why
    return found


def _nearest(frame: pd.DataFrame) -> str:
    """The table that lacks the smallest part of its columns, and which they are."""
    lacking = {table.name: sorted(table.columns - set(frame.columns)) for table in TABLES.values()}
    name = min(lacking, key=lambda table: len(lacking[table]) / len(TABLES[table].columns))
    return f"the nearest, {name}, also needs {', '.join(lacking[name])} (tables: {', '.join(TABLES)})"


def _check_numbers(file: Path, table: Table, frame: pd.DataFrame) -> None:
    """Raises InputError for the first cell of a column of numbers that holds something else (an empty one may be)."""
    for column in sorted(table.columns.difference(WORDS)):
        wrong = frame.index[frame[column].notna() & pd.to_numeric(frame[column], errors="coerce").isna()]
        if len(wrong):
            cell = quote(str(frame[column][wrong[0]]))
            raise InputError(f"{file}: line {wrong[0] + 2}: {column}: {cell} is not a number")


def table_of(frame: pd.DataFrame) -> Table | None:
    """The operator table whose columns ``frame`` has."""
    return next((t for t in TABLES.values() if t.columns <= set(frame.columns)), None)


def predict(table: Table, frame: pd.DataFrame, *, without_own: bool = False) -> pd.DataFrame:
    """``frame`` with, per row: ``part`` and ``variant`` (the class of constants), ``constants`` (where they come from),
    ``predicted`` and ``baseline`` [s], and ``skipped`` (the reason, "" for a row used).

    ``without_own``: from the constants of a device's relatives, as if it had not been measured.
    """
    out = frame.copy()
    out["part"], out["variant"], out["constants"], out["skipped"] = "", "", "", ""
    out["predicted"], out["baseline"] = np.nan, np.nan
    for name, rows in frame.groupby("device", sort=True):
        try:
            device = load_device(str(name))
            facts = machine(device)
        except InputError as error:
            out.loc[rows.index, "skipped"] = f"device: {error}"
            continue
        out.loc[rows.index, "skipped"] = table.faults(rows, device)
        rows = table.prepare(rows[~out_of_range(table, rows)])
        for part in table.parts:
            with np.errstate(all="ignore"):
                variants = part.variant(visible(rows))
            for variant, chosen in rows.groupby(variants):
                if variant:
                    _predict_variant(part, str(variant), chosen, device, facts, out, without_own)
    out.loc[out_of_range(table, frame), "skipped"] = "a size is below 0 or infinite"
    out.loc[frame["device"].isna(), "skipped"] = "device: none is stated"
    out.loc[~((frame["time_s"] > 0) & np.isfinite(frame["time_s"])), "skipped"] = "time_s: not a positive number"
    out.loc[(out["part"] == "") & (out["skipped"] == ""), "skipped"] = "no formula for this kind of row"
    return out


def out_of_range(table: Table, frame: pd.DataFrame) -> pd.Series[bool]:
    """Rows with a number that no operator has, whether or not a formula needs it."""
    sizes = frame[sorted(table.columns.difference((*WORDS, "time_s")))].astype(float)
    return ((sizes < 0) | np.isinf(sizes)).any(axis=1)


def _predict_variant(
    part: Part[Any],
    variant: str,
    rows: pd.DataFrame,
    device: Device,
    facts: Any,
    out: pd.DataFrame,
    without_own: bool,
) -> None:
    seen = visible(rows)
    out.loc[rows.index, "part"] = part.kind
    out.loc[rows.index, "variant"] = variant
    try:
        found = _constants(part, device, variant, without_own)
        with np.errstate(all="ignore"):  # sizes that are missing or absurd give no time, and are counted below
            out.loc[rows.index, "predicted"] = part.seconds(seen, facts, found.values, variant)
            out.loc[rows.index, "baseline"] = part.roofline(seen, facts, variant)
        out.loc[rows.index, "constants"] = found.source
    except InputError as error:
        clear = out.loc[rows.index, "skipped"] == ""
        out.loc[clear.index[clear], "skipped"] = str(error)
    predicted = out.loc[rows.index, "predicted"]
    lost = ~((predicted > 0) & np.isfinite(predicted)) & (out.loc[rows.index, "skipped"] == "")
    out.loc[lost.index[lost], "skipped"] = "a size the formula needs is missing"


def _constants(part: Part[Any], device: Device, variant: str, without_own: bool) -> Fitted[Any]:
    if part.published is not None:
        return Fitted(part.published(device), False, "published figures")
    return constants(part.kind, part.constants, device, part.borrow(variant), without_own=without_own)


def statistics(rows: pd.DataFrame) -> dict[str, Any]:
    """rows, used, skipped by reason, median_ape, p90_ape, bias (median signed error), baseline_median_ape."""
    used = rows[rows["skipped"] == ""]
    counts = rows.loc[rows["skipped"] != "", "skipped"].value_counts()
    result: dict[str, Any] = {
        "rows": len(rows),
        "used": len(used),
        "skipped": {str(k): int(v) for k, v in counts.items()},
    }
    error = used["predicted"] / used["time_s"] - 1
    base = (used["baseline"] / used["time_s"] - 1).abs()
    result["median_ape"] = _or_none(error.abs().median())
    result["p90_ape"] = _or_none(error.abs().quantile(0.9))
    result["bias"] = _or_none(error.median())
    result["baseline_median_ape"] = _or_none(base.median())
    return result


def _or_none(x: Any) -> float | None:
    return None if np.isnan(x) else float(x)


def grouped(rows: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """`statistics` per group of ``columns`` (those that the rows have)."""
    present = [c for c in columns if c in rows.columns]
    named = [rows[c].astype(object).where(rows[c].notna(), "").astype(str) for c in present]
    return [
        dict(zip(present, (str(k) for k in key), strict=True)) | statistics(part)
        for key, part in rows.groupby(named, sort=True)
    ]
