"""tfsim measure models and tfsim validate measured, as typed."""

from __future__ import annotations

import json
import sys
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.test_validate import message, text_of
from tfsim.cli.main import main
from tfsim.measure.models import FAMILIES, SETS, Sizes, cases

RUNS = Path(__file__).parents[2] / "reports" / "measured" / "runs.csv"
VALIDATE = ["validate", "measured", "--data"]


@pytest.fixture
def runs() -> pd.DataFrame:
    return pd.read_csv(RUNS)


def write(frame: pd.DataFrame, tmp_path: Path) -> str:
    path = tmp_path / "runs.csv"
    frame.to_csv(path, index=False)
    return str(path)


def test_every_row_is_a_case(runs: pd.DataFrame) -> None:
    """A file with held-out rows was measured with all cases that there are now, and holds every one."""
    columns = ["model", "phase", "batch", "seq_len", "past_len", "encoder_len", "set"]
    wanted = {astuple(c) for which in SETS for m in FAMILIES for c in cases(m, which)}
    if "set" not in runs:
        runs["set"] = "development"
    eager = runs[runs["mode"] == "eager"]
    found = set(eager[columns].itertuples(index=False, name=None))
    assert found <= wanted
    if (runs["set"] == "held_out").any():
        assert found == wanted
        span = eager[eager["set"] == "development"].groupby("model")["time_s"].agg(lambda t: t.max() / t.min())
        assert (span > 100).all(), span
    assert eager["time_s"].max() > 100 * eager["time_s"].min()


def test_without_a_file_the_results_that_ship(capsys: pytest.CaptureFixture[str]) -> None:
    """All rows of the report's file, predicted on the machine beside it."""
    shipped = json.loads(text_of(["validate", "measured", "--json"], capsys))
    assert shipped["counts"]["unequal"] == [] and shipped["counts"]["equal"] == shipped["counts"]["compared"] > 300
    assert shipped["used"] == len(pd.read_csv(RUNS)) and shipped["median_ape"] < 0.15 and shipped["p90_ape"] < 0.4
    (time,) = (one for one in shipped["sets"] if one["quantity"] == "time_s" and one["set"] == "development")
    assert time["used"] > 100


def test_an_impossible_row_is_skipped_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is predicted as something else: an encoder of other lengths, an image of other patches."""
    rows = [
        {"model": "bert", "phase": "decode", "batch": 1, "seq_len": 1, "time_s": 0.1, "flops": 1},
        {"model": "encoder_decoder", "phase": "train", "batch": 1, "seq_len": 8, "encoder_len": 16, "time_s": 0.1},
        {"model": "vit", "phase": "train", "batch": 1, "seq_len": 66, "time_s": 0.1},
        {"model": "gpt2", "phase": "forward", "batch": 1, "seq_len": 8, "time_s": 0.1},
    ]
    given = [*VALIDATE, write(pd.DataFrame(rows), tmp_path), "--on", str(RUNS.with_name("machine.yaml"))]
    found = json.loads(text_of([*given, "--json"], capsys))
    assert (found["rows"], found["used"], found["counts"]["compared"]) == (4, 1, 0)
    reasons = "; ".join(found["skipped"])
    assert (
        "no decoder" in reasons and "with 8 encoder positions, not 16" in reasons and "65 positions, not 66" in reasons
    )
    assert "counts: the file has none to compare" in text_of(given, capsys)


def test_a_count_that_is_not_equal_is_shown(
    runs: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = runs.head(3)
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
        ("batch", "0", "line 2: batch: 0 is not a whole number from 1 to 2^40"),
        ("seq_len", "1.5", "line 2: seq_len: 1.5 is not a whole number from 1 to 2^40"),
        ("seq_len", "1e30", "line 2: seq_len: 1e+30 is not a whole number"),
        ("time_s", "1e400", "line 2: time_s: inf is not a finite number from 0 up"),
        ("time_s", "-1", "line 2: time_s: -1 is not a finite number from 0 up"),
        ("flops", "-2", "line 2: flops: -2 is not a finite number from 0 up"),
        ("set", "mine", "line 2: set: 'mine' is not one of development, held_out"),
        ("model", "", "line 2: model: empty"),
        ("mode", "jit", "line 2: mode: 'jit' is not one of eager, compile"),
        ("model", "lama", "unknown model 'lama'"),
    ],
)
def test_bad_cells_are_named(
    runs: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, value: str, says: str
) -> None:
    runs = runs.head(2).assign(set="development").astype({column: object})
    runs.loc[0, column] = value
    assert says in message([*VALIDATE, write(runs, tmp_path)], capsys)


def test_a_missing_column_or_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no column 'phase'" in message([*VALIDATE, write(pd.DataFrame({"model": ["gpt2"]}), tmp_path)], capsys)
    assert "cannot read" in message([*VALIDATE, str(tmp_path / "none.csv")], capsys)
    (tmp_path / "header.csv").write_text("model,phase,batch,seq_len,time_s\n")
    assert "no rows below the header" in message([*VALIDATE, str(tmp_path / "header.csv")], capsys)


def test_cases_are_listed_without_torch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    listed = json.loads(text_of(["measure", "models", "--list", "--json"], capsys))
    assert len(listed) > 100 and listed[0]["model"] == "gpt2"
    error = message(["measure", "models", "--models", "gpt2"], capsys)
    assert "tfsim[measure]" in error
    assert "did you mean llama" in message(["measure", "models", "--models", "lama"], capsys)


def test_measuring_one_model_writes_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: nothing to measure")
    short = Sizes(((1, 4),), ((1, 3),))
    monkeypatch.setitem(FAMILIES, "lstm", replace(FAMILIES["lstm"], development=short, held_out=short))
    out = tmp_path / "runs.csv"
    options = ["--models", "lstm", "--set", "held_out", "--device", "cpu", "--out", str(out)]
    assert main(["measure", "models", *options]) == 0
    table = capsys.readouterr()
    assert table.err == "" and "lstm" in table.out
    rows = pd.read_csv(out)
    assert list(rows["set"]) == ["held_out"] * 3 and (rows["time_s"] > 0).all() and rows["flops"].notna().all()
    smallest = np.finfo(float).smallest_normal
    assert smallest / 2 > 0  # torch flushes denormals while it measures; the process computes as before afterwards
    found = json.loads(text_of([*VALIDATE, str(out), "--json"], capsys))
    assert found["counts"]["unequal"] == []
