"""Fitting a device's constants to the operator tables, and the calibration file that keeps them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from tfsim.errors import InputError
from tfsim.files import data_dir, read_yaml
from tfsim.hardware import list_devices, load_device
from tfsim.timing.fit import fit
from tfsim.timing.machine import Machine, machine
from tfsim.units import Array
from tfsim.validation.operators.run import out_of_range, read_tables
from tfsim.validation.operators.table import MEASURERS, Part, visible


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
        positive = (rows["time_s"] > 0) & np.isfinite(rows["time_s"]) & ~out_of_range(table, rows)
        good = table.prepare(rows[positive & (table.faults(rows, machine_of) == "")])
        for part in table.parts:
            for variant, chosen in _usable(part, good).groupby(part.variant(visible(good))):
                if not variant or part.borrow(str(variant)) != variant:
                    continue
                chosen = _with_sizes(part, str(variant), chosen, facts)
                if len(chosen) > len(fields(part.constants)):  # else there are too few to tell the constants apart
                    operators.setdefault(part.kind, {})[str(variant)] = _fitted(part, str(variant), chosen, facts, file)
    if not operators:
        raise InputError(
            f"{data}: too few rows of {machine_of.name} to fit on: a class takes more than it has constants"
        )
    return {"schema": 1, "device": machine_of.name, "written_by": "tfsim calibrate operators", "operators": operators}


def _usable(part: Part[Any], rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that a fit of ``part`` may use: those of the sources it names and a user's own."""
    if not part.fits_on:
        return rows.iloc[:0]
    own = ~rows["source"].isin(MEASURERS)
    return rows[(own | rows["source"].isin(part.fits_on)) & part.fit_rows(rows)]


def _with_sizes(part: Part[Any], variant: str, rows: pd.DataFrame, facts: Machine) -> pd.DataFrame:
    """Rows that state every size the formula needs."""
    with np.errstate(all="ignore"):
        seconds = part.seconds(visible(rows), facts, part.constants(), variant)
    return rows[(seconds > 0) & np.isfinite(seconds)]


def _fitted(part: Part[Any], variant: str, rows: pd.DataFrame, facts: Machine, file: str) -> dict[str, Any]:
    measured: Array = rows["time_s"].to_numpy(float)
    seen = visible(rows)

    def seconds(values: Any, index: NDArray[np.int64]) -> Array:
        return part.seconds(seen.iloc[index], facts, values, variant)

    found = fit(part.constants, seconds, measured)
    error = np.abs(part.seconds(seen, facts, found, variant) / measured - 1)
    return {
        "constants": {f.name: float(f"{getattr(found, f.name):.4g}") for f in fields(part.constants)},
        "fitted_on": {"file": file, "rows": len(rows), "sources": sorted(rows["source"].fillna("").unique())},
        "error": {"median_ape": round(float(np.median(error)), 4), "p90_ape": round(float(np.quantile(error, 0.9)), 4)},
    }


def calibration_file(device: str) -> Path:
    """Where the constants of ``device``, a canonical name, are kept.

    Raises InputError for a device that is described elsewhere than among the profiles, where nothing would find them.
    """
    if device not in [entry.name for entry in list_devices()]:
        folder = data_dir("hardware") / "devices"
        raise InputError(f"{device} is not among the profiles: put its file into {folder} first, or give --out")
    return data_dir("hardware") / "calibration" / f"{device}.yaml"


def calibration_text(found: dict[str, Any], path: Path) -> str:
    """The YAML text of ``found``, with the classes and variants that the file at ``path`` holds and ``found`` does not.

    Raises InputError when that file is malformed.
    """
    operators = read_yaml(path).get("operators", {}) if path.exists() else {}
    kinds = sorted({*operators, *found["operators"]})
    ordered = {kind: {**operators.get(kind, {}), **found["operators"].get(kind, {})} for kind in kinds}
    return yaml.safe_dump({**found, "operators": ordered}, sort_keys=False, width=120)
