"""Collectives over a hierarchy of networks: a latency and a bandwidth term per level.

A group of n devices at a stride fills each level from the inside: g members share a node (or NVLink domain), the n/g
domains meet over the next level, where each member drives its own link with its 1/g share of the message
(hierarchical ring; Thakur et al. 2005 for the terms).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tfsim.hardware import System
from tfsim.units import Number, ceil_div, maximum, minimum, where


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


def collective_seconds(kind: str, bytes: Number, group: Group, system: System) -> Number:
    """Seconds of one collective of ``bytes`` (see ``operators.core.Comm`` for what is counted).

    Raises InputError when a level the group needs has no published bandwidth.
    """
    if kind == "none" or _always(group.size, 1) or _always(bytes, 0):
        return 0 * bytes
    if kind == "p2p":
        return _point_to_point(bytes, group, system)
    seconds: Number = 0
    inside: Number = 1  # devices of the innermost domains already combined, in members of the group
    covered: Number = 1  # devices per domain so far
    for level in system.levels:
        reach = group.size * group.stride
        if not _ever(reach > covered):
            break
        domain = maximum(1, level.size // group.stride) if level.size is not None else group.size
        members = minimum(group.size, domain)
        fanout = maximum(1, ceil_div(members, inside))
        share = bytes / inside
        steps = fanout - 1
        # an all-to-all exchanges with all others at once: the part that must cross this level
        moved = bytes * (members - inside) / group.size if kind == "all_to_all" else share * steps / fanout
        rate = level.bandwidth * level.efficiency
        times = 2 if kind == "all_reduce" else 1
        if kind == "all_reduce":
            rate = level.bandwidth * level.reduce_efficiency
        # hops of a tree or of NCCL's logarithmic all-gather, not of a ring: large groups use those
        latency = level.call_latency_s + times * level.latency_s * np.ceil(np.log2(fanout))
        seconds = seconds + where(steps > 0, times * moved / rate + latency, 0)
        inside = maximum(inside, members)
        covered = level.size if level.size is not None else reach
    return where(bytes > 0, seconds, 0)


def _point_to_point(bytes: Number, group: Group, system: System) -> Number:
    seconds: Number = 0
    done: Number = 0
    for level in system.levels:
        # the step waits for the slowest hop: the first level that holds the whole group
        here = group.size * group.stride <= level.size if level.size is not None else group.stride > 0
        first = where(here, 1, 0) * (1 - done)
        seconds = seconds + first * (
            level.call_latency_s + level.latency_s + bytes / (level.link_bandwidth * level.efficiency)
        )
        done = maximum(done, where(here, 1, 0))
        if _always(done, 1):
            break
    return where(group.size > 1, seconds, 0)


def _always(x: Number, value: float) -> bool:
    return bool((x == value) if isinstance(x, int | float) else (x == value).all())


def _ever(condition: object) -> bool:
    return bool(condition if isinstance(condition, bool) else condition.any())  # type: ignore[attr-defined]
