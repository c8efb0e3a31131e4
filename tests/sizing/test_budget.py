"""Budgets as people type them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tfsim.errors import InputError
from tfsim.sizing import read_budget


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("1e24flops", 1e24, "flops"),
        ("1e24 FLOPs", 1e24, "flops"),
        ("1e24", 1e24, "flops"),
        ("3.8e25 flop", 3.8e25, "flops"),
        ("500 ZFLOP", 5e23, "flops"),
        ("100 PF-days", 8.64e21, "flops"),
        ("1 PFLOP/s-day", 8.64e19, "flops"),
        ("$5M", 5e6, "dollars"),
        ("$1,250,000", 1.25e6, "dollars"),
        ("2M USD", 2e6, "dollars"),
        ("200k GPU-hours", 2e5, "device_hours"),
        ("1.5M H", None, None),
        ("30,000 device hours", 3e4, "device_hours"),
        ("5e5 TPU-h", 5e5, "device_hours"),
    ],
)
def test_units(text: str, amount: float | None, unit: str | None) -> None:
    if amount is None:
        with pytest.raises(InputError, match="is not a budget such as"):
            read_budget(text)
        return
    found = read_budget(text)
    assert (found.amount, found.unit) == (pytest.approx(amount, rel=1e-12), unit)


def test_numbers_are_flops() -> None:
    assert read_budget(10**24).amount == 1e24
    assert read_budget(5e21).unit == "flops"


@pytest.mark.parametrize(
    "value",
    ["", "$", "$-5M", "-1e20flops", "0", "$0", "nan", "inf", "1e99flops", "5 apples", "$5M GPU-hours", "1e24 1e24",
     None,     True, float("nan"), -1.0, 0, [1e20, 1e21], b"1e20", "9" * 200, "1e20\n2", "𝟙e20", "$1e40"],
)  # fmt: skip
def test_refused_in_one_line(value: object) -> None:
    with pytest.raises(InputError) as caught:
        read_budget(value)
    assert str(caught.value).startswith("budget: ")
    assert "\n" not in str(caught.value)


UNITS = st.sampled_from([("flops", "flops"), (" FLOP", "flops"), (" GPU-hours", "device_hours"), ("$", "dollars")])


@given(UNITS, st.floats(1e-3, 1e14))
def test_what_is_written_is_read(unit: tuple[str, str], amount: float) -> None:
    word, kind = unit
    text = f"${amount:.6g}" if word == "$" else f"{amount:.6g}{word}"
    found = read_budget(text)
    assert found.unit == kind
    assert found.amount == pytest.approx(float(f"{amount:.6g}"), rel=1e-9)


@given(st.text(max_size=120))
@example("$" * 100)
@example("1 pf-days pf-days")
def test_any_text_is_a_positive_budget_or_one_line(text: str) -> None:
    try:
        found = read_budget(text)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert found.amount > 0
