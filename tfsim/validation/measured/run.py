"""Predicted against measured runs: a line per row and quantity, and statistics by model and phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tfsim.errors import InputError
from tfsim.hardware import System
from tfsim.models import load_model
from tfsim.models.spec import ModelSpec
from tfsim.validation.measured.predict import Case, counted, memory_bytes, roofline_seconds, seconds
from tfsim.validation.measured.read import COUNTS, read_runs
from tfsim.validation.operators.run import statistics

ESTIMATED = ("time_s", "peak_memory_bytes")
_COLUMNS = ["file", "row", "id", "source", "device", "quantity", "measured", "predicted", "lower", "upper", "baseline",
            "skipped", "model", "phase", "mode", "batch", "seq_len", "past_len", "encoder_len", "spread"]  # fmt: skip


@dataclass(frozen=True)
class MeasuredReport:
    """``lines``: one per row and quantity (see ``lines_as_csv``), of which the estimated ones are in ``estimated``."""

    lines: pd.DataFrame

    @property
    def unequal(self) -> pd.DataFrame:
        """Counts that are not equal."""
        counts = self.lines[self.lines["quantity"].isin(COUNTS) & (self.lines["skipped"] == "")]
        return counts[counts["measured"] != counts["predicted"]]

    def of(self, quantity: str) -> pd.DataFrame:
        """The lines of one quantity."""
        return self.lines[self.lines["quantity"] == quantity]

    def groups(self, quantity: str) -> list[dict[str, Any]]:
        """Statistics of a quantity by mode, model and phase."""
        by = self.of(quantity).groupby(["mode", "model", "phase"], sort=False)
        names = ("mode", "model", "phase")
        return [dict(zip(names, map(str, key), strict=True)) | summary(part) for key, part in by]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the statistics of step times; ``memory``, those of peak memory; ``counts``, how many are equal;
        ``groups`` by quantity, mode, model and phase."""
        counts = self.lines[self.lines["quantity"].isin(COUNTS)]
        unequal = self.unequal[["row", "model", "phase", "batch", "seq_len", "quantity", "measured", "predicted"]]
        return {
            **summary(self.of("time_s")),
            "memory": summary(self.of("peak_memory_bytes")),
            "counts": {
                "compared": int((counts["skipped"] == "").sum()),
                "equal": int((counts["skipped"] == "").sum()) - len(unequal),
                "unequal": unequal.to_dict("records"),
            },
            "groups": [{"quantity": name, **group} for name in ESTIMATED for group in self.groups(name)],
        }


def summary(lines: pd.DataFrame) -> dict[str, Any]:
    """``statistics`` of some lines, and the median ``spread`` of what was measured."""
    found = statistics(lines.rename(columns={"measured": "time_s"}))
    used = lines.loc[lines["skipped"] == "", "spread"]
    return {**found, "median_spread": float(used.median()) if used.notna().any() else None}


def validate_measured(
    data: str | Path, system: System | None, models: Callable[[str], ModelSpec] = load_model
) -> MeasuredReport:
    """Counts, step times and peak memory of the runs in ``data`` against tfsim's, for ``system``'s device.

    ``system`` None: counts only. ``models``: what finds a specification by the name in column ``model``.
    Raises InputError for a malformed file, an unknown model, or when no row can be compared.
    """
    frame = read_runs(data)
    specs = {name: models(str(name)) for name in frame["model"].unique()}
    lines: list[dict[str, Any]] = []
    for index, row in frame.iterrows():
        model, case = specs[row["model"]], Case.of(row.to_dict())
        common = {name: row[name] for name in _COLUMNS if name in row} | {"file": Path(data).name, "row": index}
        common["device"] = row.get("device", "") if system is None else system.device.name
        lines += [common | line for line in _counts(row, model, case)]
        if system is not None:
            lines += [common | line for line in _estimates(row, model, case, system)]
    return MeasuredReport(pd.DataFrame(lines).reindex(columns=_COLUMNS))


def _counts(row: pd.Series[Any], model: ModelSpec, case: Case) -> list[dict[str, Any]]:
    known = [name for name in COUNTS if not np.isnan(row[name])]
    if not known:
        return []
    got = counted(model, case)
    return [_line(name, row[name], got[name]) for name in known]


def _line(quantity: str, measured: Any, predicted: Any, baseline: Any = np.nan, skipped: str = "") -> dict[str, Any]:
    found = {"measured": measured, "predicted": predicted, "baseline": baseline, "skipped": skipped}
    return {"quantity": quantity, **found}


def _estimates(row: pd.Series[Any], model: ModelSpec, case: Case, system: System) -> list[dict[str, Any]]:
    found = []
    if row["error"] or not row["time_s"] > 0:
        found.append(_line("time_s", np.nan, np.nan, skipped=f"not measured: {row['error'] or 'no time'}"))
    else:
        found.append(_line("time_s", row["time_s"], *_times(model, case, system)))
    if case.mode == "eager":
        found.append(_memory(row, model, case, system))
    return found


def _times(model: ModelSpec, case: Case, system: System) -> tuple[float, float, str]:
    """(predicted, roofline, why not)."""
    try:
        return seconds(model, case, system), roofline_seconds(model, case, system.device), ""
    except InputError as error:
        return np.nan, np.nan, str(error)


def _memory(row: pd.Series[Any], model: ModelSpec, case: Case, system: System) -> dict[str, Any]:
    measured = row["peak_memory_bytes"]
    if case.phase != "train":
        reason = "memory is predicted of training steps"
    elif np.isnan(measured):
        reason = "not measured"
    else:
        try:
            return _line("peak_memory_bytes", measured, memory_bytes(model, case, system))
        except InputError as error:
            reason = str(error)
    return _line("peak_memory_bytes", measured, np.nan, skipped=reason)


def lines_as_csv(report: MeasuredReport) -> str:
    """One line per row and quantity: file, row, id, source, device, quantity, measured, predicted, lower, upper (empty:
    no interval yet), baseline (the roofline's time), skipped; then the case and the spread of what was measured."""
    return str(report.lines.to_csv(index=False))
