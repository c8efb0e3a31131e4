"""Collectives over one level: bounds, monotony, and figures measured elsewhere."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.hardware import load_device, load_system
from tfsim.timing.collectives import Group, collective_seconds
from tfsim.timing.constants import constants
from tfsim.timing.links import (
    BridgeConstants,
    EngineConstants,
    ReduceConstants,
    SwitchConstants,
    Wires,
    bridge_seconds,
    engine_seconds,
    plain_seconds,
    reduce_seconds,
    switch_seconds,
    wire,
)
from tfsim.units import Array, Number

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]
SWITCHED = ["a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm", "b300-sxm", "gb200", "gb300"]
STAGED = ["l40s", "rtx-pro-6000"]


def formula(name: str, kind: str, bytes: Number, n: Number, link: Number) -> Array:
    """The formula named, with the shipped constants of a device (or plain wires of a topology)."""
    if name in SWITCHED:
        return switch_seconds(kind, bytes, n, link, constants("collective", SwitchConstants, at(name), "nccl").values)
    if name in STAGED:
        return bridge_seconds(kind, bytes, n, link, constants("bridge", BridgeConstants, at(name), "nccl").values)
    if name == "reduce":
        return reduce_seconds(bytes, n, link, constants("reduce", ReduceConstants, at("b200-sxm"), "nccl").values)
    if name in ("flags", "barrier"):
        return engine_seconds(bytes, n, link, constants("engine", EngineConstants, at("h100-sxm-80gb"), name).values)
    return plain_seconds(kind, bytes, n, Wires(name, float(link), float(link) / 6, 5e-6, 1e-6))


def at(name: str):  # type: ignore[no-untyped-def]
    return load_device(name)


FORMULAS = [
    *SWITCHED,
    *STAGED,
    "reduce",
    "flags",
    "barrier",
    "switch",
    "mesh",
    "cube_mesh",
    "ring",
    "torus2d",
    "torus3d",
]


def kinds_of(name: str) -> list[str]:
    return ["all_reduce"] if name in ("reduce", "flags", "barrier") else KINDS


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(FORMULAS), n=st.integers(2, 8), size=st.floats(1, 1e11))
def test_more_bytes_take_longer_and_more_bandwidth_does_not(
    data: st.DataObject, name: str, n: int, size: float
) -> None:
    kind = data.draw(st.sampled_from(kinds_of(name)))
    link = data.draw(st.floats(1e10, 1e12))
    seconds = float(formula(name, kind, size, n, link))
    # a buffer must leave the device once at least; a mesh's link is a sixth of all in these wires
    least = size * (n - 1) / n / link if kind != "p2p" else size / link
    assert seconds > 0 and seconds >= least * (1 - 1e-9)
    more = data.draw(st.floats(1.0, 10))
    assert formula(name, kind, size * more, n, link) >= seconds * (1 - 1e-12)
    assert formula(name, kind, size, n, link * more) <= seconds * (1 + 1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_arrays_equal_each_alone(name: str) -> None:
    n, sizes = np.array([[2.0], [3], [8]]), np.array([1.0, 4e4, 3e6, 1e9])
    for kind in kinds_of(name):
        table = formula(name, kind, sizes, n, 3e11)
        assert table.shape == (3, 4)
        alone = [[float(formula(name, kind, x, m, 3e11)) for x in sizes] for m in (2, 3, 8)]
        np.testing.assert_allclose(table, alone, rtol=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_no_jump_that_a_search_could_chase(name: str) -> None:
    """A hundredth more bytes takes at most a tenth longer."""
    sizes = np.exp(np.linspace(np.log(256), np.log(1e10), 1800))
    for kind in kinds_of(name):
        steps = np.diff(np.log(formula(name, kind, sizes, 8, 4e11)))
        assert steps.max() < 0.1 and steps.min() >= -1e-12


def test_a_ring_sends_all_but_its_own_share() -> None:
    assert [float(x) for x in wire("all_reduce", 8)] == [14, 1.75]
    assert [float(x) for x in wire("all_gather", 4)] == [3, 0.75]
    assert [float(x) for x in wire("p2p", 2)] == [1, 1]


@pytest.mark.parametrize("cls", [SwitchConstants, ReduceConstants, BridgeConstants, EngineConstants])
def test_constants_start_within_bounds_and_are_few(cls: type) -> None:
    table = fields(cls)
    assert len(table) <= 15
    for f in table:
        assert f.metadata["low"] < f.default < f.metadata["high"]


def bus(kind: str, size: float, n: int, seconds: Number) -> float:
    return float(wire(kind, n)[1]) * size / float(np.asarray(seconds)) / 1e9


@pytest.mark.parametrize(
    ("system", "n", "size", "measured", "within"),
    [
        ("dgx-b200", 8, 16 * 2**30, 846, 0.10),  # ml-engineering, NVLS
        ("dgx-h200", 4, 8 * 2**30, 363, 0.07),  # ml-engineering
        ("dgx-1-v100", 8, 2**30, 135, 0.15),  # vTrain
        ("dgx-1-v100", 4, 2**30, 85, 0.15),
        ("dgx-1-v100", 2, 2**30, 23, 0.15),
        ("dgx-1-v100", 5, 2**30, 37, 0.15),
        ("mi300x-8x", 8, 2**32, 313, 0.05),  # ml-engineering
        ("dgx-b200", 32, 16 * 2**30, 382, 0.05),  # ml-engineering, four nodes
    ],
)
def test_measured_all_reduce(system: str, n: int, size: int, measured: float, within: float) -> None:
    """Bus bandwidth [GB/s] of large all-reduces that no constant was fitted on (research/hardware.md, operators.md)."""
    seconds = collective_seconds("all_reduce", size, Group(n, 1), load_system(system))
    assert bus("all_reduce", size, n, seconds) == pytest.approx(measured, rel=within)


def test_an_engine_beats_the_library_on_small_messages_only() -> None:
    h100, eight = load_system("dgx-h100"), Group(8, 1)
    nccl, barrier, flags = (
        collective_seconds("all_reduce", np.array([8192.0, 1e9]), eight, h100, library=x)
        for x in ("nccl", "barrier", "flags")
    )
    assert flags[0] < barrier[0] < nccl[0] / 2  # type: ignore[index]
    assert barrier[1] == pytest.approx(nccl[1], rel=0.2)  # type: ignore[index]
    # other collectives, and groups beyond one domain, are the library's
    assert collective_seconds("all_gather", 8192, eight, h100, library="flags") == collective_seconds(
        "all_gather", 8192, eight, h100
    )
    assert collective_seconds("all_reduce", 8192, Group(16, 1), h100, library="flags") == collective_seconds(
        "all_reduce", 8192, Group(16, 1), h100
    )


def test_switches_do_not_add_integers() -> None:
    h100, size = load_system("dgx-h100"), 2**29
    plain, integers = (collective_seconds("all_reduce", size, Group(8, 1), h100, integers=x) for x in (False, True))
    assert bus("all_reduce", size, 8, integers) == pytest.approx(352, rel=0.06)  # int8, against 445 for halves
    assert plain < integers * 0.9
    four = [collective_seconds("all_reduce", size, Group(4, 1), h100, integers=x) for x in (False, True)]
    assert four[0] == four[1]


def test_pairs_on_a_bridge_and_the_ring_over_pcie() -> None:
    pairs = load_system("a100-pcie-4x-bridged")
    two, four = (collective_seconds("all_reduce", 5e8, Group(n, 1), pairs) for n in (2, 4))
    assert bus("all_reduce", 5e8, 2, two) > 150
    assert bus("all_reduce", 5e8, 4, four) == pytest.approx(0.69 * 31, rel=0.1)
    assert collective_seconds("p2p", 1e8, Group(2, 1), pairs) < collective_seconds("p2p", 1e8, Group(2, 2), pairs)


def test_cards_without_peer_access_share_their_host() -> None:
    l40s = load_system("l40s-8x")
    rates = [bus("all_reduce", 2**28, n, collective_seconds("all_reduce", 2**28, Group(n, 1), l40s)) for n in (2, 4, 8)]
    assert rates[0] == pytest.approx(20, rel=0.1) and rates[0] > 3 * rates[1] > 9 * rates[2]


def test_a_slower_level_further_out_is_oversubscription() -> None:
    """Nodes of 8 under a leaf of 32 devices whose uplinks carry a quarter."""
    h100 = load_system("dgx-h100")
    slow = h100.with_overrides({"levels.infiniband.bandwidth": "100 Gb/s"})
    size, group = 1e9, Group(64, 1)
    full, quarter = (collective_seconds("all_reduce", size, group, s) for s in (h100, slow))
    assert 2 < quarter / full < 4
    # one device per node drives one card; a whole node shares its buffer out over eight
    alone = collective_seconds("all_reduce", size, Group(8, 8), h100)
    assert alone > 4 * full
