"""What the commands that measure share: options, a progress bar, and a place to write that is checked beforehand."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: the best there is.", metavar="NAME")]
Threads = Annotated[int | None, typer.Option(help="Threads of torch on a CPU; default: torch's own.", metavar="N")]


def writable(path: Path, option: str) -> None:
    """Refuse a place that cannot be written before minutes are spent. Raises: InputError."""
    from tfsim.errors import InputError

    folder = path.parent
    if path.is_dir():
        raise InputError(f"--{option}: {path} is a directory, not a file")
    if not folder.is_dir():
        raise InputError(f"--{option}: {folder}: no such directory")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"--{option}: {path}: cannot write there")


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
