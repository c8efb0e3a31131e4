"""tfsim validate operators and tfsim calibrate operators, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.validation.samples import GEMM_TEXT, lines
from tfsim.cli.main import main
from tfsim.files import data_dir

VALIDATE = ["validate", "operators", "--data"]
CALIBRATE = ["calibrate", "operators", "--device", "h100", "--data"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "gemm.csv"
    path.write_text(GEMM_TEXT)
    return path


def text_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def message(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err[:-1].isprintable() and "Traceback" not in err
    return err


def test_the_table_and_json_say_the_same(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = text_of([*VALIDATE, str(data)], capsys)
    found = json.loads(text_of([*VALIDATE, str(data), "--json"], capsys), parse_constant=pytest.fail)
    assert found["rows"] == 10 and found["used"] == 10 and found["skipped"] == {}
    for group in (found, *found["groups"]):
        for key in ("median_ape", "p90_ape", "bias", "baseline_median_ape"):
            assert f"{100 * group[key]:.1f} %" in table
    for word in ("gemm.csv", "h100-sxm-80gb", "bfloat16", "median", "p90", "bias", "roofline"):
        assert word in table


def test_reasons_are_shown_with_their_count(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.write_text(lines(("3.3088e-05", "0"), ("8.3883e-06", "-1")))
    table = text_of([*VALIDATE, str(data)], capsys)
    assert "time_s: not a positive number" in table and "skipped because" in table
    found = json.loads(text_of([*VALIDATE, str(data), "--json"], capsys))
    assert found["skipped"] == {"time_s: not a positive number": 2}


def test_out_writes_a_line_per_row(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.csv"
    text_of([*VALIDATE, str(data), "--out", str(out)], capsys)
    rows = pd.read_csv(out)
    assert len(rows) == 10 and rows["predicted"].notna().all() and rows["skipped"].isna().all()


def test_a_folder_a_device_and_leaving_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [*VALIDATE, str(data.parent), "--device", "a100", "--op", "gemm", "--json"]
    own, left = (json.loads(text_of([*args, *more], capsys)) for more in ([], ["--leave-out"]))
    assert own["rows"] == left["rows"] == 3
    assert own["median_ape"] != left["median_ape"]


def test_calibrating_writes_a_file(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pd.read_csv(data)
    h100 = rows[rows["device"] == "h100-sxm-80gb"]
    pd.concat([h100] * 3).to_csv(data, index=False)
    out = tmp_path / "mine.yaml"
    table = text_of([*CALIBRATE, str(data), "--out", str(out)], capsys)
    assert "matmul" in table and "bfloat16" in table and "21" in table
    held = yaml.safe_load(out.read_text())
    assert held["device"] == "h100-sxm-80gb" and held["operators"]["matmul"]["bfloat16"]["fitted_on"]["rows"] == 21
    found = json.loads(text_of([*CALIBRATE, str(data), "--out", str(out), "--json"], capsys))
    assert found["operators"] == held["operators"]


HEADER = GEMM_TEXT.splitlines()[0]
BAD = {
    "empty": ("", "cannot read as CSV"),
    "binary": (b"\xff\xfe\x00\x01", "cannot read as CSV"),
    "no table": ("hello\n", "the columns are those of no operator table; the nearest, "),
    "no times": (GEMM_TEXT.replace("time_s", "seconds"), "no operator table; the nearest, gemm, also needs time_s ("),
    "other columns": ("a,b\n1,2\n", "the columns are those of no operator table"),
    "a size that is no number": (lines(("1,3584,", "1,many,")), "line 4: m: 'many' is not a number"),
    "a time that is no number": (lines(("5.9669e-06", "6 us")), "line 2: time_s: '6 us' is not a number"),
    "too many cells": (HEADER + "\nx,h100,graph,,bfloat16,1,8,8,8,,,1e-5,7,8,9\n", "more cells than the header"),
    "no rows": (HEADER + "\n", "rows of"),
}


@pytest.mark.parametrize("command", [VALIDATE, CALIBRATE], ids=["validate", "calibrate"])
@pytest.mark.parametrize("kind", BAD)
def test_bad_files(kind: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, expected = BAD[kind]
    path, out = tmp_path / "data.csv", tmp_path / "out"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = message([*command, str(path), "--out", str(out)], capsys)
    assert expected in found and str(path) in found
    assert not out.exists()


@pytest.mark.parametrize("command", [VALIDATE, CALIBRATE], ids=["validate", "calibrate"])
def test_bad_places(command: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file or folder" in message([*command, str(tmp_path / "none.csv")], capsys)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no file with the columns of an operator table" in message([*command, str(empty)], capsys)
    (tmp_path / "text.csv.gz").write_text(GEMM_TEXT)  # not compressed, whatever its name says
    assert "cannot read as CSV" in message([*command, str(tmp_path / "text.csv.gz")], capsys)


def test_a_device_that_is_not_among_the_profiles(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = (data_dir("hardware") / "devices" / "l4.yaml").read_text().replace("name: l4\n", "name: my-gpu\n", 1)
    path = tmp_path / "my-gpu.yaml"
    path.write_text("\n".join(line for line in profile.splitlines() if not line.startswith("aliases")))
    found = message(["calibrate", "operators", "--device", str(path), "--data", str(data)], capsys)
    assert "my-gpu is not among the profiles: put its file into" in found and "or give --out" in found


def test_bad_options(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean h100" in message([*VALIDATE, str(data), "--device", "h10"], capsys)
    assert "unknown operator table 'gem': did you mean gemm" in message([*VALIDATE, str(data), "--op", "gem"], capsys)
    assert "no rows of b200-sxm" in message([*VALIDATE, str(data), "--device", "b200"], capsys)
    assert "too few rows of h100-sxm-80gb" in message([*CALIBRATE, str(data)], capsys)
    assert "missing option '--data'" in message(VALIDATE[:2], capsys)
    assert "missing option" in message(CALIBRATE[:2], capsys)
    nowhere = str(tmp_path / "none" / "rows.csv")
    assert "the folder does not exist" in message([*VALIDATE, str(data), "--out", nowhere], capsys)
    assert "is a directory" in message([*VALIDATE, str(data), "--out", str(tmp_path)], capsys)
