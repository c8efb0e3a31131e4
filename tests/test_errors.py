"""Error messages: always one line, always with the nearest name."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfsim.errors import InputError, nearest, one_line, quote, unknown

DEVICES = ["h100-sxm-80gb", "h100-pcie-80gb", "h200", "a100-sxm-80gb", "mi300x", "tpu-v5e"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("h10", "h100-sxm-80gb"),
        ("H100 SXM", "h100-sxm-80gb"),
        ("a100-smx-80gb", "a100-sxm-80gb"),
        ("mi300", "mi300x"),
        ("tpuv5e", "tpu-v5e"),
    ],
)
def test_nearest(name: str, first: str) -> None:
    assert nearest(name, DEVICES)[0] == first


def test_nothing_is_near() -> None:
    assert nearest("quantum", DEVICES) == []
    assert nearest("", DEVICES) == []


def test_unknown_says_what_to_do() -> None:
    assert str(unknown("device", "h10", ["h100-sxm-80gb"])) == (
        "unknown device 'h10': did you mean h100-sxm-80gb? (tfsim hardware list shows all)"
    )
    assert str(unknown("device", "zzzz", DEVICES)) == ("unknown device 'zzzz' (tfsim hardware list shows all)")
    assert str(unknown("schedule", "zzzz", ["1f1b", "gpipe"])) == ("unknown schedule 'zzzz': choose from 1f1b, gpipe")


def test_is_a_value_error_and_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(InputError("a\nb")))
    assert isinstance(error, ValueError)
    assert str(error) == r"a\nb"


@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_text_gives_one_line(name: str, choices: list[str]) -> None:
    message = str(unknown("model", name, choices))
    assert message.isprintable()
    assert len(message) <= 800


@given(st.text())
def test_one_line_is_printable_and_idempotent(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert one_line(line) == line


def test_quote_of_values_that_do_not_print() -> None:
    assert quote(10**5000).startswith("an integer of")
    assert quote([10**5000]) == "a list"
    assert len(quote("x" * 10**6)) <= 82
    assert quote("\x1b[31m") == r"'\x1b[31m'"
