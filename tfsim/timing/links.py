"""Seconds of a collective over one network level, in closed form.

``bytes`` is the size that nccl-tests and ``operators.core.Comm`` name: the whole buffer (of an all-gather, the gathered
one). A ring of n devices takes n - 1 steps (an all-reduce 2 (n - 1)), in each of which a device passes on a share of
1/n: it sends (n - 1)/n of the buffer (twice that). Every algorithm is a start, a time per step and a rate, and a
library has two or three of each: short messages carry flags with the data and need no synchronisation but use part of
the link ("LL", "LL128"), bulk ones synchronise per chunk and fill it ("Simple"). Sources: Thakur et al. 2005; NCCL
src/graph/tuning.cc (protocols, base and hop latencies); TensorRT-LLM and vLLM custom all-reduce (one-shot, two-shot).

Rates are fractions of the link bandwidth of the datasheet [bytes/s, one direction], so that constants of one chip hold
for another generation of the same link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tfsim.timing.constants import constant
from tfsim.units import Array, Number

# How sharply a library changes from its short to its bulk protocol, as an exponent of the ratio of what it expects of
# them: its tables switch within a factor of two of message size.
_CHANGE = 8
# An engine leaves its own kernel within a factor of about two of its size limit (it depends on the version).
_LIMIT = 4
# What one device sends another, of the link: copies reach 274 of 300 GB/s on A100, 376 of 450 on H100, 746 of 900 on
# GB200 (research notes). One way leaves the link freer than an exchange.
_ONE_WAY = 0.85
# NCCL reduces in the switches for groups above four (measured: from 5 H200, 6 B200; research notes).
_SWITCH_GROUP = 4


@dataclass(frozen=True, slots=True)
class SwitchConstants:
    """A collective library over links that a switch joins (NVLink), measured by fitting.

    ``call``, ``hop``, ``speed``: a call [s], one step [s] and the fraction of the link of the short protocol;
    ``bulk_*``: of the bulk one, in few chunks; ``long_*``: in many, which fill the link better and start later.
    ``belief``: the fraction of the bulk protocol's latency that the library reckons with when it chooses (NCCL changes
    early, so times jump). ``copy``: speed of passing a device's own share through its memory, over the link's.
    ``send_*``: all-to-all: a call [s] (also that of a send to one device), each further peer [s], and the fraction of
    the link; ``stream_*``: of long ones.
    """

    call: float = constant(7e-6, 1e-6, 3e-5, unit="s")
    hop: float = constant(1e-6, 1e-7, 4e-6, unit="s")
    speed: float = constant(0.3, 0.03, 0.6)
    bulk_call: float = constant(1.5e-5, 3e-6, 1e-4, unit="s")
    bulk_hop: float = constant(4e-6, 1e-7, 2e-5, unit="s")
    bulk_speed: float = constant(0.7, 0.3, 1)
    long_call: float = constant(6e-5, 1e-5, 2e-4, unit="s")
    long_speed: float = constant(0.85, 0.6, 1)
    belief: float = constant(0.6, 0.1, 1)
    copy: float = constant(1.5, 0.3, 5)
    send_call: float = constant(7e-6, 1e-6, 2e-5, unit="s")
    send_peer: float = constant(0.2e-6, 1e-8, 2e-6, unit="s")
    send_speed: float = constant(0.06, 0.01, 0.5)
    stream_call: float = constant(1.5e-5, 3e-6, 1e-4, unit="s")
    stream_speed: float = constant(0.65, 0.2, 1)


@dataclass(frozen=True, slots=True)
class ReduceConstants:
    """All-reduce by switches that add (NVLink SHARP), as a library runs it: apart from SwitchConstants because a device
    may be measured in small groups only.

    ``hop``, ``speed``: a step [s] and the fraction of the link of the short ring that small messages still take;
    ``call``, ``rate``: a call [s] and what the bus bandwidth is of the link, for messages in few chunks; ``bulk_*``:
    for large ones. The rate may pass one: a device sends its buffer once, where a ring sends it twice.
    """

    hop: float = constant(1.6e-6, 2e-7, 5e-6, unit="s")
    speed: float = constant(0.3, 0.03, 1)
    call: float = constant(3.5e-5, 5e-6, 1e-4, unit="s")
    rate: float = constant(0.5, 0.1, 1)
    bulk_call: float = constant(8e-5, 2e-5, 2e-4, unit="s")
    bulk_rate: float = constant(0.95, 0.5, 1.2)


@dataclass(frozen=True, slots=True)
class BridgeConstants:
    """A collective library between PCIe cards that cannot reach each other's memory: every message is staged in the
    host's, so the host bridge is shared.

    As SwitchConstants; ``bridge``: what is left of a device's rate when more than a pair crosses it, at four devices;
    ``crowd``: exponent of its further fall with their number.
    """

    call: float = constant(5e-6, 1e-6, 1e-4, unit="s")
    hop: float = constant(1.3e-6, 1e-7, 2e-5, unit="s")
    speed: float = constant(0.3, 0.03, 0.8)
    bulk_call: float = constant(1.5e-5, 1e-6, 2e-4, unit="s")
    bulk_hop: float = constant(4e-6, 1e-7, 2e-5, unit="s")
    bulk_speed: float = constant(0.6, 0.2, 1)
    belief: float = constant(0.5, 0.1, 1)
    bridge: float = constant(0.6, 0.1, 1)
    crowd: float = constant(0.5, 0.01, 3)
    send_call: float = constant(7e-6, 1e-6, 1e-4, unit="s")
    send_peer: float = constant(0.5e-6, 1e-8, 2e-6, unit="s")
    stream_call: float = constant(2e-5, 1e-6, 2e-4, unit="s")
    stream_speed: float = constant(0.5, 0.1, 1)


@dataclass(frozen=True, slots=True)
class EngineConstants:
    """A serving engine's own all-reduce kernels, for small messages.

    One-shot (every device reads all the others' buffers): ``call`` [s], ``peer`` [s] for each further device, ``speed``
    as a fraction of the link; two-shot (reduce-scatter, then all-gather): ``two_*``. Above about ``limit`` bytes the
    engine calls the library: ``library_*`` (its ring or in-switch reduction in the same captured graph), ``copy`` as in
    SwitchConstants.
    """

    call: float = constant(5e-6, 1e-6, 1e-4, unit="s")
    peer: float = constant(0.1e-6, 1e-9, 5e-6, unit="s")
    speed: float = constant(0.5, 0.05, 1)
    two_call: float = constant(7e-6, 1e-6, 1e-4, unit="s")
    two_peer: float = constant(0.2e-6, 1e-9, 5e-6, unit="s")
    two_speed: float = constant(0.5, 0.05, 1)
    library_call: float = constant(4e-5, 5e-6, 2e-4, unit="s")
    library_speed: float = constant(0.8, 0.4, 1.2)
    copy: float = constant(1.5, 0.3, 5)
    limit: float = constant(1.6e7, 5e5, 6.4e7, unit="bytes")


def wire(kind: str, n: Number) -> tuple[Array, Array]:
    """Steps of a ring (peers of an exchange), and bytes a device sends over the bytes of the collective."""
    size = np.asarray(n, float)
    if kind == "p2p":
        return np.ones_like(size), np.ones_like(size)
    passes = 2 if kind == "all_reduce" else 1
    return passes * (size - 1), passes * (size - 1) / size


def switch_seconds(kind: str, bytes: Number, n: Number, link: Number, c: SwitchConstants) -> Array:
    """Seconds of a collective of ``n`` devices that a switch joins by links of ``link`` bytes/s."""
    steps, share = wire(kind, n)
    size = np.asarray(bytes, float) / link  # seconds of the buffer at the link's rate
    sent = share * size
    own = size / n / c.copy
    if kind == "p2p":
        return c.send_call + sent / _ONE_WAY
    if kind == "all_to_all":
        short = c.send_call + (steps - 1) * c.send_peer + sent / c.send_speed
        return _least(short, c.stream_call + sent / c.stream_speed + own)
    short = c.call + steps * c.hop + sent / c.speed
    many = np.maximum(0, c.long_call - c.bulk_call) + sent / c.long_speed
    return _chosen(short, c.bulk_call + steps * c.bulk_hop, _least(sent / c.bulk_speed, many) + own, c.belief)


def reduces(n: Number) -> NDArray[np.bool_]:
    """Whether a library lets switches that can add reduce for a group of ``n``."""
    return np.asarray(np.asarray(n) > _SWITCH_GROUP)


def reduce_seconds(bytes: Number, n: Number, link: Number, c: ReduceConstants) -> Array:
    """Seconds of an all-reduce of ``n`` devices, more than four, whose switch adds."""
    steps, share = wire("all_reduce", n)
    sent = share * np.asarray(bytes, float) / link
    short = steps * c.hop + sent / c.speed
    return _least(short, c.call + sent / c.rate, c.bulk_call + sent / c.bulk_rate)


def bridge_seconds(kind: str, bytes: Number, n: Number, link: Number, c: BridgeConstants) -> Array:
    """Seconds of a collective of ``n`` PCIe cards of ``link`` bytes/s each that share a host bridge."""
    steps, share = wire(kind, n)
    left = np.where(np.asarray(n) > 2, c.bridge * (4 / np.maximum(n, 3)) ** c.crowd, 1)
    sent = share * np.asarray(bytes, float) / (link * np.minimum(1, left))
    if kind in ("all_to_all", "p2p"):
        short = c.send_call + (steps - 1) * c.send_peer + sent / c.speed
        return _least(short, c.stream_call + sent / c.stream_speed)
    short = c.call + steps * c.hop + sent / c.speed
    return _chosen(short, c.bulk_call + steps * c.bulk_hop, sent / c.bulk_speed, c.belief)


def engine_seconds(bytes: Number, n: Number, link: Number, c: EngineConstants) -> Array:
    """Seconds of an engine's all-reduce of ``n`` devices, each with ``link`` bytes/s to every other."""
    size = np.asarray(bytes, float)
    others = np.asarray(n, float) - 1
    _, share = wire("all_reduce", n)
    one = c.call + others * c.peer + others * size / (c.speed * link)
    two = c.two_call + others * c.two_peer + share * size / (c.two_speed * link)
    library = c.library_call + share * size / (c.library_speed * link) + size / n / (c.copy * link)
    own = _least(one, two, library)
    return np.asarray(own + (library - own) * _share_above(size / c.limit, _LIMIT))


def _chosen(short: Array, latency: Array, transfer: Array, belief: float) -> Array:
    """The short protocol or the bulk one (``latency`` + ``transfer``), as a library chooses that reckons with a share
    of the bulk protocol's latency."""
    bulk = _share_above(short / (belief * latency + transfer), _CHANGE)
    return short + (latency + transfer - short) * bulk


def _least(*times: Array) -> Array:
    return np.asarray(reduce(np.minimum, times))


def _share_above(ratio: Array, exponent: float) -> Array:
    """0 below a ratio of one, 1 above, smoothly."""
    power = np.asarray(ratio) ** exponent
    return power / (1 + power)


# --- levels without fitted constants: one start, one hop, one achieved fraction, as the system's file gives them ---

# Edge-disjoint rings (both directions counted) among the first n devices of DGX-1's hybrid cube mesh, whose devices
# have one or two links to each of four neighbours; among five no ring closes, and the fifth hangs on a double link.
_CUBE_MESH_RINGS = (1, 1, 1, 2, 4, 2, 2, 4, 6)
_AXES = {"ring": 1, "torus2d": 2, "torus3d": 3}


@dataclass(frozen=True, slots=True)
class Wires:
    """What joins the devices of a level. ``topology``: as in system files; ``link``: all links of a device together and
    ``one``: to one neighbour [bytes/s], as achieved; ``call`` and ``hop`` [s]."""

    topology: str
    link: float
    one: float
    call: float
    hop: float


def plain_seconds(kind: str, bytes: Number, n: Number, wires: Wires) -> Array:
    """Seconds of a collective of ``n`` devices over ``wires``, by the best algorithm for the topology.

    Switch: ring or tree all-reduce (2 log2 n hops, the whole buffer twice), logarithmic all-gather; full mesh: direct,
    over the links to the n - 1 others at once; ring and torus: rings along every axis at once, an all-to-all bound by
    the middle of an axis (a buffer goes a quarter of the way round: side/8 of it passes each link).
    """
    size = np.asarray(bytes, float)
    members = np.asarray(n, float)
    steps, share = wire(kind, n)
    passes = 2 if kind == "all_reduce" else 1
    if kind == "p2p":
        rest = steps * wires.hop + share * size / wires.one
    elif wires.topology in _AXES:
        axes = np.clip(np.log2(members), 1, _AXES[wires.topology])
        side = members ** (1 / axes)
        rate = np.minimum(wires.link, axes * np.clip(side - 1, 1, 2) * wires.one)
        sent = share * size / rate
        if kind == "all_to_all":
            sent = np.maximum(sent, size * side / 8 / wires.one)
        rest = passes * axes * np.ceil(side / 2) * wires.hop + sent
    elif wires.topology == "mesh":
        rate = np.minimum(wires.link, (members - 1) * wires.one)
        rest = passes * wires.hop + share * size / np.maximum(rate, wires.one)
    elif wires.topology == "cube_mesh":
        rings = np.array(_CUBE_MESH_RINGS)[np.clip(members, 0, len(_CUBE_MESH_RINGS) - 1).astype(int)]
        rest = steps * wires.hop + share * size / (rings * wires.one)
    else:
        tree = np.ceil(np.log2(members)) * passes * wires.hop
        rest = tree + share * size / wires.link
        if kind == "all_reduce":
            ring = steps * wires.hop + share * size / wires.link
            rest = np.minimum(ring, tree + passes * size / wires.link)
    return np.asarray(wires.call + rest)
