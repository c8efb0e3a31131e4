"""Results as plain data: what JSON can write."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: object) -> Any:
    """``value`` in JSON's types: results by their to_dict() or fields, tables as a list of rows.

    NumPy numbers and arrays become Python's; NaN and infinities become None, which JSON cannot write.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "iterrows"):  # a DataFrame's to_dict() would be by column
        return plain(value.to_dict(orient="records"))  # type: ignore[attr-defined]
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if hasattr(value, "tolist"):  # a NumPy array or scalar
        return plain(value.tolist())
    return str(value)  # a path or a date


def plain_fields(record: Any, *, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass instance as plain data."""
    return {f.name: plain(getattr(record, f.name)) for f in fields(record) if f.name not in leave_out}
