"""What the commands that measure share: options and a progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: the best there is.", metavar="NAME")]
Threads = Annotated[int | None, typer.Option(help="Threads of torch on a CPU; default: torch's own.", metavar="N")]


@contextmanager
def progress_bar(doing: str) -> "Iterator[Callable[[int, int, str], None] | None]":
    """What reports progress on stderr; None unless it is a terminal."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, now: bar.update(task, completed=done, total=total, description=now)
