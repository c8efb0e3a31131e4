"""The fields of a config.json: what each model type may hold, and checked reading of one file.

A model type lists its fields as *used* (with the default of its transformers class), *harmless* (no effect on any
count) or *refused* (accepted only with a value that changes nothing). Any other field is an error that names it:
tfsim never guesses what an unknown field does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tfsim.errors import InputError, nearest, quote
from tfsim.models.huggingface.harmless import COMMON_HARMLESS, COMMON_REFUSED
from tfsim.models.spec import MAX_LAYERS, MAX_SIZE

_T = TypeVar("_T")


class _Required:
    """Default of a field that a file must give."""


REQUIRED = _Required()


@dataclass(frozen=True)
class FieldTable:
    """The fields of one model type.

    ``used``: field -> default of the class; a nested mapping is written with a dot (``attn_config.kv_n_heads``).
    ``aliases``: other names of used fields (older files, the class's attribute map). ``harmless`` and ``refused``
    come on top of those that every type shares; ``refused``: field -> the values that change nothing.
    """

    used: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def nested(self) -> frozenset[str]:
        """Fields that hold a mapping whose own fields are listed with a dot."""
        names = (*self.used, *self.harmless, *self.refused)
        return frozenset(name.split(".")[0] for name in names if "." in name)


def flatten(data: Mapping[str, Any], nested: frozenset[str]) -> dict[str, Any]:
    """``data`` with the fields of its ``nested`` mappings written with a dot; a nested null is left out."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if name not in nested:
            flat[name] = value
        elif isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": v for inner, v in value.items()})
        elif value is not None:
            raise InputError(f"field {quote(name)}: must be a mapping, not {quote(value)}")
    return flat


class Fields:
    """One file's fields under a table: every reader checks type and range, and names the field when it complains."""

    def __init__(self, data: Mapping[str, Any], table: FieldTable, where: str, ignore: Sequence[str] = ()) -> None:
        self.where = where
        self._table = table
        try:
            flat = flatten(data, table.nested)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        flat = {name: value for name, value in flat.items() if not _ignored(name, ignore)}
        self._given: dict[str, Any] = {}
        refused = {**COMMON_REFUSED, **table.refused}
        refused |= {f"{outer}.{name}": values for outer in table.nested for name, values in COMMON_REFUSED.items()}
        for name, value in flat.items():
            canonical = table.aliases.get(name, name)
            if canonical in table.used:
                if canonical in self._given and self._given[canonical] != value:
                    raise self.fault(name, f"contradicts {canonical} = {quote(self._given[canonical])}", value)
                self._given[canonical] = value
            elif name in refused:
                if not any(_same(value, ok) for ok in refused[name]):
                    raise self.fault(
                        name,
                        f"tfsim models only {' or '.join(quote(ok) for ok in refused[name])}"
                        f" (--ignore-field {name} takes that instead)",
                        value,
                    )
            elif name.rsplit(".", 1)[-1] not in COMMON_HARMLESS and name not in table.harmless:
                raise self._unknown(name)

    def _unknown(self, name: str) -> InputError:
        known = [*self._table.used, *self._table.aliases, *self._table.refused]
        near = nearest(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return InputError(
            f"{self.where}: field {quote(name)}: not known for this model type{hint} "
            f"(--ignore-field {name} leaves it out)"
        )

    @property
    def names(self) -> frozenset[str]:
        """The fields that this model type reads."""
        return frozenset(self._table.used)

    def fault(self, name: str, rule: str, value: object = REQUIRED) -> InputError:
        """The error for a field whose value breaks ``rule``."""
        shown = "" if value is REQUIRED else f"value {quote(value)}: "
        return InputError(f"{self.where}: field {quote(name)}: {shown}{rule}")

    def raw(self, name: str) -> Any:
        """The value in the file, else the default of the class."""
        value = self._given.get(name, self._table.used[name])
        if value is REQUIRED:
            raise self.fault(name, "missing, and required")
        return value

    def size(self, name: str, limit: int = MAX_SIZE) -> int:
        """A positive integer of at most ``limit``."""
        value = self.maybe_size(name, limit)
        if value is None:
            raise self.fault(name, "must be a positive integer", value)
        return value

    def maybe_size(self, name: str, limit: int = MAX_SIZE) -> int | None:
        """A positive integer, or None where the file says null."""
        value = self.raw(name)
        if value is None:
            return None
        if type(value) is not int or not 0 < value <= limit:
            raise self.fault(name, f"must be a whole number from 1 to {limit}", value)
        return value

    def layers(self, name: str) -> int:
        """A number of layers."""
        return self.size(name, MAX_LAYERS)

    def count(self, name: str) -> int:
        """An integer that may be 0; null counts as 0."""
        value = self.raw(name)
        if value is None:
            return 0
        if type(value) is not int or not 0 <= value <= MAX_SIZE:
            raise self.fault(name, f"must be a whole number from 0 to {MAX_SIZE}", value)
        return value

    def flag(self, name: str) -> bool:
        """True or false; null counts as false."""
        value = self.raw(name)
        if value is None:
            return False
        if type(value) is not bool:
            raise self.fault(name, "must be true or false", value)
        return value

    def number(self, name: str) -> float | None:
        """A positive finite number, or None where the file says null."""
        value = self.raw(name)
        return None if value is None else self.positive(name, value)

    def positive(self, name: str, value: object) -> float:
        """``value`` as a positive number of a size that makes sense."""
        if type(value) not in (int, float):
            raise self.fault(name, "must be a number", value)
        number = value if isinstance(value, int | float) else 0
        if not (isinstance(number, int) or math.isfinite(number)) or not 0 < number <= 1e12:
            raise self.fault(name, "must be a positive number of at most 1e12", value)
        return float(number)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A mapping; null counts as an empty one."""
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.fault(name, "must be a mapping", value)
        return value

    def choice(self, name: str, options: Mapping[str, _T]) -> _T:
        """What ``options`` says about the text in this field."""
        value = self.raw(name)
        if not isinstance(value, str) or value not in options:
            raise self.fault(name, f"must be one of {', '.join(options)}", value)
        return options[value]

    def per_layer(self, name: str, n_layers: int, rule: str, check: Callable[[object], bool]) -> list[Any] | None:
        """A list with one entry for each layer, or None where the file has none."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(check(entry) for entry in value):
            raise self.fault(name, f"must be a list of {rule}", value)
        if len(value) != n_layers:
            raise self.fault(name, f"has {len(value)} entries for {n_layers} layers")
        return value

    def indices(self, name: str, n_layers: int) -> frozenset[int] | None:
        """A list of layer indices (0-based), or None where the file has none."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(i) is int and 0 <= i < n_layers for i in value):
            raise self.fault(name, f"must be a list of layer indices below {n_layers}", value)
        return frozenset(value)

    def d_head(self, head_field: str, hidden: int, heads_field: str, heads: int) -> int:
        """Width of a head: its own field where there is one, else hidden / heads, which must divide evenly."""
        own = self.maybe_size(head_field) if head_field in self._table.used else None
        if own is not None:
            return own
        if hidden % heads:
            raise self.fault(heads_field, f"does not divide the hidden size {hidden}", heads)
        return hidden // heads


def _ignored(name: str, ignore: Sequence[str]) -> bool:
    return name in ignore or name.split(".")[0] in ignore


def _same(value: object, ok: object) -> bool:
    """Equality that keeps true and 1 apart."""
    return (type(value) is type(ok) and value == ok) or (_both_numbers(value, ok) and value == ok)


def _both_numbers(a: object, b: object) -> bool:
    return type(a) in (int, float) and type(b) in (int, float)
