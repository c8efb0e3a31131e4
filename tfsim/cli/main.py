"""The `tfsim` command: finds the command to run, and turns every input error into one line."""

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command as build_command

from tfsim.cli.shell import Lazy, LazyGroup, new_app
from tfsim.errors import InputError, one_line

EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 1


class Commands(LazyGroup):
    """All commands of tfsim."""

    table = {  # noqa: RUF012  (typed as a ClassVar in LazyGroup)
        "model": Lazy("tfsim.cli.model", "The models tfsim knows: list them, or show one's counts."),
        "hardware": Lazy("tfsim.cli.hardware", "Devices and systems: list, show, compare."),
        "train": Lazy("tfsim.cli.train", "Time, memory and cost of training a model on a system."),
        "serve": Lazy("tfsim.cli.serve", "Latency, throughput and cost of serving a model."),
        "compare": Lazy("tfsim.cli.compare", "Architectures side by side as the context grows."),
        "validate": Lazy("tfsim.cli.validate", "Predictions against published measurements."),
        "calibrate": Lazy("tfsim.cli.calibrate", "Fit the constants of the timing formulas to measurements."),
        "measure": Lazy("tfsim.cli.measure", "Run torch on this machine: what its operations cost."),
        "run": Lazy("tfsim.cli.run", "Answer the questions of a scenario file, and write reports."),
    }


app = new_app(
    "How big, how fast, how much memory, how many devices, and what does it cost: "
    "training and serving Transformers, before you buy or book hardware.",
    cls=Commands,
    invoke_without_command=True,
)


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from tfsim import __version__

        print(f"tfsim {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run tfsim with `args` (default: the process's) and return the exit code.

    0 when it answered, 2 with one line on stderr for bad input, 130 when interrupted.
    """
    gc.set_threshold(100_000)  # imports make many objects that stay: looking through them costs a tenth of the start
    # pydantic would look through every installed distribution for plugins of its own: another twentieth
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character is no error
    try:
        result = build_command(app).main(
            args=list(sys.argv[1:] if args is None else args),
            prog_name="tfsim",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except InputError as error:
        return _fail(str(error))
    except typer.TyperException as error:  # an unknown option, a missing argument, a bad value
        return _fail(_usage_message(error))
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Nobody reads on: point stdout elsewhere, or Python's last flush complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    return result if isinstance(result, int) else 0


def _usage_message(error: typer.TyperException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    ctx = getattr(error, "ctx", None)
    return f"{message} (see {ctx.command_path} --help)" if ctx is not None else message


def _fail(message: str) -> int:
    print(f"tfsim: {one_line(message)}", file=sys.stderr)
    return EXIT_INPUT


if __name__ == "__main__":
    sys.exit(main())
