"""One fit of the user's runs with everything that says how far to trust it: what ``tfsim fit`` shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfsim.errors import InputError, choice
from tfsim.plain import plain, plain_fields
from tfsim.scaling.allocation import optimal
from tfsim.scaling.bands import band, why_no_band
from tfsim.scaling.fit_extrapolate import extrapolate
from tfsim.scaling.fit_isoflop import Envelope, IsoFlop, PowerLaw, bootstrap_isoflop, envelope, isoflop, parabola_bias
from tfsim.scaling.fit_law import FORMS, Bootstrap, Fit, fit
from tfsim.scaling.fit_published import Score, published
from tfsim.scaling.fit_runs import Runs
from tfsim.scaling.laws import Law
from tfsim.units import Array

APPROACHES: Mapping[str, str] = {
    "isoflop": "N_opt = coefficient C^exponent through the minima of isoFLOP parabolas (approach 2)",
    "envelope": "N_opt = coefficient C^exponent along the lower envelope of training curves (approach 1)",
}
"""The fits that need no loss surface, by name: Hoffmann et al. 2022, sections 3.1 and 3.2."""

BEYOND = (1.0, 10.0, 100.0)  # times the runs' largest budget: where the optimum is told
HOLD_OUT = 0.2  # of the runs, those of the largest budgets

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Coefficient:
    """A fitted number; standard error and 95 % interval of the bootstrap, NaN without one."""

    name: str
    value: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True)
class HeldOut:
    """The fit on the smaller budgets against the runs of ``from_c`` FLOPs or more.

    ``of``: what is predicted, "loss", or "N" for approach 2 (the groups' optima); errors: predicted / measured - 1.
    ``a`` is the exponent of N_opt ~ C^a without the held-out runs, None for a form of one variable.
    """

    of: str
    n: int
    from_c: float
    errors: Array
    measured: Array
    budgets: Array
    a: float | None

    @property
    def mape(self) -> float:
        """Mean absolute relative error, as a fraction."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def bias(self) -> float:
        """Mean relative error, as a fraction; above 0 the prediction is too high."""
        return float(np.mean(self.errors))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**plain_fields(self), "mape": self.mape, "bias": self.bias}


@dataclass(frozen=True)
class Optimum:
    """N and D of the least loss at ``compute`` FLOPs, with 10 and 90 % quantiles over the bootstrap, or None."""

    compute: float
    parameters: float
    tokens: float
    parameters_band: tuple[float, float] | None
    tokens_band: tuple[float, float] | None


@dataclass(frozen=True)
class Study:
    """A fit, its law, and what is known of its errors.

    ``found`` is a Fit (a form of FORMS), an IsoFlop or an Envelope. ``law`` goes wherever a law's name goes.
    ``held_out`` is None with ``held_out_why``; ``published`` is empty where the runs have no N and D.
    """

    runs: Runs
    form: str
    found: Fit | IsoFlop | Envelope
    law: Law
    coefficients: tuple[Coefficient, ...]
    bootstrap: Bootstrap | None
    held_out: HeldOut | None
    held_out_why: str
    optima: tuple[Optimum, ...]
    published: tuple[Score, ...]
    published_left_out: Mapping[str, str]
    parabola_bias: float | None = field(default=None)

    @property
    def formula(self) -> str:
        """The form in symbols."""
        return APPROACHES[self.form] if self.form in APPROACHES else FORMS[self.form].formula

    def to_dict(self) -> dict[str, Any]:
        """Plain data; rows are counted from 0."""
        told = plain_fields(self, leave_out=("runs", "found", "bootstrap", "law"))
        found = self.found.to_dict() if isinstance(self.found, Fit) else plain_fields(self.found)
        boot = self.bootstrap
        return {
            "form": self.form,
            "formula": self.formula,
            "n": len(self.runs),
            "columns": dict(self.runs.columns),
            "convention": self.law.convention,
            "excluded": list(self.runs.excluded),
            "excluded_why": self.runs.excluded_why,
            **told,
            "bootstrap": boot and {"draws": boot.n, "unconverged": boot.unconverged, "seed": boot.seed},
            "fit": found,
            "law": plain(plain_fields(self.law, leave_out=("draws",))),
        }


def study(
    runs: Runs,
    form: str = "chinchilla",
    *,
    name: str = "fit",
    bootstraps: int = 1000,
    seed: int = 0,
    hold_out: float | None = None,
    from_c: float | None = None,
    progress: Progress | None = None,
) -> Study:
    """Fit ``form`` (of FORMS, or "isoflop" or "envelope") to the runs and say how far to trust it.

    ``name``: what the law is called. ``bootstraps``: refits for the errors, 0 for none. Held out are the runs of
    ``from_c`` FLOPs or more, or the share ``hold_out`` of the largest budgets; when neither is given a fifth, and where
    that leaves too little to fit ``held_out_why`` says so instead of an error.

    Raises: InputError as ``fit``, ``isoflop`` and ``envelope`` do, and for a held-out score that was asked for and
    cannot be had.
    """
    choice("form", form, (*FORMS, *APPROACHES))
    if hold_out is not None and from_c is not None:
        raise InputError("held-out runs: give hold_out or from_c, not both")
    found = _find(runs, form)
    boot = _bootstrap(runs, found, bootstraps, seed, progress) if bootstraps else None
    share = HOLD_OUT if hold_out is None and from_c is None else hold_out
    held, why = None, ""
    try:
        held = _held_out(runs, form, share, from_c)
    except InputError as error:
        if hold_out is not None or from_c is not None:
            raise InputError(f"hold_out: {error}") from None
        why = str(error)
    coefficients = _coefficients(found, boot)
    law = _law(runs, found, name, coefficients, boot)
    scores: tuple[Score, ...] = ()
    left_out: Mapping[str, str] = {}
    if runs.N is not None and runs.D is not None:
        scores, left_out = published(runs)
    bias = None
    if isinstance(found, IsoFlop) and runs.D is not None:
        bias = _bias(runs)
    return Study(
        runs, form, found, law, coefficients, boot, held, why, _optima(law, boot), scores, left_out, bias
    )  # fmt: skip


def _find(runs: Runs, form: str) -> Fit | IsoFlop | Envelope:
    if form == "isoflop":
        return isoflop(runs)
    if form == "envelope":
        return envelope(runs)
    return fit(runs, form)


def _bootstrap(
    runs: Runs, found: Fit | IsoFlop | Envelope, draws: int, seed: int, progress: Progress | None
) -> Bootstrap | None:
    if isinstance(found, Fit):
        return found.bootstrap(draws, seed=seed, progress=progress)
    if isinstance(found, IsoFlop):
        return bootstrap_isoflop(runs, found, draws, seed=seed, progress=progress)
    return None


def _bias(runs: Runs) -> float | None:
    """Approach 2's bias were the Chinchilla form true, None where the runs do not determine that form."""
    try:
        return parabola_bias(runs, fit(runs))
    except InputError:
        return None


def _held_out(runs: Runs, form: str, share: float | None, from_c: float | None) -> HeldOut:
    if form == "envelope":
        raise InputError("held-out runs: an envelope has no run to predict")
    if form == "isoflop":
        return _held_out_groups(runs, share, from_c)
    result = extrapolate(runs, form, share=share, from_c=from_c)
    a = result.fit.a if result.fit.form.variables == ("N", "D") else None
    budgets = result.held_out.budgets()
    return HeldOut("loss", len(budgets), float(budgets.min()), result.errors, result.held_out.loss, budgets, a)


def _held_out_groups(runs: Runs, share: float | None, from_c: float | None) -> HeldOut:
    """The optima of the largest groups, predicted from the smaller ones: a group counts as a whole."""
    groups = [group for group in isoflop(runs).groups if not group.left_out]
    c = np.array([group.C for group in groups])
    if from_c is None:
        assert share is not None, "one of the two is given"
        from_c = float(np.quantile(c, 1 - share))
    out = c >= from_c * (1 - 1e-9)
    if not out.any() or (~out).sum() < 2:
        raise InputError(f"held-out runs: {int((~out).sum())} of {len(c)} isoFLOP groups are left, 2 are needed")
    smaller = np.isin(runs.row, [row for group, o in zip(groups, out, strict=True) if not o for row in group.rows])
    law = isoflop(runs.take(smaller)).law
    optima = np.array([group.optimum for group in groups])[out]
    return HeldOut("N", int(out.sum()), float(c[out].min()), law(c[out]) / optima - 1, optima, c[out], law.exponent)


def _coefficients(found: Fit | IsoFlop | Envelope, boot: Bootstrap | None) -> tuple[Coefficient, ...]:
    if isinstance(found, Fit):
        values = {name: float(getattr(found, name)) for name in found.form.free}
        if found.form.variables == ("N", "D"):
            values["a"] = found.a
    else:
        values = {"coefficient": found.law.coefficient, "exponent": found.law.exponent}
    nothing = (float("nan"),) * 3
    return tuple(
        Coefficient(name, value, *(nothing if boot is None else _errors(boot, name))) for name, value in values.items()
    )


def _errors(boot: Bootstrap, name: str) -> tuple[float, float, float]:
    low, high = boot.quantiles(name, (0.025, 0.975))
    return boot.sd(name), low, high


def _law(
    runs: Runs,
    found: Fit | IsoFlop | Envelope,
    name: str,
    coefficients: tuple[Coefficient, ...],
    boot: Bootstrap | None,
) -> Law:
    """The fit as a Law, with the ranges of its runs. Its C is 6 N D of its own N where it is a surface."""
    errors = {c.name: c.standard_error for c in coefficients if np.isfinite(c.standard_error)}
    surface = isinstance(found, Fit) and found.form.variables == ("N", "D")
    facts: dict[str, Any] = {
        "name": name,
        "n": runs.n_means,
        "d": "training tokens",
        "loss": "that of the runs",
        "source": _source(runs, boot),
        "fitted": _ranges(runs, surface),
    }
    if not isinstance(found, Fit):
        return _optimum_law(runs, found, errors, facts)
    values = {part: float(getattr(found, part)) for part in ("A", "B", "E", "alpha", "beta", "gamma")}
    if surface:
        draws = {} if boot is None else {part: boot.draws[part] for part in found.form.free}
        return Law(form="surface", coefficients=values, standard_errors=errors, draws=draws, c="6nd", **facts)
    words = {"A": "factor", "alpha": "exponent", "E": "floor"}
    return Law(
        form="single",
        coefficients={words[part]: values[part] for part in words},
        standard_errors={words[part]: error for part, error in errors.items()},
        c=runs.c_means,
        note=f"x is {found.form.variables[0]}",
        **facts,
    )


def _optimum_law(runs: Runs, found: IsoFlop | Envelope, errors: Mapping[str, float], facts: Mapping[str, Any]) -> Law:
    by = {"n": found.law}
    if runs.c_means != "6nd":  # D does not follow from N and C
        if not isinstance(found, IsoFlop) or runs.D is None:
            raise InputError(
                f"c_means: {runs.c_means!r} leaves D_opt open: say c_means='6nd' if C = 6 N D holds for these runs"
                + (", or name their column of tokens" if isinstance(found, IsoFlop) else "")
            )
        by["d"] = isoflop(runs, of="D").law
    coefficients = {f"{x}_{part}": value for x, law in by.items() for part, value in _scale_and_exponent(law).items()}
    words = {"coefficient": "n_scale", "exponent": "n_exponent"}
    known = {words[part]: error for part, error in errors.items()}
    return Law(form="powers", coefficients=coefficients, standard_errors=known, c=runs.c_means, **facts)


def _scale_and_exponent(law: PowerLaw) -> dict[str, float]:
    return {"scale": law.coefficient, "exponent": law.exponent}


def _source(runs: Runs, boot: Bootstrap | None) -> str:
    told = f"tfsim fit: {len(runs)} runs"
    if runs.excluded:
        told += f", {len(runs.excluded)} left out ({runs.excluded_why})"
    return told if boot is None else f"{told}; {boot.n} bootstraps"


def _ranges(runs: Runs, surface: bool) -> dict[str, tuple[float, float]]:
    """Lowest and highest of what the law is asked about, in its own counts: a surface's C is 6 N D."""
    values = {"parameters": runs.N, "tokens": runs.D, "compute": runs.C}
    if runs.N is not None and runs.D is not None:
        values["tokens_per_parameter"] = runs.D / runs.N
        if surface:
            values["compute"] = 6 * runs.N * runs.D
    return {name: (float(x.min()), float(x.max())) for name, x in values.items() if x is not None}


def _optima(law: Law, boot: Bootstrap | None) -> tuple[Optimum, ...]:
    """The optimum at the largest budget and beyond; none for a law of one variable."""
    if law.form == "single":
        return ()
    found = []
    for factor in BEYOND:
        c = factor * law.fitted["compute"][1]
        best = optimal(law, compute=c)
        bands = (x and (float(x[0][0]), float(x[1][0])) for x in optimum_bands(law, np.array([c]), boot))
        found.append(Optimum(c, float(best.parameters), float(best.tokens), *bands))
    return tuple(found)


def optimum_bands(
    law: Law, compute: Array, boot: Bootstrap | None
) -> tuple[tuple[Array, Array] | None, tuple[Array, Array] | None]:
    """10 and 90 % of N and of D over the bootstrap at budgets ``compute``; None where it does not tell."""
    if boot is None:
        return None, None
    if law.form == "surface":
        if why_no_band(law):
            return None, None
        known = band(law, compute=compute)
        n, d = known.parameters, known.tokens
        return (np.asarray(n.low), np.asarray(n.high)), (np.asarray(d.low), np.asarray(d.high))
    each = boot.draws["coefficient"][:, None] * compute ** boot.draws["exponent"][:, None]
    low, high = np.quantile(each, (0.1, 0.9), axis=0)
    return (low, high), (compute / 6 / high, compute / 6 / low) if law.c == "6nd" else None
