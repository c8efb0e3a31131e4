"""Grouped products and layers of experts: limits that no constant may break, and what must not make them slower."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.hardware import load_device
from tfsim.timing.machine import Machine, machine
from tfsim.timing.moe import Load, MoEConstants, even_load, grouped_seconds, moe_seconds

H100 = machine(load_device("h100-sxm-80gb"))
constant = st.fixed_dictionaries(
    {f.name: st.floats(f.metadata["low"], f.metadata["high"]) for f in fields(MoEConstants)}
).map(lambda values: MoEConstants(**values))
sizes = st.fixed_dictionaries(
    {
        "copies": st.floats(1, 1e6),
        "touched": st.integers(1, 256),
        "n": st.sampled_from([16, 96, 768, 4096, 14336]),
        "k": st.sampled_from([64, 512, 4096, 7168]),
    }
)
FORMAT: dict[str, Any] = {"dtype": "bf16", "weight_bytes": 2, "input_bytes": 2}


def product(x: dict[str, Any], c: MoEConstants, on: Machine = H100, **more: Any) -> float:
    load = even_load(max(x["copies"], x["touched"]), x["touched"])
    return float(grouped_seconds(load, x["n"], x["k"], on, c, **{**FORMAT, **more}))


def layer(x: dict[str, Any], c: MoEConstants, on: Machine = H100, **more: Any) -> float:
    load = even_load(max(x["copies"], x["touched"]), x["touched"])
    return float(moe_seconds(x["copies"] / 2, 256, load, x["k"], x["n"], on, c, **{**FORMAT, **more}))


@settings(max_examples=60, deadline=None)
@given(sizes, constant, st.booleans())
def test_no_product_beats_the_peak_or_the_level_its_bytes_come_from(
    x: dict[str, Any], c: MoEConstants, again: bool
) -> None:
    copies, weights = max(x["copies"], x["touched"]), x["touched"] * x["n"] * x["k"] * 2
    passed = copies * (x["n"] + x["k"]) * 2
    time = product(x, c, reuse=weights if again else 0)
    assert time >= 2 * copies * x["n"] * x["k"] / H100.peak("bf16")
    fits = again and weights + passed < 2 * float(H100.cache)
    rate = float(H100.bandwidth) * (c.cache_speed if fits else 1)
    assert time * 1.07 >= weights / rate + passed / float(H100.bandwidth)


@settings(max_examples=40, deadline=None)
@given(sizes, constant, st.floats(1, 4))
def test_more_hardware_is_never_slower(x: dict[str, Any], c: MoEConstants, more: float) -> None:
    faster = {k: v * more for k, v in H100.matrix.items()}
    vector = {k: v * more for k, v in H100.vector.items()}
    cores = float(np.ceil(float(H100.cores) * more))
    per_core = cores / float(H100.cores)
    wider = {k: v * per_core for k, v in H100.matrix.items()}
    for time in (product, layer):
        base = time(x, c)
        assert time(x, c, replace(H100, matrix=faster, vector=vector)) <= base * (1 + 1e-9)  # clock
        assert time(x, c, replace(H100, cores=cores, matrix=wider)) <= base * (1 + 1e-9)
        assert time(x, c, replace(H100, bandwidth=float(H100.bandwidth) * more)) <= base * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(sizes, constant, st.floats(1, 3))
def test_more_work_is_never_faster(x: dict[str, Any], c: MoEConstants, more: float) -> None:
    for time in (product, layer):
        base = time(x, c)
        for size in ("n", "k", "copies"):
            assert time({**x, size: x[size] * more}, c) >= base * (1 - 1e-9)


def test_arrays_are_scalars_side_by_side() -> None:
    c = MoEConstants()
    tokens, touched, hidden, inter = (
        np.array(x, float) for x in ([1, 64, 4096], [8, 60, 64], [2048, 4096, 7168], [768, 1536, 2048])
    )
    many = moe_seconds(tokens, 64, even_load(tokens * 8, touched), hidden, inter, H100, c, **FORMAT)
    one = [
        moe_seconds(t, 64, even_load(t * 8, e), h, i, H100, c, **FORMAT)
        for t, e, h, i in zip(tokens, touched, hidden, inter, strict=True)
    ]
    assert many == pytest.approx(np.array(one))


def test_an_uneven_load_takes_longer_than_an_even_one_of_as_many_rows() -> None:
    c = MoEConstants()
    even = even_load(4096.0, 16.0)
    uneven = Load(np.array([3000.0, 73.0]), np.array([1.0, 15.0]))
    seconds = [float(grouped_seconds(x, 4096, 4096, H100, c, **FORMAT)) for x in (even, uneven)]
    assert seconds[0] < seconds[1] < 1.5 * seconds[0]


def test_scales_of_blocks_cost_time_only_outside_of_units_that_apply_them() -> None:
    c, load = MoEConstants(), even_load(32768.0, 32.0)
    for name, slower in (("h100-sxm-80gb", True), ("b200-sxm", False)):
        on = machine(load_device(name))
        plain, scaled = (
            grouped_seconds(load, 4096, 7168, on, c, dtype="fp8", weight_bytes=1, input_bytes=1, blocks=b)
            for b in (False, True)
        )
        assert bool(scaled > 1.1 * plain) is slower
