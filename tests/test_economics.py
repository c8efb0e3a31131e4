"""Money, energy, carbon, and where the rates come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfsim.economics import (
    carbon_kg,
    cost,
    device_hours,
    energy_kwh,
    money,
    rates,
    token_cost,
)
from tfsim.errors import InputError
from tfsim.hardware import load_system

H100 = load_system("dgx-h100")


def test_arithmetic_by_hand() -> None:
    assert device_hours(8, 1800) == 4
    assert money(4, 2.5) == 10
    assert energy_kwh(8, 3600, 700, 1.25) == pytest.approx(7.0)
    assert carbon_kg(7, 0.35) == pytest.approx(2.45)


def test_arrays_broadcast() -> None:
    devices, seconds = np.array([1.0, 8.0]), np.array([[3600.0], [7200.0]])
    found = cost(rates(H100, price=2, power=500, pue=1.1, carbon=0.4), devices, seconds)
    assert np.shape(found.usd) == (2, 2)
    for i, s in enumerate((3600, 7200)):
        for j, n in enumerate((1, 8)):
            one = cost(rates(H100, price=2, power=500, pue=1.1, carbon=0.4), n, s)
            for name in ("device_hours", "usd", "energy_kwh", "carbon_kg"):
                assert getattr(found, name)[i, j] == pytest.approx(getattr(one, name), rel=1e-12)


def test_given_rates_take_units_and_say_so() -> None:
    found = rates(H100, price="$2.49/h", power="700 W", pue=1.2, carbon="350 g/kWh")
    assert (found.price_usd_per_device_hour, found.power_w_per_device, found.pue) == (2.49, 700, 1.2)
    assert found.carbon_kg_per_kwh == pytest.approx(0.35)
    assert found.price_source == found.power_source == "given"
    assert found.unknown == []


def test_rates_default_to_the_profile() -> None:
    found = rates(H100)
    assert found.price_usd_per_device_hour == H100.price()[0]
    assert found.power_w_per_device == H100.power_per_device()[0] == 10_200 / 8
    assert (found.pue, found.carbon_kg_per_kwh) == (H100.pue, H100.carbon_kg_per_kwh)
    assert rates(H100, provider="Lambda").price_source.startswith("Lambda")


def test_an_unknown_price_is_none_with_what_to_give() -> None:
    unpriced = load_system("gb300-nvl72")
    found = rates(unpriced)
    assert found.price_usd_per_device_hour is None
    assert "--price" in found.unknown[0]
    each = token_cost(found, 8, 1000)
    assert each.usd_per_million is None
    assert each.joules_per_token is not None
    with pytest.raises(InputError, match="--price"):
        rates(unpriced, term="3-year")


def test_energy_per_token() -> None:
    each = token_cost(rates(H100, price=2, power=500, pue=1.2, carbon=0.4), 8, 1000)
    assert each.joules_per_token == pytest.approx(8 * 500 * 1.2 / 1000)
    assert each.kwh_per_million == pytest.approx(4.8 / 3.6)
    assert each.carbon_g_per_million == pytest.approx(1000 * 0.4 * 4.8 / 3.6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"price": -1},
        {"price": "cheap"},
        {"price": float("nan")},
        {"price": True},
        {"price": [1.0, -2.0]},
        {"power": "700 kg"},
        {"power": float("inf")},
        {"pue": 0.9},
        {"pue": "1.2 W"},
        {"carbon": "350 W"},
        {"carbon": {}},
        {"provider": "Nobody"},
        {"term": "forever"},
        {"term": "purchase"},
    ],
)
def test_wrong_rates_are_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        rates(H100, **wrong)
    assert "\n" not in str(caught.value)
