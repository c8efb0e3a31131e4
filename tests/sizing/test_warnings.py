"""What a sizing says before it is believed: the cheapest size, the pace of published runs, data used up, devices."""

from __future__ import annotations

from typing import Any

import pytest

import tfsim
from tfsim import scaling
from tfsim.errors import InputError
from tfsim.reports.sizing import bowl_rows, bowl_title
from tfsim.training.confidence import checked_devices

SYSTEM = tfsim.load_system("dgx-h100")


def about(estimate: Any, words: str) -> str:
    """The one warning with these words."""
    (found,) = [w for w in estimate.warnings if words in w]
    return str(found)


def test_the_cheapest_size_saves_what_tfsim_train_says() -> None:
    """512 H100s for 30 days: a model of 54B reaches the loss of the law's 77B in a fifth less device time."""
    e = tfsim.size(system=SYSTEM, devices=512, deadline="30d")
    best = e.cheapest
    assert best is not None
    run = tfsim.train(best.shape.spec("x"), SYSTEM, devices=512, seq_len=4096, global_batch=e.global_batch,
                      tokens=best.tokens)  # fmt: skip
    assert run.fits
    assert best.days == pytest.approx(run.days, rel=1e-3)
    assert scaling.loss(parameters=best.parameters, tokens=best.tokens) == pytest.approx(e.loss, rel=1e-9)
    assert run.days < 0.99 * e.days
    assert all(best.days <= b.days for b in e.bowl)
    assert f"{1 - best.days / e.days:.1%} less device time" in about(e, "reaches the same loss")
    rows = bowl_rows(e)
    assert [row["size"] for row in rows if row["size"].endswith("*")] == [f"{best.factor:.2g}x *"]
    assert len({row["size"] for row in rows}) == len(rows)
    assert "* least device time" in bowl_title(e)


def test_no_cheapest_size_where_the_law_did_not_choose_n() -> None:
    assert tfsim.size("$20k", system=SYSTEM, params="1B").cheapest is None
    e = tfsim.size(1e21)
    assert e.cheapest is None
    assert "*" not in bowl_title(e)
    assert all("*" not in row["size"] for row in bowl_rows(e))


def test_the_pace_of_published_runs() -> None:
    factor = checked_devices()["h100-sxm-80gb"]["fused"]
    assert factor > 1.05  # else the warning below has to go
    e = tfsim.size("$20k", system=SYSTEM, vocab_size=32_000)
    words = about(e, "published runs on h100-sxm-80gb")
    slower = scaling.loss(parameters=e.parameters, tokens=e.tokens / factor)
    assert f"${factor * e.cost_usd:,.0f}" in words
    assert f"loss {slower:.4f}" in words
    assert slower > e.loss
    mixture = tfsim.size("$20k", system=SYSTEM, vocab_size=32_000, experts=8)
    assert not any("published runs" in w for w in mixture.warnings)  # none was of a mixture


def test_unique_tokens_used_up() -> None:
    spent = tfsim.size(1e23, unique_tokens="1B")
    words = about(spent, "used up")
    half = scaling.loss(spent.law, parameters=spent.law_parameters, tokens=spent.tokens / 2, unique_tokens=1e9)
    assert f"half of the run reaches loss {half:.4f}, all of it {spent.loss:.4f}" in words
    assert not any("used up" in w for w in tfsim.size(1e22, unique_tokens="25B").warnings)  # 9.5 epochs still teach


def test_why_so_many_devices() -> None:
    laptop = tfsim.load_system("macbook-pro-m1-max")
    slow = tfsim.size(params="1B", system=laptop)
    assert slow.days > 60
    assert slow.devices_because == "the most nodes (a power of two) that macbook-pro-m1-max joins"
    about(slow, "joins no more than 1 device")
    quick = tfsim.size(params="50M", system=laptop)
    assert quick.days < 60
    assert quick.devices_because == "fewest nodes (a power of two) that hold it and end within 60 days"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"precision": "fp7"}, "unknown precision 'fp7'"),
        ({"software": "graphs"}, "did you mean graph?"),
        ({"precision": "fp8"}, "precision: is about a system"),
        ({"software": "eager"}, "software: is about a system"),
        ({"price": 2.0}, "price: is about a system"),
        ({"carbon": 0.1}, "carbon: is about a system"),
    ],
)
def test_what_is_about_a_system_needs_one(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        tfsim.size(1e21, **asked)
    assert words in str(caught.value)


def test_a_deadline_too_near_is_named() -> None:
    with pytest.raises(InputError) as caught:
        tfsim.size("$1M", system=SYSTEM, deadline="1h")
    for words in ("deadline: 1 h takes 262,144 devices of dgx-h100", "give a later deadline or a smaller budget"):
        assert words in str(caught.value)
    with pytest.raises(InputError, match=r"^(?!deadline)"):
        tfsim.size("$1M", system=SYSTEM, devices=262_144)  # asked for by name: no deadline to blame
