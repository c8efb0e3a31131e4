"""Loading, overriding and pricing devices and systems, and what happens to bad input."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfsim.errors import InputError
from tfsim.files import data_dir
from tfsim.hardware import load_device, load_system, systems_with
from tfsim.hardware.prices import Price, default_price

DEVICE = (data_dir("hardware") / "devices" / "h100-sxm-80gb.yaml").read_text(encoding="utf-8")
SYSTEM = (data_dir("hardware") / "systems" / "dgx-h100.yaml").read_text(encoding="utf-8")
BANDWIDTH = "bandwidth: {value: 3350 GB/s, source: aiconfigurator"


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


BAD_DEVICES = {
    "wrong type": edited(DEVICE, "cores: {value: 132,", "cores: {value: [132],"),
    "text for a number": edited(DEVICE, BANDWIDTH, "bandwidth: {value: fast, source: aiconfigurator"),
    "wrong unit": edited(DEVICE, BANDWIDTH, "bandwidth: {value: 3350 GB, source: aiconfigurator"),
    "number for a table": edited(DEVICE, "vendor: NVIDIA", "vendor: 7"),
    "boolean": edited(DEVICE, "cores: {value: 132,", "cores: {value: true,"),
    "unknown key": DEVICE + "bandwith: 3\n",
    "unknown inner key": edited(DEVICE, "  type: HBM3", "  type: HBM3\n  size: 80 GB"),
    "unknown dtype": edited(DEVICE, "  tf32: {", "  tf33: {"),
    "missing key": edited(DEVICE, "kind: gpu\n", ""),
    "missing source": edited(DEVICE, BANDWIDTH + ",", "bandwidth: {value: 3350 GB/s,"),
    "source not listed": edited(DEVICE, BANDWIDTH, "bandwidth: {value: 3350 GB/s, source: nowhere"),
    "null without reason": edited(DEVICE, BANDWIDTH, "bandwidth: {value: null, source: aiconfigurator"),
    "duplicate key": DEVICE + "vendor: AMD\n",
    "negative": edited(DEVICE, BANDWIDTH, "bandwidth: {value: -3350 GB/s, source: aiconfigurator"),
    "negative number": edited(DEVICE, BANDWIDTH, "bandwidth: {value: -1, source: aiconfigurator"),
    "zero": edited(DEVICE, BANDWIDTH, "bandwidth: {value: 0, source: aiconfigurator"),
    "NaN": edited(DEVICE, BANDWIDTH, "bandwidth: {value: .nan, source: aiconfigurator"),
    "NaN text": edited(DEVICE, BANDWIDTH, "bandwidth: {value: nan GB/s, source: aiconfigurator"),
    "infinite": edited(DEVICE, BANDWIDTH, "bandwidth: {value: .inf, source: aiconfigurator"),
    "1e400": edited(DEVICE, BANDWIDTH, "bandwidth: {value: 1e400, source: aiconfigurator"),
    "1e400 text": edited(DEVICE, BANDWIDTH, "bandwidth: {value: 1e400 GB/s, source: aiconfigurator"),
    "huge integer": edited(DEVICE, BANDWIDTH, f"bandwidth: {{value: {'9' * 400}, source: aiconfigurator"),
    "fraction of a core": edited(DEVICE, "cores: {value: 132,", "cores: {value: 132.5,"),
    "unknown topology": edited(DEVICE, "topology: switch", "topology: star"),
    "mesh without link": edited(DEVICE, "topology: switch", "topology: mesh"),
    "wrong schema": edited(DEVICE, "schema: 1", "schema: 2"),
    "price without amount": edited(DEVICE, "usd_per_device_hour: 12.29, ", ""),
    "purchase per hour": edited(DEVICE, "usd_per_device: 33750", "usd_per_device_hour: 33750"),
    "price date": edited(DEVICE, 'date: "2025-03-17"', 'date: "March"'),
    "empty": "",
    "blank": " \n\n",
    "list": "- 1\n",
    "scalar": "h100\n",
    "not YAML": "name: [\n",
    "alias bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "two documents": DEVICE + "---\n" + DEVICE,
    "tag": DEVICE + "x: !!python/object:os.system {}\n",
}
BAD_SYSTEMS = {
    "wrong type": edited(SYSTEM, "devices_per_node: 8", "devices_per_node: eight"),
    "unknown key": SYSTEM + "gpus: 8\n",
    "duplicate key": SYSTEM + "devices_per_node: 4\n",
    "negative": edited(SYSTEM, "devices_per_node: 8", "devices_per_node: -8"),
    "zero": edited(SYSTEM, "devices_per_node: 8", "devices_per_node: 0"),
    "NaN": edited(SYSTEM, "devices_per_node: 8", "devices_per_node: .nan"),
    "1e400": edited(SYSTEM, "devices_per_node: 8", "devices_per_node: 1e400"),
    "unknown device": edited(SYSTEM, "device: h100-sxm-80gb", "device: h1000"),
    "levels shrink": edited(SYSTEM, "size: 8\n", "size: null\n"),
    "same level twice": edited(SYSTEM, "- name: infiniband", "- name: nvlink"),
    "source not listed": edited(SYSTEM, "source: dgx-h100}", "source: nowhere}"),
    "empty": "",
    "alias bomb": "a: &a [x, x]\nb: &b [*a, *a]\n",
}


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    message = str(error.value)
    assert message and "\n" not in message and len(message) < 900
    return message


@pytest.mark.parametrize("fault", BAD_DEVICES)
def test_bad_device_file(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BAD_DEVICES[fault], encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_device(path)
    assert "mine.yaml" in one_line(error)


@pytest.mark.parametrize("fault", BAD_SYSTEMS)
def test_bad_system_file(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BAD_SYSTEMS[fault], encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_system(path)
    assert "mine.yaml" in one_line(error) or fault == "unknown device"


@pytest.mark.parametrize("load", [load_device, load_system])
def test_unreadable(load: object, tmp_path: Path) -> None:
    assert callable(load)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(bytes(range(256)))
    for path in (binary, tmp_path, tmp_path / "missing.yaml", str(tmp_path / "missing.yaml"), "a\0b/x.yaml"):
        with pytest.raises(InputError) as error:
            load(path)
        one_line(error)


def test_own_files(tmp_path: Path) -> None:
    (tmp_path / "my-gpu.yaml").write_text(DEVICE.replace("name: h100-sxm-80gb", "name: my-gpu"), encoding="utf-8")
    mine = tmp_path / "my-box.yaml"
    mine.write_text(edited(SYSTEM, "device: h100-sxm-80gb", "device: my-gpu"), encoding="utf-8")
    assert load_device(tmp_path / "my-gpu.yaml").name == "my-gpu"
    assert load_system(str(mine)).device.name == "my-gpu"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("h1000", "h100"),
        ("a100-sxm-81gb", "a100-sxm-80gb"),
        ("", "not a name or a path"),
        ("x" * 10_000, "unknown device"),
    ],
)
def test_unknown_device(name: str, near: str) -> None:
    with pytest.raises(InputError, match=near) as error:
        load_device(name)
    one_line(error)


def test_unknown_system() -> None:
    with pytest.raises(InputError, match="dgx-h100"):
        load_system("dgx-h10")
    with pytest.raises(InputError, match=r"is a device, not a system: use .*dgx-h100"):
        load_system("h100")
    with pytest.raises(InputError, match="no system with it is known"):
        load_system("k80")
    assert systems_with("gb200") == ["gb200-nvl72"]


@given(st.text(max_size=40).filter(lambda s: "/" not in s))
def test_any_name_gives_a_device_or_one_line(name: str) -> None:
    try:
        load_device(name)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "dtype", "rate", "executes"),
    [
        ("h100", "bf16", 989.4e12, "bf16"),
        ("h100", "BFloat16", 989.4e12, "bf16"),
        ("h100", "fp32", 66.9e12, "fp32"),
        ("h100", "tf32", 494.7e12, "tf32"),
        ("h100", "nvfp4", 989.4e12, "bf16"),
        ("b200", "nvfp4", 9000e12, "fp4"),
        ("b200", "fp6", 4500e12, "fp8"),
        ("a100", "fp8", 312e12, "bf16"),
        ("a100", "int8", 624e12, "int8"),
        ("v100", "bf16", 125e12, "fp16"),
        ("t4", "fp8", 65e12, "fp16"),
        ("p100", "fp16", 21.2e12, "fp16"),
        ("m1-max", "bf16", 10.617e12, "fp16"),
        ("mi300x", "fp32", 163.4e12, "fp32"),
        ("tpu-v4", "fp32", 275e12, "bf16"),
        ("k80", "bf16", 8.73e12, "fp32"),
    ],
)
def test_matmul_peak(name: str, dtype: str, rate: float, executes: str) -> None:
    peak = load_device(name).matmul_peak(dtype)
    assert (peak.flop_per_s, peak.dtype) == (pytest.approx(rate, rel=1e-12), executes)
    native = peak.reason is None
    assert native == (executes in load_device(name).matrix_peak and executes == peak.dtype and _same(dtype, executes))


def _same(asked: str, executes: str) -> bool:
    return {"nvfp4": "fp4", "bfloat16": "bf16"}.get(asked.lower(), asked.lower()) == executes


def test_matmul_efficiency_is_that_of_what_executes() -> None:
    assert load_device("h100").matmul_efficiency("fp4") == 0.78
    assert load_device("h100").matmul_efficiency("fp8") == 0.62
    assert load_device("b200").matmul_efficiency("nvfp4") == 0.44
    assert load_device("v100").matmul_efficiency("bf16") == 0.79


def test_no_rate() -> None:
    with pytest.raises(InputError, match=r"matrix_peak\.bf16=VALUE"):
        load_device("m3-max").matmul_peak("bf16")
    with pytest.raises(InputError, match="unknown dtype"):
        load_device("h100").matmul_peak("fp7")
    usable = load_device("m3-max").with_overrides({"vector_peak.fp32": "14 TFLOP/s"})
    assert usable.matmul_peak("bf16").flop_per_s == 14e12


def test_require() -> None:
    it = load_device("tpu-v5p")
    assert it.require("bandwidth") == it.require("memory.bandwidth") == 2765e9
    with pytest.raises(InputError, match=r"no published 'tdp' .*--set tdp=VALUE"):
        it.require("tdp_w")
    with pytest.raises(InputError, match=r"memory\.bandwidth"):
        it.require("memory.bandwith")
    assert it.figure("memory.bandwidth").source == "google-tpu-v5p"


def test_device_overrides() -> None:
    it = load_device("h100")
    changed = it.with_overrides({"memory.bandwidth": "4 TB/s", "tdp_w": 500, "clock": "1.7 GHz", "caches.llc": "1 MiB"})
    assert (changed.bandwidth, changed.tdp_w, changed.clock_hz, changed.llc_bytes) == (4e12, 500, 1.7e9, 2**20)
    assert changed.figure("bandwidth").source == "override"
    assert (it.bandwidth, it.with_overrides({})) == (3350e9, it)
    assert it.with_overrides({"efficiency.matmul.fp4": "0.5"}).efficiency.matmul["fp4"] == 0.5
    assert changed.with_overrides({"tdp": "1 kW"}).bandwidth == 4e12


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("memory.bandwith", "4 TB/s", r"did you mean memory\.bandwidth"),
        ("memory.bandwidth", "4 TB", "unknown unit"),
        ("memory.bandwidth", "-4 TB/s", "negative"),
        ("memory.bandwidth", math.nan, "finite"),
        ("memory.bandwidth", math.inf, "finite"),
        ("memory.bandwidth", "", "not a quantity"),
        ("memory.bandwidth", 0, "above zero"),
        ("vendor", "AMD", "unknown field to set"),
        ("cores", "1.5", "whole"),
        ("", "1", "unknown field to set"),
    ],
)
def test_bad_override(field: str, value: str | float, message: str) -> None:
    for it in (load_device("h100"), load_system("dgx-h100")):
        with pytest.raises(InputError, match=message) as error:
            it.with_overrides({field: value})
        one_line(error)


def test_system_overrides() -> None:
    it = load_system("dgx-h100")
    changed = it.with_overrides(
        {
            "device.memory.bandwidth": "4 TB/s",
            "tdp_w": 600,
            "scale_up.bandwidth": "400 GB/s",
            "levels.infiniband.bandwidth": "200 Gb/s",
            "levels.nvlink.latency": "1 us",
            "pue": 1.1,
            "site.carbon": "50 g/kWh",
            "node_power": "8 kW",
        }
    )
    nvlink, infiniband = changed.levels
    assert (changed.device.bandwidth, changed.device.tdp_w, nvlink.bandwidth) == (4e12, 600, 400e9)
    assert (infiniband.bandwidth, nvlink.latency_s) == (25e9, pytest.approx(1e-6))
    assert (changed.pue, changed.carbon_kg_per_kwh) == (1.1, pytest.approx(0.05))
    assert changed.power_per_device()[0] == 1000
    assert it.levels[0].bandwidth == 450e9


def quote(usd: float, provider: str, date: str, term: str = "on-demand", superseded: bool = False) -> Price:
    return Price(
        usd_per_device_hour=usd,
        provider=provider,
        date=date,
        term=term,  # type: ignore[arg-type]
        source="x",
        superseded=superseded,
    )


def test_default_price_rule() -> None:
    quotes = [
        quote(9, "a", "2025-01"),
        quote(5, "a", "2026"),  # newer, so the first of a does not count
        quote(3, "b", "2025-06-03"),
        quote(50, "c", "2024-06"),  # 19 months before the newest
        quote(4, "d", "2024-07"),  # 18 months before
        quote(70, "e", "2026", superseded=True),
        quote(1, "f", "2026-05", term="market"),
    ]
    usd, source = default_price(quotes, "on-demand") or (0, "")
    assert usd == 4 and "median of 3 on-demand quotes 2024-07 to 2026" in source
    assert default_price(quotes[-1:], "on-demand") == (1, "f, market, 2026-05")
    assert default_price(quotes, "3-year") is None


def test_prices_of_devices() -> None:
    h100 = load_device("h100")
    assert h100.price() == (
        6.88,
        "median of 5 on-demand quotes 2025-03-03 to 2026: Google Cloud, Oracle, Lambda, RunPod, AWS",
    )
    assert h100.price("lambda") == (3.99, "Lambda, on-demand, 2026")
    assert h100.price("google cloud", "3-year") == (4.86, "Google Cloud, 3-year, 2025-03-17")
    assert h100.price(term="purchase")[0] > 25_000
    assert load_system("dgx-h100").price() == h100.price()
    for arguments, message in (
        (("lamda",), "did you mean Lambda"),
        (("lambda", "3-year"), "give --price"),
        ((None, "weekly"), "unknown price term"),
    ):
        with pytest.raises(InputError, match=message):
            h100.price(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"gb200 has no known on-demand price .*give --price"):
        load_system("gb200-nvl72").price()
