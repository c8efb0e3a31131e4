"""collectives: NCCL and engines' own all-reduce by device, group and message size.

``bytes`` is the size argument of nccl-tests, that of ``timing.collectives``. The node a row was measured on is the
system of its device; ``devices_per_node`` below ``num_devices`` spreads the group over nodes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from tfsim.hardware import Device, System, load_system, systems_with
from tfsim.timing.collectives import Constants, Group, collective_seconds
from tfsim.timing.links import (
    BridgeConstants,
    EngineConstants,
    ReduceConstants,
    SwitchConstants,
    engine_seconds,
    reduces,
    wire,
)
from tfsim.timing.machine import Machine
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, where

KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "send_recv": "p2p",
}
# The node that a device was measured in, where it is not the largest of those it comes in.
NODES = {"a100-pcie-80gb": "a100-pcie-4x-bridged", "h100-nvl-94gb": "h100-nvl-4x-bridged"}
ENGINES = ("TRTLLM", "vLLM", "SGLang")
# Their kernels whose data carry flags; the others meet at barriers (see ``collective_seconds``).
FLAGS = ("TRTLLM", "SGLang 0.5.14")
# Engine runs on another host than the other measurements of the same device, whose large messages they contradict by
# 2.6 to 10 times: L40S with, RTX PRO 6000 without peer-to-peer access.
OTHER_HOST = (
    ("l40s", "SGLang 0.5.12"),
    ("rtx-pro-6000", "SGLang 0.5.10"),
    ("rtx-pro-6000", "vLLM 0.19.0"),
    ("rtx-pro-6000", "TRTLLM 1.3.0rc10"),
)


@cache
def _system(device: str) -> System | None:
    """The node of a device; None where no system describes how several are joined."""
    names = [NODES[device]] if device in NODES else systems_with(device)
    nodes = [system for system in map(load_system, names) if system.levels]
    return max(nodes, key=lambda system: system.devices_per_node, default=None)


def _inner(frame: pd.DataFrame) -> pd.Series[str]:
    """What joins the devices of a row's node: "adds" (a switch that can), "switch", "host_bridge", "other" or ""."""
    return frame["device"].map({device: _joined(_system(str(device))) for device in frame["device"].unique()})


def _joined(system: System | None) -> str:
    if system is None:
        return ""
    level = system.levels[0]
    if level.topology == "switch" and level.profile.link == "scale_up":
        return "adds" if level.in_network_reduction else "switch"
    return "host_bridge" if level.topology == "host_bridge" else "other"


def _engine(frame: pd.DataFrame) -> pd.Series[bool]:
    return frame["library"].str.startswith(ENGINES, na=False)


def _known(frame: pd.DataFrame) -> pd.Series[bool]:
    several = (frame["num_devices"] >= 1) & (frame["devices_per_node"] >= 1)
    return frame["op"].isin(list(KINDS)) & (_inner(frame) != "") & several


def _linked_variant(frame: pd.DataFrame) -> pd.Series[str]:
    linked = _known(frame) & (_inner(frame) != "host_bridge")
    return where(frame, (linked & ~_engine(frame) & ~_added(frame), "nccl"))


def _reduce_variant(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, (_known(frame) & ~_engine(frame) & _added(frame), "nccl"))


def _staged_variant(frame: pd.DataFrame) -> pd.Series[str]:
    here = _known(frame) & (_inner(frame) == "host_bridge")
    eager = frame["timing"] == "host"
    return where(frame, (here & ~_engine(frame), "nccl"), (here & eager, "eager"), (here, "engine"))


def _engine_variant(frame: pd.DataFrame) -> pd.Series[str]:
    here = _known(frame) & _inner(frame).isin(["switch", "adds"]) & _engine(frame) & (frame["op"] == "all_reduce")
    flags = frame["library"].str.startswith(FLAGS, na=False)
    return where(frame, (here & (frame["timing"] == "host"), "eager"), (here & flags, "flags"), (here, "barrier"))


def _added(frame: pd.DataFrame) -> pd.Series[bool]:
    """All-reduces that switches add: the node's can, the group is large enough, and they are not of integers."""
    able = (_inner(frame) == "adds") & (frame["op"] == "all_reduce") & ~_integers(frame)
    return able & reduces(frame["num_devices"].to_numpy())


def _integers(frame: pd.DataFrame) -> pd.Series[bool]:
    return frame["dtype"] == "int8"


def _group(frame: pd.DataFrame, system: System) -> Group:
    """Neighbours share a node where ``devices_per_node`` says so; else the devices of one node are skipped."""
    spread = system.devices_per_node // frame["devices_per_node"].to_numpy(float)
    within = (frame["devices_per_node"] >= frame["num_devices"]).to_numpy()
    return Group(frame["num_devices"].to_numpy(float), np.where(within, 1.0, spread))


def _node(machine: Machine) -> System:
    system = _system(machine.name)
    assert system is not None  # rows without one are of no variant
    return system


def _seconds(frame: pd.DataFrame, machine: Machine, c: Constants, variant: str) -> Array:
    system = _node(machine)
    out = np.full(len(frame), np.nan)
    for (op, integers), part in frame.groupby([frame["op"], _integers(frame)]):
        size, group = part["bytes"].to_numpy(float), _group(part, system)
        rows = frame.index.get_indexer(part.index)
        out[rows] = collective_seconds(KINDS[str(op)], size, group, system, integers=bool(integers), fitted=c)
    outermost = system.levels[-1].size or np.inf
    whole = _group(frame, system)
    out[np.asarray(whole.size * whole.stride > outermost)] = np.nan  # more devices than the system joins
    return out


def _engine_seconds(frame: pd.DataFrame, machine: Machine, c: EngineConstants, variant: str) -> Array:
    n, size = (frame[x].to_numpy(float) for x in ("num_devices", "bytes"))
    return engine_seconds(size, n, _node(machine).levels[0].bandwidth, c)


def _roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    """Bytes a device sends in a ring over its bandwidth at the innermost level that holds the group."""
    system = _node(machine)
    group = _group(frame, system)
    reach = np.asarray(group.size * group.stride)
    link = np.full(len(frame), np.nan)
    for level in system.levels:
        here = np.isnan(link) & (reach <= (level.size or np.inf))
        if here.any():  # levels that no row needs may have no published bandwidth
            link[here] = level.bandwidth
    share = np.select([frame["op"] == op for op in KINDS], [wire(kind, group.size)[1] for kind in KINDS.values()])
    return np.asarray(share * frame["bytes"].to_numpy(float) / link)


def _faults(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    vidur = frame["source"] == "vidur"
    across = frame["devices_per_node"] < frame["num_devices"]
    other = np.zeros(len(frame), bool)
    for name, library in OTHER_HOST:
        other |= ((frame["device"] == name) & frame["library"].str.startswith(library, na=False)).to_numpy()
    return where(
        frame,
        # the H100 rows do agree with that node's 400 Gb/s cards
        (vidur & across & (device.name != "h100-sxm-80gb"), "vidur inter-node: an unpublished, much slower network"),
        (vidur & (frame["op"] == "send_recv") & (device.name == "a40"), "vidur A40 send_recv: no working NVLink"),
        (other, "engine run on another host than this device's other rows"),
    )


COLLECTIVES = Table(
    "collectives",
    frozenset({"device", "timing", "op", "library", "dtype", "num_devices", "devices_per_node", "bytes", "time_s"}),
    (
        Part("collective", SwitchConstants, _linked_variant, _seconds, _roofline),
        Part("reduce", ReduceConstants, _reduce_variant, _seconds, _roofline),
        Part("bridge", BridgeConstants, _staged_variant, _seconds, _roofline),
        Part("engine", EngineConstants, _engine_variant, _engine_seconds, _roofline),
    ),
    _faults,
    group=("source", "device", "timing"),
)
