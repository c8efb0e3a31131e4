"""Measuring this machine: what the clock gives, what becomes of it, and what is refused."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from tfsim.cli.main import main
from tfsim.errors import InputError
from tfsim.hardware import load_system
from tfsim.measure.backend import Backend, Facts, backend
from tfsim.measure.cases import Case
from tfsim.measure.clock import Timing, timed
from tfsim.measure.fits import calibration
from tfsim.measure.hardware import _copies, smallest
from tfsim.measure.profile import profile, profile_text
from tfsim.software import software
from tfsim.timing import Groups, operator_time
from tfsim.timing.constants import calibrations, constants
from tfsim.timing.cpu import CpuMatmulConstants
from tfsim.timing.kernels import basis
from tfsim.timing.machine import machine

MEASURED = Path(__file__).parents[2] / "reports" / "measured"
ROWS = pd.read_csv(MEASURED / "operations.csv")
ABOUT = Facts("A CPU", "ACME", 2, 2e9, 2**34, 2**16, 2**20, 2**23, "2.13", 2)


@pytest.fixture(scope="module")
def profile_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "here.yaml"
    path.write_text(profile_text(profile(ROWS, ABOUT, name="here")), encoding="utf-8")
    return path


def test_the_shipped_profile_is_what_its_rows_give() -> None:
    shipped = load_system(MEASURED / "machine.yaml").device
    found = calibration(ROWS, machine(shipped))
    assert found["cpu_matmul"]["fp32"]["error"]["median_ape"] < 0.08
    assert found["cpu_attention"]["fp32"]["error"]["median_ape"] < 0.06
    assert found["cpu_memory"]["fp32"]["error"]["median_ape"] < 0.12
    for kind, variants in found.items():
        for variant, one in variants.items():
            kept = shipped.profile.calibration[kind][variant]
            for name, value in one["constants"].items():
                assert kept.constants[name] == pytest.approx(value, rel=0.02), (kind, variant, name)


def test_a_profile_reads_back_as_a_system(profile_path: Path) -> None:
    system = load_system(profile_path)
    products = ROWS[(ROWS["kind"] == "matmul") & (ROWS["phase"] == "forward")]
    assert system.name == system.device.name == "here"
    assert system.device.require("cores") == 2
    assert system.device.matrix_peak["fp32"] >= (products["flops"] / products["time_s"]).max() * (1 - 1e-5)
    own = constants("cpu_matmul", CpuMatmulConstants, system.device, "fp32")
    assert own.own and own.source == "measured on here" and own.median_ape is not None and own.median_ape < 0.08
    assert {c.kind for c in calibrations(system.device)} == set(system.device.profile.calibration)
    assert all(c.own for c in calibrations(system.device))
    assert "measured on here" in basis(system.device)
    assert "calibration" not in "".join(system.device.settable())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["cpu_matmul"]["fp32"]["constants"].update(compute=7), "compute: 7 is outside of 0.05 to 1"),
        (lambda d: d["cpu_matmul"]["fp32"]["constants"].pop("fork"), "fork: not the constants of this version"),
        (lambda d: d["cpu_matmul"]["fp32"]["constants"].update(fork=-1.0), "calibration.cpu_matmul.fp32"),
        (lambda d: d["cpu_matmul"]["fp32"].pop("error"), "'calibration.cpu_matmul.fp32.error': missing"),
        (lambda d: d["cpu_matmul"].update(fp32="fast"), "calibration.cpu_matmul.fp32"),
    ],
)
def test_a_faulty_calibration_is_refused_by_name(profile_path: Path, tmp_path: Path, change: Any, message: str) -> None:
    content = yaml.safe_load(profile_path.read_text(encoding="utf-8"))
    change(content["device"]["calibration"])
    path = tmp_path / "faulty.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(InputError) as error:
        constants("cpu_matmul", CpuMatmulConstants, load_system(path).device, "fp32")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_every_operator_takes_time_and_the_parts_are_the_whole(profile_path: Path) -> None:
    import tfsim

    system = load_system(profile_path)
    for phase in ("forward", "forward_backward", "decode"):
        new, before = (1, 32) if phase == "decode" else (64, 0)
        counts = tfsim.count(tfsim.load_model("gpt2"), batch=1, seq_len=new, past_len=before, phase=phase, dtype="fp32")
        for _, _, op in counts.operators:
            if op.comm is None:
                time = operator_time(op, system, software("eager"), Groups())
                assert time.seconds == time.compute + time.memory + time.launch > 0, op.name
                assert time.kernels == 0  # a CPU runs what it dispatches: nothing queues
                assert op.kind in ("recurrent", "scan") or time.launch < 1e-2


def test_an_unrecorded_pass_is_dispatched_faster(profile_path: Path) -> None:
    import tfsim

    system = load_system(profile_path)
    op = next(
        op
        for *_, op in tfsim.count(tfsim.load_model("gpt2"), batch=1, seq_len=8, dtype="fp32").operators
        if op.kind == "matmul"
    )
    times = [operator_time(op, system, software("eager"), Groups(), recorded=r).launch for r in (False, True)]
    assert 0 < times[0] < times[1]


def test_commands_take_the_profile(profile_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hardware", "show", str(profile_path)]) == 0
    train = ["train", "gpt2", "--on", str(profile_path), "--devices", "1", "--seq-len", "128", "--global-batch", "2"]
    capsys.readouterr()
    assert main([*train, "--precision", "fp32", "--price", "$1/h", "--power", "100W", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "here" in json.dumps(answer)


def test_smallest_and_copies() -> None:
    assert smallest(["a", "b", "a"], [3, 2, 1]) == {"a": 2, "b": 1}
    case = Case("matmul", "linear", "forward", "fp32", {}, lambda where: (print, []), 2**20, 1024, 2**20)
    assert _copies(case, 2**23) == 32  # four times the cache
    assert _copies(Case("optimizer", "adamw", "inference", "fp32", {}, lambda where: (print, [])), 2**23) == 1


# A device whose clock is its own: calls take what they say, whatever the wall does.


class FakeEvent:
    now = 0.0

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = FakeEvent.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.at - self.at) * 1e3


def test_cuda_is_timed_by_its_own_events_and_a_disturbed_round_is_repeated() -> None:
    where = Backend(SimpleNamespace(cuda=SimpleNamespace(Event=FakeEvent, synchronize=lambda: None)), "cuda", 1)
    steps = iter([*(1e-3 + (i % 2) * 5e-3 for i in range(40)), *([2e-3] * 10_000)])

    def call() -> None:
        FakeEvent.now += next(steps)

    time = timed(call, where, 0.0)
    assert isinstance(time, Timing) and time.spread <= 3 and time.samples >= 5
    steady = timed(lambda: setattr(FakeEvent, "now", FakeEvent.now + 2e-3), where, 0.0)
    assert steady.median == pytest.approx(2e-3) and steady.spread == pytest.approx(0, abs=1e-9)


def test_without_torch_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(["measure", "hardware", "--out", str(tmp_path / "x.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "pip install 'tfsim[measure]'" in error
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "no/such/folder/x.yaml"], "--out: no/such/folder: no such directory"),
        (["--out", "."], "--out: . is a directory"),
        (["--rows", "no/such/folder/x.csv"], "--rows: no/such/folder: no such directory"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_minutes_are_spent(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["measure", "hardware", *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["measure", "hardware", "--out", str(tmp_path / "x.yaml")]) == 2
    assert "cannot write there" in capsys.readouterr().err


class TestWithTorch:
    """What needs torch: skipped with the reason where it is not installed."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch", reason="torch is not installed: pip install 'tfsim[measure]'")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--device", "gpu"], "unknown device 'gpu'"),
            (["--threads", "0"], "threads: 0 is not between 1 and the"),
            (["--threads", "100000"], "threads: 100000 is not between 1 and the"),
            (["--dtype", "fp23"], "unknown dtype 'fp23': did you mean fp32?"),
        ],
    )
    def test_bad_options(
        self, options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        assert main(["measure", "hardware", "--out", str(tmp_path / "x.yaml"), *options]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_device_that_is_not_there(self) -> None:
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has a CUDA device")
        with pytest.raises(InputError, match="sees no 'cuda' on this machine: it has cpu"):
            backend("cuda")

    def test_ranks_below_two_and_cuda_devices_that_lack(self) -> None:
        from tfsim.measure.collectives import measure_all_reduce

        with pytest.raises(InputError, match="two processes or more"):
            measure_all_reduce(backend("cpu"), 1)
        fake = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 1))
        with pytest.raises(InputError, match="more than the 1 CUDA devices"):
            measure_all_reduce(Backend(fake, "cuda", 1), 2)

    def test_a_few_real_cases(self) -> None:
        """Real forward and backward passes of some small cases: positive, finite times with their counts."""
        from tfsim.measure import hardware
        from tfsim.measure.cases import cases

        where = backend("cpu")
        chosen = [c for c in cases(where, ("fp32",), quick=True) if c.elements <= 4096 and c.kind != "optimizer"]
        named = {(c.name, c.phase): c for c in chosen}
        assert {"linear", "matmul", "fused", "eager", "gelu", "layer_norm", "cross_entropy", "embedding"} <= {
            name for name, _ in named
        }
        rows = pd.DataFrame([hardware._row(c, where, 2**20, 1e-3) for c in named.values()])
        assert np.isfinite(rows["time_s"]).all() and (rows["time_s"] > 0).all() and (rows["time_s"] < 1).all()
        assert (rows["samples"] >= 5).all() and (rows["threads"] == where.threads).all()
        assert set(rows["phase"]) == {"inference", "forward", "backward"}
