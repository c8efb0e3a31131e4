"""Time of the exchange of tokens between the devices that hold the experts (DeepEP's dispatch and combine).

A device sends each of its tokens to the experts that its router chose. The normal kernels send a token once to every
device that holds any of them, over the network once to every node; the low-latency kernels once per expert. Of the
bytes, those within a node pass the fast links, those between nodes the device's network card; a few cores copy them.
Sources: DeepEP (kernels and what they move), NVSHMEM for the low-latency kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfsim.hardware import System
from tfsim.operators.core import Routed
from tfsim.timing.collectives import Group
from tfsim.timing.constants import constant, constants, generation_measured
from tfsim.units import Array, Number, ceil_div, maximum, minimum

CORES = 20  # that copy tokens in the normal kernels (DeepEP's default; DeepSeek-V3 report, section 3.2.2)


@dataclass(frozen=True, slots=True)
class ExchangeConstants:
    """Fitted constants of one direction of an exchange.

    ``latency``: an exchange of nothing within a node [s]; ``hop``: added for every doubling of nodes [s]; ``expert``:
    added per expert, whose counters are sent and polled [s]. ``core``: what one core reads and copies within a node,
    and ``core_out``: between nodes [bytes/s]. ``link``, ``nic``: achieved fractions of the bandwidth of fast links and
    network card. ``sharp``: exponent of the soft maximum of these.
    """

    latency: float = constant(2e-5, 1e-6, 1e-4, unit="s")
    hop: float = constant(2e-5, 1e-7, 1e-4, unit="s")
    expert: float = constant(1e-8, 1e-10, 1e-6, unit="s")
    core: float = constant(1.5e10, 1e9, 1e11, unit="bytes/s")
    core_out: float = constant(5e9, 5e8, 1e11, unit="bytes/s")
    link: float = constant(0.7, 0.1, 1)
    nic: float = constant(0.8, 0.1, 1)
    sharp: float = constant(4, 1, 8)


def has_exchange(system: System) -> bool:
    """Whether DeepEP's kernels run on ``system`` and its generation has been measured: devices behind one switch."""
    level = system.levels[0]
    switched = level.topology == "switch" and level.profile.link == "scale_up"
    return switched and generation_measured("expert_alltoall", system.device, "normal_dispatch")


def routed_seconds(routed: Routed, bytes: Number, group: Group, system: System) -> Number:
    """Seconds of one exchange of tokens between the devices of ``group``, by the normal kernels (0 in a group of one).

    ``bytes``: of all copies that a device sends to experts, as in `operators.core.Comm`. The devices of a node are
    those that the innermost level of ``system`` joins; between nodes the slowest level on the way counts. Constants
    between nodes are measured on Hopper; tables of later devices measure one node, and their network card takes the
    starting values of `ExchangeConstants`.

    Raises InputError when a level that the group needs has no published bandwidth.
    """
    size, stride = np.asarray(group.size, float), group.stride
    inner = system.levels[0]
    per_node = size if inner.size is None else minimum(size, maximum(1, inner.size // stride))
    nodes = ceil_div(size, per_node)
    card, covered = np.asarray(np.inf), inner.size
    for level in system.levels[1:]:
        further = np.asarray(False) if covered is None else size * stride > covered
        if not np.any(further):
            break
        card, covered = np.where(further, np.minimum(card, level.bandwidth), card), level.size
    c = constants("expert_alltoall", ExchangeConstants, system.device, f"normal_{routed.direction}").values
    copies = np.maximum(1, np.asarray(routed.tokens, float) * routed.top_k)
    seconds = exchange_seconds(
        routed.tokens, bytes / copies, routed.top_k, routed.experts, per_node, nodes, c,
        link_bandwidth=inner.bandwidth, nic_bandwidth=card, cores=CORES,
    )  # fmt: skip
    used = (np.asarray(bytes) > 0) & (size > 1)
    seconds = np.where(used, seconds, 0)
    return float(seconds) if seconds.ndim == 0 else seconds


def places(picks: Number, of: Number) -> Array:
    """Expected number of places, ``of`` them, that hold any of ``picks`` experts chosen evenly."""
    there = np.asarray(of, float)
    found: Array = there * (1 - (1 - 1 / there) ** picks)
    return found


def exchange_seconds(
    tokens: Number,
    token_bytes: Number,
    top_k: Number,
    experts: Number,
    per_node: Number,
    nodes: Number,
    c: ExchangeConstants,
    *,
    link_bandwidth: Number,
    nic_bandwidth: Number,
    cores: Number | None = None,
    per_expert: bool = False,
) -> Array:
    """Seconds of dispatch or combine of ``tokens`` per device, ``top_k`` of ``experts`` each (all sizes broadcast).

    ``token_bytes``: of a token on the way. ``per_node``: devices of a node, ``nodes``: nodes that hold the experts.
    ``link_bandwidth``: of the fast links of a device, ``nic_bandwidth``: of its network card, one direction [bytes/s].
    ``cores``: that copy (None: as many as it takes). ``per_expert``: a token is sent once per expert (low latency)
    instead of once per device.
    """
    tokens, size, n, top_k = (np.asarray(x, float) for x in (tokens, token_bytes, nodes, top_k))
    devices = n * per_node
    copies = top_k if per_expert else places(top_k, devices)
    away = copies * (n - 1) / n if per_expert else places(top_k, n) * (n - 1) / n
    # between nodes the normal kernels send a token to one device of a node, which passes it on there
    near = copies * (1 / n if per_expert else 1)
    inside = tokens * near * size
    outside = tokens * away * size
    parts = [inside * (per_node - 1) / per_node / (link_bandwidth * c.link), outside / (nic_bandwidth * c.nic)]
    if cores is not None:
        parts.append(((inside + tokens * size) / c.core + outside / c.core_out) / np.asarray(cores, float))
    passing = np.sum([part**c.sharp for part in np.broadcast_arrays(*parts)], axis=0) ** (1 / c.sharp)
    seconds: Array = c.latency + c.hop * np.log2(n) + c.expert * np.asarray(experts, float) + passing
    return seconds
