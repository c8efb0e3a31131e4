"""Calibration: which rows it may use, what it writes, and that what it wrote is read back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.validation.samples import GEMM_TEXT
from tfsim.errors import InputError
from tfsim.hardware import load_device
from tfsim.timing.machine import machine
from tfsim.timing.matmul import MatmulConstants, matmul_seconds
from tfsim.validation.operators.calibrate import calibrate, calibration_file, calibration_text, held_out

DEVICE = "h100-sxm-80gb"
TRUTH = MatmulConstants(launch=4e-6, memory=0.7)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own measurements: those of a chip with known constants, a vidur row far off, and one without sizes."""
    draw = np.random.default_rng(0)
    m, n, k = np.round(2.0 ** draw.uniform(0, 13, (3, 300)))
    time = matmul_seconds(
        m, n, k, machine(load_device(DEVICE)), TRUTH, dtype="bf16", weight_bytes=2, input_bytes=2, reuse=10 * n * k
    )
    rows = pd.DataFrame(
        {"source": "mine", "device": DEVICE, "timing": "graph", "dtype": "bfloat16", "groups": 1, "m": m, "n": n,
         "k": k, "time_s": time}
    )  # fmt: skip
    far = rows.iloc[:200].assign(source="vidur", time_s=1.0)
    empty = rows.iloc[:1].assign(m=np.nan)
    path = tmp_path_factory.mktemp("own") / "gemm.csv"
    pd.concat([rows, far, empty]).to_csv(path, index=False)
    return path


def test_a_users_own_rows_are_fitted_other_measurers_rows_are_not(data: Path) -> None:
    found = calibrate(data, "h100")
    assert found["device"] == DEVICE and found["written_by"] == "tfsim calibrate operators"
    assert list(found["operators"]) == ["matmul"] and list(found["operators"]["matmul"]) == ["bfloat16"]
    table = found["operators"]["matmul"]["bfloat16"]
    assert table["fitted_on"] == {"file": "gemm.csv", "rows": 300, "sources": ["mine"]}
    assert table["error"]["median_ape"] < 0.01
    assert table["constants"]["launch"] == pytest.approx(TRUTH.launch, rel=0.03)
    assert set(table["constants"]) == {f.name for f in fields(MatmulConstants)}


def test_the_file_keeps_the_classes_that_the_data_do_not_hold(data: Path, tmp_path: Path) -> None:
    found = calibrate(data, DEVICE)
    path = tmp_path / "own.yaml"
    other = {"constants": {"a": 1.0}}
    path.write_text("operators: {reduce: {nccl: {constants: {a: 1.0}}}, matmul: {old: {constants: {a: 1.0}}}}")
    written = yaml.safe_load(calibration_text(found, path))
    assert list(written["operators"]) == ["matmul", "reduce"]
    assert set(written["operators"]["matmul"]) == {"old", "bfloat16"}
    assert written["operators"]["reduce"] == {"nccl": other}
    fresh = yaml.safe_load(calibration_text(found, tmp_path / "none.yaml"))
    assert fresh == found


def test_too_few_rows_say_so(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text(GEMM_TEXT)
    with pytest.raises(InputError, match="too few rows of h100-sxm-80gb to fit on"):
        calibrate(path, "h100")
    with pytest.raises(InputError, match="too few rows of b200-sxm to fit on"):
        calibrate(path, "b200")


def test_every_calibration_file_is_of_a_known_device_and_generated() -> None:
    files = sorted(calibration_file(DEVICE).parent.glob("*.yaml"))
    assert files
    for path in files:
        held = yaml.safe_load(path.read_text())
        assert held["schema"] == 1 and held["written_by"] == "tfsim calibrate operators"
        assert load_device(path.stem).name == path.stem == held["device"]
        for variants in held["operators"].values():
            for table in variants.values():
                assert set(table) == {"constants", "fitted_on", "error"}
                assert table["fitted_on"]["rows"] > len(table["constants"])


def test_rows_held_out_are_of_the_class_and_met_where_the_formula_is_true(data: Path) -> None:
    found = held_out(data, DEVICE, "matmul", "bfloat16")
    assert 60 < len(found) < 120 and set(found["source"]) == {"mine"}
    assert (found["predicted"] / found["time_s"] - 1).abs().median() < 0.02
    with pytest.raises(InputError, match="too few rows of h100-sxm-80gb for matmul int8_wo"):
        held_out(data, DEVICE, "matmul", "int8_wo")
