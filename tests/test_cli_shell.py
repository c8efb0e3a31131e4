"""The command line as a whole: quick to start, one line per error, exit code 2."""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

from tfsim.cli import main as cli
from tfsim.cli.shell import Lazy, LazyGroup, new_app
from tfsim.errors import InputError
from tfsim.plain import plain

TFSIM = [sys.executable, "-m", "tfsim.cli.main"]
HEAVY = ["numpy", "pydantic", "yaml", "pandas", "matplotlib", "scipy", "torch", "rich", "jinja2"]

# A stand-in for a command module: what the real ones look like to the shell.
app = new_app("A command group for these tests.")


@app.command()
def show(
    name: str,
    size: Annotated[int, typer.Option(help="A whole number.")] = 1,
) -> None:
    """Show it."""
    if name == "bad":
        raise InputError("name: 'bad' is\nno good")
    if name == "pipe":
        raise BrokenPipeError
    if name == "interrupt":
        raise KeyboardInterrupt
    print(name, size)


@app.command()
def other() -> None:
    """Something else."""


class Commands(LazyGroup):
    table = {  # noqa: RUF012
        "thing": Lazy("tests.test_cli_shell", "A thing."),
        "broken": Lazy("tests.no_such_module", "Imported only when it runs."),
    }


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    root = new_app("Test.", cls=Commands, invoke_without_command=True)
    root.callback()(cli.root)
    monkeypatch.setattr(cli, "app", root)
    monkeypatch.setitem(sys.modules, "tests.test_cli_shell", sys.modules[__name__])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["thng"], "unknown command 'thng': did you mean thing?"),
        (["thing", "shwo", "x"], "unknown command 'shwo': did you mean show?"),
        (["thing"], "tfsim thing: missing command: choose from show, other"),
        (["--wrong"], "no such option: --wrong"),
        (["thing", "show"], "missing argument 'name' (see tfsim thing show --help)"),
        (["thing", "show", "a", "b"], "got unexpected extra argument"),
        (["thing", "show", "a", "--sized", "3"], "(Possible options: --size) (see tfsim thing show --help)"),
        (["thing", "show", "a", "--size"], "requires an argument"),
        (["thing", "show", "a", "--size", "big\nger"], "invalid value for '--size'"),
        (["thing", "show", "bad"], r"name: 'bad' is\nno good"),
        (["a\nb\x1b[0m"], r"unknown command 'a\nb\x1b[0m': choose from thing, broken"),
        ([""], "unknown command ''"),
    ],
)
@pytest.mark.usefixtures("shell")
def test_bad_input_is_one_line_and_exit_code_2(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tfsim: ")
    assert expected in err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()


@pytest.mark.usefixtures("shell")
def test_good_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["thing", "show", "a", "--size", "3"]) == 0
    assert capsys.readouterr().out == "a 3\n"
    for args in ([], ["--help"], ["-h"]):
        assert cli.main(args) == 0
        assert "broken  Imported only when it runs." in capsys.readouterr().out
    assert cli.main(["thing", "show", "--help"]) == 0
    assert "A whole number." in capsys.readouterr().out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tfsim 0.")
    assert cli.main(["thing", "show", "interrupt"]) == 130


def test_a_closed_pipe_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*TFSIM, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


def test_an_ascii_terminal_is_no_error() -> None:
    code = "from tfsim.cli import main; main.main(['--version']); print('5 µs')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("5 ?s\n")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tfsim.cli.main import main; main(['--help']);"
        f"sys.exit(','.join(m for m in {HEAVY} if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_is_quick() -> None:
    """Under 0.3 s: here by CPU time, which a busy machine does not spoil."""

    def seconds() -> float:
        before = os.times()
        subprocess.run([*TFSIM, "--help"], stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        return (after.children_user - before.children_user) + (after.children_system - before.children_system)

    assert statistics.median(seconds() for _ in range(5)) < 0.3


def test_names_are_lazy_and_listed() -> None:
    import tfsim

    assert tfsim.InputError is InputError
    assert set(tfsim.__all__) == {*tfsim._HOME, "__version__"}
    assert dir(tfsim) == sorted(tfsim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tfsim.nothing


def test_plain_data() -> None:
    import numpy as np
    import pandas as pd

    class Result:
        def to_dict(self) -> dict[str, object]:
            return {"time": np.float64(1.5), "nan": float("nan"), "path": Path("x")}

    frame = pd.DataFrame({"tp": [1, 2], "time": [0.5, np.inf]})
    assert plain({"r": Result(), "f": frame, "a": np.arange(2), 1: (True, None, 10**30)}) == {
        "r": {"time": 1.5, "nan": None, "path": "x"},
        "f": [{"tp": 1, "time": 0.5}, {"tp": 2, "time": None}],
        "a": [0, 1],
        "1": [True, None, 10**30],
    }


@pytest.mark.parametrize("wide", [True, False])
def test_tables_print_plain_text(wide: bool, capsys: pytest.CaptureFixture[str]) -> None:
    from tfsim.cli.output import facts, table

    table(["name", "speed"], [["[b]x[/b]", "1.5"], ["y" * 90 * wide, None]], title="T")
    facts([("label", 3), ("none", None)], title="F")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[b]x[/b]" in out
    assert "y" * 90 * wide in out
    assert "label  3" in out
