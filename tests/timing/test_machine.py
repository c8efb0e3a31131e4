"""What the formulas read off a device's profile."""

from __future__ import annotations

import math

import pytest

from tfsim.errors import InputError
from tfsim.hardware import list_devices, load_device
from tfsim.timing.machine import machine


def test_the_figures_are_those_of_the_datasheet() -> None:
    h100 = machine(load_device("h100"))
    assert (h100.name, h100.cores, h100.tdp) == ("h100-sxm-80gb", 132, 700)
    assert h100.bandwidth == 3.35e12 and h100.cache == 50 * 2**20
    assert h100.peak("bf16") == 989.4e12 and h100.peak("fp8") == 1978.9e12


def test_a_format_runs_at_the_rate_of_the_one_that_executes() -> None:
    a100 = machine(load_device("a100"))
    assert a100.peak("fp8") == a100.peak("bf16")  # no fp8 units: weights are widened
    assert a100.peak("int8") > a100.peak("bf16")


def test_a_rate_that_nobody_published_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="h100-sxm-80gb has no published rate for fp5 matrices"):
        machine(load_device("h100")).peak("fp5")


def test_every_device_has_plausible_figures_or_says_what_is_missing() -> None:
    known = 0
    for entry in list_devices():
        device = load_device(entry.name)
        try:
            facts = machine(device)
        except InputError as error:
            assert entry.name in str(error)
            continue
        known += 1
        assert facts.cores >= 1 and 1e8 < facts.clock < 1e10
        assert 1e9 < facts.bandwidth < 1e14 and facts.cache > 0
        assert facts.tdp > 0 and (math.isinf(facts.tdp) or facts.tdp < 1e5)
        assert all(peak > 0 for peak in facts.matrix.values())
    assert known > 50


def test_a_figure_the_user_sets_counts() -> None:
    device = load_device("h100").with_overrides({"memory.bandwidth": "4 TB/s", "tdp": "350 W"})
    facts = machine(device)
    assert facts.bandwidth == 4e12 and facts.tdp == 350
