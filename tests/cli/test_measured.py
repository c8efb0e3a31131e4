"""tfsim measure models and tfsim validate measured, as typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.test_validate import message, text_of
from tfsim.cli.main import main

RUNS = Path(__file__).parents[2] / "reports" / "measured" / "runs.csv"
VALIDATE = ["validate", "measured", "--data"]


@pytest.fixture
def runs() -> pd.DataFrame:
    return pd.read_csv(RUNS)


def write(frame: pd.DataFrame, tmp_path: Path) -> str:
    path = tmp_path / "runs.csv"
    frame.to_csv(path, index=False)
    return str(path)


def test_the_counts_of_all_published_rows_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    """Without torch: what it counted when the rows were made, and what tfsim counts now."""
    found = json.loads(text_of([*VALIDATE, str(RUNS), "--json"], capsys), parse_constant=pytest.fail)
    assert found["counts"]["unequal"] == []
    assert found["counts"]["equal"] == found["counts"]["compared"] > 300


def test_every_case_is_there(runs: pd.DataFrame) -> None:
    from tfsim.measure.models import FAMILIES, cases

    columns = ["model", "phase", "batch", "seq_len", "past_len", "encoder_len"]
    wanted = {(c.model, c.phase, c.batch, c.seq_len, c.past_len, c.encoder_len) for m in FAMILIES for c in cases(m)}
    eager = runs[runs["mode"] == "eager"]
    assert set(eager[columns].itertuples(index=False, name=None)) == wanted
    assert eager["time_s"].max() > 100 * eager["time_s"].min()


def test_a_count_that_is_not_equal_is_shown(
    runs: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.loc[0, "flops"] += 2
    data = write(runs, tmp_path)
    found = json.loads(text_of([*VALIDATE, data, "--json"], capsys))
    (wrong,) = found["counts"]["unequal"]
    assert wrong["row"] == 0 and wrong["quantity"] == "flops" and wrong["measured"] == wrong["predicted"] + 2
    assert "not equal" in text_of([*VALIDATE, data], capsys)


def test_a_users_own_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any specification, and only the columns that are needed."""
    own = pd.DataFrame(
        [{"model": "gpt2-medium", "phase": "train", "batch": 1, "seq_len": 8, "time_s": 0.1, "flops": 1}]
    )
    (wrong,) = json.loads(text_of([*VALIDATE, write(own, tmp_path), "--json"], capsys))["counts"]["unequal"]
    assert wrong["predicted"] > 1e8


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("phase", "backward", "line 2: phase: 'backward' is not one of forward, train, decode"),
        ("batch", "many", "line 2: batch: 'many' is not a number"),
        ("batch", "0", "line 2: batch: 0 is not a size"),
        ("seq_len", "1.5", "line 2: seq_len: 1.5 is not a size"),
        ("mode", "jit", "line 2: mode: 'jit' is not one of eager, compile"),
        ("model", "lama", "unknown model 'lama'"),
    ],
)
def test_bad_cells_are_named(
    runs: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, value: str, says: str
) -> None:
    runs = runs.head(2).astype({column: object})
    runs.loc[0, column] = value
    assert says in message([*VALIDATE, write(runs, tmp_path)], capsys)


def test_a_missing_column_or_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no column 'phase'" in message([*VALIDATE, write(pd.DataFrame({"model": ["gpt2"]}), tmp_path)], capsys)
    assert "cannot read" in message([*VALIDATE, str(tmp_path / "none.csv")], capsys)


def test_cases_are_listed_without_torch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    listed = json.loads(text_of(["measure", "models", "--list", "--json"], capsys))
    assert len(listed) > 100 and listed[0]["model"] == "gpt2"
    error = message(["measure", "models", "--models", "gpt2"], capsys)
    assert "tfsim[measure]" in error
    assert "did you mean llama" in message(["measure", "models", "--models", "lama"], capsys)


def test_measuring_one_model_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed: nothing to measure")
    out = tmp_path / "runs.csv"
    assert main(["measure", "models", "--models", "lstm", "--quick", "--device", "cpu", "--out", str(out)]) == 0
    table = capsys.readouterr()
    assert table.err == "" and "lstm" in table.out
    rows = pd.read_csv(out)
    assert len(rows) == 6 and (rows["time_s"] > 0).all() and rows["flops"].notna().all()
    found = json.loads(text_of([*VALIDATE, str(out), "--json"], capsys))
    assert found["counts"]["unequal"] == []
