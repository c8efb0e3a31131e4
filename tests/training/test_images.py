"""Training with images: the tower's time and memory, on the first stage; parts sum to the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tfsim
from tfsim.errors import InputError
from tfsim.models.conventions import training_flops
from tfsim.models.counts import count, parameters
from tfsim.models.load import load_model

MODEL, SYSTEM = load_model("qwen3-vl-2b"), tfsim.load_system("dgx-h100")


def train(images: Any, plan: Any, **more: Any) -> Any:
    asked = {"devices": 8, "seq_len": 2048, "global_batch": 32, **more}
    return tfsim.train(MODEL, SYSTEM, images=images, plan=plan, **asked)


@pytest.mark.parametrize("plan", [{}, {"tp": 2, "pp": 2}, {"pp": 4, "recompute": "full"}, {"dp": 8, "zero_stage": 3}])
def test_parts_sum_to_the_whole(plan: dict[str, Any]) -> None:
    blind, seen = train(0, plan), train(2, plan)
    for found in (blind, seen):
        assert sum(found.time.values()) == pytest.approx(found.step_time_s)
        assert sum(found.bounds.values()) == pytest.approx(found.step_time_s)
        assert sum(found.memory.values()) == pytest.approx(found.memory_bytes)
    assert blind.time["image_tower"] == 0 < seen.time["image_tower"]
    assert seen.step_time_s > blind.step_time_s and seen.memory_bytes > blind.memory_bytes


def test_one_device_holds_and_runs_the_tower_besides() -> None:
    blind, seen = (train(n, {}, devices=1, global_batch=4) for n in (0, 2))
    assert MODEL.vision is not None
    held = parameters(MODEL.vision).total
    assert seen.memory["weights"] - blind.memory["weights"] == 2 * held
    assert seen.memory["gradients"] - blind.memory["gradients"] == pytest.approx(
        held * blind.memory["gradients"] / (blind.memory["weights"] / 2)
    )
    same = ("forward", "backward", "recompute", "tensor_parallel", "pipeline_bubble")
    assert {name: seen.time[name] for name in same} == {name: blind.time[name] for name in same}
    kept = count(MODEL.vision, batch=2, phase="forward_backward", style="fused").saved_bytes
    more = sum(seen.memory[name] - blind.memory[name] for name in ("activations", "workspace"))
    assert more == pytest.approx(kept, rel=0.02)


def test_tensor_parallel_ranks_repeat_the_tower() -> None:
    one, two = train(1, {"tp": 1, "dp": 4}, devices=4), train(1, {"tp": 2, "dp": 4})
    assert one.time["image_tower"] == pytest.approx(two.time["image_tower"])
    assert any("tensor parallelism does not cut it" in note for note in two.notes)


def test_model_flops_count_the_images() -> None:
    assert MODEL.vision is not None
    whole, text = (training_flops(MODEL, 2048, "exact", images=n) for n in (3, 0))
    assert whole - text == 3 * 3 * count(MODEL.vision).flops
    seen = train(3, {})
    assert seen.flops_per_token == {"exact": whole / 2048, "megatron": pytest.approx(seen.flops_per_token["megatron"])}
    assert set(train(0, {}).flops_per_token) == {"exact", "megatron", "palm", "6nd"}


def test_arrays_and_searches() -> None:
    many = train([1, 2, 3], {"tp": 2})
    for i in range(3):
        assert many.step_time_s[i] == pytest.approx(train(i + 1, {"tp": 2}).step_time_s, rel=1e-12)
    best = train(2, "auto")
    plans = tfsim.search_plans(MODEL, SYSTEM, devices=8, seq_len=2048, global_batch=32, images=2)
    assert best.step_time_s == pytest.approx(plans["step_time_s"][0]) and best.images == 2
    assert np.all(plans["image_tower_s"] > 0)


def test_images_that_do_not_fit_into_the_sequence() -> None:
    with pytest.raises(InputError, match=r"seq_len: 2048 is too short for 4 image\(s\) of 576 tokens each"):
        train(4, {})
