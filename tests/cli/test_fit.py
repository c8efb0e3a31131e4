"""tfsim fit, as typed: the answer, the law file that other commands take, the charts, and every kind of bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.test_validate import message, text_of
from tfsim import scaling
from tfsim.cli.main import main

LAW = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
EXPONENT = 0.37 / 0.72
BUDGETS = (1e18, 1e19, 1e20, 1e21, 1e22)


def best_n(c: float) -> float:
    scale = (0.35 * 480 / (0.37 * 2100)) ** (1 / 0.72)
    return float(scale * (c / 6) ** EXPONENT)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """45 isoFLOP runs of the law with 0.1 % noise, and one bad run that ``bad`` marks."""
    random = np.random.default_rng(0)
    lines = ["params,tokens,flops,val_loss,budget,bad"]
    for c in BUDGETS:
        for shift in np.linspace(-1.5, 1.5, 9):
            n = best_n(c) * np.exp(shift)
            d = c / 6 / n
            loss = (1.8 + 480 / n**0.35 + 2100 / d**0.37) * np.exp(0.001 * random.standard_normal())
            lines.append(f"{n:.10g},{d:.10g},{c:g},{loss:.10g},{c:g},0")
    lines.append("1e9,2e10,1.2e20,9,,1")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


COUNTS = ["--n-means", "total", "--c-means", "6nd", "--exclude", "bad", "--bootstraps", "50"]


def answer(args: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(text_of([*args, "--json"], capsys), parse_constant=pytest.fail)


def test_the_law_comes_back(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(["fit", str(runs), *COUNTS], capsys)
    values = {c["name"]: c for c in found["coefficients"]}
    for name, true in LAW.items():
        assert abs(values[name]["value"] - true) < 4 * values[name]["standard_error"], name
    assert values["a"]["value"] == pytest.approx(EXPONENT, abs=0.02)
    assert (found["n"], found["excluded"], found["excluded_why"]) == (45, [45], "column 'bad'")
    assert found["columns"]["loss"] == "val_loss"
    assert found["convention"].startswith("N total; D training tokens; C 6nd")
    assert found["fit"]["check"]["agreeing"] == found["fit"]["check"]["starts"] == 8
    assert found["fit"]["check"]["gradient"] < 1e-5
    assert found["held_out"]["n"] == 9 and found["held_out"]["from_c"] == pytest.approx(1e22, rel=1e-6)
    assert found["held_out"]["mape"] < 0.003
    top = found["optima"][0]
    assert top["compute"] == pytest.approx(1e22, rel=1e-6)
    assert top["parameters"] == pytest.approx(best_n(1e22), rel=0.05)
    assert top["parameters_band"][0] < top["parameters"] < top["parameters_band"][1]
    assert top["tokens"] == pytest.approx(1e22 / 6 / top["parameters"])
    scores = {score["law"]: score for score in found["published"]}
    n, d, loss = np.loadtxt(runs, delimiter=",", skiprows=1, usecols=(0, 1, 3))[:45].T
    errors = scaling.loss("refit-240", parameters=n, tokens=d) / loss - 1
    assert scores["refit-240"]["mape"] == pytest.approx(np.mean(np.abs(errors)))
    assert scores["refit-240"]["bias"] == pytest.approx(np.mean(errors))
    assert "kaplan-nd" in found["published_left_out"]  # it counts without the embedding


def test_the_screen_says_what_matters(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(["fit", str(runs), *COUNTS], capsys)
    for words in (
        "runs.csv: L = E + A/N^alpha + B/D^beta", "45", "1 run, row 45 (line 47): column 'bad'", "N = params",
        "8 of 8 starts agree", "held out", "50 bootstraps, seed 0", "standard error", "refit-240",
        "at the largest run, 10x, 100x",
    ):  # fmt: skip
        assert words in text, words
    assert max(map(len, text.splitlines())) <= 200


def test_a_run_far_off_is_named_and_kept(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["fit", str(runs), "--bootstraps", "0"]
    assert answer(args, capsys)["fit"]["suspects"] == [45]
    text = text_of(args, capsys)
    assert "far off, kept" in text and "row 45 (line 47)" in text and "say what N and C count" in text
    assert "standard error" not in text
    assert answer([*args, "--exclude", "45"], capsys)["excluded_why"] == "named by the user"


def test_the_law_file_is_a_law(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    found = answer(["fit", str(runs), *COUNTS, "--out-law", str(out)], capsys)
    assert found["written"] == [str(out)]
    law = scaling.law(str(out))
    assert law == scaling.read_law(out) == scaling.law(out)
    assert (law.name, law.n, law.c, law.form) == ("mine", "total", "6nd", "surface")
    assert law.coefficients == {k: pytest.approx(v, rel=1e-15) for k, v in found["law"]["coefficients"].items()}
    assert law.fitted["compute"] == pytest.approx((1e18, 1e22), rel=1e-6)
    assert len(law.draws["A"]) == 50
    assert scaling.optimal(str(out), compute=1e22).parameters == pytest.approx(found["optima"][0]["parameters"])
    low = found["optima"][0]["parameters_band"][0]
    assert scaling.band(str(out), compute=found["optima"][0]["compute"]).parameters.low == pytest.approx(low)
    assert scaling.compare_laws(1e21, default=str(out)).default.law == law
    assert scaling.read_law(out) == law and scaling.law_text(law) == out.read_text()


def test_size_takes_the_law_file(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tfsim size by the user's own law: its optimum, its band, and the default law beside."""
    out = tmp_path / "mine.yaml"
    text_of(["fit", str(runs), *COUNTS, "--out-law", str(out)], capsys)
    found = answer(["size", "--budget", "1e22flops", "--law", str(out)], capsys)
    best = scaling.optimal(str(out), compute=1e22)
    assert found["law"] == "mine" and found["law_parameters"] == pytest.approx(best.parameters, rel=0.015)
    assert found["loss"] == pytest.approx(best.loss, rel=1e-4)
    assert found["band"]["parameters"]["low"] < found["law_parameters"] < found["band"]["parameters"]["high"]
    text = text_of(["size", "--budget", "1e22flops", "--law", str(out)], capsys)
    assert "law          mine" in text and "refit-240" in text


def test_approach_2(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "two.yaml"
    args = ["fit", str(runs), *COUNTS, "--form", "isoflop", "--out-law", str(out)]
    found = answer(args, capsys)
    exponent = found["coefficients"][1]
    assert exponent["name"] == "exponent" and exponent["value"] == pytest.approx(EXPONENT, abs=0.02)
    assert exponent["low"] < EXPONENT < exponent["high"]
    assert [group["C"] for group in found["fit"]["groups"]] == pytest.approx(BUDGETS)
    assert found["held_out"]["of"] == "N" and found["held_out"]["n"] == 1
    assert abs(found["parabola_bias"]) < 1e-3  # the grid is centred
    assert scaling.optimal(str(out), compute=1e20).parameters == pytest.approx(best_n(1e20), rel=0.1)
    assert "from the middle of its grid" in text_of(args, capsys)


def test_exact_flops_give_n_and_d_apart(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "exact.yaml"
    counts = ["--c-means", "exact", "--exclude", "bad", "--bootstraps", "20"]
    text_of(["fit", str(runs), *counts, "--form", "isoflop", "--out-law", str(out)], capsys)
    law = scaling.law(str(out))
    assert (law.c, law.n) == ("exact", "not_stated") and {"n_scale", "d_scale"} <= law.coefficients.keys()


@pytest.mark.parametrize("form", ["power-c", "power-floor-n"])
def test_forms_of_one_variable(form: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "one.yaml"
    args = ["fit", str(runs), *COUNTS, "--form", form, "--out-law", str(out)]
    found = answer(args, capsys)
    assert found["optima"] == [] and found["held_out"]["a"] is None
    k = {c["name"]: c["value"] for c in found["coefficients"]}
    assert scaling.single_loss(str(out), 1e20) == pytest.approx(k.get("E", 0) + k["A"] * 1e20 ** -k["alpha"])
    text_of(args, capsys)


def test_approach_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["N,C,loss"]
    for n in np.geomspace(1e7, 1e10, 24):
        for c in np.geomspace(1e16, 1e22, 25):
            loss = 1.8 + 480 / n**0.35 + 2100 / (c / 6 / n) ** 0.37
            lines.append(f"{n:.8g},{c:.8g},{loss:.8g}")
    path = tmp_path / "curves.csv"
    path.write_text("\n".join(lines))
    args = ["fit", str(path), "--form", "envelope", "--c-means", "6nd"]
    assert answer(args, capsys)["coefficients"][1]["value"] == pytest.approx(EXPONENT, abs=0.01)
    assert "no score: held-out runs: an envelope has no run to predict" in text_of(args, capsys)


def test_charts(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "charts" / "deep"
    found = answer(["fit", str(runs), *COUNTS, "--plots", str(folder)], capsys)
    names = ["isoflop.png", "optimum.png", "predicted.png", "residuals.png"]
    assert sorted(Path(path).name for path in found["written"]) == names
    for path in found["written"]:
        assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_nothing_but_the_answer_where_there_is_no_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(runs), *COUNTS]) == 0
    assert capsys.readouterr().err == ""


def test_the_seed_decides(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (
        answer(["fit", str(runs), *COUNTS, "--seed", seed], capsys)["coefficients"] for seed in ("1", "1", "2")
    )
    assert first == again != other


HEAD = "N,D,loss\n"
ROWS = "1e8,2e9,3.5\n2e8,5e9,3.2\n4e8,4e9,3.0\n8e8,3e10,2.7\n1e9,9e9,2.75\n2e9,6e10,2.5\n4e9,2e10,2.55\n"
BAD = {
    "empty": ("", "the file is empty"),
    "binary": (b"\xff\xfe\x00\x01", "not a text file"),
    "nul": (b"N,D,loss\n1,\x00,3\n", "is not a positive finite number"),
    "header only": (HEAD, "no runs"),
    "one row": (HEAD + ROWS.splitlines()[0], "1 are too few for the 5 coefficients of form 'chinchilla'"),
    "too few": (HEAD + "\n".join(ROWS.splitlines()[:5]), "5 are too few"),
    "no loss": (HEAD.replace("loss", "score") + ROWS, "no column of losses: say which of 'N', 'D', 'score'"),
    "no tokens": (HEAD.replace("D", "layers") + ROWS, "D: these runs have no such column"),
    "not a number": (HEAD + ROWS.replace("3.2", "low"), "loss: line 3: 'low' is not a positive finite number"),
    "nan": (HEAD + ROWS.replace("3.2", "nan"), "line 3: 'nan'"),
    "negative": (HEAD + ROWS.replace("5e9", "-5e9"), "D: line 3: '-5e9'"),
    "zero": (HEAD + ROWS.replace("2e8", "0"), "N: line 3: '0'"),
    "infinite": (HEAD + ROWS.replace("5e9", "inf"), "line 3: 'inf'"),
    "twice": ("N,D,loss,loss\n" + ROWS, "two columns named 'loss'"),
    "copied row": (HEAD + ROWS + ROWS, "line 2 and line 9 are the same run"),
    "ragged": (HEAD + ROWS + "1,2\n", "line 9: 2 cells under 3 column names"),
    "semicolons": ((HEAD + ROWS).replace(",", ";"), "columns apart by semicolons"),
    "tokens follow parameters": (
        HEAD + "".join(f"{n}e8,{20 * n}e8,{3 - n / 10}\n" for n in range(1, 9)),
        "D: a fixed power of N in these runs",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, expected = BAD[kind]
    path, out, plots = tmp_path / "runs.csv", tmp_path / "law.yaml", tmp_path / "plots"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = message(["fit", str(path), "--out-law", str(out), "--plots", str(plots)], capsys)
    assert expected in found
    assert not out.exists() and not plots.exists()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--form", "chinchila"], "unknown form 'chinchila': did you mean chinchilla"),
        (["--params", "parms"], "N: unknown column 'parms': did you mean params"),
        (["--params", "tokens", "--tokens", "tokens"], "column 'tokens' cannot be both D and N"),
        (["--n-means", "totl"], "unknown n_means 'totl': did you mean total"),
        (["--c-means", "8nd"], "unknown c_means '8nd'"),
        (["--exclude", "baad"], "exclude: unknown column 'baad': did you mean bad"),
        (["--exclude", "3,99"], "exclude: 99 is not a row from 0 to 45"),
        (["--exclude", "val_loss"], "not 0 or 1"),
        (["--hold-out", "0%"], "--hold-out: '0%' is not a percentage"),
        (["--hold-out", "120%"], "--hold-out: '120%' is not a percentage"),
        (["--hold-out", "x"], "--hold-out: 'x'"),
        (["--hold-out", "99%"], "hold_out: "),
        (["--hold-out", "1e30"], "no run is held out"),
        (["--hold-out", "1e10"], "every run is held out"),
        (["--bootstraps", "-1"], "'--bootstraps'"),
        (["--bootstraps", "1"], "draws: 1 is not a whole number of at least 2"),
        (["--seed", "-1"], "'--seed'"),
        (["--form", "isoflop", "--exclude", "bad", "--params", "params"], "c_means: 'not_stated' leaves"),
        (["--form", "envelope"], "the envelope needs curves"),
        (["--c-means", "6nd", "--flops", "tokens", "--tokens", "flops"], "line 2: C is "),
        (["--out-law", "no/such/law.yaml"], "--out-law: no/such: no such directory"),
        (["--out-law", "law"], "--out-law: 'law' does not end in .yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options(args: list[str], expected: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if args[:2] == ["--form", "isoflop"]:
        runs.write_text("\n".join(line.replace("tokens", "x", 1) for line in runs.read_text().splitlines()))
    defaults = [] if "--bootstraps" in args else ["--bootstraps", "0"]
    assert expected in message(["fit", str(runs), *args, *defaults], capsys)


def test_bad_places(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file" in message(["fit", str(tmp_path / "none.csv")], capsys)
    assert "is a directory" in message(["fit", str(tmp_path)], capsys)
    assert "missing argument" in message(["fit"], capsys)
    args = ["fit", str(runs), *COUNTS, "--plots", str(runs)]
    assert f"--plots: {runs}: cannot make this folder" in message(args, capsys)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.sampled_from('N,D;loss.0123456789e+-\n"\r\t xé'), max_size=80)
    | st.lists(
        st.lists(st.sampled_from(["N", "D", "C", "loss", "1e9", "2", "", "nan", "x"]), max_size=4), max_size=8
    ).map(lambda rows: "\n".join(map(",".join, rows)))
)
def test_any_file_is_fitted_or_refused_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "any.csv"
    path.write_text(text, encoding="utf-8")
    code = main(["fit", str(path), "--bootstraps", "0", "--form", "power-n"])
    out, err = capsys.readouterr()
    assert (code == 0 and out) or (code == 2 and out == "" and err.count("\n") == 1)
