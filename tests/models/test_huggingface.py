"""config.json -> ModelSpec: every type, every field, every malformed file."""

from __future__ import annotations

import copy
import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import oracle_more
from tests.oracle import configurations
from tfsim.errors import InputError
from tfsim.models.counts import count, parameters
from tfsim.models.huggingface import FAMILIES, MODEL_TYPES, spec_from_config
from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.harmless import words
from tfsim.models.load import load_model
from tfsim.models.spec import MLA, Attention, DenseFFN, ModelSpec, MoE

DATA = Path(__file__).parent.parent / "data"
HF = DATA / "hf_configs"
ISSUE_TYPES = sorted(
    words(
        "gpt2 gpt_neox gptj opt bloom falcon mpt llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 "
        "gemma3 gemma3_text phi phi3 deepseek_v2 deepseek_v3 dbrx grok-1 grok1 gpt_oss llama4 llama4_text cohere olmo "
        "olmo2 starcoder2 stablelm kimi_k2"
    )
)


# types that are the oracle's own, and no class of transformers; evoformer takes AlphaFold 2's sizes by default
ORACLE_KINDS = {
    "dit": "dit-xl-2",
    "gnmt": "gnmt-v2-8layer",
    "rnn_lm": "lstm-ptb-medium",
    "transformer2017": "transformer-2017-base",
}


def defaults() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DATA / "default_configs.json").read_text())["types"]
    return loaded


def hf_rows() -> list[dict[str, str]]:
    with (HF / "hf_params.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def example(model_type: str) -> dict[str, Any]:
    """A complete config of one type."""
    if model_type in ("grok1", "grok-1"):
        return {**configurations()["full"]["grok-1"]["config"], "model_type": model_type}
    if model_type in ("gemma3", "llama4"):
        eyes = {"vision_use_head": False, "image_size": 896, "patch_size": 14} if model_type == "gemma3" else {}
        return {"model_type": model_type, "text_config": {"model_type": f"{model_type}_text"}, "vision_config": eyes}
    if model_type in ORACLE_KINDS:
        return oracle_more.config(ORACLE_KINDS[model_type])
    if model_type == "kimi_k2":
        return {**defaults()["deepseek_v3"]["config"], "model_type": "kimi_k2"}
    if model_type == "kimi_k25":
        return {"model_type": "kimi_k25", "text_config": {}}
    if model_type == "dots1":  # its class gives no number of experts
        return {"model_type": model_type, "n_routed_experts": 8, "num_experts_per_tok": 2}
    if model_type not in defaults():  # a later type: every field takes the default of its class
        return {"model_type": model_type}
    config: dict[str, Any] = copy.deepcopy(defaults()[model_type]["config"])
    return config


def total(spec: ModelSpec) -> int:
    return count(spec, batch=1, seq_len=4).parameters.total


# Every type of the issue loads, with the parameters of the class it names.


@pytest.mark.parametrize("model_type", ISSUE_TYPES)
def test_every_listed_type_loads(model_type: str) -> None:
    spec = spec_from_config(example(model_type), name="x", source="test")
    assert spec.n_layers > 0 and total(spec) > 0
    assert spec.name == "x" and spec.source == "test"


def test_listed_types_are_the_types_tfsim_names() -> None:
    assert set(ISSUE_TYPES) <= set(MODEL_TYPES)


@pytest.mark.parametrize("model_type", sorted(defaults()))
def test_default_class_has_the_parameters_of_transformers(model_type: str) -> None:
    row = defaults()[model_type]
    counts = count(spec_from_config(row["config"]), batch=1, seq_len=4).parameters
    assert (counts.total, counts.active) == (row["params_total"], row["active_total"])


@pytest.mark.parametrize("model_type", sorted(set(defaults()) - {"deepseek_v2"}))
def test_missing_fields_take_the_default_of_the_class(model_type: str) -> None:
    bare = {"model_type": model_type}
    assert total(spec_from_config(bare)) == defaults()[model_type]["params_total"]


def test_deepseek_v2_without_experts_per_token_counts_all_and_says_so() -> None:
    spec = spec_from_config({"model_type": "deepseek_v2"})
    moe = spec.blocks["layer"].ffn
    assert isinstance(moe, MoE) and moe.top_k == moe.n_experts
    assert "num_experts_per_tok" in spec.note


@pytest.mark.parametrize("row", hf_rows(), ids=lambda row: row["name"])
def test_real_files_load_with_their_parameters(row: dict[str, str]) -> None:
    spec = load_model(HF / row["name"])
    assert total(spec) == int(row["params_total"])
    assert parameters(spec).by_group["vision"] == int(row["params_vision"] or 0)


@pytest.mark.parametrize(
    ("name", "formats", "kv"),
    [
        ("deepseek-ai--DeepSeek-V3", {"attn": "fp8_block", "ffn_dense": "fp8_block"}, None),
        ("nvidia--DeepSeek-V3.1-NVFP4", {"o_proj": "nvfp4", "ffn_dense": "nvfp4"}, "fp8"),
        ("nvidia--Llama-3.1-70B-Instruct-FP8", {"attn": "fp8", "ffn_dense": "fp8"}, "fp8"),
        ("nvidia--Qwen3-235B-A22B-NVFP4", {"attn": "nvfp4", "moe_routed": "nvfp4"}, "fp8"),
        ("Qwen--Qwen3-30B-A3B-FP8", {"attn": "fp8_block", "moe_routed": "fp8_block"}, None),
        ("Qwen--Qwen3-32B-FP8", {"attn": "fp8_block", "ffn_dense": "fp8_block"}, None),
        ("openai--gpt-oss-20b", {"moe_routed": "mxfp4"}, None),
        ("moonshotai--Kimi-K2.5", {}, None),
        ("meta-llama--Meta-Llama-3.1-8B", {}, None),
    ],
)
def test_real_files_set_formats(name: str, formats: dict[str, str], kv: str | None) -> None:
    spec = load_model(HF / name)
    first = spec.blocks[spec.layer_blocks[0]]
    assert (first.formats, spec.kv_format, spec.formats, spec.dtype) == (formats, kv, {}, "bf16")
    if name.endswith("Kimi-K2.5"):
        assert spec.blocks["moe"].formats == {"moe_routed": "int4_g32"}
    if name.endswith("DeepSeek-V3"):
        assert spec.blocks["moe"].formats["moe_shared"] == "fp8_block"
        assert spec.n_mtp_modules == 1


def test_published_checkpoint_sizes() -> None:
    # gpt-oss-20b: 13.76 GB of safetensors (model card: 12.8 GiB); DeepSeek-V3: 671 GB of fp8 and the rest in bf16
    assert count(load_model(HF / "openai--gpt-oss-20b"), batch=1, seq_len=4).weight_bytes == 13_761_264_768
    assert 671e9 < count(load_model(HF / "deepseek-ai--DeepSeek-V3"), batch=1, seq_len=4).weight_bytes < 675e9


# Quirks, one by one.


def mixer(spec: ModelSpec, layer: int = 0) -> Attention:
    found = spec.blocks[spec.layer_blocks[layer]].mixer
    assert isinstance(found, Attention)
    return found


def load(model_type: str, **fields: Any) -> ModelSpec:
    return spec_from_config({"model_type": model_type, **fields})


def test_null_key_value_heads_is_multi_head() -> None:
    assert mixer(load("llama", num_key_value_heads=None)).n_kv_heads == 32
    assert mixer(load("mistral", num_key_value_heads=None)).n_kv_heads == 32
    assert mixer(load("mistral")).n_kv_heads == 8


def test_falcon_heads_and_residuals() -> None:
    seven = load("falcon", num_kv_heads=71)
    assert mixer(seven).n_kv_heads == 1 and seven.blocks["layer"].residual == "parallel_shared"
    forty = load("falcon", hidden_size=8192, num_attention_heads=128, num_kv_heads=8, new_decoder_architecture=True)
    assert mixer(forty).n_kv_heads == 8 and forty.blocks["layer"].residual == "parallel"
    assert mixer(load("falcon", multi_query=False)).n_kv_heads == 71
    assert load("falcon", parallel_attn=False).blocks["layer"].residual == "pre"
    assert mixer(load("falcon", alibi=True)).rope is None


def test_old_names_are_accepted() -> None:
    old = load("falcon", n_layer=3, n_head=71)
    assert old.n_layers == 3
    assert load("bloom", n_embed=128, num_hidden_layers=5).d_model == 128
    assert load("gpt2", hidden_size=96, num_attention_heads=6).d_model == 96
    with pytest.raises(InputError, match="contradicts n_embd"):
        load("gpt2", n_embd=96, hidden_size=128)


def test_windows_by_family() -> None:
    assert mixer(load("mistral", sliding_window=None)).window is None
    assert mixer(load("qwen2", sliding_window=64)).window is None
    late = load("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=28)
    assert [mixer(late, i).window for i in (27, 28)] == [None, 64]
    gemma = load("gemma3_text", num_hidden_layers=12, sliding_window=64)
    assert [mixer(gemma, i).window for i in range(12)] == [64] * 5 + [None] + [64] * 5 + [None]
    assert [r.theta for r in (mixer(gemma, 0).rope, mixer(gemma, 5).rope) if r] == [10000.0, 1000000.0]
    oss = load("gpt_oss", num_hidden_layers=4)
    assert [mixer(oss, i).window for i in range(4)] == [128, None, 128, None]
    llama4 = load("llama4_text", num_hidden_layers=8)
    assert [mixer(llama4, i).chunk for i in range(4)] == [8192, 8192, 8192, None]
    assert [mixer(llama4, i).rope is None for i in range(4)] == [False, False, False, True]


def test_layer_types_list_wins() -> None:
    types = ["full_attention", "sliding_attention"]
    spec = load("gemma2", num_hidden_layers=2, layer_types=types)
    assert [mixer(spec, i).window for i in range(2)] == [None, 4096]
    with pytest.raises(InputError, match=r"layer_types.*2 entries for 3 layers"):
        load("gemma2", num_hidden_layers=3, layer_types=types)
    with pytest.raises(InputError, match="layer_types"):
        load("gemma2", num_hidden_layers=2, layer_types=["full_attention", "linear_attention"])


def test_sparse_layers() -> None:
    spec = load("qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[1])
    assert [spec.blocks[name].ffn.kind for name in spec.layer_blocks] == ["dense"] * 3 + ["moe", "dense", "moe"]
    deep = load("deepseek_v3", num_hidden_layers=5)
    assert deep.layers == "dense*3 moe*2"
    four = load("llama4_text", num_hidden_layers=4, interleave_moe_layer_step=2)
    assert [four.blocks[name].ffn.kind for name in four.layer_blocks] == ["dense", "moe", "dense", "moe"]
    dense = four.blocks[four.layer_blocks[0]].ffn
    assert isinstance(dense, DenseFFN) and dense.d_ff == 16384


def test_latent_attention() -> None:
    for rank in (None, 0):
        found = load("deepseek_v3", q_lora_rank=rank, num_hidden_layers=1).blocks["layer"].mixer
        assert isinstance(found, MLA) and found.q_lora_rank is None
    with pytest.raises(InputError, match="num_key_value_heads"):
        load("deepseek_v3", num_key_value_heads=8)


@pytest.mark.parametrize(
    ("fields", "kind", "theta", "rotary_dim"),
    [
        ({}, None, 10000.0, None),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3", 5e5, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "linear", 10000.0, None),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 7.0, "factor": 4.0}}, "yarn", 7.0, None),
        ({"rope_parameters": {"rope_theta": 9.0, "partial_rotary_factor": 0.5}}, None, 9.0, 64),
        ({"partial_rotary_factor": 0.25}, None, 10000.0, 32),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}}, "longrope", 10000.0, None),
    ],
)
def test_rotary_fields(fields: dict[str, Any], kind: str | None, theta: float, rotary_dim: int | None) -> None:
    rope = mixer(load("llama", **fields)).rope
    assert rope is not None
    assert (rope.scaling.kind if rope.scaling else None, rope.theta, rope.rotary_dim) == (kind, theta, rotary_dim)


def test_multimodal_takes_the_text_part() -> None:
    spec = load("llama4", text_config={"num_hidden_layers": 6}, vision_config={"hidden_size": 3})
    assert spec.n_layers == 6 and "vision" in spec.note
    with pytest.raises(InputError, match="'hidden_size': not known beside the text_config"):
        load("gemma3", text_config={}, hidden_size=3)
    with pytest.raises(InputError, match=r"text_config\.model_type"):
        load("gemma3", text_config={"model_type": "gemma2"})


# Whether the output matrix is the embedding: what a multimodal class of transformers 5.24 does with the two fields.
@pytest.mark.parametrize(
    ("model_type", "top", "text", "tied"),
    [
        ("llama4", True, None, False),  # only the text part's own field counts
        ("llama4", False, True, True),
        ("qwen3_vl", None, True, False),  # only the top level's counts
        ("qwen3_vl", True, False, True),
        ("qwen2_5_vl", None, True, True),  # either
        ("qwen2_5_vl", False, True, True),
        ("qwen2_5_vl", False, None, False),
        ("gemma3", False, True, False),
        ("mistral3", None, None, True),  # the class's default
        ("mistral3", False, None, False),
    ],
)
def test_tied_embeddings_of_multimodal_types(model_type: str, top: bool | None, text: bool | None, tied: bool) -> None:
    name = "tie_word_embeddings"
    inner = {} if text is None else {name: text}
    spec = spec_from_config({"model_type": model_type, "text_config": inner, **({} if top is None else {name: top})})
    assert spec.tied_embeddings is tied


def test_multimodal_file_that_unties_where_its_class_ties_is_refused() -> None:
    with pytest.raises(InputError, match=r"text_config\.tie_word_embeddings.*top level"):
        load("mistral3", text_config={"tie_word_embeddings": False})


def test_old_multimodal_files_hold_the_text_part_at_the_top() -> None:
    sizes = {"hidden_size": 3584, "num_hidden_layers": 2, "num_attention_heads": 28, "num_key_value_heads": 4}
    flat = load("qwen2_5_vl", **sizes, intermediate_size=18944, vision_config={"hidden_size": 1280})
    nested = load("qwen2_5_vl", text_config={**sizes, "intermediate_size": 18944}, vision_config={})
    assert flat.blocks == nested.blocks and flat.d_model == 3584
    both = load("qwen2_5_vl", hidden_size=3584, text_config={**sizes, "intermediate_size": 18944})
    assert both.blocks == flat.blocks
    with pytest.raises(InputError, match="'hidden_size': not known beside the text_config"):
        load("qwen2_5_vl", hidden_size=4096, text_config=sizes)


# Unknown, refused and ignored fields.


@pytest.mark.parametrize("model_type", ISSUE_TYPES)
def test_unknown_field_is_named(model_type: str) -> None:
    config = {**example(model_type), "shiny_new_block": 1}
    with pytest.raises(InputError, match=r"field 'shiny_new_block'.*--ignore-field shiny_new_block") as error:
        spec_from_config(config)
    assert "\n" not in str(error.value)
    spec_from_config(config, ignore_fields=["shiny_new_block"])


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [
        ("gemma", "use_bidirectional_attention", True),
        ("gpt2", "add_cross_attention", True),
        ("gpt2", "reorder_and_upcast_attn", True),
        ("mistral", "attention_bias", True),
        ("mpt", "expansion_ratio", 3),
        ("mpt", "attn_config", {"alibi": False}),
        ("bloom", "slow_but_exact", True),
        ("deepseek_v3", "moe_layer_freq", 2),
        ("deepseek_v3", "scoring_func", "softmax"),
        ("llama", "chunk_size_feed_forward", 128),
        ("llama", "is_encoder_decoder", True),
        ("gpt_oss", "hidden_act", "gelu"),
        ("stablelm", "head_dim", 64),
    ],
)
def test_refused_values(model_type: str, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        load(model_type, **{name: value})
    spec_from_config({"model_type": model_type, name: value}, ignore_fields=[name])


def test_ignored_field_must_be_there() -> None:
    with pytest.raises(InputError, match=r"'tpyo'.*does not have it"):
        spec_from_config({"model_type": "llama"}, ignore_fields=["tpyo"])


def test_no_field_is_listed_twice() -> None:
    for name, family in FAMILIES.items():
        used, table = set(family.table.used), family.table
        assert not used & set(table.aliases), name
        assert not used & set(table.refused), name
        assert not used & table.harmless, name
        assert set(table.aliases.values()) <= used, name


# Fields that a builder reads only when another field turns their feature on.
CONDITIONAL = {"max_window_layers", "sliding_window", "layer_types", "partial_rotary_factor", "rope_theta", "n_group"}
CONDITIONAL |= {"num_experts", "top_k_experts", "moe_intermediate_size", "num_global_key_value_heads"}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_every_used_field_is_read(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    raw = Fields.raw
    monkeypatch.setattr(Fields, "raw", lambda self, name: (read.add(name), raw(self, name))[1])
    spec_from_config(example(model_type))
    assert set(FAMILIES[model_type].table.used) - read <= CONDITIONAL


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "'model_type': missing"),
        ({"model_type": 3}, "'model_type': must be text"),
        ({"model_type": "lama"}, "did you mean llama"),
        ({"model_type": "llama", "hidden_size": "4096"}, "'hidden_size': value '4096'"),
        ({"model_type": "llama", "hidden_size": -1}, "'hidden_size': value -1"),
        ({"model_type": "llama", "hidden_size": 0}, "'hidden_size'"),
        ({"model_type": "llama", "hidden_size": True}, "'hidden_size': value True"),
        ({"model_type": "llama", "hidden_size": 10**12}, "'hidden_size'"),
        ({"model_type": "llama", "hidden_size": 4097}, "does not divide the hidden size 4097"),
        ({"model_type": "llama", "num_hidden_layers": 10**6}, "'num_hidden_layers'"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "does not divide the 32 attention heads"),
        ({"model_type": "llama", "rope_theta": math.nan}, "'rope_theta'"),
        ({"model_type": "llama", "rope_theta": math.inf}, "'rope_theta'"),
        ({"model_type": "llama", "rope_scaling": [1]}, "'rope_scaling': value .* must be a mapping"),
        ({"model_type": "llama", "rope_scaling": {"type": "spiral"}}, "rope_type"),
        ({"model_type": "llama", "rope_scaling": {"type": "linear", "twist": 1}}, "twist"),
        ({"model_type": "llama", "hidden_act": "relu6"}, "'hidden_act'"),
        ({"model_type": "llama", "tie_word_embeddings": 1}, "'tie_word_embeddings'"),
        ({"model_type": "llama", "torch_dtype": "int3"}, "'torch_dtype'"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "more than the 8 experts"),
        ({"model_type": "grok1"}, "'num_hidden_layers': missing"),
        ({"model_type": "gemma3", "text_config": []}, "'text_config'"),
        ({"model_type": "dbrx", "ffn_config": 3}, "'ffn_config'"),
        ({"model_type": "gptj", "rotary_dim": 512}, "'rotary_dim'"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "magic"}}, "quant_method"),
        ({"model_type": "llama", "quantization_config": 3}, "'quantization_config'"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "fp8", "twist": 1}}, "twist"),
    ],
)
def test_malformed_configs(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        spec_from_config(config)
    assert "\n" not in str(error.value) and str(error.value).startswith("config.json: ")


# Mutations of complete files: an InputError or a valid specification, never anything else.

SAMPLES = {
    **{name: example(name) for name in MODEL_TYPES},
    **{row["name"]: json.loads((HF / row["name"] / "config.json").read_text()) for row in hf_rows()},
}
SWAPS: list[Any] = [
    None, "text", "", [], [1], {}, {"a": 1}, True, False, 0, -1, 1, 3, 10**9, 10**30, 0.5, -0.5, 1e308, math.nan,
    math.inf, ["full_attention"], "\n\x00", [[]], {"rope_type": "yarn"}, {"quant_method": "fp8"}, [None],
]  # fmt: skip


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(data, dict):
        for key, value in data.items():
            found += _paths(value, (*path, key))
    return found


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_configs_never_crash(data: st.DataObject) -> None:
    config = copy.deepcopy(SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))])
    for _ in range(data.draw(st.integers(1, 3))):
        paths = _paths(config)
        if not paths:
            break
        *parents, last = data.draw(st.sampled_from(paths))
        inner = config
        for step in parents:
            inner = inner[step]
        if data.draw(st.booleans()):
            # a copy: the next mutation may change what this one put in
            inner[last] = copy.deepcopy(data.draw(st.sampled_from(SWAPS)))
        else:
            del inner[last]
    try:
        spec = spec_from_config(config)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert ModelSpec.model_validate(spec.model_dump(by_alias=True)) == spec
        assert total(spec) > 0


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_each_field_swapped_in_turn(name: str) -> None:
    for path in _paths(SAMPLES[name]):
        for swap in ("text", None, -1, {}):
            config = copy.deepcopy(SAMPLES[name])
            if "quantization_config" not in path:  # slow to read, and no part of what is swapped
                config.pop("quantization_config", None)
                (config.get("text_config") or {}).pop("quantization_config", None)
            inner = config
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = swap
            try:
                spec_from_config(config)
            except InputError as error:
                assert "\n" not in str(error)


# The live classes, where transformers is installed.


# types without a causal language model of their own in transformers (the text part of a multimodal class)
NO_LIVE_CLASS = {"grok-1", "grok1", "kimi_k2", "dbrx", "qwen3_vl_text", "qwen3_vl_moe_text", "step3p5"}
NO_LIVE_CLASS |= {"minimax_text_01", "qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm4v_moe_text"}
# what a class needs beside its defaults to be built
LIVE_FIELDS: dict[str, dict[str, Any]] = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2},
}


# the class that tfsim takes without ``architectures``, where that is no causal language model
LIVE_CLASS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "deberta-v2", "modernbert"), "AutoModelForMaskedLM"),
    **dict.fromkeys(("t5", "mt5", "bart", "switch_transformers"), "AutoModelForSeq2SeqLM"),
    "electra": "AutoModelForPreTraining",
    "whisper": "AutoModelForSpeechSeq2Seq",
    "vit": "AutoModelForImageClassification",
    "clip": "AutoModel",
    "mistral4": "AutoModelForImageTextToText",
}
NO_LIVE_CLASS |= {"evoformer", *ORACLE_KINDS}


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - NO_LIVE_CLASS))
def test_against_installed_transformers(model_type: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.CONFIG_MAPPING[model_type](**LIVE_FIELDS.get(model_type, {}))
        with torch.device("meta"):
            auto = getattr(transformers, LIVE_CLASS.get(model_type, "AutoModelForCausalLM"))
            model = auto.from_config(config)
    expected = sum(p.numel() for p in model.parameters())
    assert total(spec_from_config({**config.to_dict(), "model_type": model_type})) == expected
