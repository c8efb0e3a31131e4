"""The user's own training runs: read, named, checked. Everything wrong with them is one line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfsim.errors import InputError, choice, quote, unknown
from tfsim.units import Array

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Source: TypeAlias = str | os.PathLike[str] | pd.DataFrame | Mapping[str, Any]

FIELDS = ("N", "D", "C", "loss", "group")
FLOPS = ("6ND", "other")
_LARGEST = 1e40  # far above any count of parameters, tokens or FLOPs; products of several stay finite


@dataclass(frozen=True)
class Runs:
    """Training runs, one per element: N parameters, D tokens, C training FLOPs, final loss in nats per token.

    N, D or C is None when neither given nor derived. ``group`` names each run's isoFLOP group, ``row`` is where it
    stood in the source (from 0), ``excluded`` lists the rows left out at the user's word. ``flops`` says how C
    relates to N and D: "6ND", or "other" (unknown, or an exact count), which nothing is derived from.
    """

    loss: Array
    row: NDArray[np.int64]
    N: Array | None = None
    D: Array | None = None
    C: Array | None = None
    group: tuple[str, ...] | None = None
    excluded: tuple[int, ...] = ()
    flops: str = "other"

    def __len__(self) -> int:
        return len(self.loss)

    def column(self, name: str) -> Array:
        """N, D or C. Raises: InputError when these runs have none."""
        values: Array | None = getattr(self, name)
        if values is None:
            hint = "" if name == "N" else ', or flops="6ND" if C = 6 N D holds for these runs'
            raise InputError(f"{name}: these runs have no such column: name it in columns{hint}")
        return values

    def take(self, keep: NDArray[np.bool_]) -> Runs:
        """The runs where the boolean array ``keep`` holds."""
        picked: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[keep]
            for name in ("loss", "row", "N", "D", "C")
        }
        if self.group is not None:
            picked["group"] = tuple(g for g, k in zip(self.group, keep, strict=True) if k)
        return replace(self, **picked)


def read_runs(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    exclude: str | Sequence[int] | None = None,
    flops: str = "other",
) -> Runs:
    """Runs from a CSV file, a DataFrame or a mapping of columns.

    ``columns`` says which column holds N, D, C, loss and group, where it is not named so. ``exclude`` names a 0/1
    column that marks the runs to leave out, or lists their rows (from 0): nothing else is ever left out. With
    ``flops`` = "6ND" the missing one of N, D and C is C = 6 N D's.

    Raises: InputError for a file that cannot be read, an unknown or missing column, a value that is not a positive
    finite number, the same run twice, and a C that "6ND" contradicts.
    """
    choice("flops", flops, FLOPS)
    table, where = _table(source)
    lines = isinstance(source, str | os.PathLike)

    def at(i: int) -> str:
        return f"line {i + 2}" if lines else f"row {i}"

    names = _names(columns, table, where)
    first = len(next(iter(table.values())))
    if any(len(values) != first for values in table.values()):
        raise InputError(f"{where}: columns of different length")
    left_out = _excluded(exclude, table, first, where)
    keep = np.array([i not in left_out for i in range(first)], dtype=bool)
    rows = np.arange(first)[keep]
    values = {
        field: _numbers(np.asarray(table[names[field]], dtype=object)[keep], rows, f"{where}: {names[field]}", at)
        for field in FIELDS[:4]
        if field in names
    }
    if not len(rows):
        raise InputError(f"{where}: no runs")
    _refuse_repeats(values, rows, where, at)
    if flops == "6ND":
        _derive(values, rows, where, at)
    group = _groups(table[names["group"]], rows, f"{where}: {names['group']}", at) if "group" in names else None
    loss = values.pop("loss")
    return Runs(loss, rows, group=group, excluded=tuple(sorted(left_out)), flops=flops, **values)


def _table(source: Source) -> tuple[dict[str, Any], str]:
    if isinstance(source, str | os.PathLike):
        return _csv(source), os.fspath(source)
    if isinstance(source, Mapping):
        table: dict[str, Any] = {}
        for name, values in source.items():
            if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
                raise InputError(f"runs: {quote(name)}: {quote(values)} is not a column of values")
            table[str(name)] = list(values)
    elif hasattr(source, "columns") and hasattr(source, "iloc"):
        headers = [str(name) for name in source.columns]
        _refuse_same_headers(headers, "runs")
        table = {name: list(source.iloc[:, i]) for i, name in enumerate(headers)}
    else:
        raise InputError(f"runs: {quote(source)} is not a CSV file, a DataFrame or a mapping of columns")
    if not table:
        raise InputError("runs: no columns")
    return table, "runs"


def _csv(path: str | os.PathLike[str]) -> dict[str, Any]:
    import pandas as pd

    where = os.fspath(path)
    try:
        # Without a header, so that pandas does not rename a second column "N" to "N.1".
        cells = pd.read_csv(path, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{where}: the file is empty") from None
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not a CSV file: {str(error).strip().splitlines()[-1]}") from None
    except OSError as error:
        raise InputError(f"{where}: cannot read: {error.strerror or error}") from None
    headers = [str(name).strip() for name in cells.iloc[0]]
    _refuse_same_headers(headers, where)
    return {name: list(cells.iloc[1:, i]) for i, name in enumerate(headers)}


def _refuse_same_headers(headers: list[str], where: str) -> None:
    for name in headers:
        if headers.count(name) > 1:
            raise InputError(f"{where}: two columns named {quote(name)}")


def _names(columns: Mapping[str, str] | None, table: Mapping[str, Any], where: str) -> dict[str, str]:
    names = {field: field for field in FIELDS if field in table}
    for field, name in (columns or {}).items():
        choice("columns", field, FIELDS)
        if name not in table:
            raise InputError(f"{where}: {unknown('column', str(name), table)}")
        names[field] = name
    if "loss" not in names:
        raise InputError(f"{where}: no column 'loss': say columns={{'loss': ...}}, one of {', '.join(table)}")
    return names


def _excluded(exclude: str | Sequence[int] | None, table: Mapping[str, Any], n: int, where: str) -> set[int]:
    if exclude is None:
        return set()
    if isinstance(exclude, str):
        if exclude not in table:
            raise InputError(f"{where}: exclude: {unknown('column', exclude, table)}")
        marks = [str(mark).strip().lower() for mark in table[exclude]]
        for mark in marks:
            if mark not in ("0", "1", "true", "false", "0.0", "1.0"):
                raise InputError(f"{where}: exclude: column {quote(exclude)} holds {quote(mark)}, not 0 or 1")
        return {i for i, mark in enumerate(marks) if mark in ("1", "true", "1.0")}
    for row in exclude:
        if isinstance(row, bool) or not isinstance(row, int | np.integer) or not 0 <= row < n:
            raise InputError(f"{where}: exclude: {quote(row)} is not a row from 0 to {n - 1}")
    return {int(row) for row in exclude}


def _numbers(values: Any, rows: Any, where: str, at: Any) -> Array:
    import pandas as pd

    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    for i in np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))[:1]:
        raise InputError(f"{where}: {at(rows[i])}: {quote(values[i])} is not a positive finite number")
    for i in np.flatnonzero(numbers > _LARGEST)[:1]:
        raise InputError(f"{where}: {at(rows[i])}: {quote(values[i])} is implausibly large (above {_LARGEST:g})")
    for i, value in enumerate(values):
        if isinstance(value, bool | np.bool_):
            raise InputError(f"{where}: {at(rows[i])}: {quote(value)} is not a number")
    return numbers


def _groups(values: Any, rows: Any, where: str, at: Any) -> tuple[str, ...]:
    found = tuple(str(values[i]).strip() for i in rows)
    for i, name in zip(rows, found, strict=True):
        if name in ("", "nan", "None"):
            raise InputError(f"{where}: {at(i)}: no group: exclude the run or name one")
    return found


def _refuse_repeats(values: Mapping[str, Array], rows: Any, where: str, at: Any) -> None:
    """The same N, D, C and loss twice is a copied row; the same N and D with another loss a repeated seed, allowed."""
    seen: dict[tuple[float, ...], int] = {}
    for i, key in enumerate(zip(*values.values(), strict=True)):
        if key in seen:
            raise InputError(f"{where}: {at(rows[seen[key]])} and {at(rows[i])} are the same run: drop one")
        seen[key] = i


def _derive(values: dict[str, Array], rows: Any, where: str, at: Any) -> None:
    missing = [name for name in ("N", "D", "C") if name not in values]
    if len(missing) > 1:
        raise InputError(f"{where}: flops='6ND' needs two of the columns N, D and C; missing: {', '.join(missing)}")
    if missing == ["C"]:
        values["C"] = 6 * values["N"] * values["D"]
    elif missing:
        other = "D" if missing == ["N"] else "N"
        values[missing[0]] = values["C"] / (6 * values[other])
    else:
        ratio = values["C"] / (6 * values["N"] * values["D"])
        for i in np.flatnonzero(np.abs(ratio - 1) > 0.01)[:1]:
            raise InputError(
                f"{where}: {at(rows[i])}: C is {ratio[i]:.3g} times 6 N D, so flops is not '6ND': say flops='other'"
            )
