"""Collectives over a hierarchy of networks: the formulas of ``timing.links``, level by level.

A group of n devices at a stride fills each level from the inside: g members share a node (or NVLink domain), the n/g
domains meet over the next level, where each member drives its own network card with its 1/g share of the message
(hierarchical algorithms; a collective over a whole node therefore uses all its cards, one over one device per node
one). The library cuts messages into chunks and the levels work on different ones, so the slowest level sets the rate
and every level adds its latency. Oversubscription is a further level with less bandwidth per device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Literal, TypeVar

import numpy as np

from tfsim.hardware import Device, Level, System
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
    reduces,
    switch_seconds,
)
from tfsim.units import Array, Number, ceil_div, maximum, minimum

Constants = SwitchConstants | ReduceConstants | BridgeConstants
Library = Literal["nccl", "barrier", "flags"]
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Group:
    """``size`` devices whose neighbours are ``stride`` devices apart."""

    size: Number = 1
    stride: Number = 1


@dataclass(frozen=True, slots=True)
class Groups:
    """The device groups of a plan by name (tp, ep, dp, pp)."""

    members: dict[str, Group] = field(default_factory=dict)

    def of(self, name: str) -> Group:
        """The group called ``name``; one device when the plan has none."""
        return self.members.get(name, Group())


def collective_seconds(
    kind: str,
    bytes: Number,
    group: Group,
    system: System,
    *,
    library: Library = "nccl",
    integers: bool = False,
    fitted: Constants | None = None,
) -> Number:
    """Seconds of one collective of ``bytes`` (see ``operators.core.Comm`` for what is counted).

    ``library``: "nccl", or what runs an all-reduce inside the first level: a serving engine's kernels in a captured
    graph, which wait at a barrier ("barrier": vLLM, SGLang before 0.5.14) or poll flags that travel with the data
    ("flags": TensorRT-LLM, SGLang 0.5.14). ``integers``: an all-reduce of int8, which switches
    cannot add. ``fitted``: constants of the first level in place of the calibration's.

    Raises InputError when a level the group needs has no published bandwidth.
    """
    if kind == "none" or _always(group.size, 1) or _always(bytes, 0):
        return 0 * bytes
    seconds = (
        _point_to_point(bytes, group, system, fitted)
        if kind == "p2p"
        else _levels(kind, bytes, group, system, fitted, integers)
    )
    if library != "nccl" and kind == "all_reduce":
        level = system.levels[0]
        fits = group.size * group.stride <= level.size if level.size is not None else np.asarray(True)
        members = maximum(2, group.size)
        seconds = np.where(fits, _level(kind, bytes, members, level, None, library), seconds)
    used = (np.asarray(bytes) > 0) & (np.asarray(group.size) > 1)
    seconds = np.where(used, seconds, 0)
    return float(seconds) if seconds.ndim == 0 else seconds


def _levels(kind: str, bytes: Number, group: Group, system: System, fitted: Constants | None, integers: bool) -> Array:
    spans: list[tuple[Array, Array]] = []  # per level: seconds in all, and of a message of no bytes
    inside: Number = 1  # devices of the innermost domains already combined, in members of the group
    covered: Number = 1  # devices per domain so far
    for level in system.levels:
        reach = group.size * group.stride
        if not _ever(reach > covered):
            break
        domain = maximum(1, level.size // group.stride) if level.size is not None else group.size
        members = minimum(group.size, domain)
        fanout = maximum(1, ceil_div(members, inside))
        here = np.asarray(fanout) > 1
        ours = None if spans else fitted
        if level.profile.link == "pcie":  # no card per device to stripe over: one ring through all of them
            share, ring = bytes, maximum(2, members)
            spans = [(np.where(here, 0, whole), np.where(here, 0, start)) for whole, start in spans]
        elif kind == "all_to_all":  # the domains exchange what is meant for one another
            share, ring = bytes * members / group.size, maximum(2, fanout)
        else:
            share, ring = bytes / inside, maximum(2, fanout)
        whole, start = (
            np.where(here, _level(kind, size, ring, level, ours, integers=integers), 0) for size in (share, 0)
        )
        spans.append((whole, start))
        inside = maximum(inside, members)
        covered = level.size if level.size is not None else reach
    latency = sum(start for _, start in spans)
    return np.asarray(latency + reduce(np.maximum, [whole - start for whole, start in spans]))


def _point_to_point(bytes: Number, group: Group, system: System, fitted: Constants | None) -> Array:
    reach = np.asarray(group.size * group.stride)
    seconds, done = np.zeros(()), np.zeros((), bool)
    for position, level in enumerate(system.levels):
        # the step waits for the slowest hop: the first level that holds the whole group
        here = (reach <= level.size if level.size is not None else np.ones_like(reach, bool)) & ~done
        if here.any():
            hop = _level("p2p", bytes, 2, level, None if position else fitted)
            seconds = np.where(here, hop, seconds)
        done = done | here
        if done.all():
            break
    return seconds


def _level(
    kind: str,
    bytes: Number,
    n: Number,
    level: Level,
    fitted: Constants | None,
    library: Library = "nccl",
    integers: bool = False,
) -> Array:
    """Seconds of a collective of ``n`` devices inside one domain of ``level``."""
    device = level.system.device
    if level.topology == "host_bridge":
        variant = "nccl" if library == "nccl" else "engine"
        bridge = _constants("bridge", BridgeConstants, device, variant, fitted)
        return bridge_seconds(kind, bytes, n, level.bandwidth, bridge)
    if level.topology == "switch" and level.profile.link == "scale_up":
        if library != "nccl":
            kernel = constants("engine", EngineConstants, device, library).values
            return engine_seconds(bytes, n, level.bandwidth, kernel)
        adds = reduces(n) & (level.in_network_reduction and kind == "all_reduce" and not integers)
        seconds = np.zeros(())
        if not adds.all():
            switch = _constants("collective", SwitchConstants, device, "nccl", fitted)
            seconds = switch_seconds(kind, bytes, n, level.bandwidth, switch)
        if adds.any():
            sharp = _constants("reduce", ReduceConstants, device, "nccl", fitted)
            seconds = np.where(adds, reduce_seconds(bytes, n, level.bandwidth, sharp), seconds)
        return seconds
    achieved = level.efficiency
    wires = Wires(
        level.topology,
        level.bandwidth * achieved,
        level.link_bandwidth * achieved,
        level.call_latency_s,
        level.latency_s,
    )
    return plain_seconds(kind, bytes, n, wires)


def _constants(kind: str, cls: type[C], device: Device, variant: str, fitted: Constants | None) -> C:
    return fitted if isinstance(fitted, cls) else constants(kind, cls, device, variant).values


def _always(x: Number, value: float) -> bool:
    return bool((x == value) if isinstance(x, int | float) else (x == value).all())


def _ever(condition: object) -> bool:
    return bool(condition if isinstance(condition, bool) else condition.any())  # type: ignore[attr-defined]
