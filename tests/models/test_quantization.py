"""quantization_config and hf_quant_config.json -> number formats per block."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.errors import InputError
from tfsim.models.counts import count
from tfsim.models.huggingface import spec_from_config
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import ModelSpec
from tfsim.operators.formats import weight_bytes

LLAMA = {"model_type": "llama", "num_hidden_layers": 4}
MIXTRAL = {"model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 4}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


def packed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        **more,
    }


def load(quantization: dict[str, Any], base: dict[str, Any] = LLAMA) -> ModelSpec:
    return spec_from_config({**base, "quantization_config": quantization})


def modelopt(base: dict[str, Any] = LLAMA, **quantization: Any) -> ModelSpec:
    return spec_from_config(base, quant_config={"quantization": quantization})


ALL = "attn", "ffn_dense"


@pytest.mark.parametrize(
    ("quantization", "name", "head"),
    [
        (FP8, "fp8_block", None),
        ({**FP8, "modules_to_not_convert": ["lm_head"]}, "fp8_block", None),
        ({**FP8, "modules_to_not_convert": []}, "fp8_block", "fp8_block"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", None),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8_channel", None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4_zp_g128", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, "int4_zp_g64", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, "int4_g128", None),
        (packed(INT4, ignore=["lm_head"]), "int4_g128", None),
        (packed(INT4), "int4_g128", "int4_g128"),
        (packed({**INT4, "symmetric": False}, ignore=["lm_head"]), "int4_zp_g128", None),
        (packed({"num_bits": 8, "type": "float", "strategy": "channel"}, ignore=["lm_head"]), "fp8_channel", None),
        (packed({"num_bits": 8, "type": "int", "strategy": "channel"}, ignore=["lm_head"]), "int8", None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, "nvfp4", None),
    ],
)
def test_one_format_for_every_matrix(quantization: dict[str, Any], name: str, head: str | None) -> None:
    spec = load(quantization)
    assert spec.blocks["layer"].formats == dict.fromkeys(ALL, name)
    assert spec.formats == ({"head": head} if head else {}) and spec.kv_format is None


def test_layers_left_out_become_blocks_of_their_own() -> None:
    skip = [f"model.layers.{i}.self_attn.{p}_proj" for i in range(4) for p in "qkvo"]
    skip += [f"model.layers.{i}.mlp.{p}_proj" for i in (0, 3) for p in ("gate", "up", "down")]
    spec = load({"quant_method": "fbgemm_fp8", "modules_to_not_convert": skip})
    assert spec.layers == "layer layer_v2*2 layer"
    assert spec.blocks["layer"].formats == {} and spec.blocks["layer_v2"].formats == {"ffn_dense": "fp8_channel"}


def test_part_of_a_group_is_named_by_operator() -> None:
    spec = modelopt(quant_algo="NVFP4", exclude_modules=["lm_head", "*.q_proj", "re:.*k_proj", "model.layers.*.mlp"])
    assert spec.blocks["layer"].formats == {"v_proj": "nvfp4", "o_proj": "nvfp4"}


def test_names_of_a_multimodal_checkpoint() -> None:
    text = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 2}}
    skip = ["lm_head", "vision_tower", "multi_modal_projector", "language_model.model.layers.0.self_attn"]
    spec = modelopt(text, quant_algo="FP8", exclude_modules=skip, kv_cache_quant_algo="FP8")
    assert [spec.blocks[name].formats for name in spec.layer_blocks] == [
        {"ffn_dense": "fp8"},
        {"attn": "fp8", "ffn_dense": "fp8"},
    ]
    assert spec.kv_format == "fp8"


def test_mixed_precision_by_module() -> None:
    layers = {f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"} for i in range(2) for p in "qkvo"}
    experts = {
        f"model.layers.{i}.block_sparse_moe.experts.{e}.w{w}": {"quant_algo": "NVFP4", "group_size": 16}
        for i in range(2)
        for e in range(4)
        for w in (1, 2, 3)
    }
    spec = modelopt(MIXTRAL, quant_algo="MIXED_PRECISION", quantized_layers={**layers, **experts})
    assert spec.blocks["layer"].formats == {"attn": "fp8", "moe_routed": "nvfp4"}
    del experts["model.layers.1.block_sparse_moe.experts.3.w2"]
    with pytest.raises(InputError, match="different formats"):
        modelopt(MIXTRAL, quant_algo="MIXED_PRECISION", quantized_layers=experts)


def test_router_and_experts() -> None:
    spec = load(FP8, MIXTRAL)
    assert spec.blocks["layer"].formats == {"attn": "fp8_block", "moe_routed": "fp8_block"}
    oss = {"model_type": "gpt_oss", "num_hidden_layers": 2}
    assert load({"quant_method": "mxfp4"}, oss).blocks["local"].formats == {"moe_routed": "mxfp4"}


def test_tied_head_stays_in_the_dtype_of_the_model() -> None:
    spec = load({**FP8, "modules_to_not_convert": []}, {**LLAMA, "tie_word_embeddings": True})
    assert spec.formats == {}


def test_bytes_of_a_quantised_model() -> None:
    plain, quantised = spec_from_config(LLAMA), load(FP8)
    attn, ffn = weight_bytes("fp8_block", 4096, 4096), weight_bytes("fp8_block", 11008, 4096)
    matrices = 4 * (4 * attn + 3 * ffn)
    bf16 = 4 * 2 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    weights = [count(spec, batch=1, seq_len=4).weight_bytes for spec in (plain, quantised)]
    assert weights[1] == weights[0] - bf16 + matrices


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method.*must be one of"),
        ({}, "quant_method.*must be text"),
        ({**FP8, "weight_block_size": [64, 64]}, "weight_block_size"),
        ({**FP8, "fmt": "e5m2"}, "fmt"),
        ({**FP8, "modules_to_not_convert": "lm_head"}, "must be a list of module names"),
        ({**FP8, "modules_to_not_convert": ["model.layers.0.self_attn.q_prj"]}, "q_prj.*no matrix of this model"),
        ({**FP8, "modules_to_not_convert": ["re:("]}, "not a valid pattern"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits.*must be 4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 100}, "group_size"),
        (packed({**INT4, "num_bits": 5}), "tfsim does not know"),
        (packed({**INT4, "type": "float", "num_bits": 8, "strategy": "block", "group_size": None}), "block_structure"),
        (packed(INT4, kv_cache_scheme={"num_bits": 4, "type": "int"}), "kv_cache_scheme"),
        ({**packed(INT4), "config_groups": {}}, "must hold one group"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP3"}, "kv_cache_quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
    ],
)
def test_unknown_quantisation_is_named(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(quantization)
    spec = spec_from_config({**LLAMA, "quantization_config": quantization}, ignore_fields=["quantization_config"])
    assert spec.blocks["layer"].formats == {}


VALUES = st.sampled_from(
    [
        None,
        "",
        "FP8",
        "fp8",
        [],
        ["lm_head"],
        ["["],
        ["re:*"],
        [3],
        {},
        {"a": 1},
        True,
        0,
        -1,
        4,
        128,
        1e400,
        [128, 128],
    ]
)


@settings(max_examples=200, deadline=None)
@given(
    base=st.sampled_from(
        [FP8, packed(INT4), {"quant_method": "awq", "bits": 4, "group_size": 64}, {"quant_method": "mxfp4"}]
    ),
    changes=st.dictionaries(
        st.sampled_from(
            sorted(
                words(
                    "quant_method bits group_size weight_block_size modules_to_not_convert config_groups ignore "
                    "quant_algo quantized_layers kv_cache_scheme kv_cache_quant_algo exclude_modules fmt zero_point"
                )
            )
        ),
        VALUES,
        max_size=3,
    ),
)
def test_mutated_quantisation_never_crashes(base: dict[str, Any], changes: dict[str, Any]) -> None:
    config = {**copy.deepcopy(base), **changes}
    for attempt in ({"quantization_config": config}, {}):
        try:
            spec_from_config({**LLAMA, **attempt}, quant_config=None if attempt else {"quantization": config})
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("model_type", "words"), [("evoformer", "touches no weight"), ("t5", "quantised encoders are not modelled")]
)
def test_formats_that_would_be_ignored_are_refused(model_type: str, words: str) -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    with pytest.raises(InputError, match=f"quantization_config.*{words}"):
        spec_from_config({"model_type": model_type, "quantization_config": quantised})


def test_a_word_names_the_modules_inside_it() -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    spec = load({**awq, "modules_to_not_convert": ["self_attn", "lm_head"]})
    assert spec.blocks["layer"].formats == {"ffn_dense": "int4_zp_g128"}


def test_two_matrices_behind_one_operator_must_agree() -> None:
    small = {"model_type": "afmoe", "num_hidden_layers": 2}
    both = [f"model.layers.0.self_attn.{name}_proj" for name in ("q", "gate")]
    spec = load({**FP8, "modules_to_not_convert": both}, small)
    assert "q_proj" not in spec.blocks[spec.layer_blocks[0]].formats
    with pytest.raises(InputError, match="siblings have different formats"):
        load({**FP8, "modules_to_not_convert": both[1:]}, small)


# AMD Quark.


def quark(weight: dict[str, Any], **more: Any) -> dict[str, Any]:
    whole = {"weight": weight, "input_tensors": None, "output_tensors": None, "bias": None}
    return {"quant_method": "quark", "global_quant_config": whole, "exclude": ["lm_head"], **more}


QUARK_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "group_size": None, "symmetric": True}


def test_quark_formats() -> None:
    kept = {"output_tensors": QUARK_FP8, "weight": QUARK_FP8}
    per_layer = {"*k_proj": kept, "*v_proj": kept}
    spec = load(quark(QUARK_FP8, kv_cache_quant_config=per_layer, layer_quant_config=per_layer))
    assert spec.blocks["layer"].formats == {"attn": "fp8", "ffn_dense": "fp8"}
    assert (spec.kv_format, spec.formats) == ("fp8", {})
    narrow = load(quark({"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, exclude=["re:.*self_attn.*"]))
    assert narrow.blocks["layer"].formats == {"ffn_dense": "mxfp4"} and narrow.kv_format is None
    assert narrow.formats == {"head": "mxfp4"}


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (quark({"dtype": "uint2", "qscheme": "per_group"}), "dtype, qscheme and group_size are"),
        (quark({**QUARK_FP8, "symmetric": False}), "symmetric"),
        (quark(QUARK_FP8, kv_cache_quant_config={"*k_proj": {}}), "kv_cache_quant_config"),
        (
            quark(QUARK_FP8, layer_quant_config={"*k": {"weight": {**QUARK_FP8, "qscheme": "per_channel"}}}),
            "layer_quant_config",
        ),
        (quark(QUARK_FP8, twist=1), "twist"),
    ],
)
def test_quark_refuses(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load(quantization)
    assert "\n" not in str(error.value)
