"""Fitting a dozen constants to measured times: robust least squares on log errors, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tfsim.units import Array

C = TypeVar("C")

# Errors beyond this (log units) weigh linearly, not squared: a row that no formula explains does not bend the rest.
_SCALE = 0.08
# Rows weigh by their time to this power, within bounds: large operators are where a step's time goes.
_IMPORTANCE, _LEAST, _MOST = 0.2, 0.5, 2.5
_ROWS = 3000  # rows a fit uses: enough for a dozen constants
# Derivatives by steps of about 0.3 %, which step over the jumps that whole tiles make. SciPy's steps are relative, so
# the logarithms are shifted away from zero.
_STEP, _SHIFT = 3e-3, 100.0


def fit(cls: type[C], seconds: Callable[[C, NDArray[np.int64]], Array], measured: Array, *, seed: int = 0) -> C:
    """Constants of ``cls`` that make ``seconds(constants, rows)`` agree with ``measured`` [s].

    ``rows``: indices into ``measured``. Works in logarithms, within the bounds of each constant; a fixed sample of at
    most 3,000 rows, so the result is reproducible.
    """
    from scipy.optimize import least_squares

    table = list(fields(cls))  # type: ignore[arg-type]
    low, high = (np.log([f.metadata[side] for f in table]) for side in ("low", "high"))
    start: Array = np.log(np.array([f.default for f in table], float))
    rows = np.random.default_rng(seed).permutation(len(measured))[:_ROWS]
    target = np.log(measured[rows])
    weight = np.clip((measured[rows] / np.median(measured[rows])) ** _IMPORTANCE, _LEAST, _MOST)
    free = high > low  # equal bounds fix a constant

    def made(x: Array) -> C:
        return cls(**{f.name: float(value) for f, value in zip(table, np.exp(x), strict=True)})

    def constants_at(v: Array) -> C:
        x = start.copy()
        x[free] = v - _SHIFT
        return made(x)

    at_start = seconds(made(start), rows)
    for i in np.flatnonzero(free):  # a constant that no row depends on keeps its default
        ends = [np.where(np.arange(len(table)) == i, bound, start) for bound in (low, high)]
        free[i] = any(not np.array_equal(seconds(made(x), rows), at_start) for x in ends)

    best = least_squares(
        lambda v: weight * (np.log(seconds(constants_at(v), rows)) - target),
        np.clip(start, low, high)[free] + _SHIFT,
        bounds=(low[free] + _SHIFT, high[free] + _SHIFT),
        loss="soft_l1",
        f_scale=_SCALE,
        diff_step=_STEP / _SHIFT,
        max_nfev=60,
    )
    return constants_at(best.x)
