"""Images as work: towers against torch, what they add to every count, vision-language-action models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tfsim
from tfsim.errors import InputError
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.facts import model_facts
from tfsim.models.huggingface import spec_from_config
from tfsim.models.load import load_model
from tfsim.models.spec import ModelSpec
from tfsim.models.stages import stages

MULTIMODAL = ("qwen3-vl-2b", "llama-4-scout", "gemma-3-4b", "gemma-4-26b-a4b", "openvla-7b", "rt-2-palm-e-12b")


def tower(name: str) -> ModelSpec:
    model = load_model(name)
    assert model.vision is not None
    return model.vision


# One image of the published size through tower and projector, on the meta device: transformers 5.24 (Llama4VisionModel,
# SiglipVisionModel with Gemma3MultiModalProjector, Qwen3VLVisionModel), torch 2.13's flop counter, eager attention.
# OpenVLA: Dinov2WithRegistersModel (patches alone) and SiglipVisionModel, joined, and the three linear layers of its
# projector.
@pytest.mark.parametrize(
    ("name", "flops", "tokens", "held"),
    [
        ("llama-4-scout", 1_015_628_557_312, 144, 871_932_416),
        ("gemma-3-4b", 5_461_902_360_576, 256, 419_816_304),
        ("openvla-7b", 420_152_967_168, 256, None),
    ],
)
def test_flops_of_a_tower_equal_torch(name: str, flops: int, tokens: int, held: int | None) -> None:
    facts = model_facts(load_model(name))
    assert (facts.tower_flops_per_image, facts.tokens_per_image) == (flops, tokens)
    if held is not None:
        assert facts.tower_parameters == held


def test_a_small_qwen3_vl_tower_equals_torch() -> None:
    """Two images of 8 x 8 patches, two deepstack taps: flops and parameters of Qwen3VLVisionModel."""
    sizes = {
        "depth": 4, "hidden_size": 64, "intermediate_size": 200, "num_heads": 4, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 128, "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 2],
    }  # fmt: skip
    text = {"model_type": "qwen3_vl_text", "hidden_size": 128}
    model = spec_from_config({"model_type": "qwen3_vl", "text_config": text, "vision_config": sizes})
    assert model.vision is not None and model.tokens_per_image == 16
    counted = count(model.vision, batch=2, attention="eager")
    assert (counted.flops, counted.parameters.total) == (95_420_416, 570_720)


def test_gemma_3_import_is_the_zoo() -> None:
    eyes = {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    }  # fmt: skip
    config: dict[str, Any] = {
        "model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": eyes,
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560},
    }  # fmt: skip
    same = {"name": "", "family": ""}
    imported = spec_from_config(config).vision
    assert imported is not None
    assert imported.model_copy(update=same) == tower("gemma-3-4b").model_copy(update=same)
    with pytest.raises(InputError, match=r"vision_config: field 'vision_use_head': .* pooling head is not modelled"):
        spec_from_config({**config, "vision_config": {**eyes, "vision_use_head": True}})
    with pytest.raises(InputError, match=r"'mm_tokens_per_image': .* more than the 64 x 64 patches"):
        spec_from_config({**config, "mm_tokens_per_image": 65 * 65})


def sums(counted: Counts) -> tuple[Any, ...]:
    return counted.flops, counted.saved_bytes, counted.saved_bytes_per_layer, counted.bytes_moved


@pytest.mark.parametrize("name", MULTIMODAL)
@pytest.mark.parametrize("phase", ["forward", "forward_backward"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_images_add_the_tower_and_nothing_else(name: str, phase: Any, recompute: Any) -> None:
    model, how = load_model(name), {"phase": phase, "recompute": recompute}
    whole = count(model, batch=3, seq_len=1200, images=2, **how)
    text, seen = count(model, batch=3, seq_len=1200, **how), count(tower(name), batch=6, **how)
    assert sums(whole) == tuple(a + b for a, b in zip(sums(text), sums(seen), strict=True))
    for component, flops in whole.flops_by_component.items():
        assert flops == text.flops_by_component[component] + seen.flops_by_component[component]
    assert whole.kv_bytes == text.kv_bytes and whole.parameters == text.parameters


def test_a_tower_rests_in_a_decode_step() -> None:
    model = load_model("qwen3-vl-2b")
    with_, without = (count(model, phase="decode", past_len=1000, images=n) for n in (1, 0))
    assert sums(with_) == sums(without)


def test_arrays_of_images_equal_scalars() -> None:
    model = load_model("qwen3-vl-2b")
    many = count(model, batch=2, seq_len=[600, 1200, 4000], images=np.array([1, 2, 6]))
    for i, (seq_len, images) in enumerate(((600, 1), (1200, 2), (4000, 6))):
        one = count(model, batch=2, seq_len=seq_len, images=images)
        assert many.flops[i] == one.flops and many.saved_bytes[i] == one.saved_bytes


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("qwen3-vl-2b", {"images": 4}, "seq_len: 2000 is too short for 4 image(s) of 576 tokens each: give at least 2"),
        ("qwen3-vl-2b", {"images": -1}, "images: -1 is below 0"),
        ("qwen3-vl-2b", {"images": 1.5}, "images: 1.5 is not a whole number"),
        ("qwen3-vl-2b", {"images": [0, 1]}, "images: an array must be of 1 or more"),
        ("gpt2", {"images": 1}, "images: 1, but gpt2 has no image tower"),
    ],
)  # fmt: skip
def test_impossible_images_are_one_line(name: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as raised:
        count(load_model(name), seq_len=2000, **asked)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_tower_is_on_the_first_stage() -> None:
    model = load_model("openvla-7b")
    first, *others = stages(model, 4)
    assert first.counts == {
        "layer": 8, "embedding": 1,
        "vision.encoder.layer": 24, "vision.encoder.embedding": 1, "vision.encoder.head": 1,
        "vision.layer": 27, "vision.embedding": 1, "vision.head": 1,
    }  # fmt: skip
    assert not any(name.startswith("vision.") for stage in others for name in stage.counts)


def test_what_is_no_tower_is_refused() -> None:
    data = load_model("qwen3-vl-2b").model_dump(by_alias=True)
    for wrong, words in (
        ({"head": {"kind": "none"}}, "head of kind merger"),
        ({"head": {"kind": "merger", "patches": 2305, "joined": [8]}}, "fewer patches than"),
        ({"head": {**data["vision"]["head"], "joins_encoder": True}}, "joins_encoder"),
        (
            {"head": {**data["vision"]["head"], "taps": 2**20}},
            "1048576 mergers on earlier layers, of which there are 24",
        ),
        ({"vision": data["vision"]}, r"vision\.vision: the image tower belongs to the whole model"),
    ):
        with pytest.raises(ValueError, match=words):
            ModelSpec.model_validate({**data, "vision": {**data["vision"], **wrong}})


# Parameters of the whole. OpenVLA: total_size of the published weights over 2 bytes (15,082,474,368 / 2). Llama-4 and
# Gemma 3: 109B, 400B, 4.3B, 12.2B and 27.4B as published; their last digits as commonly quoted of the checkpoints,
# which were not opened here.
@pytest.mark.parametrize(
    ("name", "published", "elsewhere"),
    [
        ("llama-4-scout", 108_641_793_536, 0),
        ("llama-4-maverick", 401_583_781_376, 0),
        ("gemma-3-4b", 4_300_079_472, 64 * 2560),  # 64 more rows of its table than google/gemma_pytorch has
        ("gemma-3-12b", 12_187_325_040, 64 * 3840),
        ("gemma-3-27b", 27_432_406_640, 64 * 5376),
        # layer scales of DINOv2, and SigLIP's attention pool: a query, attention, a norm and an MLP, never run
        (
            "openvla-7b",
            7_541_237_184,
            24 * 2 * 1024 + 1152 + 4 * 1152 * 1153 + 2 * 1152 + 2 * 1152 * 4304 + 4304 + 1152,
        ),
    ],
)
def test_published_sizes(name: str, published: int, elsewhere: int) -> None:
    assert parameters(load_model(name)).total == published - elsewhere


@pytest.mark.parametrize(
    ("name", "part", "billions", "within"),
    [
        ("rt-2-pali-x-55b", "total", 55, 0.02),  # Brohan et al. 2023, section 3
        ("rt-2-pali-x-55b", "text", 32, 0.01),  # the same: "an encoder-decoder backbone of 32B parameters"
        ("rt-2-pali-x-55b", "vision", 21.743, 0.0005),  # ViT-22B: Dehghani et al. 2023, table 1
        ("rt-2-palm-e-12b", "total", 12, 0.04),  # Driess et al. 2023: PaLM-E-12B, an 8B model and a 4B ViT
        ("rt-2-palm-e-12b", "text", 8.63, 0.001),  # Chowdhery et al. 2022, table 1
        # ViT-e, Chen et al. 2022, table 1: 3,926M, of which 53M are 29,593 JFT classes and 68M an attention pool
        ("rt-2-palm-e-12b", "vision", 3.926 - 0.053 - 0.068, 0.001),
    ],
)
def test_sizes_of_rt_2(name: str, part: str, billions: float, within: float) -> None:
    p = parameters(load_model(name))
    found = {"total": p.total, "text": p.active, "vision": p.by_group["vision"]}
    assert found[part] == pytest.approx(billions * 1e9, rel=within)
    assert sum(p.by_group.values()) == p.total


def test_image_tokens_of_pali_x_go_to_the_encoder() -> None:
    model = load_model("rt-2-pali-x-55b")
    seen = count(model, seq_len=8, encoder_len=288, images=1)
    blind = count(model, seq_len=8, encoder_len=288)
    assert seen.flops - blind.flops == count(tower("rt-2-pali-x-55b")).flops
    with pytest.raises(InputError, match="encoder_len: 255 is too short for 1 image"):
        count(model, seq_len=300, encoder_len=255, images=1)
    with pytest.raises(InputError, match="has an encoder: serving is for models of one stack"):
        tfsim.serve(model, tfsim.load_system("dgx-h100"))


def test_the_action_head_in_words() -> None:
    assert model_facts(load_model("rt-2-palm-e-12b")).head == (
        "language model; actions: 8 tokens of 256 bins per control step"
    )
    assert model_facts(load_model("openvla-7b")).action_tokens == 7
    plain = model_facts(load_model("llama-2-7b"))
    assert (plain.head, plain.action_tokens, plain.image_tower) == (None, 0, None)
