"""A law as a YAML file: what a fit writes, and what may stand wherever a law's name does."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tfsim.errors import InputError
from tfsim.files import not_a_flag, read_yaml, validate
from tfsim.scaling.laws import Law

_Name = Annotated[str, Field(min_length=1, max_length=80)]
_Number = Annotated[float, Field(strict=True)]


class _LawFile(BaseModel):
    """The fields of ``Law``; the rules between them are Law's own."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Annotated[Literal[1], BeforeValidator(not_a_flag)] = Field(alias="schema")
    name: _Name
    form: str
    coefficients: dict[str, _Number]
    n: str
    c: str
    d: str = "training tokens"
    loss: str = "not stated"
    title: str = ""
    source: str = ""
    note: str = ""
    domain: str = "text"
    standard_errors: dict[str, _Number] = {}
    fitted: dict[str, tuple[_Number, _Number]] = {}
    draws: dict[str, list[_Number]] = {}


def read_law(path: str | os.PathLike[str]) -> Law:
    """The law in a YAML file: ``schema: 1``, name, form, coefficients, n, c, and any other field of ``Law``.

    Raises: InputError, one line naming the file and the field.
    """
    where = os.fspath(path)
    held = validate(_LawFile, read_yaml(path), where)
    try:
        return Law(**held.model_dump(exclude={"schema_version"}))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def law_text(law: Law) -> str:
    """A law as the text of such a file; ``read_law`` gives the same law back, to the last digit.

    Numbers are Python's shortest that read back alike; the exponent's sign keeps YAML from taking 1e+22 for a word.
    """
    import yaml

    tree: dict[str, object] = {
        "schema": 1, "name": law.name, "title": law.title, "form": law.form, "n": law.n, "d": law.d, "c": law.c,
        "loss": law.loss, "domain": law.domain, "source": law.source, "note": law.note,
        "coefficients": dict(law.coefficients),
        "standard_errors": {name: float(value) for name, value in law.standard_errors.items()},
        "fitted": {name: [float(low), float(high)] for name, (low, high) in law.fitted.items()},
        "draws": {name: [float(x) for x in values] for name, values in law.draws.items()},
    }  # fmt: skip
    kept = {name: value for name, value in tree.items() if value not in ("", {})}
    head = "# A scaling law that tfsim fit found; every --law of tfsim takes this file's path in place of a name.\n"
    return head + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=116, default_flow_style=None)
