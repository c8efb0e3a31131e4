"""The exchange of tokens between experts: limits of links and network, and what must not make it slower."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.timing.expert_alltoall import ExchangeConstants, exchange_seconds, places

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
