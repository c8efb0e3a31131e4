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
from tfsim.validation.measured.predict import Case, Prediction, counted, predict, roofline_seconds
from tfsim.validation.measured.read import COUNTS, read_runs
from tfsim.validation.operators.run import statistics

ESTIMATED = ("time_s", "peak_memory_bytes")
_COLUMNS = ["file", "row", "id", "source", "device", "quantity", "measured", "predicted", "lower", "upper", "baseline",
            "skipped", "set", "model", "phase", "mode", "batch", "seq_len", "past_len", "encoder_len",
            "spread"]  # fmt: skip


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

    def groups(self, quantity: str, *names: str) -> list[dict[str, Any]]:
        """Statistics of a quantity by the columns ``names``, such as set, mode, model and phase."""
        by = self.of(quantity).groupby(list(names), sort=False)
        return [dict(zip(names, map(str, key), strict=True)) | summary(part) for key, part in by]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the statistics of step times; ``memory``, those of peak memory; ``counts``, how many are equal;
        ``sets``, by quantity, set and mode; ``groups``, by model and phase too."""
        counts = self.lines[self.lines["quantity"].isin(COUNTS)]
        unequal = self.unequal[
            ["row", "set", "model", "phase", "batch", "seq_len", "quantity", "measured", "predicted"]
        ]
        return {
            **summary(self.of("time_s")),
            "memory": summary(self.of("peak_memory_bytes")),
            "counts": {
                "compared": int((counts["skipped"] == "").sum()),
                "equal": int((counts["skipped"] == "").sum()) - len(unequal),
                "unequal": unequal.to_dict("records"),
            },
            "sets": self._by("set", "mode"),
            "groups": self._by("set", "mode", "model", "phase"),
        }

    def _by(self, *names: str) -> list[dict[str, Any]]:
        return [{"quantity": name, **group} for name in ESTIMATED for group in self.groups(name, *names)]


def summary(lines: pd.DataFrame) -> dict[str, Any]:
    """``statistics`` of some lines, and the median ``spread`` of what was measured."""
    found = statistics(lines.rename(columns={"measured": "time_s"}))
    used = lines.loc[lines["skipped"] == "", "spread"]
    return {**found, "median_spread": float(used.median()) if used.notna().any() else None}


def validate_measured(
    data: str | Path, system: System | None, models: Callable[[str, Any], ModelSpec] = lambda name, _: load_model(name)
) -> MeasuredReport:
    """Counts, step times and peak memory of the runs in ``data`` against tfsim's, for ``system``'s device.

    ``system`` None: counts only. ``models``: what finds a specification by the columns ``model`` and ``set``.
    A row that cannot be as it is written is skipped, with the reason. Raises InputError for a malformed file or an
    unknown model.
    """
    frame = read_runs(data)
    names = frame[["model", "set"]].drop_duplicates().itertuples(index=False, name=None)
    specs = {(name, which): models(str(name), which) for name, which in names}
    lines: list[dict[str, Any]] = []
    for index, row in frame.iterrows():
        model, case = specs[row["model"], row["set"]], Case.of(row.to_dict())
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
    try:
        got = counted(model, case)
    except InputError as error:
        return [_line(name, row[name], np.nan, skipped=str(error)) for name in known]
    return [_line(name, row[name], got[name]) for name in known]


def _line(quantity: str, measured: Any, predicted: Any, baseline: Any = np.nan, skipped: str = "") -> dict[str, Any]:
    found = {"measured": measured, "predicted": predicted, "baseline": baseline, "skipped": skipped}
    return {"quantity": quantity, **found}


def _estimates(row: pd.Series[Any], model: ModelSpec, case: Case, system: System) -> list[dict[str, Any]]:
    """The lines of time and, of eager runs, of memory; skipped with the reason where nothing is measured or said."""
    try:
        got, baseline, refused = predict(model, case, system), roofline_seconds(model, case, system.device), ""
    except InputError as error:
        got, baseline, refused = Prediction(np.nan, None), np.nan, str(error)
    unmeasured = "" if not row["error"] and row["time_s"] > 0 else f"not measured: {row['error'] or 'no time'}"
    found = [_estimate("time_s", row["time_s"], got.seconds, unmeasured or refused, baseline)]
    if case.mode == "eager":
        measured = row["peak_memory_bytes"]
        if case.phase != "train":
            refused = "memory is predicted of training steps"
        elif np.isnan(measured):
            refused = "not measured"
        found.append(_estimate("peak_memory_bytes", measured, got.memory_bytes, refused))
    return found


def _estimate(quantity: str, measured: Any, predicted: Any, skipped: str, baseline: float = np.nan) -> dict[str, Any]:
    """A line; one that is skipped predicts nothing."""
    return (
        _line(quantity, measured, np.nan, skipped=skipped)
        if skipped
        else _line(quantity, measured, predicted, baseline)
    )


def lines_as_csv(report: MeasuredReport) -> str:
    """One line per row and quantity: file, row, id, source, device, quantity, measured, predicted, lower, upper (empty:
    no interval yet), baseline (the roofline's time), skipped; then the case and the spread of what was measured."""
    return str(report.lines.to_csv(index=False))
