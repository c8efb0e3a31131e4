"""expert_alltoall: DeepEP's dispatch and combine, low latency and normal, within a node and between nodes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfsim.hardware import load_device
from tfsim.timing.expert_alltoall import ExchangeConstants, exchange_seconds, places
from tfsim.timing.machine import Machine
from tfsim.units import Array
from tfsim.validation.operators.table import Part, Table, no_faults, where

# Bytes of an element on the way: fp8 with a 4-byte scale per 128 elements to the experts, bf16 back.
BYTES = {"dispatch": 1 + 4 / 128, "combine": 2.0}
# Devices of a node as DeepEP counts them: the 4 of a tray where the fast links join more than a chassis.
CHASSIS, TRAY = 8, 4


def _variant(frame: pd.DataFrame) -> pd.Series[str]:
    cases = [(kind, op) for kind in ("ll", "normal") for op in BYTES]
    return where(frame, *(((frame["kind"] == kind) & (frame["op"] == op), f"{kind}_{op}") for kind, op in cases))


def _seconds(frame: pd.DataFrame, machine: Machine, c: ExchangeConstants, variant: str) -> Array:
    kind, op = variant.split("_")
    tokens, hidden, top_k, experts, nodes, sms = _sizes(frame)
    per_node, link, nic = _links(machine)
    return exchange_seconds(
        tokens, hidden * BYTES[op], top_k, experts, per_node, nodes, c,
        link_bandwidth=link, nic_bandwidth=nic, cores=None if kind == "ll" else sms, per_expert=kind == "ll",
    )  # fmt: skip


def _roofline(frame: pd.DataFrame, machine: Machine, variant: str) -> Array:
    kind, op = variant.split("_")
    tokens, hidden, top_k, _, nodes, _ = _sizes(frame)
    per_node, link, nic = _links(machine)
    size = tokens * hidden * BYTES[op]
    copies = top_k if kind == "ll" else places(top_k, nodes * per_node)
    away = (top_k if kind == "ll" else places(top_k, nodes)) * (nodes - 1) / nodes
    return np.maximum(size * copies / link, size * away / nic)


def _sizes(frame: pd.DataFrame) -> list[Array]:
    return [frame[x].to_numpy(float) for x in ("tokens_per_gpu", "hidden", "topk", "experts", "nodes", "sms")]


def _links(machine: Machine) -> tuple[int, float, float]:
    """Devices of a node, bandwidth of the fast links and of the network card of a device [bytes/s]."""
    device = load_device(machine.name)
    domain = device.scale_up.domain
    return (
        CHASSIS if domain is None or domain <= CHASSIS else TRAY,
        device.require("scale_up.bandwidth"),
        device.require("nic"),
    )


EXPERT_ALLTOALL = Table(
    "expert_alltoall",
    frozenset(
        {"device", "timing", "op", "kind", "nodes", "hidden", "tokens_per_gpu", "topk", "experts", "sms", "time_s"}
    ),
    (Part("expert_alltoall", ExchangeConstants, _variant, _seconds, _roofline),),
    no_faults,
    group=("device", "kind", "op"),
)
