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
from tfsim.hardware.library import parse_system
from tfsim.measure.backend import Backend, Facts, architecture, backend, facts, memory_type
from tfsim.measure.cases import Case, cases
from tfsim.measure.clock import Timing, timed
from tfsim.measure.fits import calibration
from tfsim.measure.hardware import BEYOND, _copies, smallest, stream_sizes
from tfsim.measure.profile import profile, profile_text
from tfsim.software import software
from tfsim.timing import Groups, operator_time
from tfsim.timing.collectives import Group, collective_seconds
from tfsim.timing.constants import calibrations, constants
from tfsim.timing.cpu import CpuMatmulConstants
from tfsim.timing.kernels import basis
from tfsim.timing.machine import machine
from tfsim.timing.matmul import MatmulConstants, matmul_seconds

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


def test_the_error_said_is_the_worst_of_the_formats_measured(profile_path: Path) -> None:
    """A bf16 fit that misses is not hidden behind fp32's."""
    content = yaml.safe_load(profile_path.read_text(encoding="utf-8"))
    tables = content["device"]["calibration"]["cpu_attention"]
    tables["bf16"] = {**tables["fp32"], "error": {"median_ape": 0.42, "p90_ape": 0.9}}
    assert "attention 42% median error" in basis(parse_system(content, "here").device)


def test_fused_attention_that_outruns_every_product_sets_the_peak() -> None:
    """As on a CPU without bf16 units: products are emulated, attention is widened to fp32."""
    slow = ROWS[(ROWS["kind"] == "matmul") | (ROWS["name"] == "fused")].copy()
    slow["dtype"] = "bf16"
    slow.loc[slow["kind"] == "matmul", "time_s"] *= 10
    content = profile(pd.concat([ROWS, slow], ignore_index=True), ABOUT)
    fused = slow[(slow["name"] == "fused") & (slow["phase"] != "backward")]
    peak = content["device"]["matrix_peak"]["bf16"]["value"]
    assert float(peak.split()[0]) == pytest.approx((fused["flops"] / fused["time_s"]).max(), rel=1e-5)
    assert content["device"]["calibration"]["cpu_attention"]["bf16"]["error"]["median_ape"] < 0.1
    assert content["device"]["calibration"]["cpu_matmul"]["bf16"]["constants"]["compute"] < 0.3
    assert load_peak(content) == pytest.approx(float(peak.split()[0]))


def load_peak(content: dict[str, Any]) -> float:
    return parse_system(content, "here").device.matmul_peak("bf16").flop_per_s


def test_a_format_that_was_not_measured_says_how(profile_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "gpt2", "--on", str(profile_path), "--devices", "1", "--seq-len", "128", "--global-batch", "2"]
    assert main(train) == 2
    assert "not measured here: tfsim measure hardware --dtype bf16 does" in capsys.readouterr().err


@pytest.mark.parametrize("cache", [2**20, 2**25, 2**28, 2**29 + 1, 5 * 2**28])
@pytest.mark.parametrize("quick", [True, False])
def test_streams_exceed_a_cache_of_any_size(cache: int, quick: bool) -> None:
    """A server CPU has 256 MB and more of it; the copy, two streams, is the smaller measured."""
    sizes = stream_sizes(cache, quick=quick)
    assert 2 * sizes[-1] > BEYOND * cache and sizes[0] == 4096 and sizes == sorted(sizes)
    assert sizes[-1] <= max(2**28, 4 * cache)


# --- several processes ---


def reduced(ranks: int, hop: float, link: float) -> pd.DataFrame:
    """Rows of an all-reduce whose shortest algorithm takes two log2(ranks) hops; a ring sends 2 (n - 1)/n."""
    rows = []
    for size in (2**10, 2**18, 2**25):
        tree, ring = 2 * np.ceil(np.log2(ranks)), 2 * (ranks - 1)
        moved = 2 * (ranks - 1) / ranks * size
        time = min(ring * hop + moved / link, tree * hop + 2 * size / link)
        rows.append({"kind": "all_reduce", "name": "all_reduce", "phase": "inference", "dtype": "fp32", "ranks": ranks,
                     "bytes": size, "elements": size // 4, "flops": 0, "time_s": time, "spread": 0.1})  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_all_reduce_becomes_the_network(ranks: int) -> None:
    rows = pd.concat([ROWS, reduced(ranks, 1e-4, 2e9)], ignore_index=True)
    content = profile(rows, ABOUT)
    system = parse_system(yaml.safe_load(profile_text(content)), "here")
    level = system.levels[0]
    assert (level.name, level.size, system.max_devices) == ("gloo", ranks, ranks)
    assert level.latency_s == pytest.approx(1e-4, rel=0.02) and level.bandwidth == pytest.approx(2e9, rel=0.02)
    seconds = collective_seconds("all_reduce", 2**25, Group(ranks), system)
    assert seconds == pytest.approx(rows["time_s"].iloc[-1], rel=0.02)
    assert system.device.capacity_bytes == pytest.approx(2**34 / ranks)  # processes share the memory
    # the other constants do not see these rows
    assert content["device"]["calibration"] == profile(ROWS, ABOUT)["device"]["calibration"]


def test_two_processes_train_with_what_they_exchange(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pair.yaml"
    rows = pd.concat([ROWS, reduced(2, 1e-4, 2e9)], ignore_index=True)
    path.write_text(profile_text(profile(rows, ABOUT, name="pair")), encoding="utf-8")
    train = ["train", "gpt2", "--on", str(path), "--seq-len", "128", "--global-batch", "2", "--precision", "fp32"]
    assert main([*train, "--devices", "2", "--dp", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["devices"] == 2
    assert main([*train, "--devices", "3"]) == 2
    assert "joins at most 2 devices, not 3" in capsys.readouterr().err


# --- a GPU, which was not at hand: its facts and its rows are made up ---


def cuda_facts(capability: tuple[int, int]) -> Facts:
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=capability[0], minor=capability[1], multi_processor_count=132,
        total_memory=85_000_000_000, clock_rate=1_980_000, L2_cache_size=52_428_800,
    )  # fmt: skip
    version = SimpleNamespace(hip=None)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_properties=lambda _: properties), version=version, __version__="2.13"
    )
    return facts(Backend(torch, "cuda", 1))


@pytest.mark.parametrize(
    ("capability", "name", "memory"),
    [
        ((7, 0), "volta", "HBM"), ((7, 5), "turing", "GDDR"), ((8, 0), "ampere", "HBM"), ((8, 6), "ampere", "GDDR"),
        ((8, 9), "ada", "GDDR"), ((9, 0), "hopper", "HBM"), ((10, 0), "blackwell", "HBM"),
        ((10, 3), "blackwell-ultra", "HBM"), ((12, 0), "blackwell", "GDDR"), ((5, 2), None, "GDDR"),
    ],
)  # fmt: skip
def test_a_compute_capability_names_the_die(capability: tuple[int, int], name: str | None, memory: str) -> None:
    assert architecture(capability) == name and memory_type(capability) == memory


def cuda_rows() -> pd.DataFrame:
    """Times that the shipped H100's formulas give for the products that are measured on a GPU, and a stream."""
    h100 = load_system("dgx-h100").device
    where = SimpleNamespace(device="cuda")
    rows = []
    for case in cases(where, ("fp32", "bf16"), quick=False):  # type: ignore[arg-type]
        if case.kind == "matmul" and case.phase == "inference":
            time = float(
                matmul_seconds(
                    case.dims["m"], case.dims["n"], case.dims["k"], machine(h100),
                    constants("matmul", MatmulConstants, h100, "bfloat16").values,
                    dtype=case.dtype, weight_bytes=2, input_bytes=2, output_bytes=2,
                )
            )  # fmt: skip
            rows.append({"kind": "matmul", "name": "linear", "phase": "inference", "dtype": case.dtype, **case.dims,
                         "flops": case.flops, "time_s": max(time, 8e-6)})  # fmt: skip
    moved = 2 * 2**28
    rows.append({"kind": "stream", "name": "copy", "phase": "inference", "dtype": "fp32", "bytes": moved, "flops": 0,
                 "time_s": moved / 3e12})  # fmt: skip
    return pd.DataFrame(rows)


def test_a_measured_gpu_takes_its_generations_constants(tmp_path: Path) -> None:
    rows = cuda_rows()
    path = tmp_path / "gpu.yaml"
    path.write_text(profile_text(profile(rows, cuda_facts((9, 0)), name="gpu", kind="gpu")), encoding="utf-8")
    device = load_system(path).device
    shipped = load_system("dgx-h100").device
    assert (device.architecture, device.require("cores"), device.clock_hz) == ("hopper", 132, 1.98e9)
    # products large enough to keep a GPU busy: their rate, not that of the dispatch, is the peak
    assert 0.6 < device.matrix_peak["bf16"] / shipped.matrix_peak["bf16"] < 1
    assert device.vector_peak["fp32"] == device.matrix_peak["fp32"]
    assert "borrowed from" in basis(device) and "hopper" in basis(device)
    # what is then said of each product that outlasts its dispatch is near what was measured
    c = constants("matmul", MatmulConstants, device, "bfloat16")
    long = rows[(rows["dtype"] == "bf16") & (rows["time_s"] > 2e-5)]
    sizes = {"dtype": "bf16", "weight_bytes": 2, "input_bytes": 2, "output_bytes": 2}
    times = matmul_seconds(*(long[n].to_numpy(float) for n in "mnk"), machine(device), c.values, **sizes)
    assert np.median(np.abs(times / long["time_s"].to_numpy() - 1)) < 0.15


def test_a_model_trains_and_serves_on_a_measured_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text(profile_text(profile(cuda_rows(), cuda_facts((9, 0)), name="gpu", kind="gpu")), encoding="utf-8")
    on = ["--on", str(path), "--devices", "1", "--power", "700W", "--price", "$2/h", "--json"]
    assert main(["train", "gpt2", *on, "--seq-len", "1024", "--global-batch", "16"]) == 0
    mfu = json.loads(capsys.readouterr().out)["mfu"]
    assert 0.1 < (mfu["exact"] if isinstance(mfu, dict) else mfu) < 1
    assert main(["serve", "gpt2", *on, "--input-len", "128", "--output-len", "32", "--batch", "4"]) == 0
    capsys.readouterr()


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
            (["--device", "gpu"], "unknown torch device 'gpu': did you mean cpu?"),
            (["--threads", "0"], "threads: 0 is not between 1 and the"),
            (["--threads", "100000"], "threads: 100000 is not between 1 and the"),
            (["--dtype", "fp23"], "unknown dtype 'fp23': did you mean fp32?"),
            (["--ranks", "0"], "ranks: 0: an all-reduce takes two processes or more"),
            (["--ranks", "-3"], "ranks: -3: an all-reduce takes two processes or more"),
            (["--ranks", "1000000"], "ranks: 1000000 of 1 threads each are more than the"),
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
        with pytest.raises(InputError, match="ranks: 1000000 of 1 threads each are more than the"):
            measure_all_reduce(backend("cpu", 1), 10**6)
        fake = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 1))
        with pytest.raises(InputError, match="more than the 1 CUDA devices"):
            measure_all_reduce(Backend(fake, "cuda", 1), 2)

    def test_two_real_processes_reduce_together(self) -> None:
        from tfsim.measure.backend import cpus
        from tfsim.measure.collectives import measure_all_reduce

        if cpus() < 2:
            pytest.skip("one CPU: two processes would take turns")
        rows = measure_all_reduce(backend("cpu", 1), 2, quick=True)
        assert [row["bytes"] for row in rows] == [2**10, 2**18, 2**25]
        assert all(0 < row["time_s"] < 10 and row["ranks"] == 2 and row["threads"] == 1 for row in rows)
        assert rows[-1]["time_s"] > rows[0]["time_s"]

    def test_the_command_says_what_it_found(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With rows as an earlier run measured them: only fp32, so that the bf16 rate has no figure to print."""
        from tfsim.measure import hardware

        monkeypatch.setattr(hardware, "measure_operations", lambda *args, **kwargs: ROWS)
        out = tmp_path / "here.yaml"
        assert main(["measure", "hardware", "--out", str(out)]) == 0
        screen = capsys.readouterr().out
        assert "peak fp32" in screen and "peak bf16" not in screen and "memory bandwidth" in screen
        assert "attention" in screen and "What the fits leave" in screen
        assert load_system(out).device.matmul_peak("fp32").flop_per_s > 1e9

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
