"""Serving with images: the tower belongs to the prefill; robots that decode an action per image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.serving.test_serving import H100
from tfsim.errors import InputError
from tfsim.hardware import load_system
from tfsim.models.counts import stored_weights
from tfsim.models.load import load_model
from tfsim.operators.core import total
from tfsim.serving import search_serving_plans, serve

QWEN = load_model("qwen3-vl-2b")
ROBOT = load_model("openvla-7b")


def asked(images: Any, **more: Any) -> Any:
    usual = {"plan": {"tp": 1}, "input_len": 4000, "output_len": 100, "batch": 4}
    return serve(QWEN, H100, images=images, **{**usual, **more})


def test_the_tower_is_part_of_the_prefill_alone() -> None:
    blind, seen = asked(0), asked(2)
    assert (blind.tpot_ms, blind.memory.kv_cache) == (seen.tpot_ms, seen.memory.kv_cache)
    tower = {name: s for name, s in seen.prefill.operators.items() if name.startswith("vision.")}
    assert seen.ttft_ms - blind.ttft_ms == pytest.approx(1e3 * sum(tower.values()))
    assert not any(name.startswith("vision.") for name in seen.decode.operators)
    for phase in (seen.prefill, seen.decode):
        assert sum(getattr(phase, limit) for limit in phase.LIMITS) == pytest.approx(phase.seconds)
    assert QWEN.vision is not None
    held = total(weight.bytes * copies for weight, copies in stored_weights(QWEN.vision))
    assert seen.memory.weights - blind.memory.weights == held
    assert any("images is 0" in note for note in blind.notes)
    assert any("first pipeline stage" in note for note in seen.notes)


def test_arrays_of_images_equal_scalars() -> None:
    many = asked([1, 3, 6])
    for i, images in enumerate((1, 3, 6)):
        one = asked(images)
        assert (many.images[i], many.memory.total[i]) == (one.images, one.memory.total)
        assert many.ttft_ms[i] == pytest.approx(one.ttft_ms, rel=1e-12)
    auto = serve(QWEN, H100, devices=2, input_len=4000, output_len=10, images=np.array([1, 6]))
    assert auto.ttft_ms[1] > auto.ttft_ms[0] and bool(auto.fits.all())


def test_the_tower_is_whole_on_the_first_stage() -> None:
    cut = asked(1, plan={"tp": 8}, devices=8)
    alone = asked(1)
    tower = {name: s for name, s in alone.prefill.operators.items() if name.startswith("vision.")}
    assert {name: cut.prefill.operators[name] for name in tower} == pytest.approx(tower)
    staged = asked(1, plan={"pp": 4}, devices=4)
    blind = asked(0, plan={"pp": 4}, devices=4)
    assert staged.ttft_ms - blind.ttft_ms == pytest.approx(1e3 * sum(tower.values()))


def test_images_that_do_not_fit_into_the_prompt() -> None:
    with pytest.raises(InputError, match=r"input_len: 4000 is too short for 7 image\(s\) of 576 tokens each"):
        asked(7)


def test_a_robot_decodes_one_action_per_image_by_default() -> None:
    step = serve(ROBOT, H100)
    assert (step.images, step.input_len, step.output_len, step.batch) == (1, 256 + 32, 7, 1)
    seconds = (step.ttft_ms + 6 * step.tpot_ms) / 1e3
    assert step.control_hz == pytest.approx(1 / seconds)
    # reading 15 GB of weights seven times and computing the image cannot take less
    assert step.control_hz < 1 / (7 * 13.5e9 / 3.35e12)
    given = serve(ROBOT, H100, images=2, input_len=600, output_len=14, batch=4)
    assert (given.images, given.input_len, given.output_len, given.batch) == (2, 600, 14, 4)
    assert given.control_hz < step.control_hz
    assert serve(load_model("rt-2-palm-e-12b"), H100).output_len == 8
    assert asked(1).control_hz is None


def test_openvla_on_its_authors_card() -> None:
    """Kim et al. 2024, section 3.5: about 6 Hz on one RTX 4090 in bf16, without compilation."""
    card = load_system("workstation-1x-rtx-4090")
    slow, fast = (serve(ROBOT, card, software=style).control_hz for style in ("eager", "graph"))
    assert slow < fast
    assert [slow, fast] == pytest.approx([6, 6], rel=0.3)


def test_control_rate_of_arrays_and_searches() -> None:
    rates = serve(ROBOT, H100, devices=[1, 2, 4], plan={"tp": [1, 2, 4]}).control_hz
    assert np.all(np.diff(rates) > 0)
    assert search_serving_plans(ROBOT, H100, devices=2)["tpot_ms"].notna().all()
