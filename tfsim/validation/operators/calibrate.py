"""Fitting a device's constants to the operator tables, and the calibration file that keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from tfsim.errors import InputError
from tfsim.files import data_dir, read_yaml
from tfsim.hardware import Device, list_devices, load_device
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
    operators: dict[str, Any] = {}
    on = load_device(device)
    for file, part, variant, rows in _classes(data, on):
        operators.setdefault(part.kind, {})[variant] = _fitted(part, variant, rows, machine(on), file)
    if not operators:
        raise InputError(f"{data}: too few rows of {on.name} to fit on: a class takes more than it has constants")
    return {"schema": 1, "device": on.name, "written_by": "tfsim calibrate operators", "operators": operators}


def held_out(data: str | Path, device: str, kind: str, variant: str, *, share: float = 0.3) -> pd.DataFrame:
    """What a fit is worth on rows that it has not seen: constants of one class and variant fitted anew without a random
    ``share`` of its rows; those rows, with their ``predicted`` times [s].

    Raises InputError when the data hold too few rows of that class.
    """
    on = load_device(device)
    facts = machine(on)
    for _, part, found, rows in _classes(data, on):
        if (part.kind, found) == (kind, variant):
            kept = np.random.default_rng(0).random(len(rows)) >= share
            values = _constants(part, variant, rows[kept], facts)
            test = rows[~kept]
            return test.assign(predicted=part.seconds(visible(test), facts, values, variant))
    raise InputError(f"{data}: too few rows of {on.name} for {kind} {variant}")


def _classes(data: str | Path, device: Device) -> Iterator[tuple[str, Part[Any], str, pd.DataFrame]]:
    """File, part, variant and rows of each class of constants that the data hold enough rows of ``device`` for."""
    facts = machine(device)
    for file, table, frame in read_tables(data):
        rows = frame[frame["device"] == device.name]
        if not len(rows):
            continue
        positive = (rows["time_s"] > 0) & np.isfinite(rows["time_s"]) & ~out_of_range(table, rows)
        good = table.prepare(rows[positive & (table.faults(rows, device) == "")])
        for part in table.parts:
            for variant, chosen in _usable(part, good).groupby(part.variant(visible(good))):
                if not variant or part.borrow(str(variant)) != variant:
                    continue
                chosen = _with_sizes(part, str(variant), chosen, facts)
                if len(chosen) > len(fields(part.constants)):  # else there are too few to tell the constants apart
                    yield file, part, str(variant), chosen


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


def _constants(part: Part[Any], variant: str, rows: pd.DataFrame, facts: Machine) -> Any:
    seen = visible(rows)

    def seconds(values: Any, index: NDArray[np.int64]) -> Array:
        return part.seconds(seen.iloc[index], facts, values, variant)

    return fit(part.constants, seconds, rows["time_s"].to_numpy(float))


def _fitted(part: Part[Any], variant: str, rows: pd.DataFrame, facts: Machine, file: str) -> dict[str, Any]:
    found = _constants(part, variant, rows, facts)
    error = np.abs(part.seconds(visible(rows), facts, found, variant) / rows["time_s"].to_numpy(float) - 1)
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
