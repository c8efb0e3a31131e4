"""Sections of a summary on the terminal: panels with stacked bars, told apart by colour and by their fill."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from tfsim.errors import one_line
from tfsim.palette import COLOURS
from tfsim.reports.summary import Bar, Fact, Section

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from tfsim.scenario import ComparisonAnswer

WIDTH = 100
_LONGEST = 4000
_LABEL = 11
_MARGIN = 18  # what borders and labels take
_FILLS = "█▓▒░▚╱╳=#"
_FREE = "·"
_LIMIT = "┃"
_TONES = {"plain": "", "good": "bold green", "bad": "bold red", "note": "dim"}
_MARKS = {"good": "✔ ", "bad": "✘ "}


def screen() -> "Console":
    """A console of the width the panels are made for; narrower on a narrow terminal."""
    from rich.console import Console

    found = Console(highlight=False, emoji=False)
    found.width = min(WIDTH, found.width) if sys.stdout.isatty() else WIDTH
    return found


def print_sections(sections: Iterable[Section], *, title: str = "", about: str = "", closing: str = "") -> None:
    """Print a panel per section, a heading above and a quiet line below."""
    from rich.text import Text

    out = screen()
    if title:
        out.print(Text(title, style="bold"))
    if about:
        out.print(Text(about, style="dim"))
    for section in sections:
        out.print(_panel(section, max(10, out.width - _MARGIN)))
    if closing:
        out.print(Text(closing, style="dim"))


def _panel(section: Section, bar_width: int) -> "Panel":
    from rich.box import ROUNDED
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim", min_width=_LABEL)
    grid.add_column(ratio=1)
    for item in section.items:
        if isinstance(item, Fact):
            grid.add_row(Text(one_line(item.label)), _fact(item))
        else:
            grid.add_row(Text(one_line(item.label)), _bar(item, bar_width))
            grid.add_row("", _legend(item, bar_width))
    heading = Text(f" {one_line(section.title)} ", style="bold not dim")
    return Panel(grid, title=heading, title_align="left", box=ROUNDED, border_style="dim", padding=(0, 1))


def _fact(fact: Fact) -> "Text":
    from rich.text import Text

    text = Text(_MARKS.get(fact.tone, ""), style=_TONES[fact.tone])
    for index, piece in enumerate(fact.pieces):
        text.append(" · " if index else "", style="dim").append(one_line(piece, _LONGEST))
    if fact.aside:
        text.append(f"  {one_line(fact.aside, _LONGEST)}", style="dim")
    return text


def _bar(bar: Bar, width: int) -> "Text":
    from rich.text import Text

    text = Text()
    start = 0
    for part, share in zip(bar.parts, accumulate(p.share for p in bar.parts), strict=True):
        end = min(width, round(width * share))
        text.append(_FILLS[part.look % len(_FILLS)] * (end - start), style=COLOURS[part.look % len(COLOURS)])
        start = end
    text.append(_FREE * (width - start), style="dim")
    if bar.limit is None:
        return text
    at = min(width - 1, round(width * bar.limit))  # where the memory ends
    return Text.assemble(text[:at], (_LIMIT, "bold red"), text[at + 1 :])


def _legend(bar: Bar, width: int) -> "Text":
    """What each fill stands for, the largest first; no entry is broken over two lines."""
    from rich.text import Text

    text, used = Text(), 0
    for part in sorted(bar.parts, key=lambda p: -p.share):
        entry = f" {part.name} {part.words}"
        size = len(entry) + 1
        if text:
            starts_line = used + 2 + size > width
            text.append("\n" if starts_line else "  ")
            used = 0 if starts_line else used + 2
        text.append(_FILLS[part.look % len(_FILLS)], style=COLOURS[part.look % len(COLOURS)]).append(entry)
        used += size
    return text


def print_grid(rows: Sequence[Mapping[str, str]], *, title: str) -> None:
    """Print rows of words under their names in the width of the panels, numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, title=Text(one_line(title)), title_justify="left", title_style="bold", padding=(0, 2, 0, 1))
    for name in rows[0]:
        numeric = all(row[name].lstrip("-+$")[:1].isdigit() or row[name] == "-" for row in rows)
        grid.add_column(Text(name), justify="right" if numeric else "left", header_style="dim")
    for row in rows:
        grid.add_row(*(Text(one_line(row[name])) for name in rows[0]))
    screen().print(grid)


def print_comparison(answer: "ComparisonAnswer") -> None:
    """Print a comparison as a table per case."""
    from tfsim.cli.output import table
    from tfsim.reports.summary import BEYOND, comparison_rows

    rows = comparison_rows(answer)
    columns = [name for name in rows[0] if name not in ("model", "parameters")]
    for model, parameters in dict.fromkeys((row["model"], row["parameters"]) for row in rows):
        mine = [[row[name] for name in columns] for row in rows if row["model"] == model]
        table(columns, mine, title=f"{model}: {parameters} parameters")
    if any(BEYOND in cell for row in rows for cell in row.values()):
        screen().print(f"{BEYOND.strip()} more than the device has: the times assume it had it.", style="dim")
