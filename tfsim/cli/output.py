"""What commands print with: JSON, tables and lists of facts on stdout."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfsim.errors import one_line
from tfsim.plain import plain

if TYPE_CHECKING:
    from rich.console import Console

# Wide enough for every table of tfsim, so that a file or pipe never gets a truncated cell.
_PIPE_WIDTH = 140
_LONGEST = 4000  # characters of a cell


def print_json(value: object) -> None:
    """Print `value` as JSON, and nothing else, on stdout. See `tfsim.plain`."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def console() -> "Console":
    """A rich console on stdout; into a file or pipe plain text, wide enough for every table."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(highlight=False, emoji=False, width=None if terminal else _PIPE_WIDTH)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print rows under named columns; columns of numbers are set to the right. None prints as -."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(cell) for cell in row] for row in rows]
    grid = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(_numeric(row[index]) for row in cells)
        grid.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*map(Text, row))  # Text: a name such as "[x]" is no markup
    console().print(grid)


def facts(pairs: Iterable[tuple[str, object]], *, title: str | None = None) -> None:
    """Print labelled values, one a line, aligned; long ones are folded on a terminal. None prints as -.

    Without rich, which takes longer to load than `tfsim model show` has.
    """
    terminal = sys.stdout.isatty()
    rows = [("  " + _cell(label), _cell(value)) for label, value in pairs]
    edge = max((len(label) for label, _ in rows), default=0) + 2
    if title is not None:
        print(f"\x1b[1m{_cell(title)}\x1b[0m" if terminal else _cell(title))
    room = max(20, shutil.get_terminal_size().columns - edge) if terminal else _LONGEST
    for label, value in rows:
        lines = textwrap.wrap(value, room) or [value]
        head = label.ljust(edge)
        print((f"\x1b[2m{head}\x1b[0m" if terminal else head) + lines[0])
        for line in lines[1:]:
            print(" " * edge + line)


def _cell(value: object) -> str:
    """Printable text: a control character in a file's name or note must not drive the terminal."""
    return "-" if value is None else one_line(str(value), _LONGEST)


def _numeric(cell: str) -> bool:
    return cell in ("-", "n/a") or cell.lstrip("-+$~<>")[:1].isdigit()


def print_reports(paths: "Sequence[Path | str]") -> None:
    """Where a report's pages are: one line, for they differ in their suffix."""
    if paths:
        print("Report:", paths[0], *(f"and {Path(path).suffix}" for path in paths[1:]))
