"""Compute-optimal sizes straight from runs, without a loss surface: Hoffmann et al.'s approaches 1 and 2.

Approach 2 (arXiv:2203.15556, section 3.2): a parabola of loss over ln N in each group of runs of equal compute; the
vertices against C are a power law. Its exponent is biased even without noise where the groups' grids are wide or not
centred on the optimum (arXiv:2603.22339); ``parabola_bias`` says by how much for the grid at hand.
Approach 1 (section 3.1): the lower envelope of training curves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tfsim.errors import InputError, choice, quote
from tfsim.scaling.conventions import positive
from tfsim.scaling.fit_law import Bootstrap, Fit, checked_draws
from tfsim.scaling.fit_runs import Runs
from tfsim.units import Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WITHIN = 0.1  # of a budget: a run belongs to its isoFLOP group
_POINTS = 4  # distinct sizes that a parabola is fitted to, at least: three determine it, one is left to check it
_ENVELOPE_POINTS = 1500  # FLOP values at which approach 1 looks for the best curve (section 3.1)


@dataclass(frozen=True)
class Group:
    """One isoFLOP group: its compute, the parabola's vertex, and why it is left out of the power law, if it is.

    ``curvature`` is d2 L / d(ln x)2; ``off_centre`` the vertex's distance from the middle of the grid as a share of
    its half width in ln x: 0 centred, 1 at the edge. ``rows`` are its runs' rows.
    """

    name: str
    rows: tuple[int, ...]
    C: float
    optimum: float
    loss: float
    curvature: float
    off_centre: float
    left_out: str = ""

    @property
    def n(self) -> int:
        """Runs in the group."""
        return len(self.rows)

    def parabola(self, x: Array) -> Array:
        """Its loss at x (N or D)."""
        return np.asarray(self.loss + 0.5 * self.curvature * (np.log(x) - np.log(self.optimum)) ** 2)


@dataclass(frozen=True)
class PowerLaw:
    """x_opt = coefficient * C^exponent, with the standard error of the exponent from the scatter about the line.

    ``of`` is "N" or "D". The standard error is NaN when two points leave no scatter.
    """

    of: str
    coefficient: float
    exponent: float
    exponent_se: float

    def __call__(self, c: float | Array) -> Array:
        """x_opt at C FLOPs, as the runs count them."""
        return np.asarray(self.coefficient * np.asarray(c, dtype=np.float64) ** self.exponent)


@dataclass(frozen=True)
class IsoFlop:
    """Approach 2: the power law through the groups' optima, and every group with what became of it.

    ``outside`` are the rows of runs in no group.
    """

    law: PowerLaw
    groups: tuple[Group, ...]
    outside: tuple[int, ...]


@dataclass(frozen=True)
class Envelope:
    """Approach 1: the power law through the envelope, and the envelope: at C the best N and its loss."""

    law: PowerLaw
    C: Array
    N: Array
    loss: Array


def isoflop(runs: Runs, *, of: str = "N", budgets: Sequence[float] | None = None) -> IsoFlop:
    """Approach 2 on ``runs``: the optimal N (or D) of each isoFLOP group and the power law through them.

    The groups are the runs within 10 % of one of ``budgets`` (FLOPs); else those of the runs' group column; else runs
    of nearly equal C. A group without a minimum inside its grid is left out, and says so.

    Raises: InputError when C or ``of`` is missing, runs fall into no groups, or fewer than two groups have an optimum.
    """
    choice("of", of, ("N", "D"))
    members = _members(runs, budgets)
    groups = sorted((_group(name, runs.take(member), of) for name, member in members.items()), key=lambda g: g.C)
    good = [group for group in groups if not group.left_out]
    if len(good) < 2:
        reasons = "; ".join(f"{g.name}: {g.left_out}" for g in groups if g.left_out)
        raise InputError(f"runs: {len(good)} isoFLOP group(s) with an optimum, 2 or more are needed ({reasons})")
    law = _power_law(of, np.array([g.C for g in good]), np.array([g.optimum for g in good]))
    inside = np.any([np.zeros(len(runs), dtype=bool), *members.values()], axis=0)
    return IsoFlop(law, tuple(groups), tuple(int(row) for row in runs.row[~inside]))


def envelope(runs: Runs) -> Envelope:
    """Approach 1 on training curves: several rows per N, each with the C and loss so far.

    At 1,500 values of C the curve (by N, interpolated in ln C) of least loss is taken; where that is the smallest or
    the largest N of all, a better one may lie outside and the point is left out.

    Raises: InputError when N or C is missing, fewer than three N have a curve, or no inner N is ever best.
    """
    n, c = runs.column("N"), np.log(runs.column("C"))
    sizes = [size for size in np.unique(n) if (n == size).sum() > 1]
    if len(sizes) < 3:
        raise InputError(f"N: {len(sizes)} size(s) with two or more points; the envelope needs curves of 3 or more")
    grid = np.linspace(c.min(), c.max(), _ENVELOPE_POINTS)
    curves = np.full((len(sizes), len(grid)), np.inf)
    for i, size in enumerate(sizes):
        at = np.flatnonzero(n == size)
        at = at[np.argsort(c[at], kind="stable")]
        if (np.diff(c[at]) <= 0).any():
            raise InputError(f"C: two points of the curve of N = {size:g} have the same C: drop one")
        inside = (grid >= c[at[0]]) & (grid <= c[at[-1]])
        curves[i, inside] = np.interp(grid[inside], c[at], runs.loss[at])
    best = np.argmin(curves, axis=0)
    inner = (best > 0) & (best < len(sizes) - 1) & np.isfinite(curves.min(axis=0))
    chosen = np.array(sizes)[best[inner]]
    if len(np.unique(chosen)) < 2:
        raise InputError("runs: fewer than two N between the smallest and largest are ever best at a C")
    at_c = np.exp(grid[inner])
    return Envelope(_power_law("N", at_c, chosen), at_c, chosen, curves.min(axis=0)[inner])


def parabola_bias(runs: Runs, law: Fit, *, budgets: Sequence[float] | None = None) -> float:
    """What approach 2 adds to the exponent of N_opt on this grid of runs if ``law`` were exactly true.

    The runs' losses are replaced by the law's, without noise; the exponent is then compared with the law's own, so it
    assumes C proportional to N D. Raises: InputError as ``isoflop``, and for a law of one variable.
    """
    exact = replace(runs, loss=law.predict(N=runs.column("N"), D=runs.column("D")))
    return isoflop(exact, budgets=budgets).law.exponent - law.a


def bootstrap_isoflop(
    runs: Runs,
    found: IsoFlop,
    draws: int = 4000,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Bootstrap:
    """Approach 2 again on runs drawn with replacement inside each group that has an optimum.

    ``draws`` of the Bootstrap holds ``exponent`` and ``coefficient`` of the power law. A redrawn group whose parabola
    has no minimum inside its grid drops out; ``unconverged`` counts the draws that keep fewer than two groups, which
    are left out. ``progress`` as in ``Fit.bootstrap``. Raises: InputError for fewer than 2 draws or a bad seed, or when
    fewer than two draws keep two groups.
    """
    random = checked_draws(draws, seed)
    good = [group for group in found.groups if not group.left_out]
    log_x = np.empty((draws, len(good)))
    for i, group in enumerate(good):
        log_x[:, i] = _redrawn(runs.take(np.isin(runs.row, group.rows)), found.law.of, random, draws)
        if progress:
            progress(draws * (i + 1) // len(good), draws)
    kept = np.isfinite(log_x)
    enough = kept.sum(axis=1) >= 2
    if enough.sum() < 2:
        raise InputError("bootstraps: runs drawn again have no optimum in two groups; the groups hold too few runs")
    weight, y = kept[enough].astype(float), np.where(kept, log_x, 0.0)[enough]
    weight /= weight.sum(axis=1, keepdims=True)
    log_c = np.log([group.C for group in good])
    middle = (weight * log_c).sum(axis=1, keepdims=True)
    spread = weight * (log_c - middle)
    exponent = (spread * y).sum(axis=1) / (spread * (log_c - middle)).sum(axis=1)
    coefficient = np.exp((weight * y).sum(axis=1) - exponent * middle[:, 0])
    return Bootstrap({"coefficient": coefficient, "exponent": exponent}, int((~enough).sum()), seed)


def _redrawn(runs: Runs, of: str, random: np.random.Generator, draws: int) -> Array:
    """ln of a group's optimum for each redrawing of its runs, NaN where the parabola has none inside the grid."""
    x = np.log(runs.column(of))
    middle, half = (x.max() + x.min()) / 2, (x.max() - x.min()) / 2
    z = (x - middle) / half
    counts = random.multinomial(len(z), np.full(len(z), 1 / len(z)), size=draws).astype(float)
    moments = counts @ z[:, None] ** np.arange(5)
    right = counts @ (runs.loss[:, None] * z[:, None] ** np.arange(3))
    matrix = moments[:, np.add.outer(np.arange(3), np.arange(3))]
    sizes = np.array([(counts[:, z == size] > 0).any(axis=1) for size in np.unique(z)])
    determined = sizes.sum(axis=0) >= 3
    found = np.full(draws, np.nan)
    _, first, second = np.linalg.solve(matrix[determined], right[determined][..., None])[..., 0].T
    vertex = np.where(second > 0, -first / np.where(second > 0, 2 * second, 1.0), np.inf)
    found[determined] = np.where(np.abs(vertex) <= 1, middle + half * vertex, np.nan)
    return found


def _members(runs: Runs, budgets: Sequence[float] | None) -> dict[str, NDArray[np.bool_]]:
    """Which runs belong to each group."""
    c = runs.column("C")
    if budgets is not None:
        given = {
            f"{budget:.3g}": np.abs(c / budget - 1) <= _WITHIN for budget in np.atleast_1d(positive(budgets, "budgets"))
        }
        return {name: member for name, member in given.items() if member.any()}
    if runs.group is not None:
        names = np.array(runs.group)
        members = {str(name): names == name for name in dict.fromkeys(runs.group) if name}
    else:
        order = np.argsort(c, kind="stable")
        breaks = np.flatnonzero(np.diff(np.log(c[order])) > np.log1p(_WITHIN)) + 1
        parts = np.split(order, breaks)
        members = {f"{np.exp(np.log(c[part]).mean()):.3g}": np.isin(np.arange(len(c)), part) for part in parts}
    for name, member in members.items():
        least, most = c[member].min(), c[member].max()
        if most > least * (1 + _WITHIN) / (1 - _WITHIN):
            raise InputError(
                f"C: group {quote(name)} has runs from {least:.3g} to {most:.3g} FLOPs, so it is no isoFLOP group: "
                "give the budgets, or a group column"
            )
    return members


def _group(name: str, runs: Runs, of: str) -> Group:
    x = np.log(runs.column(of))
    c = float(np.exp(np.log(runs.column("C")).mean()))
    distinct = len(np.unique(x))
    rows = tuple(int(row) for row in runs.row)
    nothing = Group(name, rows, c, np.nan, np.nan, np.nan, np.nan)
    if distinct < _POINTS:
        return replace(nothing, left_out=f"{distinct} distinct {of}, {_POINTS} needed")
    middle, half = (x.max() + x.min()) / 2, (x.max() - x.min()) / 2
    second, first, constant = np.polyfit((x - middle) / half, runs.loss, 2)
    if second <= 0:
        return replace(nothing, left_out="no minimum: the parabola opens downwards")
    vertex = -first / (2 * second)
    return Group(
        name,
        rows,
        c,
        optimum=float(np.exp(middle + half * vertex)),
        loss=float(constant - first**2 / (4 * second)),
        curvature=float(2 * second / half**2),
        off_centre=float(abs(vertex)),
        left_out="" if abs(vertex) <= 1 else f"the minimum lies outside the {of} tried",
    )


def _power_law(of: str, c: Array, x: Array) -> PowerLaw:
    log_c, log_x = np.log(c), np.log(x)
    spread = log_c - log_c.mean()
    if not (spread**2).sum() > 0:
        raise InputError("C: every optimum is at the same C, so there is no power law")
    exponent = float((spread * log_x).sum() / (spread**2).sum())
    intercept = float(log_x.mean() - exponent * log_c.mean())
    residual = log_x - intercept - exponent * log_c
    free = len(c) - 2
    error = float(np.sqrt((residual**2).sum() / free / (spread**2).sum())) if free else float("nan")
    return PowerLaw(of, float(np.exp(intercept)), exponent, error)
