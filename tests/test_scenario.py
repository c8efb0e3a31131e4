"""Scenarios: quantities with units, plans, overrides, and files that are wrong."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.errors import InputError
from tfsim.files import validate
from tfsim.scenario import (
    Overrides,
    Scenario,
    TrainingPlan,
    list_scenarios,
    load_scenario,
    run_scenario,
    scenario_name,
)

TRAIN = {"system": "dgx-h100", "seq_len": 2048, "global_batch": 32}
SERVE = {"system": "dgx-h100", "input_len": 1000, "output_len": 100}
BASE = {"schema": 1, "title": "t", "model": "llama-3.1-8b"}


def scenario(**parts: object) -> Scenario:
    return validate(Scenario, BASE | parts, "here")


def refusal(**parts: object) -> str:
    with pytest.raises(InputError) as caught:
        scenario(**parts)
    return str(caught.value)


def test_quantities_take_units() -> None:
    found = scenario(
        train=TRAIN | {"devices": "2,048", "tokens": "15T", "seq_len": "8k"},
        overrides={"price": "$2.49/h", "power": "1.2 kW", "carbon": "350 g/kWh", "set": {"tdp": "500 W"}},
    )
    assert found.train is not None
    assert (found.train.devices, found.train.tokens, found.train.seq_len) == (2048, 15 * 10**12, 8000)
    assert found.overrides.rates == {"price": 2.49, "power": 1200, "pue": None, "carbon": 0.35}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"train": TRAIN | {"devices": 0}}, "field 'train.devices': value 0: must be at least 1"),
        ({"train": TRAIN | {"devices": 2.5}}, "field 'train.devices': value 2.5: must be a whole number"),
        ({"train": TRAIN | {"devices": True}}, "must be a number"),
        ({"train": TRAIN | {"devices": [8]}}, "field 'train.devices'"),
        ({"train": TRAIN | {"tokens": "15 TB"}}, "unknown unit 'TB'"),
        ({"train": TRAIN | {"device": 8}}, "field 'train.device': unknown key: did you mean devices?"),
        ({"train": {"system": "dgx-h100"}}, "field 'train.global_batch': missing, and required"),
        ({"train": TRAIN | {"plan": "best"}}, "field 'train.plan': value 'best': must be 'auto'"),
        ({"train": TRAIN | {"plan": {"micro": 2}}}, "field 'train.plan.micro': unknown key: did you mean micro_batch?"),
        ({"train": TRAIN | {"plan": {"tp": "2"}}}, "field 'train.plan.tp': value '2': must be a valid integer"),
        ({"train": TRAIN | {"plan": {"zero_stage": 4}}}, "less than or equal to 3"),
        ({"train": TRAIN | {"plan": {"tp": 2}, "fixed": {"pp": 2}}}, "'fixed' belongs to plan: auto"),
        ({"serve": SERVE | {"plan": {"dp": 2}}}, "field 'serve.plan.dp': unknown key"),
        ({"serve": SERVE | {"memory_utilization": 1.5}}, "less than or equal to 1"),
        ({"overrides": {"price": "free"}}, "field 'overrides.price'"),
        ({"overrides": {"pue": 0.5}}, "field 'overrides.pue': value 0.5: must be at least 1"),
        ({"overrides": {"carbon": "12 kg/kWh"}}, "implausibly large"),
        ({"title": "a\x1b[0m"}, "control characters"),
        ({"title": ""}, "field 'title'"),
        ({"schema": 2}, "field 'schema': value 2"),
        ({"model": 3}, "field 'model': value 3"),
    ],
)
def test_what_is_wrong_is_named(parts: dict[str, object], expected: str) -> None:
    assert expected in refusal(**parts)


def test_nearer_overrides_come_first() -> None:
    outer = Overrides(price=1.0, pue=1.1, set={"tdp": "1 W", "pcie": "1 GB/s"})
    inner = Overrides(price=2.0, set={"tdp": "2 W"})
    assert inner.over(outer) == Overrides(price=2.0, pue=1.1, set={"tdp": "2 W", "pcie": "1 GB/s"})
    asked = scenario(
        train=TRAIN | {"overrides": {"price": 3}, "tokens": "1B"}, serve=SERVE, overrides={"price": 4, "power": "1 kW"}
    )
    found = run_scenario(asked, Overrides(power=500))
    assert found.train is not None
    assert found.serve is not None
    assert found.train.estimate.rates.price_usd_per_device_hour == 3
    assert found.serve.estimate.rates.price_usd_per_device_hour == 4
    assert found.train.estimate.rates.power_w_per_device == 500


def test_a_given_plan_is_not_searched() -> None:
    found = run_scenario(scenario(train=TRAIN | {"plan": {"tp": 2, "recompute": "full"}}))
    assert found.train is not None
    assert found.train.plans is None
    assert found.train.estimate.plan["tp"] == 2
    assert found.train.estimate.plan["recompute"] == "full"
    assert found.serve is None


def test_images_of_both_questions() -> None:
    asked = {"train": TRAIN | {"images": 2}, "serve": {"system": "dgx-h100", "input_len": 1000, "images": 1}}
    found = run_scenario(scenario(model="qwen3-vl-2b", **asked))
    assert found.train is not None and found.serve is not None and found.facts is not None
    assert (found.train.estimate.images, found.serve.estimate.images, found.serve.estimate.output_len) == (2, 1, 300)
    assert found.train.estimate.time["image_tower"] > 0
    assert "serve.images': value -1: is negative" in refusal(serve=SERVE | {"images": -1})


def test_auto_keeps_what_is_fixed_and_takes_the_best() -> None:
    found = run_scenario(scenario(train=TRAIN | {"fixed": {"tp": 4, "zero_stage": 1}}))
    assert found.train is not None
    assert found.train.plans is not None
    assert set(found.train.plans["tp"]) == {4}
    best = found.train.plans.iloc[0]
    assert found.train.estimate.step_time_s == best["step_time_s"]
    assert {name: best[name] for name in TrainingPlan.model_fields} == found.train.estimate.plan


def test_names_and_paths(tmp_path: Path) -> None:
    assert "llama-3.1-70b-on-h100" in list_scenarios()
    assert scenario_name("a/llama-3.1-70b.yaml") == "llama-3.1-70b"
    assert scenario_name("llama-3.1-70b") == "llama-3.1-70b"
    (tmp_path / "q.yaml").write_text("schema: 1\ntitle: t\nmodel: ./m.yaml\n", encoding="utf-8")
    assert load_scenario(tmp_path / "q.yaml").model == str(tmp_path / "m.yaml")
    with pytest.raises(InputError, match="unknown scenario 'lama'"):
        load_scenario("lama")


def test_a_scenario_without_questions_gives_the_facts() -> None:
    found = run_scenario(scenario()).to_dict()
    assert found["train"] is None
    assert found["serve"] is None
    assert found["model"]["parameters"]["total"] == 8_030_261_248


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3))
FIELDS = st.sampled_from(
    ["title", "about", "model", "train", "serve", "overrides", "train.devices", "train.plan", "train.tokens",
     "serve.batch", "serve.plan", "overrides.price", "overrides.set"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(FIELDS, VALUES)
def test_any_value_is_taken_or_refused_in_one_line(field: str, value: object) -> None:
    parts: dict[str, object] = {"train": dict(TRAIN), "serve": dict(SERVE), "overrides": {}}
    outer, _, inner = field.partition(".")
    part = parts[outer] if inner else parts
    assert isinstance(part, dict)
    part[inner or outer] = value
    try:
        scenario(**parts)
    except InputError as error:
        assert "\n" not in str(error)
        assert str(error).isprintable()


def test_a_scenario_needs_a_model_unless_it_compares(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("schema: 1\ntitle: t\nserve: {system: dgx-h100, input_len: 8, output_len: 8}\n")
    with pytest.raises(InputError, match="'model' is missing"):
        load_scenario(path)
    path.write_text("schema: 1\ntitle: t\ncompare: {models: [gpt2, m.yaml], system: dgx-h100}\n")
    assert load_scenario(path).compare.models == ["gpt2", str(tmp_path / "m.yaml")]
