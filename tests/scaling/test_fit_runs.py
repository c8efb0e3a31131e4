"""Reading runs: column names, exclusions, derived columns, and every kind of bad file as one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tfsim.errors import InputError
from tfsim.scaling.fit_runs import read_runs

GOOD = "N,D,loss\n1e8,2e9,3.5\n2e8,4e9,3.2\n4e8,4e9,3.0\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_table_and_mapping_read_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    for source in (path, str(path), pd.read_csv(path), pd.read_csv(path).to_dict(orient="list")):
        runs = read_runs(source)
        assert len(runs) == 3
        assert runs.N is not None
        assert runs.N.tolist() == [1e8, 2e8, 4e8]
        assert runs.loss.tolist() == [3.5, 3.2, 3.0]
        assert runs.C is None


def test_columns_by_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, "params,tokens,val,budget\n1e8,2e9,3.5,small\n2e8,4e9,3.2,big\n")
    runs = read_runs(path, columns={"N": "params", "D": "tokens", "loss": "val", "group": "budget"})
    assert runs.column("D").tolist() == [2e9, 4e9]
    assert runs.group == ("small", "big")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("params,tokens,val_loss", {"N": "params", "D": "tokens", "loss": "val_loss"}),
        (
            "N_params,Training Tokens,Validation_Loss",
            {"N": "N_params", "D": "Training Tokens", "loss": "Validation_Loss"},
        ),
        ("N,flops,loss", {"N": "N", "C": "flops", "loss": "loss"}),
        ("n_params,compute,loss,val_loss", {"N": "n_params", "C": "compute", "loss": "loss"}),  # its own name wins
        ("D,loss,isoflop_budget", {"D": "D", "loss": "loss", "group": "isoflop_budget"}),
        ("layers,width,loss", {"loss": "loss"}),
    ],
)
def test_columns_are_found_by_their_usual_names(tmp_path: Path, header: str, found: dict[str, str]) -> None:
    row = ",".join(str(2 + i) for i in range(header.count(",") + 1))
    assert dict(read_runs(written(tmp_path, f"{header}\n{row}\n")).columns) == found


def test_a_named_column_is_no_other_field() -> None:
    runs = read_runs({"params": [1e8], "tokens": [2e9], "loss": [3.0]}, columns={"loss": "tokens"})
    assert (runs.D, runs.loss.tolist()) == (None, [2e9])


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'N,D,loss,note\n\n1e8,2e9,3.5,"two\nlines"\n\n2e8,4e9,bad,\n')
    with pytest.raises(InputError, match="loss: line 6: 'bad'"):
        read_runs(path)
    runs = read_runs(path, exclude=[1])
    assert (runs.where(0), runs.where(1)) == ("row 0 (line 4)", "row 1 (line 6)")
    assert read_runs({"loss": [3.0]}).where(0) == "row 0"


def test_a_run_may_be_in_no_group(tmp_path: Path) -> None:
    assert read_runs(written(tmp_path, "N,loss,group\n1,2,a\n2,2,\n")).group == ("a", "")


def test_compute_is_derived_only_when_said_so(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    with pytest.raises(InputError, match=r'C: these runs have no such column.*c_means="6nd"'):
        read_runs(path).column("C")
    assert read_runs(path, c_means="6nd").column("C").tolist() == [1.2e18, 4.8e18, 9.6e18]
    runs = read_runs({"N": [1e9], "C": [1.2e20], "loss": [2.5]}, c_means="6nd")
    assert runs.column("D").tolist() == [2e10]
    runs = read_runs({"D": [2e10], "C": [1.2e20], "loss": [2.5]}, c_means="6nd")
    assert runs.column("N").tolist() == [1e9]


def test_another_count_of_flops_is_not_six_n_d() -> None:
    columns = {"N": [1e8, 1e9], "D": [2e9, 2e10], "C": [1.2e18, 1.7e20], "loss": [3.5, 2.5]}
    with pytest.raises(InputError, match=r"row 1: C is 1\.42 times 6 N D"):
        read_runs(columns, c_means="6nd")
    assert read_runs(columns).column("C").tolist() == [1.2e18, 1.7e20]
    with pytest.raises(InputError, match="needs two of the columns N, D and C; missing: N, D"):
        read_runs({"C": [1e20], "loss": [2.5]}, c_means="6nd")


def test_exclusion_is_explicit_and_remembered() -> None:
    columns = {"N": [1e8, 2e8, 4e8], "D": [2e9, 4e9, 4e9], "loss": [3.5, np.nan, 3.0], "odd": [0, 1, 0]}
    for exclude in ("odd", [1]):
        runs = read_runs(columns, exclude=exclude)  # the bad value is in the row left out
        assert (runs.row.tolist(), runs.excluded) == ([0, 2], (1,))
    with pytest.raises(InputError, match="did you mean odd"):
        read_runs(columns, exclude="od")
    with pytest.raises(InputError, match="3 is not a row from 0 to 2"):
        read_runs(columns, exclude=[3])
    with pytest.raises(InputError, match=r"holds '3\.5', not 0 or 1"):
        read_runs(columns, exclude="loss")
    with pytest.raises(InputError, match="no runs"):
        read_runs(columns, exclude=[0, 1, 2])


def test_a_repeated_seed_is_a_run_and_a_copied_row_is_not() -> None:
    columns = {"N": [1e8, 1e8, 2e8], "D": [2e9, 2e9, 2e9]}
    assert len(read_runs({**columns, "loss": [3.5, 3.51, 3.2]})) == 3
    with pytest.raises(InputError, match="row 0 and row 1 are the same run"):
        read_runs({**columns, "loss": [3.5, 3.5, 3.2]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("3.2", "nan"), "loss: line 3: 'nan' is not a positive finite number"),
        (GOOD.replace("3.2", ""), "loss: line 3: '' is not a positive"),
        (GOOD.replace("3.2", "inf"), "line 3: 'inf' is not"),
        (GOOD.replace("3.2", "-3.2"), "line 3: '-3.2' is not"),
        (GOOD.replace("4e8", "0"), "N: line 4: '0' is not"),
        (GOOD.replace("4e8", "1e200", 1), "N: line 4: '1e200' is implausibly large"),
        (GOOD.replace("4e8", "400M"), "N: line 4: '400M' is not"),
        (GOOD.replace("loss", "score"), "no column of losses: say which of 'N', 'D', 'score' holds them"),
        (
            GOOD.replace("loss", "val_loss").replace("D", "test_loss"),
            "loss may be column 'test_loss' or 'val_loss': say",
        ),
        (GOOD.replace(",", ";"), "columns apart by semicolons: save the file with commas"),
        (GOOD.replace(",", "\t"), "columns apart by tabs"),
        (GOOD.replace("3.2", '"3.2'), "line 4: not CSV: unexpected end of data"),
        (GOOD.replace("2e8,4e9,3.2", "2e8,4e9"), "line 3: 2 cells under 3 column names"),
        (",,\n", "no header"),
        (GOOD.replace("D", "N"), "two columns named 'N'"),
        (GOOD + "1,2,3,4\n", "line 5: 4 cells under 3 column names"),
        ("", "the file is empty"),
        ("N,D,loss\n", "no runs"),
        (GOOD + "1e8,2e9,3.5\n", "line 2 and line 5 are the same run"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        read_runs(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_runs(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a directory"):
        read_runs(tmp_path)
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00N,D\xd8\n")
    with pytest.raises(InputError, match="not a text file"):
        read_runs(binary)
    with pytest.raises(InputError, match="not a CSV file, a DataFrame or a mapping"):
        read_runs(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="different length"):
        read_runs({"N": [1.0, 2.0], "loss": [3.0]})
    with pytest.raises(InputError, match="is not a column of values"):
        read_runs({"N": 1e9, "loss": [3.0]})
    with pytest.raises(InputError, match="no columns"):
        read_runs({})
    with pytest.raises(InputError, match="True is not a number"):
        read_runs({"N": [True], "loss": [3.0]})
    with pytest.raises(InputError, match="did you mean params"):
        read_runs({"params": [1e9], "loss": [3.0]}, columns={"N": "param"})
    with pytest.raises(InputError, match="unknown columns 'M'"):
        read_runs({"params": [1e9], "loss": [3.0]}, columns={"M": "params"})
    with pytest.raises(InputError, match="unknown c_means '8nd'"):
        read_runs({"N": [1e9], "loss": [3.0]}, c_means="8nd")
    with pytest.raises(InputError, match="unknown n_means 'totl': did you mean total"):
        read_runs({"N": [1e9], "loss": [3.0]}, n_means="totl")
    with pytest.raises(InputError, match="column 'x' cannot be both D and N"):
        read_runs({"x": [1e9], "loss": [3.0]}, columns={"N": "x", "D": "x"})
