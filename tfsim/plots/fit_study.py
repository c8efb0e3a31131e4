"""Which charts a fit of the user's runs has, and their numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from tfsim.errors import InputError
from tfsim.plots.fits import IsoCurve, isoflop_curves, optimum_band, predicted_against_measured, residuals
from tfsim.scaling import isoflop, optimal
from tfsim.scaling.fit_isoflop import Group, IsoFlop
from tfsim.scaling.fit_law import Fit
from tfsim.scaling.fit_study import Study, optimum_bands
from tfsim.units import Array

_POINTS = 120  # of a curve
_WIDER = 1.6  # times the runs' N, to either side of a curve
_BEYOND = 100.0  # times the largest budget: where the band ends
_NONE = np.array([])


def study_charts(study: Study) -> Iterator[tuple[str, Figure]]:
    """A name and a chart each: predicted, residuals, isoflop and optimum, those that the fit has."""
    found, runs = study.found, study.runs
    if isinstance(found, Fit):
        held = study.held_out
        fitted = runs.loss * np.exp(found.residuals)
        measured, errors, budgets = (held.measured, held.errors, held.budgets) if held else (_NONE, _NONE, _NONE)
        title = f"{study.law.name}: {found.form.formula}"
        yield "predicted", predicted_against_measured(runs.loss, fitted, measured, measured * (1 + errors), title)
        if "compute" in study.law.fitted:
            left = np.expm1(found.residuals)
            yield "residuals", residuals(runs.budgets(), left, budgets, errors, f"{study.law.name}: what is left over")
    if study.law.form == "single":
        return
    groups = _groups(study)
    if groups:
        curves = [_curve(study, group) for group in groups]
        kind = "parabolas" if isinstance(found, IsoFlop) else "the fitted law"
        title = f"{study.law.name}: isoFLOP groups and {kind}"
        yield "isoflop", isoflop_curves(curves, "N [parameters]", title)
    yield "optimum", _optimum(study, groups)


def _groups(study: Study) -> list[Group]:
    """The isoFLOP groups of the runs; none where they form none, or count C otherwise than the law."""
    if isinstance(study.found, IsoFlop):
        return [group for group in study.found.groups if not group.left_out]
    if study.runs.c_means != study.law.c or study.runs.N is None:
        return []
    try:
        return [group for group in isoflop(study.runs).groups if not group.left_out]
    except InputError:  # these runs are not of that kind
        return []


def _curve(study: Study, group: Group) -> IsoCurve:
    """A group's runs; the parabola for approach 2, else the law along 6 N D = C."""
    runs = study.runs.take(np.isin(study.runs.row, group.rows))
    n = runs.column("N")
    grid = np.geomspace(n.min() / _WIDER, n.max() * _WIDER, _POINTS)
    if isinstance(study.found, Fit):
        curve = study.found.predict(N=grid, D=group.C / 6 / grid)
        best = optimal(study.law, compute=group.C)
        assert best.loss is not None, "a surface has a loss"
        lowest = (float(best.parameters), float(best.loss))
    else:
        grid = np.geomspace(n.min(), n.max(), _POINTS)
        curve, lowest = group.parabola(grid), (group.optimum, group.loss)
    return IsoCurve(f"{group.C:.2g}", n, runs.loss, grid, curve, lowest)


def _optimum(study: Study, groups: list[Group]) -> Figure:
    low, high = study.law.fitted["compute"]
    compute = np.geomspace(low, high * _BEYOND, _POINTS)
    middle: Array = np.asarray(optimal(study.law, compute=compute).parameters)
    points = (np.array([g.C for g in groups]), np.array([g.optimum for g in groups]))
    band = optimum_bands(study.law, compute, study.bootstrap)[0]
    return optimum_band(compute, middle, band, points, high, f"{study.law.name}: the best N for a budget")
