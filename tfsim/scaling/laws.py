"""The published scaling laws (laws.yaml) and their surfaces L(N, D).

A law is data: a form, its coefficients, and what N, D, C and the loss count. N and D given to a law are in
its own counts (law.n, law.d); tfsim.scaling.conventions converts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tfsim.errors import InputError, choice, quote, unknown
from tfsim.files import read_yaml
from tfsim.scaling.conventions import PARAMETER_COUNTS, positive
from tfsim.scaling.surface import Curve, Repeats, Sparse, Surface
from tfsim.units import Array, Number, as_number, common_shape

DEFAULT = "refit-240"


@dataclass(frozen=True)
class Form:
    """A kind of law: its coefficients and the facts that an evaluation needs beside N and D."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


FORMS: Mapping[str, Form] = {
    # Losses L(N, D)
    "surface": Form(("E", "A", "B", "alpha", "beta"), ("gamma",)),
    "gadre": Form(("E", "A", "B", "exponent"), ("error_top", "error_scale", "error_rate")),
    "kaplan_nd": Form(("N_c", "D_c", "alpha_N", "alpha_D")),
    "repeats": Form(("E", "A", "B", "alpha", "beta", "R_D", "R_N"), (), ("unique_tokens",)),
    "granular": Form(("a", "alpha", "b", "beta", "g", "gamma", "c"), (), ("granularity",)),
    "routed": Form(
        ("a", "alpha", "delta", "gamma", "b", "beta", "omega", "zeta", "E_start", "E_max", "c"), (), ("experts",)
    ),
    "sparse": Form(("a", "b", "c", "d", "e", "alpha", "beta", "lam", "delta", "gamma"), (), ("sparsity",)),
    "precision": Form(
        ("E", "A", "B", "alpha", "beta", "gamma_w", "gamma_a", "gamma_kv", "n_w", "n_a", "n_kv"),
        ("C_T", "gamma_D", "gamma_N", "gamma_post"),
        ("bits",),
    ),
    # Optima N(C), D(C) without a loss; `exponents` without their scales too
    "powers": Form(
        (),
        ("n_scale", "n_exponent", "n_divisor", "d_scale", "d_exponent", "unit", "share", "loss_scale", "loss_exponent"),
    ),
    "ratio": Form(("ratio", "exponent", "unit"), ("alpha", "beta")),
    "exponents": Form(("n_exponent",), ("d_exponent", "loss_n_exponent", "loss_c_exponent")),
    # The rest: functions of tfsim.scaling.quantities
    "single": Form(("exponent",), ("scale", "factor", "shift", "floor")),
    "kaplan_ns": Form(("N_c", "S_c", "alpha_N", "alpha_S")),
    "critical_batch": Form(("scale", "exponent")),
    "clark": Form(("a", "b", "c", "d", "E_start", "E_max"), (), ("experts",)),
    "vocabulary": Form(("E", "A1", "A2", "B", "alpha1", "alpha2", "beta", "gamma")),
    "recipe": Form(("scale",), ("parameters", "tokens", "compute", "experts", "unit")),
}
SURFACES = ("surface", "gadre", "kaplan_nd", "granular", "routed", "precision")
CURVES = (*SURFACES, "repeats", "sparse")
TRACKS = ("powers", "ratio")
_POSITIVE = ("A", "B", "alpha", "beta", "gamma", "exponent", "R_D", "R_N")
FLOPS_AS_N = ("compute_per_6d", "flops_per_token_by_6", "exact_flops_per_token_by_6")
COUNTS_OF_N = (*PARAMETER_COUNTS, *FLOPS_AS_N, "non_vocabulary", "not_stated")
COUNTS_OF_C = ("6nd", "exact", "pf_days", "m_times_d", "tpu_v3_core_days", "not_stated")
RANGES = ("compute", "parameters", "tokens", "tokens_per_parameter", "experts")


@dataclass(frozen=True)
class Law:
    """One law. `coefficients` has the names of its form; `fitted` is (lowest, highest) of the data by quantity.

    `standard_errors`: of coefficients, and of `a`, the exponent of N_opt ~ C^a, where the source gives one.
    `draws`: refits on resampled runs, one array per coefficient that was free (form surface only).
    `instead`: the law to use instead of one that is here for comparison with its own source.

    n: total, non_embedding, with_head, active, active_non_embedding (tfsim.scaling.conventions),
    compute_per_6d (N is C / 6D), flops_per_token_by_6 (DeepSeek), exact_flops_per_token_by_6 (attention
    and head counted), non_vocabulary or not_stated.
    c: 6nd (6 times the law's own N times D), exact, pf_days, m_times_d, tpu_v3_core_days or not_stated.

    Raises: InputError for an unknown form or count, and coefficients that the form lacks or does not know.
    """

    name: str
    form: str
    coefficients: Mapping[str, float]
    n: str = "total"
    d: str = "training tokens, one epoch"
    c: str = "6nd"
    loss: str = "nats per token"
    title: str = ""
    source: str = ""
    note: str = ""
    domain: str = "text"
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    fitted: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    draws: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)
    instead: str = ""

    def __post_init__(self) -> None:
        at = f"law {quote(self.name)}"
        form = FORMS[choice(f"{at}: form", self.form, FORMS)]
        choice(f"{at}: n", self.n, COUNTS_OF_N)
        choice(f"{at}: c", self.c, COUNTS_OF_C)
        known = (*form.required, *form.optional)
        for name, given, names in (
            ("coefficients", self.coefficients, known),
            ("standard_errors", self.standard_errors, (*known, "a")),
            ("draws", self.draws, known if self.form == "surface" else ()),
            ("fitted", self.fitted, RANGES),
        ):
            for key in given:
                choice(f"{at}: {name}", key, names)
        for key in form.required:
            if key not in self.coefficients:
                raise InputError(
                    f"{at}: coefficient {key} is missing: form {self.form} needs {', '.join(form.required)}"
                )
        values = {key: _coefficient(value, f"{at}: {key}") for key, value in self.coefficients.items()}
        for key in _POSITIVE if self.form in ("surface", "gadre", "repeats") else ():
            if key in values and not 1e-9 <= values[key] <= 1e30:
                raise InputError(f"{at}: {key}: {values[key]:g} is not between 1e-9 and 1e30")
        object.__setattr__(self, "coefficients", MappingProxyType(values))
        object.__setattr__(self, "draws", MappingProxyType(_checked_draws(self.draws, at)))
        object.__setattr__(self, "standard_errors", MappingProxyType(dict(self.standard_errors)))
        object.__setattr__(self, "fitted", MappingProxyType({k: (low, high) for k, (low, high) in self.fitted.items()}))

    @property
    def convention(self) -> str:
        """What N, D, C and the loss count, in one line."""
        return f"N {self.n}; D {self.d}; C {self.c}; loss {self.loss}"


def _coefficient(value: object, name: str) -> float:
    number = as_number(value, name, at_most=1e40)
    if not isinstance(number, int | float):
        raise InputError(f"{name}: must be one number")
    return float(number)


def _checked_draws(draws: Mapping[str, Array], at: str) -> dict[str, Array]:
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in draws.items()}
    for name, values in arrays.items():
        if values.ndim != 1 or len(values) < 2 or not np.all(np.isfinite(values)):
            raise InputError(f"{at}: draws: {name}: must be a list of two or more finite numbers")
    if len({len(values) for values in arrays.values()}) > 1:
        raise InputError(f"{at}: draws: lists of different length")
    return arrays


@cache
def _library() -> Mapping[str, Law]:
    folder = Path(__file__).parent
    laws = {}
    for name, entry in read_yaml(folder / "laws.yaml").items():
        draws = read_draws(folder / entry.pop("draws")) if "draws" in entry else {}
        laws[name] = Law(name=name, draws=draws, **entry)
    return MappingProxyType(laws)


def read_draws(path: Path) -> dict[str, Array]:
    """Draws of a law: a CSV file with a column per coefficient. Raises: InputError."""
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        table = np.array([line.split(",") for line in lines], dtype=np.float64)
        return dict(zip(header.split(","), table.T, strict=True))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{path}: not a table of draws: {error}") from None


def list_laws(*, form: str | None = None) -> list[str]:
    """The names of the laws, the default first; of one form when given. Raises: InputError for an unknown form."""
    if form is not None:
        choice("form", form, FORMS)
    return [name for name, entry in _library().items() if form in (None, entry.form)]


def law(name: object = DEFAULT) -> Law:
    """A law by its name, or from the YAML file at a path (tfsim.scaling.law_files); a Law stays as it is.

    Raises: InputError with the nearest names, or for a faulty file.
    """
    if isinstance(name, Law):
        return name
    if isinstance(name, os.PathLike) or (isinstance(name, str) and looks_like_path(name)):
        from tfsim.scaling.law_files import read_law  # which needs Law

        return read_law(name)
    if not isinstance(name, str):
        raise InputError(f"law: {quote(name)} is neither a name, nor a path, nor a Law")
    if name not in _library():
        raise unknown("law", name, _library())
    return _library()[name]


def looks_like_path(name: str) -> bool:
    """Whether a law's name is read as a file's."""
    return name.lower().endswith((".yaml", ".yml")) or "/" in name or os.sep in name


def facts_of(chosen: Law, given: Mapping[str, object]) -> dict[str, Any]:
    """The facts that the law takes. Raises: InputError for one missing or unused."""
    wanted = FORMS[chosen.form].facts
    for name, value in given.items():
        if name not in wanted and value is not None:
            takers = ", ".join(n for n, e in _library().items() if name in FORMS[e.form].facts)
            raise InputError(f"{name}: law {chosen.name} does not depend on it (laws that do: {takers})")
    for name in wanted:
        if given.get(name) is None:
            raise InputError(f"{name}: law {chosen.name} needs it")
    return {name: given[name] for name in wanted}


def facts_given(facts: Mapping[str, object]) -> dict[str, Any]:
    """The facts that are given, checked. Raises: InputError for one that no law has or that is out of range."""
    return {choice("fact", key, _FACTS): _FACTS[key](value) for key, value in facts.items() if value is not None}


def one_by_one(facts: Mapping[str, Any]) -> dict[str, Number]:
    """The numbers among checked facts, those of `bits` apart."""
    parts = {f"bits of {part}": x for part, x in zip(_PRECISIONS.values(), facts.get("bits", ()), strict=False)}
    return {**{key: value for key, value in facts.items() if key != "bits"}, **parts}


def _bits(value: object) -> tuple[Number, Number, Number]:
    """Bits of weights, activations and KV cache: one number for all, or three."""
    if isinstance(value, tuple):
        if len(value) != 3:
            raise InputError("bits: give one number, or three (weights, activations, KV cache)")
        w, a, kv = (positive(x, "bits") for x in value)
        return w, a, kv
    every = positive(value, "bits")
    return every, every, every


_PRECISIONS = {"w": "weights", "a": "activations", "kv": "KV cache"}


def _sparsity(value: object) -> Number:
    number = as_number(value, "sparsity", at_least=0)
    if not np.all(np.asarray(number) < 1):
        raise InputError("sparsity: must be below 1 (the share of parameters that a token leaves idle)")
    return number


_FACTS: Mapping[str, Any] = {
    "unique_tokens": lambda x: as_number(x, "unique_tokens", at_least=1),
    "granularity": lambda x: as_number(x, "granularity", at_least=1),
    "experts": lambda x: as_number(x, "experts", at_least=1),
    "sparsity": _sparsity,
    "bits": _bits,
}


def curve_of(chosen: Law, **given: object) -> Curve:
    """L(N, D) of a law, with its facts filled in: unique_tokens, granularity, experts, sparsity or bits.

    Raises: InputError when the law has no L(N, D), or a fact is missing or not the law's.
    """
    if chosen.form not in CURVES:
        having = ", ".join(name for name, entry in _library().items() if entry.form in CURVES)
        raise InputError(f"law {chosen.name}: gives no loss L(N, D); laws that do: {having}")
    k = chosen.coefficients
    facts = facts_of(chosen, facts_given(given))
    if chosen.form == "sparse":
        return Sparse(dict(k), facts["sparsity"])
    if chosen.form == "repeats":
        return Repeats(_surface(chosen, {}), facts["unique_tokens"], k["R_D"], k["R_N"])
    return _surface(chosen, facts)


def _surface(chosen: Law, facts: Mapping[str, Any]) -> Surface:
    k = chosen.coefficients
    if chosen.form == "gadre":  # their code has B 6^(-x/2) (M N)^-x, M = D / N; without the factor D/N is off by 2.45x
        x = k["exponent"]
        return Surface(k["E"], k["A"], k["B"] * 6 ** (-x / 2), x, x)
    if chosen.form == "kaplan_nd":  # [(N_c/N)^(aN/aD) + D_c/D]^aD
        x = k["alpha_N"] / k["alpha_D"]
        return Surface(0.0, k["N_c"] ** x, k["D_c"], x, 1.0, k["alpha_D"])
    if chosen.form == "granular":
        return Surface(k["c"], k["a"] + k["g"] * facts["granularity"] ** -k["gamma"], k["b"], k["alpha"], k["beta"])
    if chosen.form == "routed":
        worth = effective_experts(facts["experts"], k["E_start"], k["E_max"])
        log = np.log(worth)
        return Surface(
            k["c"],
            k["a"] * worth ** k["delta"],
            k["b"] * worth ** k["omega"],
            -(k["alpha"] + k["gamma"] * log),
            -(k["beta"] + k["zeta"] * log),
        )
    if chosen.form == "precision":
        share = effective_share(chosen, facts["bits"])
        return Surface(k["E"], k["A"] * share ** -k["alpha"], k["B"], k["alpha"], k["beta"])
    return Surface(k["E"], k["A"], k["B"], k["alpha"], k["beta"], k.get("gamma", 1.0))


def loss(
    name: object = DEFAULT, *, parameters: object, tokens: object, n_means: str | None = None, **facts: object
) -> Number:
    """L(N, D) of a law, in the law's own unit of loss.

    `n_means` says what `parameters` counts and is refused when the law counts otherwise. Facts: unique_tokens
    (Muennighoff), experts (Ludziejewski, Clark), granularity (Krajewski), sparsity (Abnar), bits (Kumar).

    Raises: InputError.
    """
    chosen = law(name)
    same_count("n_means", n_means, chosen.n, chosen)
    n, d = as_number(parameters, "parameters", at_least=1), as_number(tokens, "tokens", at_least=1)
    if chosen.form == "clark":
        raise InputError(f"law {chosen.name}: tokens are fixed at 130e9: use routed_loss")
    if chosen.form == "repeats" and facts.get("unique_tokens") is None:
        facts = {**facts, "unique_tokens": d}  # one epoch
    checked = facts_given(facts)
    common_shape(parameters=n, tokens=d, **one_by_one(checked))
    return curve_of(chosen, **checked).loss(n, d)


def same_count(field_name: str, given: str | None, own: str, chosen: Law) -> None:
    """Refuse a number that counts otherwise than the law. Raises: InputError naming the converter."""
    if given is None:
        return
    choice(field_name, given, COUNTS_OF_N if field_name == "n_means" else COUNTS_OF_C)
    if given != own:
        way = "convert_parameters" if field_name == "n_means" else "convert_compute"
        raise InputError(f"{field_name}: law {chosen.name} counts {own}, not {given}: convert with tfsim.scaling.{way}")


def effective_experts(experts: Number, start: float, most: float) -> Number:
    """Clark's saturating count of experts: 1/Eh = 1/(E - 1 + 1/(1/Es - 1/Em)) + 1/Em (arXiv:2202.01169); Eh(1) = Es."""
    return 1 / (1 / (experts - 1 + 1 / (1 / start - 1 / most)) + 1 / most)


def fewest_bits(chosen: Law) -> float:
    """Bits at which Kumar's law leaves no effective parameter: P = n gamma of the most sensitive part."""
    k = chosen.coefficients
    return max(k[f"n_{part}"] * k[f"gamma_{part}"] for part in _PRECISIONS)


def effective_share(chosen: Law, bits: tuple[Number, Number, Number]) -> Number:
    """N_eff / N at so many bits: the product of 1 - exp(n - P / gamma) (Kumar et al. 2024, arXiv:2411.04330).

    The text prints no n, the table of coefficients does; this reading is inferred (see the law's note).

    Raises: InputError where the law leaves nothing.
    """
    k = chosen.coefficients
    share: Number = 1.0
    for count, part in zip(bits, _PRECISIONS, strict=True):
        left = 1 - np.exp(k[f"n_{part}"] - count / k[f"gamma_{part}"])
        if not np.all(left > 0):
            low = k[f"n_{part}"] * k[f"gamma_{part}"]
            raise InputError(f"bits: law {chosen.name} holds above {low:.3g} bits of {_PRECISIONS[part]}")
        share = share * left
    return share


def outside(chosen: Law, **quantities: Number) -> Iterator[str]:
    """One sentence for each quantity outside the range that the law was fitted on."""
    for name, value in quantities.items():
        if name not in chosen.fitted:
            continue
        low, high = chosen.fitted[name]
        least, most = float(np.min(value)), float(np.max(value))
        words = name.replace("_", " ")
        if most > high:
            yield f"{words} {most:.3g} is {most / high:.3g}x above the fitted range ({low:.3g} to {high:.3g})"
        if least < low:
            yield f"{words} {least:.3g} is {low / least:.3g}x below the fitted range ({low:.3g} to {high:.3g})"
    if not chosen.fitted:
        yield "the fitted range is not known"
