"""The shipped profiles: complete, sourced, and equal to the figures they were read from."""

import re
from functools import cache
from pathlib import Path

import pytest

from tfsim.errors import InputError
from tfsim.files import data_dir
from tfsim.hardware import Device, System, list_devices, list_systems, load_device, load_system
from tfsim.hardware.profile import DeviceProfile

DEVICES = sorted(path.stem for path in (data_dir("hardware") / "devices").glob("*.yaml"))
SYSTEMS = sorted(path.stem for path in (data_dir("hardware") / "systems").glob("*.yaml"))

device = cache(load_device)
system = cache(load_system)

# The names that the research tables and the measured tables use.
CANONICAL_TEXT = """
p100-sxm-16gb v100-sxm-16gb v100-sxm-32gb t4 a10g a100-sxm-40gb a100-sxm-80gb a100-pcie-40gb
a100-pcie-80gb a40 l4 l40s rtx-3090 rtx-4090 rtx-5090 rtx-6000-ada rtx-pro-6000 h100-sxm-80gb
h200-sxm-141gb gh200-96gb gh200-144gb h20-96gb h100-pcie-80gb h100-nvl-94gb h800-sxm-80gb b200-sxm
b300-sxm gb200 gb300 mi210 mi250x mi300x mi325x mi355x tpu-v2 tpu-v3 tpu-v4 tpu-v5e tpu-v5p tpu-v6e
tpu-v7 trainium1 trainium2 inferentia2 gaudi2 gaudi3 m1-max m1-ultra m2-max m2-ultra m3-max m3-ultra
m4-max cpu-spr-2s
h100-sxm-96gb-500w k80 mi250 a10 rtx-4000-ada rtx-a6000 rtx-3090-ti m1 rtx-3080 rtx-3080-ti
rtx-4070-ti rtx-5000-ada l40 a30 rx-7900-xtx arc-pro-b60
"""
TABLE_TEXT = """
p100_sxm2_16gb v100_sxm2_16gb v100_sxm2_32gb t4 a10g a100_sxm_40gb a100_sxm_80gb a100_pcie_40gb
a100_pcie_80gb a40 l4 l40s rtx_3090 rtx_4090 rtx_5090 rtx_6000_ada rtx_pro_6000_server h100_sxm
h200_sxm gh200_96gb gh200_144gb h20 h100_pcie h100_nvl h800_sxm b200_hgx b300_hgx gb200_nvl72
gb300_nvl72 mi210 mi250x mi300x mi325x mi355x tpu_v2 tpu_v3 tpu_v4 tpu_v5e tpu_v5p tpu_v6e tpu_v7
trainium1 trainium2 inferentia2 gaudi2 gaudi3 m1_max m1_ultra m2_max m2_ultra m3_max m3_ultra m4_max
cpu_spr_2s
"""
CANONICAL, TABLE_KEYS = CANONICAL_TEXT.split(), TABLE_TEXT.split()


@pytest.mark.parametrize("name", DEVICES)
def test_device_is_complete(name: str) -> None:
    it = device(name)
    assert it.name == name
    for path, figure in it.figures.items():
        if figure.value is None:
            assert figure.reason, path
        else:
            assert figure.source in it.profile.sources, path
    used = {f.source for f in it.figures.values()} | {p.source for p in it.prices}
    used.add(it.profile.release_date.source)
    assert set(it.profile.sources) == used - {None}, "a source that nothing uses"
    again = DeviceProfile.model_validate(it.profile.model_dump(by_alias=True))
    assert again == it.profile


@pytest.mark.parametrize("name", DEVICES)
def test_device_is_plausible(name: str) -> None:
    it = device(name)
    assert it.capacity_bytes is not None and it.capacity_label is not None
    assert it.bandwidth is not None
    assert 0.65 * it.capacity_label <= it.capacity_bytes <= 1.08 * it.capacity_label
    assert it.runtime_reserve_bytes is not None and it.runtime_reserve_bytes < 0.25 * it.capacity_bytes
    for narrow, wide in (("fp8", "bf16"), ("fp4", "fp8"), ("bf16", "tf32"), ("fp16", "tf32")):
        if narrow in it.matrix_peak and wide in it.matrix_peak:
            assert it.matrix_peak[narrow] >= it.matrix_peak[wide], (narrow, wide)
    fractions = [*it.efficiency.matmul.values(), it.efficiency.memory, it.efficiency.scale_up]
    assert all(0 < fraction <= 1 for fraction in [*fractions, it.efficiency.scale_out])
    link = it.scale_up
    if link.bandwidth is not None:
        assert link.link_bandwidth is not None and link.link_bandwidth <= link.bandwidth
        assert link.topology not in ("mesh", "torus2d", "torus3d") or link.link_bandwidth < link.bandwidth
    assert it.release_date is None or "2014" < it.release_date < "2027"
    assert all(0.05 < p.usd < 20 for p in it.prices if p.term != "purchase")
    assert all(500 < p.usd < 100_000 for p in it.prices if p.term == "purchase")


@pytest.mark.parametrize("name", [*CANONICAL, *TABLE_KEYS])
def test_name_of_the_tables_resolves(name: str) -> None:
    found = load_device(name)
    if name in CANONICAL:
        assert found.name == name


def test_names_are_unique_and_aliases_stand_on_one_line() -> None:
    for folder, entries in (("devices", list_devices()), ("systems", list_systems())):
        names = [name for entry in entries for name in (entry.name, *entry.aliases)]
        assert len(names) == len(set(names))
        for path in (data_dir("hardware") / folder).glob("*.yaml"):
            assert re.search(r"^aliases: \[.*\]$", path.read_text(encoding="utf-8"), re.MULTILINE), path


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "h100-sxm-80gb"),
        ("H100", "h100-sxm-80gb"),
        ("h100_sxm", "h100-sxm-80gb"),
        ("  H100 SXM ", "h100-sxm-80gb"),
        ("a100", "a100-sxm-80gb"),
        ("h200", "h200-sxm-141gb"),
        ("b200", "b200-sxm"),
        ("4090", "rtx-4090"),
        ("v5e", "tpu-v5e"),
        ("trn2", "trainium2"),
    ],
)
def test_alias(alias: str, name: str) -> None:
    assert load_device(alias).name == name


# name: bf16 rate, memory label, usable bytes, memory bandwidth, link bandwidth per direction, power
SPOT = {
    "p100-sxm-16gb": (21.2e12, 16e9, 16 * 2**30, 720e9, 80e9, 300),
    "v100-sxm-32gb": (125e12, 32e9, 32510 * 2**20, 900e9, 150e9, 300),
    "t4": (65e12, 16e9, 15 * 2**30, 320e9, 15.75e9, 70),
    "a10g": (70e12, 24e9, 23028 * 2**20, 600.2e9, 31e9, 150),
    "a100-sxm-80gb": (312e12, 80e9, 80 * 2**30, 2039e9, 300e9, 400),
    "a100-pcie-80gb": (312e12, 80e9, 80 * 2**30, 1935e9, 31e9, 300),
    "l40s": (362.05e12, 48e9, 46068 * 2**20, 864e9, 31e9, 350),
    "rtx-4090": (165.2e12, 24e9, 24564 * 2**20, 1008e9, 31e9, 450),
    "rtx-5090": (209.5e12, 32e9, 32607 * 2**20, 1792e9, 63e9, 575),
    "h100-sxm-80gb": (989.4e12, 80e9, 81559 * 2**20, 3350e9, 450e9, 700),
    "h200-sxm-141gb": (989.4e12, 141e9, 143771 * 2**20, 4800e9, 450e9, 700),
    "h800-sxm-80gb": (989.4e12, 80e9, 81559 * 2**20, 3361e9, 200e9, 700),
    "h20-96gb": (148e12, 96e9, 97871 * 2**20, 4000e9, 450e9, 400),
    "b200-sxm": (2250e12, 180e9, 183359 * 2**20, 7700e9, 900e9, 1000),
    "b300-sxm": (2250e12, 288e9, 275040 * 2**20, 7750e9, 900e9, 1100),
    "gb200": (2500e12, 186e9, 189471 * 2**20, 8000e9, 900e9, 1200),
    "gb300": (2500e12, 288e9, 284208 * 2**20, 8000e9, 900e9, 1400),
    "mi300x": (1307.4e12, 192 * 2**30, 192 * 2**30, 5300e9, 448e9, 750),
    "mi355x": (2500e12, 288 * 2**30, 288 * 2**30, 8000e9, 537.6e9, 1400),
    "tpu-v4": (275e12, 32 * 2**30, 32 * 2**30, 1200e9, 300e9, 192),
    "tpu-v5e": (197e12, 16e9, 16 * 2**30, 819e9, 180e9, None),
    "tpu-v5p": (459e12, 95 * 2**30, 95 * 2**30, 2765e9, 540e9, None),
    "tpu-v6e": (918e12, 32e9, 32 * 2**30, 1638e9, 360e9, None),
    "tpu-v7": (2307e12, 192 * 2**30, 192 * 2**30, 7370e9, 600e9, 980),
    "trainium2": (667e12, 96 * 2**30, 96 * 2**30, 2900e9, 640e9, 500),
    "gaudi3": (1677e12, 128e9, 128e9, 3700e9, 525e9, 900),
    "m2-ultra": (27.2e12, 192e9, 154618820000, 800e9, None, None),
    "cpu-spr-2s": (356e12, 512 * 2**30, 512 * 2**30, 614.4e9, None, 700),
}


@pytest.mark.parametrize("name", SPOT)
def test_spot_values(name: str) -> None:
    it = device(name)
    rate, label, capacity, bandwidth, link, power = SPOT[name]
    assert it.matmul_peak("bf16").flop_per_s == pytest.approx(rate, rel=1e-12)
    assert (it.capacity_label, it.capacity_bytes) == (label, capacity)
    assert it.bandwidth == pytest.approx(bandwidth, rel=1e-12)
    assert it.scale_up.bandwidth == (link if link is None else pytest.approx(link, rel=1e-12))
    assert it.tdp_w == power


def test_h100_in_full() -> None:
    it = device("h100")
    assert it.matrix_peak["fp8"] == pytest.approx(1978.9e12)
    assert it.vector_peak == {"fp64": 33.5e12, "fp32": 66.9e12, "bf16": 133.8e12, "fp16": 133.8e12}
    assert (it.l2_bytes, it.smem_bytes_per_sm, it.sm_count) == (50 * 2**20, 228 * 2**10, 132)
    assert (it.clock_hz, it.nic_bandwidth, it.pcie_bandwidth) == (1830e6, 50e9, 63e9)
    assert it.scale_up.topology == "switch" and it.scale_up.domain == 8
    assert it.scale_up.in_network_reduction and it.scale_up.link_bandwidth == 450e9
    assert it.efficiency.matmul == {"bf16": 0.78, "fp8": 0.62}


def test_mesh_and_torus_give_one_neighbour_a_part() -> None:
    assert device("mi300x").scale_up.link_bandwidth == 64e9
    assert device("tpu-v5p").scale_up.link_bandwidth == 90e9
    assert device("tpu-v5p").scale_up.topology == "torus3d"


@pytest.mark.parametrize("name", SYSTEMS)
def test_system_is_complete(name: str) -> None:
    it = system(name)
    assert it.name == name
    own = {path: f for path, f in it.figures.items() if not path.startswith("device.")}
    for path, figure in own.items():
        if figure.value is None:
            assert figure.reason, path
        else:
            assert figure.source in it.profile.sources, path
    assert set(it.profile.sources) >= {f.source for f in own.values()} - {None}
    assert 0 < it.carbon_kg_per_kwh < 2 and 1 <= it.pue < 2 and 0 < it.electricity_usd_per_kwh < 1
    sizes = [level.size for level in it.levels]
    # a node may join pairs before all of its devices
    assert any(it.devices_per_node <= (size or 10**9) for size in sizes) if sizes else it.devices_per_node == 1
    for level in it.levels:
        assert level.latency_s > 0 and level.call_latency_s >= 0
    power = it.profile.node_power.value
    if power is not None and it.device.tdp_w is not None:
        assert it.devices_per_node * it.device.tdp_w < power < 4 * it.devices_per_node * it.device.tdp_w


@pytest.mark.parametrize(
    ("name", "n", "levels"),
    [
        ("dgx-h100", 1, []),
        ("dgx-h100", 8, ["nvlink"]),
        ("dgx-h100", 9, ["nvlink", "infiniband"]),
        ("hgx-h100", 2048, ["nvlink", "infiniband"]),
        ("gb200-nvl72", 72, ["nvlink"]),
        ("gb300-nvl72", 144, ["nvlink", "network"]),
        ("tpu-v5e-pod", 256, ["ici"]),
        ("tpu-v5e-pod", 512, ["ici", "dcn"]),
        ("trn2-ultraserver", 64, ["neuronlink", "ultraserver"]),
        ("hgx-h20", 8, ["nvlink"]),
    ],
)
def test_levels_for(name: str, n: int, levels: list[str]) -> None:
    assert [level.name for level in system(name).levels_for(n)] == levels


def test_level_figures() -> None:
    nvlink, infiniband = system("dgx-h100").levels
    assert (nvlink.bandwidth, infiniband.bandwidth) == (450e9, 50e9)
    assert nvlink.latency_s == pytest.approx(0.6e-6) and infiniband.latency_s == pytest.approx(2.7e-6)
    assert nvlink.in_network_reduction and nvlink.efficiency == 0.74
    assert infiniband.efficiency == 0.74
    assert system("a100-pcie-4x-bridged").levels[1].efficiency == 0.69
    assert system("mi300x-8x").levels[0].link_bandwidth == 64e9
    assert system("trn2-ultraserver").levels[1].link_bandwidth == 64e9


@pytest.mark.parametrize("name", ["tpu-v4-pod", "tpu-v7-pod", "workstation-2x-rtx-4090", "macbook-pro-m1-max"])
def test_too_many_devices(name: str) -> None:
    with pytest.raises(InputError, match="joins at most"):
        system(name).levels_for(100_000)


def test_unpublished_network_is_asked_for() -> None:
    with pytest.raises(InputError, match="--set nic=VALUE"):
        system("hgx-h20").levels_for(16)
    assert system("hgx-h20").with_overrides({"nic": "400 Gb/s"}).levels_for(16)[1].bandwidth == 50e9


def test_power_per_device() -> None:
    watts, source = system("dgx-h100").power_per_device()
    assert watts == 1275 and "node" in source
    watts, source = system("mi300x-8x").power_per_device()
    assert watts == 750 and "without host" in source
    with pytest.raises(InputError, match="--power"):
        system("tpu-v5p-pod").power_per_device()


def test_every_listed_kind_of_system_is_there() -> None:
    devices = {system(name).device.name for name in SYSTEMS}
    assert devices >= {
        "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm", "b300-sxm", "gb200",
        "gb300", "mi250x", "mi300x", "mi325x", "mi355x", "h20-96gb", "h800-sxm-80gb", "l40s", "l4", "t4", "a10g",
        "v100-sxm-32gb", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7", "gaudi2", "gaudi3",
        "trainium2", "rtx-4090", "rtx-3090", "rtx-5090", "rtx-pro-6000", "m1-max", "m3-max", "m4-max", "m2-ultra",
        "cpu-spr-2s",
    }  # fmt: skip


def test_profiles_hold_no_stray_files() -> None:
    for folder in ("devices", "systems"):
        assert {p.suffix for p in Path(data_dir("hardware") / folder).iterdir()} == {".yaml"}


def test_types() -> None:
    assert isinstance(device("h100"), Device) and isinstance(system("dgx-h100"), System)
