"""tfsim size: one screen, JSON, an exported model that tfsim train agrees with, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfsim.cli.main import main


def test_one_screen_and_a_model_that_train_agrees_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.yaml"
    assert main(["size", "--budget", "$50k", "--on", "dgx-h100", "--out-model", str(model)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert len(lines) < 52  # with the line of the exported model
    assert all(len(line) <= 100 for line in lines if "tfsim train" not in line and ".yaml" not in line)
    for words in ("refit-240", "N total", "C 6nd", "layers", "80 %", "tp ", "days", "device-hours", "$50,000", "0.5x",
                  "Other laws", "kaplan", "non_embedding"):  # fmt: skip
        assert words in out
    assert main(["size", "--budget", "$50k", "--on", "dgx-h100", "--json"]) == 0
    mine = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    job = [
        "--devices", str(mine["devices"]), "--global-batch", str(mine["global_batch"]),
        "--seq-len", str(mine["seq_len"]), "--tokens", f"{mine['tokens']:.0f}",
    ]  # fmt: skip
    assert main(["train", str(model), "--on", "dgx-h100", *job, "--json"]) == 0
    theirs = json.loads(capsys.readouterr().out)
    for field in ("days", "cost_usd", "device_hours", "energy_kwh", "tokens"):
        assert mine[field] == pytest.approx(theirs[field], rel=1e-9)


def test_flops_need_no_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--budget", "1e24flops"]) == 0
    out = capsys.readouterr().out
    assert "Training" not in out
    assert "1.00e24 FLOP" in out
    assert "above the fitted range" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give a budget"),
        (["--budget", "$5M"], "name it with system"),
        (["--budget", "lots"], "'lots' is not a budget such as"),
        (["--budget", "1e22flops", "--law", "besirolu-2024"], "did you mean besiroglu-2024"),
        (["--budget", "$5M", "--on", "dgx-h10"], "did you mean dgx-h100"),
        (["--params", "-1"], "--params: "),
        (["--budget", "1e22flops", "--vocab-size", "0"], "--vocab-size: '0': must be at least 1"),
        (["--budget", "$1", "--on", "dgx-h100"], "no shape of"),
        (["--budget", "1e22flops", "--price", "$2/h"], "about a system"),
        (["--budget", "1e22flops", "--loss", "nan"], "--loss: "),
        (["--budgt", "1"], "no such option"),
    ],
)
def test_bad_input(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err.lower() or words in captured.err


def test_nothing_is_written_where_the_folder_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--budget", "1e21", "--out-model", str(tmp_path / "no" / "m.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out-model", "none/m.yaml"], "--out-model: none: no such directory"),
        (["--out-model", "."], "--out-model: . is a directory, not a file"),
        (["--out", "file/reports"], "--out: file/reports: cannot make this folder"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_the_work(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr("tfsim.scenario.answer_sizing", lambda *_: pytest.fail("computed first"))
    assert main(["size", "--budget", "1e22flops", *options]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
