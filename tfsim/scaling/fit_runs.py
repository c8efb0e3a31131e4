"""The user's own training runs: read, named, checked. Everything wrong with them is one line."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tfsim.errors import InputError, choice, quote, unknown
from tfsim.files import read_text
from tfsim.scaling.laws import COUNTS_OF_N
from tfsim.units import Array

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Source: TypeAlias = str | os.PathLike[str] | pd.DataFrame | Mapping[str, Any]

FIELDS = ("N", "D", "C", "loss", "group")
COUNTS_OF_C = ("6nd", "exact", "not_stated")
# Names that columns have in published tables, without case and signs. The field's own name comes first.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "N": ("n", "params", "parameters", "nparams", "numparams", "nparameters", "modelparams", "modelsize", "ntotal"),
    "D": ("d", "tokens", "ntokens", "numtokens", "trainingtokens", "traintokens", "dtokens", "tokensseen"),
    "C": ("c", "flops", "compute", "trainingflops", "trainflops", "totalflops", "computeflops"),
    "loss": ("loss", "valloss", "validationloss", "evalloss", "testloss", "finalloss", "lossval"),
    "group": ("group", "isoflopbudget", "isoflopgroup", "budget"),
}
_LARGEST = 1e40  # far above any count of parameters, tokens or FLOPs; products of several stay finite
_CSV_LIMIT = 200_000_000  # bytes


@dataclass(frozen=True)
class Runs:
    """Training runs, one per element: N parameters, D tokens, C training FLOPs, final loss in nats per token.

    N, D or C is None when neither given nor derived. ``group`` names each run's isoFLOP group, ``row`` is where it
    stood in the source (from 0), ``excluded`` lists the rows left out at the user's word and ``excluded_why`` says
    which word that was. ``columns`` are the names that N, D, C, loss and group had. A run whose group is "" is in none.

    ``n_means`` and ``c_means`` say what N and C count, in the words of ``Law.n`` and ``Law.c``; "not_stated" when the
    user did not say. C is "6nd" (C = 6 N D) or "exact" (the user's own count), which nothing is derived from.
    """

    loss: Array
    row: NDArray[np.int64]
    N: Array | None = None
    D: Array | None = None
    C: Array | None = None
    group: tuple[str, ...] | None = None
    excluded: tuple[int, ...] = ()
    excluded_why: str = ""
    n_means: str = "not_stated"
    c_means: str = "not_stated"
    columns: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[int, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.loss)

    def column(self, name: str) -> Array:
        """N, D or C. Raises: InputError when these runs have none."""
        values: Array | None = getattr(self, name)
        if values is None:
            hint = "" if name == "N" else ', or c_means="6nd" if C = 6 N D holds for these runs'
            raise InputError(f"{name}: these runs have no such column: name it in columns{hint}")
        return values

    def budgets(self) -> Array:
        """Training FLOPs to order runs by: C, or 6 N D where the runs have no C. Raises: InputError without N or D."""
        return self.C if self.C is not None else 6 * self.column("N") * self.column("D")

    def where(self, row: int) -> str:
        """A row as the user finds it: "row 7 (line 9)" of a file, "row 7" of a table in memory."""
        return f"row {row} (line {self.lines[row]})" if self.lines else f"row {row}"

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
    n_means: str = "not_stated",
    c_means: str = "not_stated",
) -> Runs:
    """Runs from a CSV file, a DataFrame or a mapping of columns.

    ``columns`` says which column holds N, D, C, loss and group; those it does not name are found by their usual names
    (params, tokens, flops, val_loss, isoflop_budget, ...). ``exclude`` names a 0/1 column that marks the runs to leave
    out, or lists their rows (from 0): nothing else is ever left out. ``n_means`` is one of the counts of ``Law.n``.
    With ``c_means`` = "6nd" the missing one of N, D and C is C = 6 N D's.

    Raises: InputError for a file that cannot be read, an unknown, missing or ambiguous column, a value that is not a
    positive finite number, the same run twice, and a C that "6nd" contradicts.
    """
    choice("n_means", n_means, COUNTS_OF_N)
    choice("c_means", c_means, COUNTS_OF_C)
    table, where, lines = _table(source)

    def at(i: int) -> str:
        return f"line {lines[i]}" if lines else f"row {i}"

    names = _names(columns, table, where)
    first = len(next(iter(table.values())))
    if any(len(values) != first for values in table.values()):
        raise InputError(f"{where}: columns of different length")
    left_out, why = _excluded(exclude, table, first, where, at)
    keep = np.array([i not in left_out for i in range(first)], dtype=bool)
    rows = np.arange(first)[keep]
    values = {
        key: _numbers(np.asarray(table[names[key]], dtype=object)[keep], rows, f"{where}: {names[key]}", at)
        for key in FIELDS[:4]
        if key in names
    }
    if not len(rows):
        raise InputError(f"{where}: no runs")
    _refuse_repeats(values, rows, where, at)
    if c_means == "6nd":
        _derive(values, rows, where, at)
    group = _groups(table[names["group"]], rows) if "group" in names else None
    loss = values.pop("loss")
    return Runs(
        loss, rows, **values, group=group, excluded=tuple(sorted(left_out)), excluded_why=why,
        n_means=n_means, c_means=c_means, columns=names, lines=dict(enumerate(lines)),
    )  # fmt: skip


def _table(source: Source) -> tuple[dict[str, Any], str, list[int]]:
    """The columns by name, what to call the source, and for a file the line of each row."""
    if isinstance(source, str | os.PathLike):
        return _csv(source)
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
    return table, "runs", []


def _csv(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str, list[int]]:
    where = os.fspath(path)
    reader = csv.reader(read_text(path, _CSV_LIMIT).splitlines(keepends=True), strict=True)
    rows, lines = [], []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append([cell.strip() for cell in cells])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: not CSV: {error}") from None
    if not rows:
        raise InputError(f"{where}: no header")
    headers = rows[0]
    if len(headers) == 1:
        for sign, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if sign in headers[0]:
                raise InputError(f"{where}: columns apart by {word}: save the file with commas")
    _refuse_same_headers(headers, where)
    for cells, line in zip(rows, lines, strict=True):
        if len(cells) != len(headers):
            raise InputError(f"{where}: line {line}: {len(cells)} cells under {len(headers)} column names")
    return {name: [cells[i] for cells in rows[1:]] for i, name in enumerate(headers)}, where, lines[1:]


def _refuse_same_headers(headers: list[str], where: str) -> None:
    for name in headers:
        if headers.count(name) > 1:
            raise InputError(f"{where}: two columns named {quote(name)}")


def _names(columns: Mapping[str, str] | None, table: Mapping[str, Any], where: str) -> dict[str, str]:
    """The column of each field that has one: the user's, else the one with a usual name."""
    given = dict(columns or {})
    for key, name in given.items():
        choice("columns", key, FIELDS)
        if name not in table:
            raise InputError(f"{where}: {key}: {unknown('column', str(name), table)}")
        twice = next((other for other in given if other != key and given[other] == name), None)
        if twice is not None:
            raise InputError(f"{where}: column {quote(name)} cannot be both {twice} and {key}")
    names = {}
    for key in FIELDS:
        usual = [name for name in table if _bare(name) in _NAMES[key] and name not in given.values()]
        if key in given or key in usual:
            names[key] = given.get(key, key)
        elif len(usual) > 1:
            raise InputError(f"{where}: {key} may be column {' or '.join(map(quote, usual))}: say which")
        elif usual:
            names[key] = usual[0]
    if "loss" not in names:
        raise InputError(f"{where}: no column of losses: say which of {', '.join(map(quote, table))} holds them")
    return names


def _bare(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum())


def _excluded(
    exclude: str | Sequence[int] | None, table: Mapping[str, Any], n: int, where: str, at: Callable[[int], str]
) -> tuple[set[int], str]:
    """The rows to leave out, and why."""
    if exclude is None:
        return set(), ""
    if isinstance(exclude, str):
        if exclude not in table:
            raise InputError(f"{where}: exclude: {unknown('column', exclude, table)}")
        marks = [str(mark).strip().lower() for mark in table[exclude]]
        for i, mark in enumerate(marks):
            if mark not in ("0", "1", "true", "false", "0.0", "1.0"):
                raise InputError(f"{where}: exclude: {at(i)}: column {quote(exclude)} holds {quote(mark)}, not 0 or 1")
        return {i for i, mark in enumerate(marks) if mark in ("1", "true", "1.0")}, f"column {quote(exclude)}"
    for row in exclude:
        if isinstance(row, bool) or not isinstance(row, int | np.integer) or not 0 <= row < n:
            raise InputError(f"{where}: exclude: {quote(row)} is not a row from 0 to {n - 1}")
    return {int(row) for row in exclude}, "named by the user"


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


def _groups(values: Any, rows: Any) -> tuple[str, ...]:
    """The runs' groups; "" for a run in none."""
    found = (str(values[i]).strip() for i in rows)
    return tuple("" if name in ("nan", "None") else name for name in found)


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
        raise InputError(f"{where}: c_means='6nd' needs two of the columns N, D and C; missing: {', '.join(missing)}")
    if missing == ["C"]:
        values["C"] = 6 * values["N"] * values["D"]
    elif missing:
        other = "D" if missing == ["N"] else "N"
        values[missing[0]] = values["C"] / (6 * values[other])
    else:
        ratio = values["C"] / (6 * values["N"] * values["D"])
        for i in np.flatnonzero(np.abs(ratio - 1) > 0.01)[:1]:
            raise InputError(f"{where}: {at(rows[i])}: C is {ratio[i]:.3g} times 6 N D, so c_means is not '6nd'")
