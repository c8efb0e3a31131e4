"""Fits of scaling laws to the user's own runs: coefficients, what the optimiser found, bands, held-out score.

Method: the Huber loss (delta 1e-3) of ln L, summed over the runs (Hoffmann et al. 2022, arXiv:2203.15556, Appendix
D.3), minimised from several starts of an exponent grid. The size of delta matters more than the optimiser: at 1e-3 the
fit is close to least absolute deviations, which single bad runs hardly move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfsim.errors import InputError, choice, quote
from tfsim.plain import plain_fields
from tfsim.scaling.conventions import positive
from tfsim.scaling.fit_minimise import _LOGS, STATIONARY, STEEPEST, THETA, Problem, minimise, starts, surface
from tfsim.scaling.fit_runs import Runs, read_runs
from tfsim.scaling.surface import Surface
from tfsim.units import Array

if TYPE_CHECKING:
    from tfsim.scaling.fit_runs import Source

DELTA = 1e-3  # Hoffmann et al. 2022, Appendix D.3
_STARTS = 8
_WIDENINGS = (100.0, 10.0)  # of delta, before the last minimisation: few runs lie inside a narrow one at first
_AGREE = 1e-6  # starts whose objectives differ by less, relative, found the same minimum
_EXACT = 1e-9  # residuals of ln L below this are rounding
_NEGLIGIBLE = 1e-3  # a term that nowhere makes up this share of L is not determined
_COLLINEAR = 1e-4  # 1 - R^2 of ln D on ln N below which the two cannot be told apart
_BATCH = 60_000  # residuals computed at once in a bootstrap: they stay in the processor's caches
_SUSPECT = 5.0  # robust standard deviations


@dataclass(frozen=True)
class Form:
    """A functional form: which columns it takes, its free parameters, and the others' fixed values."""

    name: str
    formula: str
    variables: tuple[str, ...]
    free: tuple[str, ...]
    source: str

    @property
    def fixed(self) -> Mapping[str, float]:
        """Values of the parameters that are not free."""
        values = {"A": 1.0, "B": 0.0, "E": 0.0, "alpha": 0.0, "beta": 1.0, "gamma": 1.0}
        return {name: value for name, value in values.items() if name not in self.free}


def _forms() -> dict[str, Form]:
    hoffmann, kaplan = "arXiv:2203.15556, eq. 2", "arXiv:2001.08361"
    in_tokens = f"{kaplan}, eq. 1.6, with tokens in place of its steps"
    both = ("N", "D")
    forms = [
        Form("chinchilla", "L = E + A/N^alpha + B/D^beta", both, ("A", "B", "E", "alpha", "beta"), hoffmann),
        Form("chinchilla-outer", "L = E + (A/N^alpha + B/D^beta)^gamma", both, THETA, "arXiv:2510.02228"),
        Form("no-floor", "L = A/N^alpha + B/D^beta", both, ("A", "B", "alpha", "beta"), in_tokens),
        Form("kaplan", "L = (A/N^alpha + B/D)^gamma", both, ("A", "B", "alpha", "gamma"), f"{kaplan}, eq. 1.5"),
    ]
    for x in ("N", "D", "C"):
        word = x.lower()
        forms.append(Form(f"power-{word}", f"L = A/{x}^alpha", (x,), ("A", "alpha"), f"{kaplan}, eq. 1.1 to 1.3"))
        formula = f"L = E + A/{x}^alpha"
        forms.append(Form(f"power-floor-{word}", formula, (x,), ("A", "E", "alpha"), "arXiv:2010.14701, eq. 1.1"))
    return {form.name: form for form in forms}


FORMS: Mapping[str, Form] = _forms()


@dataclass(frozen=True)
class Check:
    """The optimiser's check of itself: ``agreeing`` of ``starts`` reached the minimum reported.

    ``gradient`` is the largest component there, as a share of what it is when all residuals pull one way.
    """

    starts: int
    agreeing: int
    gradient: float


@dataclass(frozen=True)
class Bootstrap:
    """Coefficients of ``n`` refits on runs drawn with replacement, by name of the free parameter.

    ``draws`` also holds ``a``, the exponent of N_opt ~ C^a, where the form has one. ``unconverged`` refits did not
    come to a stationary point: the runs drawn determine no minimum.
    """

    draws: Mapping[str, Array]
    unconverged: int
    seed: int

    @property
    def n(self) -> int:
        """Refits."""
        return len(next(iter(self.draws.values())))

    def sd(self, name: str) -> float:
        """Standard deviation of a coefficient over the refits."""
        return float(np.std(self._of(name), ddof=1))

    def quantiles(self, name: str, shares: Sequence[float] = (0.025, 0.5, 0.975)) -> tuple[float, ...]:
        """Quantiles of a coefficient over the refits."""
        return tuple(float(q) for q in np.quantile(self._of(name), shares))

    def _of(self, name: str) -> Array:
        choice("coefficient", name, self.draws)
        return self.draws[name]


@dataclass(frozen=True)
class Fit:
    """A fitted law: L = E + (A/N^alpha + B/D^beta)^gamma, unused parameters at their neutral values.

    A one-variable form has its variable in N's place. Loss in nats per token, as the runs gave it; N, D and C count
    what the runs' columns counted. ``objective`` is the sum of the Huber loss over the runs at weight 1.
    """

    form: Form
    A: float
    B: float
    E: float
    alpha: float
    beta: float
    gamma: float
    objective: float
    delta: float
    check: Check
    runs: Runs
    weights: Array = field(repr=False)
    residuals: Array = field(repr=False)  # ln of predicted over measured loss

    @property
    def n(self) -> int:
        """Runs fitted on."""
        return len(self.runs)

    @property
    def mape(self) -> float:
        """Mean absolute relative error of the loss on the runs fitted on, as a fraction."""
        return float(np.mean(np.abs(np.expm1(self.residuals))))

    @property
    def a(self) -> float:
        """Exponent of N_opt ~ C^a where C is proportional to N D: beta / (alpha + beta).

        Raises: InputError for a form of one variable, which has no allocation.
        """
        if self.form.variables != ("N", "D"):
            raise InputError(f"form: {quote(self.form.name)} says nothing about how to split C into N and D")
        return float(Surface(self.E, self.A, self.B, self.alpha, self.beta).exponent)

    @property
    def scales(self) -> Mapping[str, float]:
        """The same coefficients as Kaplan et al. write them: N_c, alpha_N, D_c, alpha_D (or those of the variable).

        (N_c/N)^alpha_N is the law's term of N alone, so N_c = A^(1/alpha) and alpha_N = alpha gamma.
        """
        pairs = ((self.A, self.alpha), (self.B, self.beta))
        found = {}
        for name, (factor, exponent) in zip(self.form.variables, pairs, strict=False):
            with np.errstate(over="ignore"):  # infinite where the exponent is nearly 0
                found[f"{name}_c"] = float(np.float_power(factor, 1 / exponent))
            found[f"alpha_{name}"] = exponent * self.gamma
        return found

    def predict(self, **variables: Any) -> Array:
        """Loss at the form's variables, such as ``predict(N=7e9, D=2e12)``; they broadcast.

        Raises: InputError for other variables than the form's, or values that are not positive.
        """
        wanted = self.form.variables
        if set(variables) != set(wanted):
            raise InputError(f"predict: form {quote(self.form.name)} takes {' and '.join(wanted)}")
        logs = []
        for name in wanted:
            logs.append(np.log(positive(variables[name], name)))
        x, y = np.broadcast_arrays(logs[0], logs[-1] if len(logs) > 1 else 0.0)
        return np.asarray(np.exp(surface(_theta(self), x.ravel(), y.ravel())).reshape(x.shape))

    def suspects(self) -> tuple[int, ...]:
        """Rows of runs more than five robust standard deviations off the fit: to look at, not left out."""
        centre = np.median(self.residuals)
        spread = 1.4826 * np.median(np.abs(self.residuals - centre))
        far = np.abs(self.residuals - centre) > _SUSPECT * max(float(spread), _EXACT)
        return tuple(int(row) for row in self.runs.row[far])

    def bootstrap(
        self, draws: int = 4000, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> Bootstrap:
        """Refits on ``draws`` resamples of the runs, each started from this fit.

        ``progress`` is called with the refits done and wanted. Raises: InputError for fewer than 2 draws or a bad seed.
        """
        random = checked_draws(draws, seed)
        problem, centre = _problem(self.runs, self.form, self.delta)
        start = _shift(_theta(self), centre)
        found, unconverged = [], 0
        batch = max(1, _BATCH // self.n)
        for done in range(0, draws, batch):
            size = min(batch, draws - done)
            counts = random.multinomial(self.n, np.full(self.n, 1 / self.n), size=size)
            minimum = minimise(np.repeat(start[None], size, axis=0), counts * self.weights, problem, 1e-12)
            found.append(_shift(minimum.theta, -centre))
            unconverged += int((minimum.gradient > STATIONARY).sum())
            if progress:
                progress(done + size, draws)
        values = _values(np.concatenate(found))
        by_name = {name: values[name] for name in self.form.free}
        if self.form.variables == ("N", "D"):
            by_name["a"] = values["beta"] / (values["alpha"] + values["beta"])
        return Bootstrap(by_name, unconverged, seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **plain_fields(self, leave_out=("runs", "weights", "residuals", "form")),
            "form": self.form.name,
            "formula": self.form.formula,
            "n": self.n,
            "excluded": list(self.runs.excluded),
            "suspects": list(self.suspects()),
            "mape": self.mape,
        }


def fit(
    runs: Runs | Source,
    form: str = "chinchilla",
    *,
    weights: Sequence[float] | Array | None = None,
    delta: float = DELTA,
) -> Fit:
    """The law of this form that fits the runs best: least Huber loss of ln L.

    ``runs``: of ``read_runs``, or what it takes. ``weights``: one per run, default 1; only their ratios matter to the
    coefficients, so the sum and the mean of the loss give the same fit.

    Raises: InputError for an unknown form, too few runs or distinct sizes, N and D that cannot be told apart, weights
    that do not fit, and runs that do not determine the form's coefficients.
    """  # fmt: skip
    if not isinstance(runs, Runs):
        runs = read_runs(runs)
    shape = FORMS[choice("form", form, FORMS)]
    delta = float(positive(delta, "delta"))
    _enough(runs, shape)
    given = np.ones(len(runs)) if weights is None else np.asarray(positive(weights, "weights"), float)
    if given.shape != (len(runs),):
        raise InputError(f"weights: {given.size} for {len(runs)} runs: give one per run")
    problem, centre = _problem(runs, shape, delta)
    relative = given / given.mean()
    begin = starts(problem, relative, _shift(_fixed(shape), centre), _STARTS)
    if not len(begin):
        raise _undetermined(shape, "no exponents give positive coefficients")
    for widening in _WIDENINGS:
        wide = replace(problem, delta=problem.delta * widening)
        begin = minimise(begin, relative[None], wide, 1e-3).theta
    minimum = minimise(begin, relative[None], problem, 1e-13)
    best = int(np.argmin(minimum.objective))
    least = float(minimum.objective[best])
    residuals = surface(minimum.theta[best], problem.x, problem.y) - problem.log_loss
    if minimum.gradient[best] > STATIONARY and _needless_floor(begin, relative, problem, shape, least):
        raise _undetermined(shape, "E comes out at 0, for without it the loss is fitted as well")
    _determined(minimum.theta[best], float(minimum.gradient[best]), problem, shape)
    exact = 0.5 * len(runs) * _EXACT**2
    agreeing = int((minimum.objective <= least * (1 + _AGREE) + exact).sum())
    values = {name: float(value) for name, value in _values(_shift(minimum.theta[best], -centre)).items()}
    return Fit(
        form=shape,
        **values,
        objective=least * float(given.mean()),
        delta=delta,
        check=Check(len(begin), agreeing, float(minimum.gradient[best])),
        runs=runs,
        weights=given,
        residuals=residuals,
    )


def checked_draws(draws: int, seed: int) -> np.random.Generator:
    """The random numbers of a bootstrap. Raises: InputError for fewer than 2 draws or a bad seed."""
    for name, value, least in (("draws", draws, 2), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}: {quote(value)} is not a whole number of at least {least}")
    return np.random.default_rng(seed)


def _problem(runs: Runs, form: Form, delta: float) -> tuple[Problem, Array]:
    """The runs' logarithms, centred so that ln A and alpha (and ln B and beta) are nearly independent."""
    x = np.log(runs.column(form.variables[0]))
    y = np.log(runs.column(form.variables[1])) if len(form.variables) > 1 else np.zeros_like(x)
    centre = np.array([x.mean(), y.mean()])
    free = tuple(THETA.index(name) for name in form.free)
    return Problem(x - centre[0], y - centre[1], np.log(runs.loss), free, delta), centre


def _shift(theta: Array, centre: Array) -> Array:
    """theta for ln N and ln D counted from ``centre``; by -centre back again."""
    shifted = np.array(theta)
    shifted[..., 0] -= theta[..., 3] * centre[0]
    shifted[..., 1] -= theta[..., 4] * centre[1]
    return shifted


def _fixed(form: Form) -> Array:
    values = [form.fixed.get(name, 1.0) for name in THETA]
    with np.errstate(divide="ignore"):  # the logarithm of an absent term is minus infinity
        return np.array([np.log(v) if i in _LOGS else v for i, v in enumerate(values)])


def _theta(law: Fit) -> Array:
    values = [getattr(law, name) for name in THETA]
    with np.errstate(divide="ignore"):
        return np.array([np.log(v) if i in _LOGS else v for i, v in enumerate(values)])


def _values(theta: Array) -> dict[str, Array]:
    return {name: np.exp(theta[..., i]) if i in _LOGS else theta[..., i] for i, name in enumerate(THETA)}


def _enough(runs: Runs, form: Form) -> None:
    if len(runs) <= len(form.free):
        raise InputError(
            f"runs: {len(runs)} are too few for the {len(form.free)} coefficients of form {quote(form.name)}: "
            f"give at least {len(form.free) + 1}"
        )
    sizes = 3 if "E" in form.free else 2  # two sizes cannot tell E from A and alpha
    for name in form.variables:
        distinct = len(np.unique(runs.column(name)))
        if distinct < sizes:
            raise InputError(f"{name}: {distinct} distinct value(s); form {quote(form.name)} needs {sizes} or more")
    if len(form.variables) > 1:
        r = np.corrcoef(np.log(runs.column("N")), np.log(runs.column("D")))[0, 1]
        if 1 - r**2 < _COLLINEAR:
            raise InputError(
                "D: a fixed power of N in these runs, so their effects cannot be told apart: "
                "vary D/N, or fit one variable (form 'power-n' or 'power-floor-n')"
            )


def _needless_floor(begin: Array, relative: Array, problem: Problem, form: Form, least: float) -> bool:
    """Whether the fit without E is as good: the best E is then 0 or below, which ln E approaches for ever."""
    if "E" not in form.free:
        return False
    bare = np.array(begin)
    bare[:, THETA.index("E")] = -np.inf
    free = tuple(i for i in problem.free if THETA[i] != "E")
    found = minimise(bare, relative[None], replace(problem, free=free), 1e-13)
    return float(found.objective.min()) <= least * (1 + _AGREE)


def _determined(theta: Array, gradient: float, problem: Problem, form: Form) -> None:
    a, b, e, alpha, beta, g = theta
    z = surface(theta, problem.x, problem.y)
    inner = np.exp(np.exp(g) * np.logaddexp(a - alpha * problem.x, b - beta * problem.y) - z)
    share = np.exp(a - alpha * problem.x - np.logaddexp(a - alpha * problem.x, b - beta * problem.y))
    terms = {"E": np.exp(e - z), "A": inner * share, "B": inner * (1 - share)}
    for name, part in terms.items():
        if name in form.free and part.max() < _NEGLIGIBLE:
            raise _undetermined(form, f"{name}'s term comes out below {_NEGLIGIBLE:.1%} of the loss everywhere")
    of = form.variables
    for name, value, x in (("alpha", alpha, of[0]), ("beta", beta, of[-1])):
        if name in form.free and value <= 0:
            raise _undetermined(form, f"{name} comes out at {value:.2g}: the loss does not fall with {x}")
        if name in form.free and value > 0.99 * STEEPEST:
            raise _undetermined(form, f"{name} grows without end: the term of {x} is about the smallest {x} alone")
    if not gradient <= STATIONARY:
        raise _undetermined(form, f"no minimum was found (gradient {gradient:.1e}, wanted {STATIONARY:g})")


def _undetermined(form: Form, why: str) -> InputError:
    same = [f.name for f in FORMS.values() if f.variables == form.variables and set(f.free) == {*form.free} - {"E"}]
    simpler = f"choose form {quote(same[0])}" if same and why.startswith("E") else "choose a simpler form"
    return InputError(f"runs: do not determine form {quote(form.name)}, {form.formula}: {why}; {simpler}")
