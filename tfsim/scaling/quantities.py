"""What the laws say that are no L(N, D): losses of one variable, of steps or of experts, batches, learning rates.

Each function takes the laws of one form; all of them broadcast.
"""

from __future__ import annotations

import math

import numpy as np

from tfsim.errors import InputError, choice
from tfsim.scaling.conventions import positive
from tfsim.scaling.laws import Law, effective_experts, law, list_laws
from tfsim.units import Number, as_number


def quantization_loss(name: object = "kumar-2024", *, parameters: object, tokens: object, bits: object) -> Number:
    """What quantizing the weights after training adds to the loss: C_T D^gD / N^gN exp(-bits / g_post) (Kumar).

    Raises: InputError when the law is not of that form.
    """
    k = _of_form(name, "precision").coefficients
    n, d = as_number(parameters, "parameters", at_least=1), as_number(tokens, "tokens", at_least=1)
    p = positive(bits, "bits")
    return k["C_T"] * d ** k["gamma_D"] / n ** k["gamma_N"] * np.exp(-p / k["gamma_post"])


def routed_loss(name: object = "clark-2022-s-base", *, parameters: object, experts: object) -> Number:
    """Clark's loss at 130e9 tokens: log10 L = a log10 N + b log10 Eh + c log10 N log10 Eh + d (arXiv:2202.01169).

    `parameters` is the dense model that is routed. Raises: InputError.
    """
    k = _of_form(name, "clark").coefficients
    n, e = as_number(parameters, "parameters", at_least=1), as_number(experts, "experts", at_least=1)
    x, y = np.log10(n), np.log10(effective_experts(e, k["E_start"], k["E_max"]))
    return 10 ** (k["a"] * x + k["b"] * y + k["c"] * x * y + k["d"])


def effective_parameters(name: object = "clark-2022-s-base", *, parameters: object, experts: object) -> Number:
    """Clark's effective parameter count: the dense N (one expert, by the same law) of the same loss.

    Raises: InputError.
    """
    k = _of_form(name, "clark").coefficients
    target = np.log10(routed_loss(name, parameters=parameters, experts=experts))
    y = math.log10(k["E_start"])
    return 10 ** ((target - k["d"] - k["b"] * y) / (k["a"] + k["c"] * y))


def single_loss(name: object, x: object) -> Number:
    """floor + factor ((x + shift) / scale)^-exponent of a law of one variable; its note says what x is.

    Raises: InputError when the law has more variables.
    """
    k = _of_form(name, "single").coefficients
    value = positive(x, "x")
    base = (value + k.get("shift", 0.0)) / k.get("scale", 1.0)
    return k.get("floor", 0.0) + k.get("factor", 1.0) * base ** -k["exponent"]


def steps_loss(name: object = "kaplan-ns", *, parameters: object, steps: object) -> Number:
    """L(N, S_min) (Kaplan Eq. 1.6); `steps` is S_min (fewest_steps), N non-embedding. Raises: InputError."""
    k = _of_form(name, "kaplan_ns").coefficients
    n, s = as_number(parameters, "parameters", at_least=1), as_number(steps, "steps", at_least=1)
    return (k["N_c"] / n) ** k["alpha_N"] + (k["S_c"] / s) ** k["alpha_S"]


def critical_batch(loss: object, name: object = "kaplan-batch") -> Number:
    """Tokens per batch where time and compute cost twice their least: B* / L^(1/alpha_B) (Kaplan Eq. 1.4).

    Raises: InputError.
    """
    k = _of_form(name, "critical_batch").coefficients
    return k["scale"] / as_number(loss, "loss", at_least=1e-3) ** (1 / k["exponent"])


def fewest_steps(steps: object, *, batch: object, critical: object) -> Number:
    """S_min = S / (1 + B_crit / B) (Kaplan Eq. 5.4); batches in tokens. Raises: InputError."""
    s, b, c = _triple(steps, batch, critical, "steps")
    return s / (1 + c / b)


def least_compute(compute: object, *, batch: object, critical: object) -> Number:
    """C_min = C / (1 + B / B_crit) (Kaplan Eq. 5.5); batches in tokens. Raises: InputError."""
    f, b, c = _triple(compute, batch, critical, "compute")
    return f / (1 + b / c)


def _triple(x: object, batch: object, critical: object, name: str) -> tuple[Number, Number, Number]:
    return (
        positive(x, name),
        positive(batch, "batch"),
        positive(critical, "critical"),
    )


def downstream_error(name: object, loss: object) -> Number:
    """Average top-1 error of 46 downstream tasks at a loss: eps - k exp(-gamma L) (Gadre et al. 2024).

    Raises: InputError.
    """
    k = _of_form(name, "gadre").coefficients
    return k["error_top"] - k["error_scale"] * np.exp(-k["error_rate"] * as_number(loss, "loss", at_least=0))


def vocabulary_loss(
    name: object = "tao-2024", *, parameters: object, vocabulary_parameters: object, characters: object
) -> Number:
    """Unigram-normalised loss -E + A1 N_nv^-a1 + A2 N_v^-a2 + B H^-b (Tao et al. 2024). Raises: InputError."""
    k = _of_form(name, "vocabulary").coefficients
    n = as_number(parameters, "parameters", at_least=1)
    v = as_number(vocabulary_parameters, "vocabulary_parameters", at_least=1)
    h = as_number(characters, "characters", at_least=1)
    return -k["E"] + k["A1"] * n ** -k["alpha1"] + k["A2"] * v ** -k["alpha2"] + k["B"] * h ** -k["beta"]


def recipe(name: object, **given: object) -> Number:
    """A learning rate, batch (tokens), step or token count as a power law of parameters, tokens, compute or experts.

    law(name).loss says what it gives; exactly the quantities that the law uses are taken.

    Raises: InputError for one missing or unused.
    """
    chosen = _of_form(name, "recipe")
    k = chosen.coefficients
    wanted = [key for key in k if key not in ("scale", "unit")]
    for key in given:
        choice(f"law {chosen.name}", key, wanted)
    result: Number = k["scale"]
    for key in wanted:
        if given.get(key) is None:
            raise InputError(f"{key}: law {chosen.name} needs it")
        value = positive(given[key], key)
        result = result * (value / k.get("unit", 1.0)) ** k[key]
    return result


def _of_form(name: object, form: str) -> Law:
    chosen = law(name)
    if chosen.form != form:
        raise InputError(
            f"law {chosen.name}: has form {chosen.form}, not {form}: choose from {', '.join(list_laws(form=form))}"
        )
    return chosen
