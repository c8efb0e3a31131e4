"""The loss surface that every fit uses, and the minimiser of its Huber objective.

All forms are one surface, L = E + (A N^-alpha + B D^-beta)^gamma, with some of its six parameters held fixed. Fits work
on theta = (ln A, ln B, ln E, alpha, beta, ln gamma) and minimise the weighted sum of the Huber loss of ln L, as in
Hoffmann et al. 2022 (arXiv:2203.15556, section 3.3 and Appendix D.3), with the analytic gradient.

Everything is batched over the first axis: K starts of one fit, or K bootstrap resamples, are one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tfsim.units import Array

THETA = ("A", "B", "E", "alpha", "beta", "gamma")  # the order of theta; A, B, E and gamma as logarithms
_LOGS = (0, 1, 2, 5)

_EXPONENTS = np.linspace(0.02, 1.5, 48)  # published alpha and beta: 0.03 to 1.03
_GAMMAS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0])  # published gamma: 0.095 to 0.5
_FLOORS = np.array([0.3, 0.5, 0.7, 0.85, 0.95])  # E as a share of the lowest loss, where E cannot be solved for
_BLOCK = 12  # nodes: at most one start per block of the grid, so that the starts differ

# theta stays within these, so that runs that determine no minimum neither overflow nor wander for ever.
STEEPEST = 10.0  # alpha and beta
_BOUNDS = np.array([60.0, 60.0, 60.0, STEEPEST, STEEPEST, 10.0])
_STEP_LIMIT = 2.0  # per iteration, in units of theta
_ITERATIONS = 300
_STALLED = 1e12  # damping at which no step lowers the objective any more
STATIONARY = 1e-5  # largest scaled gradient of a minimum

Free: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """What is fitted: centred ln N and ln D, ln loss, the free parameters and Huber's delta."""

    x: Array
    y: Array
    log_loss: Array
    free: Free
    delta: float


@dataclass(frozen=True)
class Minimum:
    """Per start or resample: theta, the objective, and the largest scaled gradient (0 at a minimum)."""

    theta: Array
    objective: Array
    gradient: Array


def surface(theta: Array, x: Array, y: Array) -> Array:
    """ln L at ln N = x and ln D = y; theta's last axis is the six parameters, its first ones broadcast."""
    return _parts(theta, x, y)[0]


def _parts(theta: Array, x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """ln L, the reducible part's logarithm h and its share of L, and the share of N's term in S."""
    a, b, e, alpha, beta, g = (theta[..., i, None] for i in range(len(THETA)))
    u = a - alpha * x
    log_s = np.logaddexp(u, b - beta * y)
    h = np.exp(g) * log_s
    z = np.logaddexp(h, e)
    return z, h, np.exp(h - z), np.exp(u - log_s)


def _jacobian(theta: Array, problem: Problem) -> tuple[Array, Array]:
    """ln L, shape (K, n), and its derivatives by the free parameters, shape (K, p, n)."""
    z, h, share, share_n = _parts(theta, problem.x, problem.y)
    outer = share * np.exp(theta[..., 5, None])
    by = {0: outer * share_n, 5: share * h}
    by[1] = outer - by[0]
    by[2] = 1 - share
    by[3] = -problem.x * by[0]
    by[4] = -problem.y * by[1]
    return z, np.stack([by[i] for i in problem.free], axis=1)


def huber(residual: Array, weights: Array, delta: float) -> Array:
    """The weighted sum of the Huber loss over the last axis."""
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    return np.asarray((weights * inside * (size - 0.5 * inside)).sum(axis=-1))


def minimise(theta: Array, weights: Array, problem: Problem, tolerance: float) -> Minimum:
    """The minimum reached from each start theta, shape (K, 6), under weights, shape (K or 1, n).

    Levenberg-Marquardt whose damping matrix is the Hessian of the reweighted least squares that bounds the Huber loss
    from above: with much damping a step surely descends, with none it is Newton's on the points inside delta. All tests
    are relative, so the weights' scale (a sum or a mean of the loss) does not change the answer. A start is done when
    the next step promises to lower the objective by less than `tolerance` of it, or moves no parameter by 1e-11.
    """
    theta = np.array(theta)
    weights = np.broadcast_to(weights, (len(theta), len(problem.log_loss)))
    damping = np.ones(len(theta))
    objective, gradient, active, bound, scaled = _derivatives(theta, weights, problem)
    todo = np.arange(len(theta))
    for _ in range(_ITERATIONS):
        step = _solve(active[todo] + damping[todo, None, None] * bound[todo], -gradient[todo])
        promised = -0.5 * (gradient[todo] * step).sum(axis=1)
        step *= np.minimum(1.0, _STEP_LIMIT / np.maximum(np.abs(step).max(axis=1), 1e-300))[:, None]
        small = np.abs(step).max(axis=1) < 1e-11
        going = ~small & (promised > tolerance * objective[todo]) & (damping[todo] < _STALLED)
        todo, step = todo[going], step[going]
        if not len(todo):
            break
        trial = theta[todo]
        trial[:, problem.free] += step
        within = (np.abs(trial[:, problem.free]) <= _BOUNDS[list(problem.free)]).all(axis=1)
        trial[~within] = theta[todo[~within]]
        lower = huber(surface(trial, problem.x, problem.y) - problem.log_loss, weights[todo], problem.delta)
        better = lower < objective[todo]
        damping[todo] *= np.where(better, 0.1, 5.0)
        moved = todo[better]
        theta[moved] = trial[better]
        for whole, part in zip(
            (objective, gradient, active, bound, scaled),
            _derivatives(theta[moved], weights[moved], problem),
            strict=True,
        ):
            whole[moved] = part
    return Minimum(theta, objective, scaled)


def _derivatives(theta: Array, weights: Array, problem: Problem) -> tuple[Array, Array, Array, Array, Array]:
    """Objective, gradient, Hessian on the points inside delta, the bounding Hessian, and the scaled gradient."""
    z, jacobian = _jacobian(theta, problem)
    residual = z - problem.log_loss
    size = np.abs(residual)
    inside = size <= problem.delta
    reweighted = weights * problem.delta / np.maximum(size, problem.delta)
    gradient = np.matmul(jacobian, (reweighted * residual)[..., None])[..., 0]
    across = jacobian.transpose(0, 2, 1)
    active = np.matmul(jacobian * (weights * inside)[:, None], across)
    bound = np.matmul(jacobian * reweighted[:, None], across)
    # The gradient if every residual pulled the same way at full strength: what "small" is measured against.
    full = problem.delta * np.matmul(np.abs(jacobian), weights[..., None])[..., 0]
    scaled = np.max(np.abs(gradient) / np.maximum(full, 1e-300), axis=1)
    return huber(residual, weights, problem.delta), gradient, active, bound, scaled


def _solve(matrix: Array, right: Array) -> Array:
    """Batched solve, scaled to a unit diagonal; a hair of damping keeps a parameter without effect solvable."""
    root = np.sqrt(np.maximum(np.einsum("kii->ki", matrix), 1e-300))
    unit = matrix / root[:, :, None] / root[:, None, :] + 1e-13 * np.eye(matrix.shape[-1])
    return np.asarray(np.linalg.solve(unit, (right / root)[..., None])[..., 0] / root)


def starts(problem: Problem, weights: Array, fixed: Array, count: int) -> Array:
    """Up to `count` starts, best first, from a grid of exponents; at each node A, B and E are solved for.

    At fixed alpha, beta (and gamma with E) the loss is linear in A, B and E: a weighted least squares whose weights
    make absolute errors count as errors of ln L. `fixed` holds theta's values for the parameters that are not free.
    """
    free = problem.free
    loss = np.exp(problem.log_loss)
    alphas, betas = (_EXPONENTS if i in free else fixed[[i]] for i in (3, 4))
    gammas = _GAMMAS if 5 in free else np.exp(fixed[[5]])
    floor_solved = 2 in free and 5 not in free
    floors = np.array([0.0]) if floor_solved or 2 not in free else _FLOORS * loss.min()
    columns: list[int] = [i for i in (0, 1, 2) if i in free and (i != 2 or floor_solved)]
    n_powers = np.exp(-alphas[:, None] * problem.x)
    d_powers = np.exp(-betas[:, None] * problem.y)
    found, costs = [], []
    for gamma in gammas:
        for floor in floors:
            target = (loss - floor) ** (1 / gamma)
            w = weights * (gamma * (loss - floor) / (target * loss)) ** 2
            values, cost = _linear(n_powers, d_powers, target, w, columns)
            theta = np.broadcast_to(fixed, (*cost.shape, len(THETA))).copy()
            theta[..., 3] = alphas[:, None]
            theta[..., 4] = betas[None, :]
            theta[..., 5] = np.log(gamma)
            if floor:
                theta[..., 2] = np.log(floor)
            with np.errstate(invalid="ignore", divide="ignore"):
                theta[..., columns] = np.log(values)
            for i in range(0, cost.shape[0], _BLOCK):
                for j in range(0, cost.shape[1], _BLOCK):
                    block = cost[i : i + _BLOCK, j : j + _BLOCK]
                    at = np.unravel_index(np.argmin(block), block.shape)
                    found.append(theta[i + at[0], j + at[1]])
                    costs.append(block[at])
    best = [i for i in np.argsort(costs)[:count] if np.isfinite(costs[i])]
    return np.array([found[i] for i in best]).reshape(-1, len(THETA))


def _linear(n_powers: Array, d_powers: Array, target: Array, w: Array, columns: list[int]) -> tuple[Array, Array]:
    """Least-squares A, B, E (those in `columns`) at every node, and the cost: infinite where one is not positive."""
    nodes = (len(n_powers), len(d_powers))
    ones = np.ones(nodes)
    matrix = np.empty((*nodes, 3, 3))
    matrix[..., 0, 0] = ((n_powers**2) @ w)[:, None]
    matrix[..., 1, 1] = ((d_powers**2) @ w)[None, :]
    matrix[..., 2, 2] = w.sum()
    matrix[..., 0, 1] = matrix[..., 1, 0] = (n_powers * w) @ d_powers.T
    matrix[..., 0, 2] = matrix[..., 2, 0] = (n_powers @ w)[:, None] * ones
    matrix[..., 1, 2] = matrix[..., 2, 1] = (d_powers @ w)[None, :] * ones
    right = np.empty((*nodes, 3))
    right[..., 0] = (n_powers @ (w * target))[:, None]
    right[..., 1] = (d_powers @ (w * target))[None, :]
    right[..., 2] = (w * target).sum()
    matrix = matrix[..., columns, :][..., columns]
    right = right[..., columns]
    flat = _solve(matrix.reshape(-1, len(columns), len(columns)), right.reshape(-1, len(columns)))
    values = flat.reshape(right.shape)
    cost = (w * target**2).sum() - (values * right).sum(axis=-1)
    return values, np.where((values > 0).all(axis=-1), cost, np.inf)
