"""What N and C count, and the way from one count to another.

Laws disagree by 7x in N at 1e21 FLOPs mostly because they count differently: never put a number of
one convention into a law of another without one of these.
"""

from __future__ import annotations

import numpy as np

from tfsim.errors import InputError, choice, quote
from tfsim.units import Number, as_number

PF_DAY = 8.64e19
"""FLOPs of one PFLOP/s for a day."""

MOST = 1e40  # FLOPs: far above any budget, far below overflow

# The parts each count of parameters holds beside the core (layers of the dense model, or those a token uses).
# A tied table counts once, as the head.
_PARTS = {
    "total": {"embedding", "head", "idle"},
    "non_embedding": {"idle"},
    "with_head": {"head", "idle"},
    "active": {"embedding", "head"},
    "active_non_embedding": set[str](),
}
PARAMETER_COUNTS = tuple(_PARTS)
_MEANING = {
    "embedding": "parameters of the input table, 0 when it is tied to the head",
    "head": "parameters of the output table",
    "idle": "parameters of the experts that a token does not use, 0 for a dense model",
}


def convert_parameters(
    n: object,
    *,
    have: str,
    want: str,
    embedding: object = None,
    head: object = None,
    idle: object = None,
) -> Number:
    """n parameters of the count `have` in the count `want`.

    Counts: total; non_embedding (Kaplan, MiniCPM: without both tables); with_head (Porian: the output
    table in, the input table out); active and active_non_embedding (a mixture's experts that one token uses).
    `embedding`, `head` and `idle` are the architecture's own numbers of parameters; only those in which the
    two counts differ are needed.

    Raises: InputError for an unknown count, a fact that is needed and missing, or a result below 1.
    """
    have, want = choice("have", have, _PARTS), choice("want", want, _PARTS)
    facts = {"embedding": embedding, "head": head, "idle": idle}
    result = as_number(n, "n", at_least=1)
    for part in sorted(_PARTS[have] ^ _PARTS[want]):
        if facts[part] is None:
            raise InputError(f"{part}: needed to go from {have} to {want} parameters ({_MEANING[part]})")
        amount = as_number(facts[part], part, at_least=0)
        result = result + amount if part in _PARTS[want] else result - amount
    return as_number(result, f"{want} parameters", at_least=1)


def total_from_non_embedding(n: object) -> Number:
    """Total parameters of a typical model of n non-embedding ones: N + 47491 N^(1/3).

    For when only N is known; the architecture's own counts (convert_parameters) are better.
    Vocabulary 32 000, width / layers about 39 (Pearce and Song 2024, arXiv:2406.12907).

    Raises: InputError when n is no number of at least 1.
    """
    return typical_total(as_number(n, "n", at_least=1))


def typical_total(n: Number) -> Number:
    """total_from_non_embedding of a number that is known to be good."""
    return n + 47491 * n ** (1 / 3)


def convert_compute(compute: object, *, have_per_token: object, want_per_token: object) -> Number:
    """FLOPs of the same run in another count, from the FLOPs per training token in both.

    6ND has 6 N per token, DeepSeek's count is deepseek_flops_per_token, an exact count comes from the
    architecture (tfsim.count, forward and backward).

    Raises: InputError when a number is not positive.
    """
    c = positive(compute, "compute")
    have, want = positive(have_per_token, "have_per_token"), positive(want_per_token, "want_per_token")
    return c * want / have


def flops_from_pf_days(pf_days: object) -> Number:
    """FLOPs of so many PFLOP/s-days (Kaplan et al. 2020: 1 PF-day = 8.64e19)."""
    return positive(pf_days, "pf_days") * PF_DAY


def pf_days_from_flops(flops: object) -> Number:
    """PFLOP/s-days of so many FLOPs."""
    return positive(flops, "flops") / PF_DAY


def deepseek_flops_per_token(*, layers: object, width: object, length: object) -> Number:
    """M = 72 L d^2 + 12 L d l: FLOPs per training token without the vocabulary (arXiv:2401.02954, Eq. 2)."""
    n, d, s = (
        as_number(value, name, at_least=1) for value, name in ((layers, "layers"), (width, "width"), (length, "length"))
    )
    return 72 * n * d**2 + 12 * n * d * s


def chinchilla_flops_per_token(*, layers: int, width: int, ffn: int, heads: int, head_dim: int, length: int) -> float:
    """FLOPs per training token as Hoffmann's Table A4 has them: layers only, backward twice the forward.

    arXiv:2203.15556 App. F describes embedding and logits too, but its printed ratios leave both out.
    """
    inner = heads * head_dim
    projections = 6 * width * inner + 2 * inner * width + 4 * width * ffn
    attention = 4 * length * inner + 3 * heads * length
    return 3.0 * layers * (projections + attention)


def positive(value: object, name: str) -> Number:
    """A user's number above zero, FLOPs of a whole training run included. Raises: InputError."""
    number = as_number(value, name, at_most=MOST)
    wrong = ~(np.asarray(number) > 0)
    if wrong.any():
        raise InputError(f"{name}: {quote(np.asarray(number)[wrong].flat[0].item())} is not a positive number")
    return number
