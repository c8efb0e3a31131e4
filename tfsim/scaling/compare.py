"""One budget, every law: what each makes of it, and which do not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsim.errors import InputError
from tfsim.scaling.allocation import Allocation, optimal
from tfsim.scaling.conventions import MOST
from tfsim.scaling.laws import CURVES, DEFAULT, FORMS, TRACKS, law, list_laws
from tfsim.units import as_number


@dataclass(frozen=True)
class Comparison:
    """The default law's answer beside those of every law that applies; the rest by name with the reason."""

    default: Allocation
    others: tuple[Allocation, ...]
    left_out: Mapping[str, str]


def compare_laws(compute: object, *, default: object = DEFAULT, c_means: str = "6nd", **facts: object) -> Comparison:
    """The default law at a budget beside every text law that applies to it.

    Laws that count C otherwise than `c_means` are left out with the reason (convert_compute and ask again), as
    are those whose facts (experts, granularity, sparsity, bits) are not given; a dense model is experts=1.

    Raises: InputError.
    """
    budget = as_number(compute, "compute", at_least=1, at_most=MOST)
    first = law(default)
    answers: dict[str, Allocation] = {}
    left_out: dict[str, str] = {}
    facts.setdefault("experts", 1)
    for name in dict.fromkeys([first.name, *list_laws()]):
        entry = first if name == first.name else law(name)
        wanted = [fact for fact in FORMS[entry.form].facts if fact != "unique_tokens"]
        missing = [fact for fact in wanted if facts.get(fact) is None]
        if entry.form not in (*CURVES, *TRACKS):
            continue
        if entry.domain != "text":
            left_out[name] = f"is about {entry.domain}"
        elif entry.c != c_means:
            left_out[name] = f"counts C as {entry.c}"
        elif missing:
            left_out[name] = f"needs {', '.join(missing)}"
        else:
            answers[name] = optimal(entry, compute=budget, **{fact: facts[fact] for fact in wanted})  # type: ignore[arg-type]
    if first.name not in answers:
        raise InputError(f"default: law {first.name} does not apply: {left_out.get(first.name, 'gives no allocation')}")
    return Comparison(answers.pop(first.name), tuple(answers.values()), left_out)
