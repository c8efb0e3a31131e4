"""collectives: NCCL and engines' own all-reduce by device, group and message size.

``bytes`` is the size argument of nccl-tests, that of ``timing.collectives``. The node a row was measured on is the
system of its device in ``SYSTEMS``; ``devices_per_node`` below ``num_devices`` spreads the group over nodes.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from tfsim.hardware import Device, System, load_system
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
# The node that each device was measured in: those whose links a switch or a bridge of two joins, and those on PCIe alone
LINKED = {
    "a100-sxm-80gb": "dgx-a100",
    "a100-pcie-80gb": "a100-pcie-4x-bridged",
    "h100-sxm-80gb": "dgx-h100",
    "h100-nvl-94gb": "h100-nvl-4x-bridged",
    "h200-sxm-141gb": "dgx-h200",
    "b200-sxm": "dgx-b200",
    "b300-sxm": "dgx-b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "v100-sxm-32gb": "dgx-1-v100",
}
STAGED = {"l40s": "l40s-8x", "rtx-pro-6000": "rtx-pro-6000-8x", "arc-pro-b60": "arc-pro-b60-8x"}
# Engine runs on another host than the other measurements of the same device, whose large messages they contradict by
# 2.6 to 10 times: L40S with, RTX PRO 6000 without peer-to-peer access.
OTHER_HOST = (
    ("l40s", "SGLang 0.5.12"),
    ("rtx-pro-6000", "SGLang 0.5.10"),
    ("rtx-pro-6000", "vLLM 0.19.0"),
    ("rtx-pro-6000", "TRTLLM 1.3.0rc10"),
)


@cache
def _system(device: str) -> System:
    return load_system((LINKED | STAGED)[device])


def _nccl(frame: pd.DataFrame) -> pd.Series[bool]:
    # "trtllm/..." is NCCL called by TensorRT-LLM: all five operations
    return frame["library"].str.startswith(("nccl", "trtllm/"))


def _flags(frame: pd.DataFrame) -> pd.Series[bool]:
    """Kernels whose data carry flags; the others meet at barriers (see ``collective_seconds``)."""
    return frame["library"].str.startswith(("TRTLLM", "SGLang 0.5.14"))


def _linked_variant(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, (frame["device"].isin(LINKED) & _nccl(frame) & ~_added(frame), "nccl"))


def _reduce_variant(frame: pd.DataFrame) -> pd.Series[str]:
    return where(frame, (_nccl(frame) & _added(frame), "nccl"))


def _added(frame: pd.DataFrame) -> pd.Series[bool]:
    """All-reduces that switches add: the node's can, and the group is large enough."""
    able = [d for d in LINKED if _system(d).levels[0].in_network_reduction]
    return frame["device"].isin(able) & (frame["op"] == "all_reduce") & reduces(frame["num_devices"].to_numpy())


def _staged_variant(frame: pd.DataFrame) -> pd.Series[str]:
    here = frame["device"].isin(STAGED)
    eager = frame["timing"] == "host"
    return where(frame, (here & _nccl(frame), "nccl"), (here & eager, "eager"), (here, "engine"))


def _engine_variant(frame: pd.DataFrame) -> pd.Series[str]:
    here = frame["device"].isin(LINKED) & ~_nccl(frame) & (frame["op"] == "all_reduce")
    eager = frame["timing"] == "host"
    return where(frame, (here & eager, "eager"), (here & _flags(frame), "flags"), (here, "barrier"))


def _group(frame: pd.DataFrame, system: System) -> Group:
    """Neighbours share a node where ``devices_per_node`` says so; else the devices of one node are skipped."""
    spread = system.devices_per_node // frame["devices_per_node"].to_numpy(float)
    within = (frame["devices_per_node"] >= frame["num_devices"]).to_numpy()
    return Group(frame["num_devices"].to_numpy(float), np.where(within, 1.0, spread))


def _seconds(frame: pd.DataFrame, machine: Machine, c: Constants, variant: str) -> Array:
    system = _system(machine.name)
    out = np.full(len(frame), np.nan)
    for op, kind in KINDS.items():
        rows = (frame["op"] == op).to_numpy()
        if rows.any():
            part = frame[rows]
            group = _group(part, system)
            out[rows] = collective_seconds(kind, part["bytes"].to_numpy(float), group, system, fitted=c)
    return out


def _engine_seconds(frame: pd.DataFrame, machine: Machine, c: EngineConstants, variant: str) -> Array:
    n, size = (frame[x].to_numpy(float) for x in ("num_devices", "bytes"))
    return engine_seconds(size, n, _system(machine.name).levels[0].bandwidth, c)


def _roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    """Bytes a device sends in a ring over its bandwidth at the innermost level that holds the group."""
    system = _system(machine.name)
    group = _group(frame, system)
    reach = np.asarray(group.size * group.stride)
    link = np.select(
        [reach <= (level.size or np.inf) for level in system.levels],
        [level.bandwidth for level in system.levels],
        np.nan,
    )
    share = np.select([frame["op"] == op for op in KINDS], [wire(kind, group.size)[1] for kind in KINDS.values()])
    return np.asarray(share * frame["bytes"].to_numpy(float) / link)


def _faults(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    vidur = frame["source"] == "vidur"
    across = frame["devices_per_node"] < frame["num_devices"]
    other = np.zeros(len(frame), bool)
    for name, library in OTHER_HOST:
        other |= ((frame["device"] == name) & frame["library"].str.startswith(library)).to_numpy()
    return where(
        frame,
        # the H100 rows do agree with that node's 400 Gb/s cards
        (vidur & across & (device.name != "h100-sxm-80gb"), "vidur inter-node: an unpublished, much slower network"),
        (vidur & (frame["op"] == "send_recv") & (device.name == "a40"), "vidur A40 send_recv: no working NVLink"),
        (other, "engine run on another host than this device's other rows"),
    )


COLLECTIVES = Table(
    "collectives",
    frozenset({"device", "timing", "op", "library", "num_devices", "devices_per_node", "bytes", "time_s"}),
    (
        Part("collective", SwitchConstants, _linked_variant, _seconds, _roofline),
        Part("reduce", ReduceConstants, _reduce_variant, _seconds, _roofline),
        Part("bridge", BridgeConstants, _staged_variant, _seconds, _roofline),
        Part("engine", EngineConstants, _engine_variant, _engine_seconds, _roofline),
    ),
    _faults,
    group=("source", "device", "timing"),
)
