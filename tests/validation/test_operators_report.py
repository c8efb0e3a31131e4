"""The report's generator, on a small sample: it says what it found, and its plots are files that a page can hold."""

from __future__ import annotations

from pathlib import Path

from tests.validation.samples import lines
from tfsim.validation.operators.tables import TABLES
from tools.operators_report import TARGETS, main, same_die


def test_a_report_of_a_few_rows(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    (data / "gemm.csv").write_text(lines(("3.3088e-05", "0")))
    main(["--data", str(data), "--out", str(out)])
    text = (out / "operators.md").read_text()
    assert "10 rows, 9 used" in text
    assert "| bf16 GEMM | h100-sxm-80gb | 7 | 6 |" in text
    assert "| gemm.csv | time_s: not a positive number | 1 | 10.0 % |" in text
    assert "| gemm | matmul | h100-sxm-80gb |" in text
    plots = list((out / "operators").iterdir())
    assert [plot.name for plot in plots] == ["gemm-bf16.png"]
    assert plots[0].read_bytes().startswith(b"\x89PNG") and plots[0].stat().st_size < 150_000
    assert "![bf16 products](operators/gemm-bf16.png)" in text


def test_targets_are_of_tables() -> None:
    assert {target.table for target in TARGETS} <= set(TABLES)


def test_two_dies_of_one_name() -> None:
    assert same_die("gb200", "b200-sxm (blackwell)")
    assert not same_die("rtx-pro-6000", "b200-sxm, gb200 (blackwell)")
    assert not same_die("h100-sxm-80gb", "a100-sxm-80gb (ampere)")
