"""The score that counts for a fit: the largest runs, predicted from the smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tfsim.errors import InputError, quote
from tfsim.scaling.conventions import positive
from tfsim.scaling.fit_law import Fit, fit
from tfsim.scaling.fit_runs import Runs, read_runs
from tfsim.units import Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tfsim.scaling.fit_runs import Source


@dataclass(frozen=True)
class Extrapolation:
    """How a fit on the smaller runs predicts the larger: ``errors`` are predicted / measured loss - 1, by run."""

    fit: Fit
    held_out: Runs
    errors: Array

    @property
    def mape(self) -> float:
        """Mean absolute relative error, as a fraction."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def bias(self) -> float:
        """Mean relative error, as a fraction; above 0 the law predicts too high a loss."""
        return float(np.mean(self.errors))


def extrapolate(
    runs: Runs | Source,
    form: str = "chinchilla",
    *,
    from_c: float | None = None,
    share: float | None = None,
    rows: Sequence[int] | None = None,
) -> Extrapolation:
    """Fit without the held-out runs and predict them.

    Held out are the runs of ``from_c`` FLOPs or more, the ``share`` (0 to 1) of runs of the largest budgets, or those
    ``rows`` of the source. A run's budget is its C, or 6 N D where the runs have no C.

    Raises: InputError unless one of the three is given and leaves runs on both sides; and as ``fit``.
    """  # fmt: skip
    if not isinstance(runs, Runs):
        runs = read_runs(runs)
    if sum(given is not None for given in (from_c, share, rows)) != 1:
        raise InputError("held-out runs: give one of from_c, share and rows")
    out = np.isin(runs.row, list(rows)) if rows is not None else largest(runs, from_c=from_c, share=share)
    strange = sorted(set(rows or ()) - {int(row) for row in runs.row})
    if strange:
        raise InputError(f"rows: {quote(strange[0])} is not a row of these runs")
    if not out.any() or out.all():
        side = "no run" if not out.any() else "every run"
        raise InputError(f"held-out runs: {side} is held out ({len(runs)} runs)")
    fitted = fit(runs.take(~out), form)
    larger = runs.take(out)
    predicted = fitted.predict(**{name: larger.column(name) for name in fitted.form.variables})
    return Extrapolation(fitted, larger, predicted / larger.loss - 1)


def largest(runs: Runs, *, from_c: float | None, share: float | None) -> NDArray[np.bool_]:
    """Which runs have ``from_c`` FLOPs or more, or are the ``share`` of the largest budgets. Raises: InputError."""
    budgets = runs.budgets()
    if share is not None:
        if not 0 < positive(share, "share") < 1:
            raise InputError(f"share: {share:g} is not between 0 and 1")
        from_c = float(np.quantile(budgets, 1 - share))
    return np.asarray(budgets >= positive(from_c, "from_c"))
