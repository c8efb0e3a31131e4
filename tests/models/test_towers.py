"""Image towers of multimodal models: parameters of real files, FLOPs from the weights, what is refused."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

import tfsim
from tests.models.test_huggingface import HF
from tfsim.errors import InputError
from tfsim.models.counts import count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.load import dump_model, load_model
from tfsim.operators.core import total


def tower_rows() -> list[dict[str, str]]:
    with (HF / "hf_params.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["params_vision"]]


def test_rows_are_there() -> None:
    assert {row["model_type"] for row in tower_rows()} <= {
        "qwen3_vl", "qwen3_vl_moe", "kimi_k25", "gemma4", "minimax_m3_vl",
    }  # fmt: skip
    assert tower_rows()


@pytest.mark.parametrize("row", tower_rows(), ids=lambda row: row["name"])
def test_tower_and_text_part_make_the_whole(row: dict[str, str]) -> None:
    model = load_model(HF / row["name"])
    p = parameters(model)
    assert (p.total, p.by_group["vision"]) == (int(row["params_total"]), int(row["params_vision"]))
    assert model.vision is not None
    alone = parameters(model.vision)
    assert alone.total - alone.by_group["other"] == p.by_group["vision"]
    text = model.model_copy(update={"vision": None})
    whole, part = (count(m, seq_len=4) for m in (model, text))
    assert whole.flops == part.flops  # the tower runs for images only, by itself
    # towers are not quantised: two bytes a weight
    assert whole.weight_bytes - part.weight_bytes == 2 * alone.total


@pytest.mark.parametrize("row", tower_rows(), ids=lambda row: row["name"])
def test_flops_are_the_weights_that_each_patch_meets(row: dict[str, str]) -> None:
    model = load_model(HF / row["name"]).vision
    assert model is not None and model.head.kind == "merger"
    got = count(model)
    patches = model.frontend.seq_len if model.frontend else 0
    matrices = [op for _, repeat, op in got.operators for _ in range(repeat) if op.kind in ("matmul", "convolution")]
    for op in matrices:
        rows = patches // model.head.patches if op.name.startswith("merger") else patches
        if not (op.name.endswith(("linear0", "linear1")) and model.head.each):
            assert op.dims["m"] == rows, op.name
    heads = next(iter(model.blocks.values())).mixer
    assert heads is not None
    assert got.flops_by_component["attn_core"] == model.n_layers * 2 * patches * patches * heads.score_width
    assert got.flops == total(op.flops for op in matrices) + got.flops_by_component["attn_core"]


def test_a_tower_survives_yaml(tmp_path: Any) -> None:
    model = load_model(HF / tower_rows()[0]["name"])
    file = tmp_path / "model.yaml"
    file.write_text(dump_model(model), encoding="utf-8")
    assert load_model(file) == model


def test_faults_name_the_field_of_the_tower() -> None:
    config = json.loads((HF / "moonshotai--Kimi-K2.5" / "config.json").read_text())
    config["vision_config"]["shiny"] = 1
    with pytest.raises(InputError, match=r"vision_config: field 'shiny'"):
        spec_from_config(config)
    spec_from_config(config, ignore_fields=["shiny"])
    config["vision_config"] = None
    assert spec_from_config(config).vision is None


def test_training_and_serving_say_that_the_tower_is_left_out() -> None:
    model, system = load_model(HF / "moonshotai--Kimi-K2.5"), tfsim.load_system("dgx-b200")
    trained = tfsim.train(model, system, devices=512, seq_len=4096, global_batch=512)
    served = tfsim.serve(model, system, devices=16, input_len=64, output_len=8)
    for answer in (trained, served):
        assert any("image tower" in note for note in answer.notes)


def test_sizes_of_a_tower_that_contradict_each_other_are_one_line() -> None:
    config = json.loads((HF / "google--gemma-4-26B-A4B" / "config.json").read_text())
    del config["vision_config"]["num_attention_heads"]
    with pytest.raises(InputError, match=r"vision_config: n_heads \(12\) must be a multiple of n_kv_heads \(16\)"):
        spec_from_config(config)


def test_a_text_token_does_not_touch_the_image_tower() -> None:
    held = parameters(load_model("qwen3-vl-2b"))
    assert held.total - held.active == held.by_group["vision"] == 406_957_056
