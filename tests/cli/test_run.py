"""tfsim run: one screen, JSON, and reports that stand on their own."""

import json
import re
from pathlib import Path

import pytest

from tfsim.cli.main import main
from tfsim.scenario import list_scenarios

DEMO = "llama-3.1-70b-on-h100"


@pytest.fixture
def run_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_fills_one_screen_and_writes_reports(run_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", DEMO]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    for words in (
        "70.55B", "15T tokens", "2,048 x h100-sxm-80gb", "exact", "megatron", "palm", "6nd", "days", "MWh", "tCO2e",
        "$", "TTFT", "TPOT", "per million output tokens", "memory allows", "bound by", "fits", "Confidence",
    ):  # fmt: skip
        assert words in out
    folder = run_in / "tfsim-reports"
    assert f"Report: tfsim-reports/{DEMO}.md and .html" in lines
    assert sorted(path.suffix for path in folder.iterdir()) == [".html", ".md", *[".png"] * 5]
    check_reports(folder)


def check_reports(folder: Path) -> None:
    """They refer to nothing outside, and hold charts, sources and the meaning of their words."""
    page = (folder / f"{DEMO}.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)\s*=\s*"(?!data:)', page)
    assert "<script" not in page
    assert "url(" not in page
    assert page.count("data:image/svg+xml;base64,") == 5
    text = (folder / f"{DEMO}.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 5
    assert {"roofline-training", "roofline-serving", "memory"} <= {p.removeprefix(f"{DEMO}-")[:-4] for p in pictures}
    for name in pictures:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    for words in ("MFU, HFU", "GB, GiB", "schema: 1", "memory.bandwidth", "Glenn Lockwood"):
        assert words in page
        assert words in text


@pytest.mark.parametrize("name", list_scenarios())
def test_every_scenario_answers(name: str, run_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert any(found[question] is not None for question in ("train", "serve", "compare", "size"))
    for part in ("train", "serve"):
        assert found[part] is None or found[part]["fits"] is True
    assert not list(run_in.iterdir())  # reports only when asked for


def test_json_with_a_folder_writes_reports_too(run_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "gpt-oss-120b-on-one-h100", "--json", "--out", "r"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(path).suffix for path in found["reports"]] == [".md", ".html"]
    assert all((run_in / path).is_file() for path in found["reports"])


def test_options_come_before_the_file(run_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*options: str) -> dict[str, dict[str, float]]:
        assert main(["run", "gpt-oss-120b-on-one-h100", "--json", *options]) == 0
        found: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)
        return found

    plain, dear = answer()["serve"], answer("--price", "$6.58/h", "--set", "memory.bandwidth=1 TB/s")["serve"]
    assert plain["usd_per_hour"] == pytest.approx(3.29)
    assert dear["usd_per_hour"] == pytest.approx(6.58)
    assert dear["tpot_ms"] > plain["tpot_ms"]


def test_what_does_not_fit_is_an_answer(run_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text(
        "schema: 1\ntitle: too large\nmodel: llama-3.1-70b\n"
        "serve: {system: l4-1x, devices: 1, input_len: 1000, output_len: 100}\n"
        "train: {system: l4-1x, devices: 1, seq_len: 1024, global_batch: 4, tokens: 1B}\n",
        encoding="utf-8",
    )
    assert main(["run", "small.yaml"]) == 0
    out = capsys.readouterr().out
    assert out.count("✘ does not fit") == 2
    assert out.count("┃") >= 2
    assert Path("tfsim-reports/small.html").is_file()


def test_a_folder_that_cannot_be_is_one_line(run_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("", encoding="utf-8")
    assert main(["run", "gpt-oss-120b-on-one-h100", "--out", "file"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot make this folder" in err
