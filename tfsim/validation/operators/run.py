"""Predicted against measured operator times: rows, statistics by group, and the calibration that fits the constants."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tfsim.errors import InputError
from tfsim.hardware import Device, load_device
from tfsim.timing.constants import Fitted, constants
from tfsim.timing.machine import machine
from tfsim.units import Array
from tfsim.validation.operators.fit import fit
from tfsim.validation.operators.table import Part, Table, visible
from tfsim.validation.operators.tables import TABLES


@dataclass(frozen=True)
class Rows:
    """Every input row with its prediction. ``frame``: the columns of the file and ``file``, ``row`` (0-based),
    ``part``, ``variant``, ``predicted`` and ``baseline`` [s], ``constants`` (where they come from), ``skipped`` (the
    reason, "" for a row used)."""

    frame: pd.DataFrame


def read_tables(data: str | Path) -> list[tuple[str, Table, pd.DataFrame]]:
    """(file name, table, rows) of a file, or of each file of a folder, whose columns are those of an operator table.

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
            frame = pd.read_csv(file, low_memory=False)
        except (OSError, ValueError, gzip.BadGzipFile, EOFError) as error:
            raise InputError(f"{file}: cannot read as CSV: {str(error).splitlines()[0]}") from None
        table = table_of(frame)
        if table is not None:
            found.append((file.name, table, frame))
        elif path.is_file():
            raise InputError(f"{file}: the columns are those of no operator table ({', '.join(TABLES)})")
    if not found:
        raise InputError(f"{data}: no file with the columns of an operator table ({', '.join(TABLES)})")
    return found


def table_of(frame: pd.DataFrame) -> Table | None:
    """The operator table whose columns ``frame`` has."""
    return next((t for t in TABLES.values() if t.columns <= set(frame.columns)), None)


def predict(table: Table, frame: pd.DataFrame, *, without_own: bool = False) -> pd.DataFrame:
    """``frame`` with the columns of ``Rows``; ``without_own``: devices are predicted from their relatives' constants."""
    out = frame.copy()
    measured = pd.to_numeric(frame["time_s"], errors="coerce")
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
        rows = table.prepare(rows)
        for part in table.parts:
            variants = part.variant(visible(rows))
            for variant, chosen in rows.groupby(variants):
                if variant:
                    _predict_variant(part, str(variant), chosen, device, facts, out, without_own)
    bad = ~(measured > 0)
    out.loc[bad, "skipped"] = "time_s: not a positive number"
    out.loc[(out["part"] == "") & (out["skipped"] == ""), "skipped"] = "no formula for this kind of row"
    return out


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
        out.loc[rows.index, "predicted"] = part.seconds(seen, facts, found.values, variant)
        out.loc[rows.index, "baseline"] = part.roofline(seen, facts, variant)
        out.loc[rows.index, "constants"] = found.source
    except InputError as error:
        clear = out.loc[rows.index, "skipped"] == ""
        out.loc[clear.index[clear], "skipped"] = str(error)
    lost = out.loc[rows.index, "predicted"].isna() & (out.loc[rows.index, "skipped"] == "")
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


def _or_none(x: float) -> float | None:
    return None if np.isnan(x) else float(x)


def grouped(rows: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """`statistics` per group of ``columns`` (those that the rows have)."""
    present = [c for c in columns if c in rows.columns]
    return [
        dict(zip(present, (str(k) for k in key), strict=True)) | statistics(part)
        for key, part in rows.groupby(present, dropna=False, sort=True)
    ]


def calibrate(data: str | Path, device: str) -> dict[str, Any]:
    """The content of a calibration file: constants of ``device`` per operator class and variant, what they were fitted
    on and the error they leave.

    Raises InputError when the data hold no row of that device that a fit may use.
    """
    machine_of = load_device(device)
    facts = machine(machine_of)
    operators: dict[str, Any] = {}
    for file, table, frame in read_tables(data):
        rows = frame[frame["device"] == machine_of.name]
        if not len(rows):
            continue
        good = rows[(table.faults(rows, machine_of) == "") & (pd.to_numeric(rows["time_s"], errors="coerce") > 0)]
        good = table.prepare(good)
        for part in table.parts:
            usable = good[good["source"].isin(part.fits_on) & part.fit_rows(good)]
            for variant, chosen in usable.groupby(part.variant(visible(usable))):
                if variant and part.borrow(str(variant)) == variant:
                    operators.setdefault(part.kind, {})[str(variant)] = _fitted(part, str(variant), chosen, facts, file)
    if not operators:
        raise InputError(f"{data}: no rows of {machine_of.name} to fit on")
    return {"schema": 1, "device": machine_of.name, "written_by": "tfsim calibrate operators", "operators": operators}


def _fitted(part: Part[Any], variant: str, rows: pd.DataFrame, facts: Any, file: str) -> dict[str, Any]:
    measured: Array = rows["time_s"].to_numpy(float)
    seen = visible(rows)

    def seconds(values: Any, index: Array) -> Array:
        return part.seconds(seen.iloc[index], facts, values, variant)

    found = fit(part.constants, seconds, measured)
    error = np.abs(part.seconds(seen, facts, found, variant) / measured - 1)
    return {
        "constants": {f.name: float(f"{getattr(found, f.name):.4g}") for f in fields(part.constants)},
        "fitted_on": {"file": file, "rows": len(rows), "sources": sorted(rows["source"].unique())},
        "error": {"median_ape": round(float(np.median(error)), 4), "p90_ape": round(float(np.quantile(error, 0.9)), 4)},
    }
