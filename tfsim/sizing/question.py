"""What is asked of ``size``, checked: one budget or target, the law and its facts, the architecture's fixed parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfsim.errors import InputError, quote
from tfsim.scaling import DEFAULT, PARAMETER_COUNTS, Law, law, list_laws
from tfsim.scaling.conventions import positive
from tfsim.scaling.laws import CURVES, FLOPS_AS_N, FORMS, TRACKS, facts_given, facts_of
from tfsim.sizing.budget import Budget, read_budget
from tfsim.sizing.shapes import Architecture
from tfsim.units import as_number, parse_quantity

VOCABULARY = 128_256  # Llama 3's
SEQ_LEN = 4096
REPEATS_LAW, EXPERTS_LAW, BITS_LAW = "muennighoff-2023", "ludziejewski-2025", "kumar-2024"
_COUNTS = (*PARAMETER_COUNTS, *FLOPS_AS_N, "not_stated")


@dataclass(frozen=True)
class Question:
    """``budget``, ``params`` (total), ``tokens``, ``loss``: what is given, the rest None; ``deadline``: seconds;
    ``facts``: of the law."""

    budget: Budget | None
    params: float | None
    tokens: float | None
    loss: float | None
    devices: int | None
    deadline: float | None
    law: Law
    facts: Mapping[str, Any]
    architecture: Architecture
    global_batch: int | None
    serve_tokens: float | None

    @property
    def spends_hours(self) -> bool:
        """Whether device time is what limits it."""
        return self.budget is not None and self.budget.unit != "flops"

    @property
    def has_loss(self) -> bool:
        """Whether the law states a loss L(N, D)."""
        return self.law.form in CURVES


def amount(value: Any, dimension: str, name: str, *, whole: bool = False, least: float = 0) -> Any:
    """A scalar, a number or text with its unit; None stays None. Raises: InputError."""
    if value is None:
        return None
    number = parse_quantity(value, dimension, name) if isinstance(value, str) else as_number(value, name)
    if not isinstance(number, int | float):
        raise InputError(f"{name}: must be one number")
    if not number > 0 or number < least:
        raise InputError(f"{name}: {quote(value)} is below {max(least, 0):g}" if number < least else f"{name}: is zero")
    return as_number(number, name, at_least=least, at_most=1e24, whole=whole)


def read_law(name: object, unique_tokens: object, experts: object, bits: object) -> Law:
    """The law asked for, or the one that knows what is asked of it. Raises: InputError for one that sizes nothing."""
    if name is None:
        special = ((unique_tokens, REPEATS_LAW), (bits, BITS_LAW), (experts, EXPERTS_LAW))
        name = next((known for value, known in special if value is not None), DEFAULT)
    found = law(name)
    if found.form not in (*CURVES, *TRACKS):
        raise InputError(f"law: {found.name} gives no allocation of N and D (tfsim.scaling.list_laws)")
    if found.domain != "text":
        raise InputError(f"law: {found.name} is about {found.domain}, not text")
    if found.n not in _COUNTS:
        raise InputError(f"law: {found.name} counts parameters as {found.n}, which no architecture here has")
    return found


def of_mixtures(found: Law) -> bool:
    """Whether a law is about mixtures of experts."""
    return bool({"experts", "sparsity", "granularity"} & set(FORMS[found.form].facts))


def _mixture_laws() -> list[str]:
    return [name for name in list_laws() if of_mixtures(law(name)) and law(name).form in CURVES]


def read_facts(found: Law, arch: Architecture, unique_tokens: Any, bits: Any, granularity: Any) -> dict[str, Any]:
    """The facts that the law takes: those given, and those that the architecture has. Raises: InputError."""
    asked = {"unique_tokens": unique_tokens, "bits": bits, "granularity": granularity}
    wanted = FORMS[found.form].facts
    if "experts" in wanted:  # a top-k mixture of k-times finer experts spends as one of E / k whole ones
        asked["experts"] = arch.experts / arch.top_k
    if "sparsity" in wanted:
        asked["sparsity"] = 1 - arch.top_k / arch.experts
    given = facts_given({key: value for key, value in asked.items() if value is not None})
    if found.form == "repeats" and not given:
        return {}  # one epoch
    return facts_of(found, given)


def read_question(
    *,
    budget: Any,
    params: Any,
    tokens: Any,
    loss: Any,
    system: Any,
    devices: Any,
    deadline: Any,
    law_name: Any,
    seq_len: Any,
    vocab_size: Any,
    unique_tokens: Any,
    experts: Any,
    top_k: Any,
    bits: Any,
    granularity: Any,
    global_batch: Any,
    serve_tokens: Any,
    plan: Any,
) -> Question:
    """The question of these arguments. Raises: InputError naming the argument that is wrong or at odds with others."""
    count = amount(devices, "count", "devices", whole=True, least=1)
    end = amount(deadline, "time", "deadline")
    money = None if budget is None else read_budget(budget)
    n = amount(params, "count", "params", least=1)
    d = amount(tokens, "tokens", "tokens", least=1)
    target = None if loss is None else positive(loss, "loss")
    if target is not None and not isinstance(target, int | float):
        raise InputError("loss: must be one number")
    served = amount(serve_tokens, "tokens", "serve_tokens", least=1)
    if system is None:
        needs = {"devices": count, "deadline": end, "global_batch": global_batch, "serve_tokens": served}
        for name, value in needs.items():
            if value is not None:
                raise InputError(f"{name}: is about a system: name it with system")
        if money is not None and money.unit != "flops":
            raise InputError(f"budget: {money} is spent on a system: name it with system")
    if end is not None and count is not None:
        if money is not None:
            raise InputError("deadline: with devices it is a budget of its own: leave out budget, devices or deadline")
        if n is None and d is None and target is None:
            money = Budget(end * count / 3600, "device_hours")
            end = None
    _one_question(money, n, d, target)
    arch = _architecture(seq_len, vocab_size, experts, top_k, plan)
    found = read_law(law_name, unique_tokens, experts, bits)
    if arch.experts > 1 and not of_mixtures(found):
        raise InputError(f"experts: law {found.name} is of dense models: choose from {', '.join(_mixture_laws())}")
    batch = amount(global_batch, "count", "global_batch", whole=True, least=1)
    unique = amount(unique_tokens, "tokens", "unique_tokens", least=1)
    facts = read_facts(found, arch, unique, bits, granularity)
    if served is not None and found.form not in CURVES:
        raise InputError(f"serve_tokens: law {found.name} gives no loss L(N, D), which this needs")
    if served is not None and sum(x is not None for x in (money, n, d, target)) > 1:
        raise InputError("serve_tokens: is about choosing N: give one of budget, params, tokens and loss")
    return Question(money, n, d, target, count, end, found, facts, arch, batch, served)


def _one_question(budget: Any, params: Any, tokens: Any, loss: Any) -> None:
    given = {"budget": budget, "params": params, "tokens": tokens, "loss": loss}
    names = tuple(name for name, value in given.items() if value is not None)
    allowed = {("budget",), ("params",), ("tokens",), ("loss",), ("budget", "params"), ("budget", "tokens"),
               ("params", "tokens"), ("params", "loss")}  # fmt: skip
    if names in allowed:
        return
    if not names:
        raise InputError("give a budget ('$5M', '1e24flops', '200k GPU-hours'), params, tokens, or a loss")
    raise InputError(
        f"{' and '.join(names)} together leave nothing to size: give one, or a budget with one of the others"
    )


def _needed(value: Any, name: str) -> int:
    if value is None:
        raise InputError(f"{name}: is missing")
    return int(value)


def _architecture(seq_len: Any, vocab_size: Any, experts: Any, top_k: Any, plan: Any) -> Architecture:
    many = amount(experts, "count", "experts", whole=True, least=2) or 1
    if many == 1 and top_k is not None:
        raise InputError("top_k: is about a mixture: give experts")
    chosen = amount(top_k, "count", "top_k", whole=True, least=1) or (2 if many > 1 else 1)
    if chosen > many:
        raise InputError(f"top_k: {chosen} is more than the {many} experts")
    degrees = plan if isinstance(plan, Mapping) else {}
    return Architecture(
        vocab_size=_needed(amount(vocab_size, "count", "vocab_size", whole=True, least=1), "vocab_size"),
        seq_len=_needed(amount(seq_len, "tokens", "seq_len", whole=True, least=1), "seq_len"),
        experts=int(many),
        top_k=int(chosen),
        tp=int(amount(degrees.get("tp", 1), "count", "plan.tp", whole=True, least=1)),
        pp=int(amount(degrees.get("pp", 1), "count", "plan.pp", whole=True, least=1)),
    )
