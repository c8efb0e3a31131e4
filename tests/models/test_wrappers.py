"""Multimodal types with their image towers: parameters of tower, projector and text part against the live classes."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

from tfsim.errors import InputError
from tfsim.models.counts import count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import PatchFrontend

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

Split = tuple[int, int, int]
"""Parameters of the tower, of a projector beside it, of the text part."""


def live(config: dict[str, Any], device: str = "meta", **how: Any) -> Any:
    """The class that transformers builds."""
    given = {name: value for name, value in copy.deepcopy(config).items() if name != "model_type"}
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")
        found = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(given)
        return transformers.AutoModelForImageTextToText.from_config(found, **how)


def split(model: Any) -> Split:
    """The live parameters, by name as the oracle groups them."""
    tower = beside = text = 0
    for name, weight in model.named_parameters():
        if "vision" in name or "visual" in name:
            tower += weight.numel()
        elif any(word in name for word in ("projector", "connector", "newline")):
            beside += weight.numel()
        else:
            text += weight.numel()
    return tower, beside, text


def ours(config: dict[str, Any]) -> Split:
    model = spec_from_config(config)
    assert model.vision is not None and "text part only" not in model.note
    p, alone = parameters(model), parameters(model.vision)
    text = parameters(model.model_copy(update={"vision": None})).total
    beside = alone.by_group["other"]
    assert p.total == text + alone.total and p.by_group["vision"] == alone.total - beside
    return p.by_group["vision"], beside, text


def qwen(**vision: Any) -> dict[str, Any]:
    """Qwen2-VL-2B and Qwen2.5-VL-3B as published: the text part's fields at the top."""
    return {
        "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 512, "intermediate_size": 1376,
        "max_position_embeddings": 128000, "max_window_layers": 3, "num_attention_heads": 8, "num_hidden_layers": 3,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vocab_size": 1024,
        "vision_start_token_id": 151652, "vision_end_token_id": 151653, "vision_token_id": 151654,
        "image_token_id": 151655, "video_token_id": 151656, "vision_config": vision,
    }  # fmt: skip


LLAMA = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "vocab_size": 1024}  # fmt: skip
QWEN2 = {**LLAMA, "model_type": "qwen2"}
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
    "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768, "vocab_size": 32000,
}  # fmt: skip
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 384, "intermediate_size": 4304,
    "num_attention_heads": 16, "num_hidden_layers": 26, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 1024, "head_dim": 64, "image_size": 1540, "intermediate_size": 4096,
    "num_attention_heads": 16, "num_hidden_layers": 24, "num_channels": 3, "patch_size": 14,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "hidden_act": "silu",
}  # fmt: skip
GLM = {
    "depth": 24, "hidden_size": 1536, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
    "num_heads": 12, "in_channels": 3, "image_size": 336, "patch_size": 14, "rms_norm_eps": 1e-05,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 512, "intermediate_size": 1376,
}  # fmt: skip
INTERN = {
    "model_type": "internvl_vision", "attention_bias": True, "attention_dropout": 0.0, "dropout": 0.0,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 1024, "image_size": [448, 448],
    "initializer_factor": 0.1, "intermediate_size": 4096, "layer_scale_init_value": 0.1, "norm_type": "layer_norm",
    "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": [14, 14],
    "projection_dropout": 0.0, "use_absolute_position_embeddings": True, "use_mask_token": False,
    "use_mean_pooling": True, "use_qk_norm": False,
}  # fmt: skip
COHERE = {
    **LLAMA,
    "model_type": "cohere2",
    "head_dim": 128,
    "sliding_window": 4096,
    "order_of_interleaved_layers": "local_attn_first",
}
GEMMA = {**LLAMA, "model_type": "gemma", "vocab_size": 1024, "num_image_tokens": 256, "head_dim": 128}
IDEFICS = {
    "model_type": "idefics3", "hidden_size": 768, "image_size": 512, "intermediate_size": 3072,
    "max_image_size": {"longest_edge": 512}, "num_attention_heads": 12, "num_hidden_layers": 12, "patch_size": 16,
    "size": {"longest_edge": 2048}, "tie_word_embeddings": False, "use_base_siglip": False,
}  # fmt: skip

# Towers as published, from the config.json of the models named; text parts made small.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2-VL-2B": {
        "model_type": "qwen2_vl",
        **qwen(depth=32, embed_dim=1280, mlp_ratio=4, num_heads=16, in_chans=3, hidden_size=512, patch_size=14,
               spatial_merge_size=2, spatial_patch_size=14, temporal_patch_size=2),
    },
    "Qwen2.5-VL-7B": {
        "model_type": "qwen2_5_vl",
        **qwen(depth=32, hidden_act="silu", hidden_size=1280, intermediate_size=3420, num_heads=16, in_chans=3,
               out_hidden_size=512, patch_size=14, spatial_merge_size=2, spatial_patch_size=14, window_size=112,
               fullatt_block_indexes=[7, 15, 23, 31], tokens_per_second=2, temporal_patch_size=2),
    },
    "Mistral-Small-3.1": {
        "model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_feature_layer": -1,
        "text_config": {**LLAMA, "model_type": "mistral", "head_dim": 128}, "vision_config": PIXTRAL,
    },
    "Pixtral-12B": {
        "model_type": "llava", "image_seq_length": 1, "image_token_index": 10, "projector_hidden_act": "gelu",
        "text_config": {**LLAMA, "model_type": "mistral", "head_dim": 128}, "vision_feature_layer": -1,
        "vision_config": {**PIXTRAL, "image_size": 1024, "patch_size": 16}, "vision_feature_select_strategy": "full",
    },
    "GLM-4.1V-9B": {
        "model_type": "glm4v", "image_start_token_id": 151339, "image_end_token_id": 151340, "vision_config": GLM,
        "video_start_token_id": 151341, "video_end_token_id": 151342,
        "text_config": {**LLAMA, "model_type": "glm4v_text", "partial_rotary_factor": 0.5},
    },
    "LLaVA-1.5-7B": {
        "model_type": "llava", "ignore_index": -100, "image_token_index": 32000, "pad_token_id": 32001,
        "projector_hidden_act": "gelu", "text_config": LLAMA, "vision_config": CLIP, "vocab_size": 32064,
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "tie_word_embeddings": False,
    },
    "LLaVA-v1.6": {
        "model_type": "llava_next", "image_grid_pinpoints": [[336, 672]], "text_config": LLAMA, "vision_config": CLIP,
        "use_image_newline_parameter": True, "vocab_size": 32064, "vision_feature_layer": -2,
    },
    "several layers": {
        "model_type": "llava_next", "text_config": LLAMA, "vision_config": SIGLIP,
        "vision_feature_layer": [-24, -20, -12, -1], "vision_feature_select_strategy": "full",
    },
    "LLaVA-OneVision": {
        "model_type": "llava_onevision", "text_config": QWEN2, "vision_config": SIGLIP,
        "image_grid_pinpoints": [[384, 384]], "vision_aspect_ratio": "anyres_max_9",
        "use_image_newline_parameter": True,
    },
    "InternVL3-2B": {
        "model_type": "internvl", "downsample_ratio": 0.5, "image_seq_length": 256, "image_token_id": 151667,
        "projector_hidden_act": "gelu", "text_config": QWEN2, "vision_config": INTERN, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default", "tie_word_embeddings": False,
    },
    "InternViT-6B": {
        "model_type": "internvl", "text_config": QWEN2, "tie_word_embeddings": False,
        "vision_config": {**INTERN, "hidden_size": 3200, "num_attention_heads": 25, "intermediate_size": 12800,
                          "num_hidden_layers": 45, "norm_type": "rms_norm", "use_qk_norm": True,
                          "attention_bias": False},
    },
    "PaliGemma-3B-448": {
        "model_type": "paligemma", "hidden_size": 512, "projection_dim": 512, "text_config": GEMMA,
        "vision_config": {**SIGLIP, "image_size": 448, "num_image_tokens": 1024, "projection_dim": 512,
                          "num_hidden_layers": 27},
    },
    "SmolVLM-Instruct": {
        "model_type": "idefics3", "image_seq_len": 81, "image_token_id": 49153, "scale_factor": 3,
        "text_config": LLAMA, "vision_config": {**IDEFICS, "image_size": 384}, "vocab_size": 32064,
    },
    "SmolVLM2-256M": {
        "model_type": "smolvlm", "scale_factor": 4, "text_config": LLAMA,
        "vision_config": {**IDEFICS, "model_type": "smolvlm_vision"},
    },
    "Aya-Vision-8B": {
        "model_type": "aya_vision", "adapter_layer_norm_eps": 1e-06, "alignment_intermediate_size": 28672,
        "downsample_factor": 2, "text_config": COHERE, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full", "vision_config": {**SIGLIP, "image_size": 364},
    },
    "Command-A-Vision": {
        "model_type": "cohere2_vision", "alignment_intermediate_size": 36864, "downsample_factor": 2,
        "text_config": COHERE, "vision_config": {**SIGLIP, "image_size": 512, "patch_size": 16},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_towers(name: str) -> None:
    assert ours(PUBLISHED[name]) == split(live(PUBLISHED[name]))


DEFAULTS = (
    "qwen2_vl", "qwen2_5_vl", "mistral3", "glm4v", "glm4v_moe", "glm46v", "internvl", "llava", "llava_next",
    "llava_onevision", "paligemma", "idefics3", "smolvlm", "exaone4_5",
)  # fmt: skip


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_default_configurations(model_type: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = {**transformers.CONFIG_MAPPING[model_type]().to_dict(), "model_type": model_type}
    assert ours(config) == split(live(config))


# fields of towers and projectors whose change the class and tfsim must see alike
VARIED: dict[str, tuple[tuple[str, Any], ...]] = {
    "Qwen2-VL-2B": (("vision_config.embed_dim", 640), ("vision_config.mlp_ratio", 3), ("vision_config.depth", 3),
                    ("vision_config.spatial_merge_size", 4), ("vision_config.temporal_patch_size", 1)),
    "Qwen2.5-VL-7B": (("vision_config.window_size", 224), ("vision_config.out_hidden_size", 64),
                      ("vision_config.intermediate_size", 100), ("vision_config.patch_size", 16)),
    "Mistral-Small-3.1": (("spatial_merge_size", 3), ("multimodal_projector_bias", True),
                          ("vision_config.image_size", 448), ("vision_config.num_channels", 1)),
    "GLM-4.1V-9B": (("vision_config.attention_bias", True), ("vision_config.image_size", 448),
                    ("vision_config.out_hidden_size", 64), ("vision_config.spatial_merge_size", 1)),
    "LLaVA-1.5-7B": (("multimodal_projector_bias", False), ("vision_config.image_size", 224),
                     ("vision_config.model_type", "siglip_vision_model"), ("vision_config.num_hidden_layers", 2)),
    "InternVL3-2B": (("downsample_ratio", 0.25), ("downsample_ratio", 0.3), ("vision_config.attention_bias", False),
                     ("vision_config.use_qk_norm", True), ("vision_config.use_mean_pooling", False),
                     ("vision_config.use_absolute_position_embeddings", False), ("vision_config.image_size", 224)),
    "PaliGemma-3B-448": (("projection_dim", 64), ("vision_config.projection_dim", 64)),
    "SmolVLM2-256M": (("scale_factor", 2), ("vision_config.image_size", 256)),
    "Aya-Vision-8B": (("alignment_intermediate_size", 128), ("downsample_factor", 1)),
    "Command-A-Vision": (("alignment_intermediate_size", 64), ("downsample_factor", 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIED)
def test_each_field_changes_what_it_changes_in_the_class(name: str) -> None:
    """Also with the field left out, so that a default holds; where the class refuses that, so may tfsim."""
    for path, value in VARIED[name]:
        for found in (value, None):
            config = copy.deepcopy(PUBLISHED[name])
            *outer, field = path.split(".")
            inner = config[outer[0]] if outer else config
            if found is None:
                inner.pop(field, None)
            else:
                inner[field] = found
            if path == "vision_config.model_type" and found:
                config["vision_feature_select_strategy"] = "full"
                inner["vision_use_head"] = False
            assert ours(config) == split(live(config)), (path, found)


THIN = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 100}
SMALL: dict[str, dict[str, Any]] = {
    "Qwen2-VL-2B": {"depth": 2, "embed_dim": 64, "num_heads": 4},
    "Qwen2.5-VL-7B": {"depth": 3, "hidden_size": 64, "num_heads": 4, "intermediate_size": 100,
                      "fullatt_block_indexes": [1]},
    "GLM-4.1V-9B": {"depth": 2, "hidden_size": 64, "num_heads": 4, "image_size": 112},
    "Mistral-Small-3.1": {**THIN, "image_size": 112, "head_dim": 16},
    "Pixtral-12B": {**THIN, "image_size": 128, "head_dim": 16},
    "LLaVA-1.5-7B": {**THIN, "image_size": 112},
    "InternVL3-2B": {**THIN, "image_size": [112, 112]},
    "PaliGemma-3B-448": {**THIN, "image_size": 112},
    "SmolVLM2-256M": {**THIN, "image_size": 128},
    "Aya-Vision-8B": {**THIN, "image_size": 112},
    "Command-A-Vision": {**THIN, "image_size": 128},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_flops_of_an_image_equal_torch(name: str) -> None:
    """Tower and projector of small variants, run by the class under torch's flop counter."""
    from torch.utils.flop_counter import FlopCounterMode

    config = copy.deepcopy(PUBLISHED[name])
    config["vision_config"].update(SMALL[name])
    eyes = spec_from_config(config).vision
    assert eyes is not None and isinstance(eyes.frontend, PatchFrontend)
    front, model = eyes.frontend, live(config, device="cpu", attn_implementation="eager")
    side = front.image_size // front.patch_size
    pixels = torch.zeros(1, front.channels, front.image_size, front.image_size)
    if hasattr(model.model, "visual"):
        grid = torch.tensor([[1, side, side]])
        asked = {"pixel_values": torch.zeros(side * side, front.patch_values), "image_grid_thw": grid}
    elif config["vision_config"]["model_type"] == "pixtral":
        asked = {"pixel_values": pixels, "image_sizes": torch.tensor([[front.image_size] * 2])}
    else:
        asked = {"pixel_values": pixels[None] if config["model_type"] == "smolvlm" else pixels}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.model.get_image_features(**asked)
    assert count(eyes, attention="eager").flops == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "path", "value", "words"),
    [
        ("LLaVA-1.5-7B", "vision_feature_select_strategy", "full", "models only default with this encoder"),
        ("LLaVA-1.5-7B", "vision_config.model_type", "swin", "must be one of clip_vision_model"),
        ("LLaVA-1.5-7B", "vision_config.patch_size", [14, 16], "square patches"),
        ("LLaVA-1.5-7B", "vision_feature_layer", "last", "a layer's number or a list"),
        ("Mistral-Small-3.1", "vision_feature_layer", [-1, -2], "one layer only"),
        ("InternVL3-2B", "downsample_ratio", 2, "a number from 0 to 1"),
        ("InternVL3-2B", "vision_config.use_mask_token", True, "models only False"),
        ("Qwen2.5-VL-7B", "vision_config.window_size", 14, "less than a token of 2 x 2 patches"),
        ("Aya-Vision-8B", "alignment_intermediate_size", 13, "must be even"),
        ("Command-A-Vision", "vision_config.vision_use_head", True, "pooling head is not modelled"),
    ],
)
def test_what_is_not_modelled_is_one_line(name: str, path: str, value: Any, words: str) -> None:
    config = copy.deepcopy(PUBLISHED[name])
    *outer, field = path.split(".")
    (config[outer[0]] if outer else config)[field] = value
    with pytest.raises(InputError, match=words) as raised:
        spec_from_config(config)
    assert field in str(raised.value) and "\n" not in str(raised.value)
    # the text part alone can always be asked for, and says so
    text = spec_from_config(config, ignore_fields=["vision_config"])
    assert text.vision is None and "text part only" in text.note


def test_an_audio_tower_is_left_out_aloud() -> None:
    text = {"model_type": "gemma4_text"}
    for audio, words in (({"hidden_size": 1024}, "the audio tower is left out"), (None, "")):
        note = spec_from_config({"model_type": "gemma4", "text_config": text, "audio_config": audio}).note
        assert ("audio" in note) == bool(words) and words in note


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("Qwen2.5-VL-7B", ["lm_head", "visual.blocks.0.attn.qkv", "visual.merger.mlp.0"]),
        ("Mistral-Small-3.1", ["re:vision_tower.*", "re:multi_modal_projector.*", "language_model.lm_head"]),
        ("SmolVLM2-256M", ["model.connector.modality_projection.proj", "model.vision_model", "lm_head"]),
        ("LLaVA-v1.6", ["vision_tower", "image_newline", "multi_modal_projector", "lm_head"]),
    ],
)
def test_a_quantised_text_part_leaves_the_tower_as_it_is(name: str, left: list[str]) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    how = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": left, "config_groups": groups}
    plain = spec_from_config({**PUBLISHED[name], "torch_dtype": "bfloat16"})
    small = spec_from_config({**PUBLISHED[name], "torch_dtype": "bfloat16", "quantization_config": how})
    assert small.vision == plain.vision and parameters(small) == parameters(plain)
    assert count(small, seq_len=1).weight_bytes < count(plain, seq_len=1).weight_bytes
