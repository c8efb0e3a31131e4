"""Training estimates: arithmetic that must hold whatever the constants, and plans that cannot be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfsim
from tfsim.errors import InputError
from tfsim.hardware import load_system
from tfsim.models import load_model
from tfsim.models.conventions import training_flops
from tfsim.models.stages import stages
from tfsim.training import search_plans, train

LLAMA = "llama-3.1-8b"
H100 = "dgx-h100"


def llama(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "devices": 64,
        "seq_len": 8192,
        "global_batch": 128,
        "plan": {"tp": 2, "pp": 2, "micro_batch": 1, "zero_stage": 1, "recompute": "full"},
    }
    return train(load_model(LLAMA), load_system(H100), **{**arguments, **changes})


def test_parts_sum_to_the_whole() -> None:
    estimate = llama()
    assert math.isclose(sum(estimate.time.values()), estimate.step_time_s, rel_tol=1e-12)
    assert math.isclose(sum(estimate.bounds.values()), estimate.step_time_s, rel_tol=1e-9)
    assert math.isclose(sum(estimate.memory.values()), estimate.memory_bytes, rel_tol=1e-12)
    assert set(estimate.memory) == {"weights", "gradients", "optimizer", "activations", "workspace", "reserve"}


def test_mfu_is_flops_over_time_and_peak() -> None:
    estimate = llama()
    tokens = 128 * 8192
    for convention, mfu in estimate.mfu.items():
        per_token = training_flops(load_model(LLAMA), 8192, convention) / 8192
        assert mfu == pytest.approx(per_token * tokens / (estimate.step_time_s * 64 * 989.4e12), rel=1e-4)
    assert estimate.mfu["exact"] < estimate.hfu < 1
    assert estimate.tokens_per_s == pytest.approx(tokens / estimate.step_time_s)


def test_no_plan_beats_the_roofline() -> None:
    plans = search_plans(load_model(LLAMA), load_system(H100), devices=64, seq_len=8192, global_batch=128)
    least = training_flops(load_model(LLAMA), 8192, "exact") * 128 / (64 * 989.4e12)
    assert (plans.step_time_s > least).all()


def test_model_states_of_data_parallel_training_are_the_published_bytes_per_parameter() -> None:
    """Rajbhandari et al. 2020: 16 bytes a parameter, of which 12 are optimizer states; fp16 gradients."""
    parameters = load_model(LLAMA)
    for stage, states in ((0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)):
        estimate = llama(plan={"zero_stage": stage}, global_batch=64, precision="fp16")
        held = sum(estimate.memory[part] for part in ("weights", "gradients", "optimizer"))
        total = tfsim.count(parameters, batch=1, seq_len=1).parameters.total
        assert held == pytest.approx(states * total, rel=1e-9)


def test_zero_stages_are_ordered_in_memory() -> None:
    needs = [llama(plan={"zero_stage": z}, global_batch=64).memory_bytes for z in (0, 1, 2)]
    assert needs == sorted(needs, reverse=True)


def test_recomputation_costs_time_and_saves_memory() -> None:
    none, full = (llama(plan={"tp": 8, "recompute": mode}, global_batch=64) for mode in ("none", "full"))
    assert full.memory["activations"] < none.memory["activations"]
    assert full.step_time_s > none.step_time_s
    assert full.time["recompute"] > 0 == none.time["recompute"]


def test_scores_in_memory_are_computed_in_full_whatever_the_mask() -> None:
    """A causal model takes as long as one whose tokens see each other; a fused kernel skips what is masked."""
    causal = load_model("gpt2-medium")
    (name,) = causal.blocks
    mixer = causal.blocks[name].mixer.model_copy(update={"causal": False})
    both = causal.model_copy(update={"blocks": {name: causal.blocks[name].model_copy(update={"mixer": mixer})}})
    job: dict[str, Any] = {"devices": 1, "seq_len": 1024, "global_batch": 8, "plan": {"micro_batch": 8}}

    def ratio(software: str) -> float:
        times = [train(model, load_system(H100), software=software, **job).step_time_s for model in (causal, both)]
        return float(times[0] / times[1])

    assert ratio("unfused-attention") == pytest.approx(1, rel=1e-9)
    assert ratio("eager") < 0.98


def test_the_pipeline_bubble_is_that_of_1f1b() -> None:
    """Even stages of a deep model: bubble / ideal = (p - 1) / m (Narayanan et al. 2021)."""
    model = load_model("gpt3-175b")
    estimate = train(
        model,
        load_system("dgx-a100"),
        devices=64,
        seq_len=2048,
        global_batch=64,
        plan={"tp": 8, "pp": 8, "micro_batch": 1, "recompute": "full"},
    )
    turns = sum(estimate.time[p] for p in ("forward", "backward", "recompute", "tensor_parallel", "pipeline_transfer"))
    assert estimate.time["pipeline_bubble"] / turns == pytest.approx(7 / 64, rel=0.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("bandwidth", "6 TB/s"), ("matrix_peak.bf16", "2 PFLOP/s"), ("levels.nvlink.bandwidth", "900 GB/s")],
)
def test_better_hardware_is_never_slower(field: str, value: str) -> None:
    system = load_system(H100)
    better = system.with_overrides({field: value})
    for plan in ({"tp": 8}, {"tp": 2, "pp": 4}, {"zero_stage": 3}):
        arguments: dict[str, Any] = {"devices": 64, "seq_len": 8192, "global_batch": 128, "plan": plan}
        before = train(load_model(LLAMA), system, **arguments)
        after = train(load_model(LLAMA), better, **arguments)
        assert after.step_time_s < before.step_time_s or (field.startswith("levels") and "tp" not in plan)
        assert after.step_time_s <= before.step_time_s


def test_the_automatic_plan_is_the_fastest_that_fits() -> None:
    arguments: dict[str, Any] = {"devices": 64, "seq_len": 8192, "global_batch": 128}
    best = train(load_model(LLAMA), load_system(H100), plan="auto", **arguments)
    plans = search_plans(load_model(LLAMA), load_system(H100), **arguments)
    assert best.fits
    assert best.step_time_s == pytest.approx(plans[plans.fits].step_time_s.min(), rel=1e-12)
    again = train(load_model(LLAMA), load_system(H100), plan=best.plan, **arguments)
    assert again.step_time_s == best.step_time_s


def test_what_does_not_fit_says_what_would() -> None:
    estimate = train(
        load_model("llama-3.1-70b"),
        load_system(H100),
        devices=64,
        seq_len=8192,
        global_batch=64,
        plan={"tp": 2, "zero_stage": 1},
    )
    assert not estimate.fits
    for words in ("does not fit: needs", "of 81.24 GB usable (85.52 GB", "largest parts", "nearest plan that fits: tp"):
        assert words in estimate.verdict
    tiny = train(load_model("llama-3.1-405b"), load_system(H100), devices=8, seq_len=8192, global_batch=8)
    assert not tiny.fits
    assert "no plan fits on 8 devices" in tiny.verdict


def test_money_energy_and_carbon_follow_the_device_hours() -> None:
    estimate = llama(tokens=1e12, price=2.0, power=1000, pue=1.2, carbon=0.4)
    steps = math.ceil(1e12 / (128 * 8192))
    assert estimate.steps == steps
    hours = steps * estimate.step_time_s * 64 / 3600
    assert estimate.device_hours == pytest.approx(hours)
    assert estimate.cost_usd == pytest.approx(2 * hours)
    assert estimate.energy_kwh == pytest.approx(1.2 * hours)
    assert estimate.carbon_kg == pytest.approx(0.4 * 1.2 * hours)
    assert estimate.days == pytest.approx(steps * estimate.step_time_s / 86400)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"tp": 3}, "tp 3"),
        ({"tp": 64}, "tp 64 does not divide the 32 attention heads"),
        ({"pp": 64}, "pp 64 is more than the 32 layers"),
        ({"dp": 7}, "is not the 64 devices"),
        ({"micro_batch": 3}, "global_batch 128 is not a multiple"),
        ({"zero_stage": 4}, "zero_stage 4"),
        ({"ep": 2}, "no experts"),
        ({"tp": -1}, "plan.tp"),
        ({"tp": 1.5}, "plan.tp"),
        ({"tp": float("nan")}, "plan.tp"),
        ({"tp": True}, "plan.tp"),
        ({"recompute": "some"}, "recompute"),
        ({"tpp": 2}, "tp"),
        ("fast", "plan"),
    ],
)
def test_impossible_plans_say_why(plan: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        llama(plan=plan)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"devices": 0},
        {"devices": -8},
        {"seq_len": 0},
        {"global_batch": float("inf")},
        {"global_batch": "lots"},
        {"tokens": -1},
        {"precision": "bf8"},
        {"software": "magic"},
        {"price": "cheap"},
        {"pue": -1},
    ],
)
def test_bad_arguments_are_one_line(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        llama(**arguments)
    assert "\n" not in str(caught.value)


NUMBERS = (
    "step_time_s",
    "tokens_per_s",
    "memory_bytes",
    "hfu",
    "cost_usd",
    "energy_kwh",
    "carbon_kg",
    "days",
    "device_hours",
)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([LLAMA, "mixtral-8x7b", "deepseek-v2-lite"]),
    tps=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3),
    pps=st.lists(st.sampled_from([1, 2, 3, 4, 9]), min_size=1, max_size=2),
    devices=st.lists(st.sampled_from([16, 64, 96]), min_size=1, max_size=2),
    seq_len=st.sampled_from([512, 4096]),
    zero_stage=st.sampled_from([0, 1, 2, 3]),
    micro_batch=st.sampled_from([1, 2, 5]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    ep=st.sampled_from([1, 2, 8]),
)
def test_arrays_equal_scalars(
    name: str,
    tps: list[int],
    pps: list[int],
    devices: list[int],
    seq_len: int,
    zero_stage: int,
    micro_batch: int,
    recompute: str,
    ep: int,
) -> None:
    model, system = load_model(name), load_system(H100)
    fixed = {"zero_stage": zero_stage, "micro_batch": micro_batch, "recompute": recompute, "ep": ep}

    def run(n: Any, tp: Any, pp: Any) -> Any:
        plan = {"tp": tp, "pp": pp, **fixed}
        return train(model, system, devices=n, seq_len=seq_len, global_batch=960, plan=plan, tokens=1e9, price=2)

    table = run(np.array(devices)[:, None, None], np.array(tps)[:, None], np.array(pps))
    assert table.step_time_s.shape == (len(devices), len(tps), len(pps))
    for i, n in enumerate(devices):
        for j, tp in enumerate(tps):
            for k, pp in enumerate(pps):
                at = (i, j, k)
                if table.reasons[at]:
                    assert np.isnan(table.step_time_s[at])
                    with pytest.raises(InputError):
                        run(n, tp, pp)
                    continue
                single = run(n, tp, pp)
                for field in NUMBERS:
                    assert getattr(table, field)[at] == pytest.approx(getattr(single, field), rel=1e-12), field
                for group in ("time", "memory", "mfu", "bounds"):
                    for part, value in getattr(single, group).items():
                        assert getattr(table, group)[part][at] == pytest.approx(value, rel=1e-12, abs=1e-300)
                assert bool(table.fits[at]) == single.fits


def test_automatic_plans_of_several_jobs_equal_each_alone() -> None:
    model, system = load_model(LLAMA), load_system(H100)
    table = train(model, system, devices=[8, 64], seq_len=8192, global_batch=128)
    for i, n in enumerate((8, 64)):
        alone = train(model, system, devices=n, seq_len=8192, global_batch=128)
        assert table.step_time_s[i] == alone.step_time_s
        assert table.plan["tp"][i] == alone.plan["tp"]


@given(layers=st.integers(1, 130), pp=st.integers(1, 40))
def test_stages_hold_every_layer_once(layers: int, pp: int) -> None:
    if pp > layers:
        return
    base = load_model("llama-3.1-405b")
    model = base.model_copy(update={"layers": f"layer*{layers}"})
    model.__dict__.pop("layer_blocks", None)
    found = stages(model, pp)
    assert sum(stage.alike for stage in found) == pp
    assert sum(stage.counts.get("layer", 0) * stage.alike for stage in found) == layers
    assert max(s.counts.get("layer", 0) for s in found) - min(s.counts.get("layer", 0) for s in found) <= 1
    assert sum(stage.counts.get("embedding", 0) for stage in found) == 1
    assert sum(stage.counts.get("head", 0) for stage in found) == 1


def test_results_are_plain_data() -> None:
    plain = llama(tokens=1e9).to_dict()
    assert plain["plan"]["tp"] == 2
    assert isinstance(plain["step_time_s"], float)
    assert "kernels: measured on h100-sxm-80gb" in plain["confidence"]
    assert repr(llama()).startswith("TrainingEstimate(llama-3.1-8b on 64 x dgx-h100")
