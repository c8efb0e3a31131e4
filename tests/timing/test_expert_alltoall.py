"""The exchange of tokens between experts: limits of links and network, and what must not make it slower."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.hardware import System, load_system
from tfsim.models import load_model
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape, Shards
from tfsim.operators.backward import backward
from tfsim.operators.core import Operator, Routed, Style
from tfsim.software import software
from tfsim.timing import Groups, operator_time
from tfsim.timing.collectives import Group, collective_seconds
from tfsim.timing.constants import constants
from tfsim.timing.expert_alltoall import (
    CORES,
    ExchangeConstants,
    exchange_seconds,
    has_exchange,
    places,
    routed_seconds,
)
from tfsim.units import Number

H100 = load_system("dgx-h100")
constant = st.fixed_dictionaries(
    {f.name: st.floats(f.metadata["low"], f.metadata["high"]) for f in fields(ExchangeConstants)}
).map(lambda values: ExchangeConstants(**values))
sizes = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 10**5),
        "token_bytes": st.sampled_from([2048, 7392, 14336]),
        "top_k": st.integers(1, 10),
        "experts": st.sampled_from([16, 128, 512]),
        "per_node": st.sampled_from([4, 8]),
        "nodes": st.sampled_from([1, 2, 4, 16]),
        "cores": st.sampled_from([None, 4, 24]),
        "per_expert": st.booleans(),
    }
)


def seconds(c: ExchangeConstants, *, link: float = 450e9, nic: float = 50e9, **x: Any) -> float:
    return float(exchange_seconds(**x, c=c, link_bandwidth=link, nic_bandwidth=nic))


@settings(max_examples=60, deadline=None)
@given(sizes, constant)
def test_no_exchange_beats_links_or_network_card(x: dict[str, Any], c: ExchangeConstants) -> None:
    size = x["tokens"] * x["token_bytes"]
    nodes, devices = x["nodes"], x["nodes"] * x["per_node"]
    near = x["top_k"] / nodes if x["per_expert"] else float(places(x["top_k"], devices))
    away = (x["top_k"] if x["per_expert"] else float(places(x["top_k"], nodes))) * (nodes - 1) / nodes
    time = seconds(c, **x)
    assert time >= size * away / 50e9
    assert time >= size * near * (x["per_node"] - 1) / x["per_node"] / 450e9


@settings(max_examples=60, deadline=None)
@given(sizes, constant, st.integers(1, 4))
def test_more_bandwidth_or_cores_is_never_slower_and_more_tokens_never_faster(
    x: dict[str, Any], c: ExchangeConstants, more: int
) -> None:
    base = seconds(c, **x)
    assert seconds(c, link=450e9 * more, **x) <= base * (1 + 1e-9)
    assert seconds(c, nic=50e9 * more, **x) <= base * (1 + 1e-9)
    if x["cores"] is not None:
        assert seconds(c, **{**x, "cores": x["cores"] * more}) <= base * (1 + 1e-9)
    for size in ("tokens", "token_bytes", "top_k"):
        assert seconds(c, **{**x, size: x[size] * more}) >= base * (1 - 1e-9)


def test_arrays_are_scalars_side_by_side() -> None:
    c, tokens, nodes = ExchangeConstants(), np.array([1.0, 128.0, 8192.0]), np.array([1.0, 2.0, 8.0])
    rest: dict[str, Any] = {"token_bytes": 7392, "top_k": 8, "experts": 256, "per_node": 8, "cores": 20}
    links: dict[str, Any] = {"link_bandwidth": 450e9, "nic_bandwidth": 50e9}
    many = exchange_seconds(tokens, nodes=nodes, c=c, **rest, **links)
    one = [seconds(c, tokens=t, nodes=n, **rest) for t, n in zip(tokens, nodes, strict=True)]
    assert many == pytest.approx(np.array(one))


def test_a_token_goes_once_to_a_device_but_once_per_expert_at_low_latency() -> None:
    assert float(places(1, 8)) == pytest.approx(1)
    assert float(places(8, 8)) == pytest.approx(8 * (1 - (7 / 8) ** 8))
    c = ExchangeConstants(latency=1e-6, hop=1e-7, expert=1e-10)
    rest: dict[str, Any] = {"tokens": 10**5, "token_bytes": 7392, "top_k": 8, "experts": 8, "per_node": 8, "nodes": 1}
    once, copied = (seconds(c, **rest, cores=None, per_expert=x) for x in (False, True))
    assert copied / once == pytest.approx(8 / float(places(8, 8)), rel=1e-3)


def dispatch(model: str, system: System, style: str, ep: int, **shape: Any) -> tuple[Operator, Number]:
    """The dispatch of a layer's tokens over ``ep`` devices, and its seconds."""
    given: dict[str, Any] = {
        "batch": 1,
        "seq_len": 4096,
        "shards": Shards(ep=ep, etp=1, sequence_parallel=True),
        **shape,
    }
    parts = segments(load_model(model), Shape(style=Style("bf16", "fused"), **given))
    op = next(op for part in parts for op in part.operators if op.name == "moe.dispatch")
    return op, operator_time(op, system, software(style), Groups({"ep": Group(ep, 1)})).seconds


def test_a_dispatch_takes_the_measured_kernels_where_they_are_faster() -> None:
    """DeepSeek-V3: 8 of 256 experts, tokens of 7168 numbers, over a node of H100 and over two."""
    for ep, nodes in ((8, 1), (16, 2)):
        op, seconds = dispatch("deepseek-v3-bf16", H100, "fused", ep)
        c = constants("expert_alltoall", ExchangeConstants, H100.device, "normal_dispatch").values
        expected = exchange_seconds(
            4096, 7168 * 2, 8, 256, 8, nodes, c, link_bandwidth=450e9, nic_bandwidth=50e9, cores=CORES
        )  # fmt: skip
        assert seconds == pytest.approx(float(expected), rel=1e-12)
        assert op.comm is not None
        library = collective_seconds("all_to_all", op.comm.bytes, Group(ep, 1), H100)
        assert seconds < library
        assert dispatch("deepseek-v3-bf16", H100, "eager", ep)[1] == library


@pytest.mark.parametrize("name", ["dgx-a100", "rtx-pro-6000-8x", "mi300x-8x"])
def test_generations_that_nobody_measured_take_the_library(name: str) -> None:
    system = load_system(name)
    op, seconds = dispatch("mixtral-8x7b", system, "fused", 8)
    assert not has_exchange(system)
    assert op.comm is not None
    assert seconds == collective_seconds("all_to_all", op.comm.bytes, Group(8, 1), system)


def test_the_gradient_of_a_dispatch_is_a_sum() -> None:
    op, _ = dispatch("mixtral-8x7b", H100, "fused", 8)
    (gradient,) = backward([op], Style("bf16", "fused"))
    assert op.comm is not None and op.comm.routed == Routed(4096, 2, 8, "dispatch")
    assert gradient.comm is not None and gradient.comm.routed == Routed(4096, 2, 8, "combine")
    (again,) = backward([replace(op, comm=replace(op.comm, routed=gradient.comm.routed))], Style("bf16", "fused"))
    assert again.comm is not None and again.comm.routed == op.comm.routed


def test_tensor_parallel_ranks_share_the_tokens_of_an_exchange() -> None:
    op, _ = dispatch(
        "mixtral-8x7b", H100, "fused", 8, shards=Shards(tp=2, ep=8, etp=1, sequence_parallel=True)
    )  # fmt: skip
    assert op.comm is not None and op.comm.routed is not None
    assert op.comm.routed.tokens == 2048
    assert op.comm.bytes == 2048 * 2 * 4096 * 2


def test_exchanges_of_groups_as_arrays_equal_each_alone() -> None:
    sizes, strides = np.array([1.0, 4, 8, 16, 8]), np.array([1.0, 1, 1, 1, 4])
    routed = Routed(4096, 8, 256, "dispatch")
    together = np.asarray(routed_seconds(routed, 4e8, Group(sizes, strides), H100))
    alone = [routed_seconds(routed, 4e8, Group(int(n), int(s)), H100) for n, s in zip(sizes, strides, strict=True)]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)
    assert alone[0] == 0 and alone[4] > alone[2]  # at a stride of four a node joins two of the group


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["dgx-h100", "dgx-b200", "gb200-nvl72"]), st.sampled_from([2, 8, 32]), st.integers(1, 10**5))
def test_more_tokens_or_bandwidth_are_never_the_wrong_way(name: str, size: int, tokens: int) -> None:
    system, group = load_system(name), Group(size, 1)
    copies, size_of = 8, 14336

    def seconds(on: System, n: int) -> Number:
        return routed_seconds(Routed(n, copies, 256, "combine"), n * copies * size_of, group, on)

    time = seconds(system, tokens)
    assert seconds(system, 2 * tokens) >= time
    assert seconds(system.with_overrides({"device.scale_up.bandwidth": "2 TB/s"}), tokens) <= time
    # a token reaches at least one other device with probability (n - 1) / n
    assert time >= tokens * size_of * (size - 1) / size / system.levels[0].bandwidth
