"""What people run today: gated delta rule, sparse and compressed attention, Gemma-4, MiMo, Step, GLM, MiniMax.

Small invented variants were run through transformers (tests/data/modern_runs.json); real files have the parameters
of shared/measured/hf_configs. Where tfsim's count means something else than transformers executes, the difference is
computed here and asserted, never tolerated.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfsim
from tfsim.errors import InputError
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.load import load_model
from tfsim.models.spec import MLA, Attention, CompressedAttention, GatedDelta, ModelSpec, MoE

DATA = Path(__file__).parent.parent / "data"
HF = DATA / "hf_configs"
RUNS: dict[str, Any] = json.loads((DATA / "modern_runs.json").read_text())["variants"]
CASES = [(name, run) for name, row in RUNS.items() for run in row["runs"]]
IDS = [f"{name}-{run['seq']}" for name, run in CASES]


@cache
def variant(name: str) -> ModelSpec:
    return spec_from_config(RUNS[name]["config"], name=name)


def counted(name: str, run: dict[str, Any], phase: str) -> Counts:
    decode = phase == "decode"
    return count(
        variant(name),
        batch=run["batch"],
        seq_len=1 if decode else run["seq"],
        past_len=run["past"] if decode else 0,
        phase=phase,  # type: ignore[arg-type]
        attention="eager",
        latent="expanded",
        dtype="fp32",
    )


def unselected(name: str, run: dict[str, Any], phase: str) -> int:
    """FLOPs of the keys that transformers multiplies and masks though the indexer did not choose them."""
    spec, total = variant(name), 0
    end = run["past"] + 1 if phase == "decode" else run["seq"]
    queries = run["batch"] * (1 if phase == "decode" else run["seq"])
    for block, repeat in spec.block_counts.items():
        mixer = spec.blocks[block].mixer
        if isinstance(mixer, MLA | Attention) and mixer.indexer:
            total += repeat * 2 * queries * (end - min(end, mixer.indexer.top_k)) * mixer.score_width
        if isinstance(mixer, CompressedAttention) and mixer.compression and mixer.compression.indexer:
            entries = int(mixer.entries(end))
            left_out = entries - min(entries, mixer.compression.indexer.top_k)
            total += repeat * 2 * queries * left_out * mixer.score_width
    return total


def test_every_variant_has_two_runs() -> None:
    assert len(RUNS) == 20 and len(CASES) == 40


@pytest.mark.parametrize("name", RUNS)
def test_parameters(name: str) -> None:
    assert parameters(variant(name)).total == RUNS[name]["params"]


@pytest.mark.parametrize(("name", "run"), CASES, ids=IDS)
def test_forward_flops(name: str, run: dict[str, Any]) -> None:
    assert counted(name, run, "forward").flops == run["forward"] - unselected(name, run, "forward")


@pytest.mark.parametrize(("name", "run"), CASES, ids=IDS)
def test_decode_flops(name: str, run: dict[str, Any]) -> None:
    assert counted(name, run, "decode").flops == run["decode"] - unselected(name, run, "decode")


@pytest.mark.parametrize(("name", "run"), CASES, ids=IDS)
def test_training_flops(name: str, run: dict[str, Any]) -> None:
    got = counted(name, run, "forward_backward")
    assert got.flops == run["forward_backward"] - 3 * unselected(name, run, "forward")


@pytest.mark.parametrize(("name", "run"), CASES, ids=IDS)
def test_cache_and_state_bytes(name: str, run: dict[str, Any]) -> None:
    """transformers keeps window - 1 tokens; of compressed attention's window it stores keys that are values twice in
    plain layers; buffers of unfinished windows are counted at their largest."""
    got, spec = counted(name, run, "decode"), variant(name)
    kept: dict[str, int] = run["cache"]
    states = {key: size for key, size in kept.items() if "state" in key or "buffer" in key or "overlap" in key}
    tokens, extra = run["past"] + 1, 0
    for block, repeat in spec.block_counts.items():
        mixer = spec.blocks[block].mixer
        assert mixer is not None
        span, _ = mixer.span
        one_token = run["batch"] * mixer.cached_per_token() * 4
        if span is not None and tokens >= span:
            extra += repeat * one_token
        if isinstance(mixer, CompressedAttention) and mixer.compression is None:
            extra -= repeat * one_token * min(tokens, mixer.window - 1)
    assert got.kv_bytes == sum(kept.values()) - sum(states.values()) + extra
    if name.startswith("qwen"):
        assert got.state_bytes == sum(states.values())
    else:
        assert got.state_bytes >= sum(states.values())


# Real files.


def modern_rows() -> list[dict[str, str]]:
    types = ["minimax_m2", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "deepseek_v32", "deepseek_v4"]
    types += ["gemma4", "glm_moe_dsa", "minimax_m3_vl"]
    with (HF / "hf_params.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["model_type"] in types]


PROJECTORS = {"nvidia--MiniMax-M3-NVFP4": 234_381_312}
"""Projectors from vision to text, which hf_params.csv counts under "rest"; the text part has none."""


def test_eleven_modern_files() -> None:
    assert len(modern_rows()) == 11


@pytest.mark.parametrize("row", modern_rows(), ids=lambda row: row["name"])
def test_text_part_of_real_files(row: dict[str, str]) -> None:
    text_part = load_model(HF / row["name"]).model_copy(update={"vision": None})
    groups = parameters(text_part).by_group
    projector = PROJECTORS.get(row["name"], 0)
    expected = {key: int(row[f"params_{key}"] or 0) for key in ("embed", "experts", "head", "rest")}
    expected["rest"] -= projector
    table = {"embed": groups["embed_token"], "experts": groups["moe_routed"], "head": groups["head"]}
    table["rest"] = sum(groups.values()) - sum(table.values())
    assert table == expected
    # files whose class is the text model list no vision part in their total
    vision = 0 if row["name"].startswith("Qwen--Qwen3.5") else int(row["params_vision"] or 0)
    assert sum(table.values()) == int(row["params_total"]) - vision - projector


@pytest.mark.parametrize(
    ("name", "formats", "kv"),
    [
        (
            "deepseek-ai--DeepSeek-V4-Flash",
            {"attn": "fp8_block", "moe_routed": "mxfp4", "moe_shared": "fp8_block"},
            None,
        ),
        ("nvidia--GLM-5-NVFP4", {"moe_routed": "nvfp4", "moe_shared": "nvfp4"}, "fp8"),
        ("nvidia--MiniMax-M3-NVFP4", {"attn": "mxfp8", "moe_routed": "nvfp4", "moe_shared": "mxfp8"}, None),
        ("MiniMaxAI--MiniMax-M2.5", {"attn": "fp8_block", "moe_routed": "fp8_block"}, None),
        ("Qwen--Qwen3.5-27B", {}, None),
    ],
)
def test_quantisation_of_real_files(name: str, formats: dict[str, str], kv: str | None) -> None:
    spec = load_model(HF / name)
    assert (spec.blocks[spec.layer_blocks[-1]].formats, spec.kv_format) == (formats, kv)


def test_head_weights_of_an_index_stay_in_bf16() -> None:
    formats = load_model(HF / "deepseek-ai--DeepSeek-V3.2").blocks["moe"].formats
    assert formats["index_q_proj"] == formats["index_k_proj"] == "fp8_block" and "index_weights" not in formats


# What each mechanism costs as context grows.


def per_token(model: str, past: int, **options: Any) -> Any:
    return count(load_model(model), seq_len=1, past_len=past, phase="decode", **options)


def test_gated_delta_layers_cost_the_same_at_any_length() -> None:
    short, long = (per_token("qwen3.5-27b", past) for past in (1_000, 100_000))
    assert short.flops_by_component["ssm"] == long.flops_by_component["ssm"]
    assert short.state_bytes == long.state_bytes == 48 * (128 * 128 * 48 * 4 + 10_240 * 4 * 2)
    assert long.kv_bytes == 16 * 2 * 4 * 256 * 2 * 100_001


def test_sparse_attention_reads_top_k_and_scores_everything() -> None:
    short, long = (per_token("deepseek-v3.2", past) for past in (4_096, 131_072))
    core = [c.flops_by_component["attn_core"] for c in (short, long)]
    index = [index_flops_of(c) for c in (short, long)]
    assert core[0] - index[0] == core[1] - index[1]  # 2,048 selected keys either way
    assert index[1] / index[0] == pytest.approx(131_073 / 4_097)
    assert long.kv_bytes == 61 * (512 + 64 + 128) * 2 * 131_073


def index_flops_of(counts: Counts) -> int:
    return sum(int(op.flops) * repeat for _, repeat, op in counts.operators if op.name == "index_scores")


def test_compressed_cache_grows_by_entries() -> None:
    spec = load_model("deepseek-v4-flash")
    grown = count(spec, seq_len=1, past_len=2_047, phase="decode").kv_bytes
    more = count(spec, seq_len=1, past_len=4_095, phase="decode").kv_bytes
    four = sum(
        isinstance(m := spec.blocks[b].mixer, CompressedAttention)
        and m.compression is not None
        and m.compression.ratio == 4
        for b in spec.layer_blocks
    )
    many = spec.n_layers - 2 - four
    assert more - grown == 2 * (four * 512 * (512 + 128) + many * 16 * 512)


def test_arrays_equal_scalars() -> None:
    pasts = np.array([10.0, 100.0, 5_000.0])
    for name in ("qwen3.5-27b", "deepseek-v3.2", "deepseek-v4-flash", "minimax-m3", "gemma-4-26b-a4b", "mimo-v2-flash"):
        model = load_model(name)
        for phase in ("forward", "decode"):
            many = count(model, seq_len=4, past_len=pasts, phase=phase)  # type: ignore[arg-type]
            one = [count(model, seq_len=4, past_len=int(p), phase=phase) for p in pasts]  # type: ignore[arg-type]
            assert np.allclose(np.asarray(many.flops, float), [c.flops for c in one], rtol=1e-12)
            assert np.allclose(np.asarray(many.kv_bytes, float), [c.kv_bytes for c in one], rtol=1e-12)


# Fields.


def load(**config: Any) -> ModelSpec:
    return spec_from_config(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "minimax_m2", "attn_type_list": [0] * 62}, "attn_type_list"),
        ({"model_type": "qwen3_next", "attn_output_gate": False}, "attn_output_gate"),
        ({"model_type": "glm_moe_dsa", "indexer_types": ["shared"] * 78}, "no selection to reuse"),
        ({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [1] * 48}, "hybrid_layer_pattern"),
        ({"model_type": "mimo_v2_flash", "swa_num_key_value_heads": 4}, "swa_num_key_value_heads"),
        ({"model_type": "deepseek_v4", "compress_ratios": [0, 8]}, "compress_ratios"),
        ({"model_type": "deepseek_v4", "num_key_value_heads": 2}, "num_key_value_heads"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 30}, "num_kv_shared_layers"),
        ({"model_type": "gemma4_text", "enable_moe_block": True}, "num_experts"),
        ({"model_type": "step3p5", "moe_layers_enum": "3,x"}, "moe_layers_enum"),
        ({"model_type": "minimax_m3_vl", "text_config": {"use_gemma_norm": False}}, "use_gemma_norm"),
    ],
)
def test_refused_with_the_field(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        spec_from_config(config)
    assert "\n" not in str(error.value)


def test_hub_names_of_mimo_and_step() -> None:
    pattern = [0 if i == 0 or (i + 1) % 6 == 0 else 1 for i in range(48)]
    hub = load(
        model_type="mimo_v2_flash",
        hybrid_layer_pattern=pattern,
        moe_layer_freq=[0] + [1] * 47,
        sliding_window=128,
        sliding_window_size=128,
        swa_num_attention_heads=64,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        swa_v_head_dim=128,
        n_shared_experts=None,
        add_swa_attention_sink_bias=True,
        routed_scaling_factor=None,
    )
    assert parameters(hub) == parameters(load(model_type="mimo_v2_flash"))
    local = hub.blocks[hub.layer_blocks[1]].mixer
    assert isinstance(local, Attention) and (local.window, local.n_kv_heads, local.sinks) == (129, 8, True)
    kinds = ["full_attention", *["sliding_attention"] * 3] * 12
    step = load(
        model_type="step3p7",
        text_config={
            "num_attention_groups": 8,
            "moe_num_experts": 288,
            "moe_top_k": 8,
            "share_expert_dim": 1280,
            "moe_layers_enum": ",".join(map(str, range(3, 45))),
            "layer_types": kinds,
            "num_nextn_predict_layers": 3,
            "rope_theta": [5e6 if kind == "full_attention" else 1e4 for kind in kinds],
            "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in kinds],
            "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
            "sliding_window": 512,
        },
    )
    mixer = step.blocks[step.layer_blocks[1]].mixer
    assert isinstance(mixer, Attention) and (mixer.n_heads, mixer.window, mixer.output_gate) == (96, 512, "head")
    # by hand: transformers' Step3p7TextModel of this configuration, and an untied head
    assert step.n_mtp_modules == 3 and step.n_layers == 45


def test_step_has_the_parameters_of_transformers() -> None:
    """Step3p7TextModel and a head, run on the CPU: 84,160."""
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_sliding_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "sliding_window": 32,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "share_expert_dim": 24,
        "layer_types": kinds,
    }
    assert parameters(load(model_type="step3p7", text_config=text)).total == 84_160


# Published figures.


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # model cards: names of the models, or "355B-A32B" and the like
        ("qwen3-next-80b-a3b", 80e9, 3e9),
        ("qwen3.5-35b-a3b", 35e9, 3e9),
        ("glm-4.5", 355e9, 32e9),
        ("glm-4.5-air", 106e9, 12e9),
        ("glm-5", 744e9, 40e9),
        ("minimax-m2.5", 230e9, 10e9),
        ("deepseek-v4-flash", 284e9, 13e9),
        ("gemma-4-26b-a4b", 26e9, 4e9),
        ("mimo-v2-flash", 309e9, 15e9),
        ("deepseek-v3.2", 671e9, 37e9),
        ("step-3.5-flash", 196e9, 11e9),
    ],
)
def test_published_sizes(name: str, total: float, active: float) -> None:
    p = parameters(load_model(name))
    assert p.total == pytest.approx(total, rel=0.03)  # the text part alone
    assert p.active == pytest.approx(active, rel=0.3)  # cards round, some without embeddings


def test_gated_delta_trains_and_serves() -> None:
    model, system = load_model("qwen3-next-80b-a3b"), tfsim.load_system("dgx-h100")
    assert any(isinstance(block.mixer, GatedDelta) for block in model.blocks.values())
    assert all(isinstance(block.ffn, MoE) for block in model.blocks.values())
    served = tfsim.serve(model, system, devices=8, input_len=2000, output_len=100, batch=8)
    assert served.to_dict()


# Quantisation lists as their publishers write them.


def quantised(config: dict[str, Any], left_out: list[str], key: str = "modules_to_not_convert") -> ModelSpec:
    quantization = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        key: left_out,
    }
    return spec_from_config({**config, "quantization_config": quantization})


def test_fp8_of_gated_delta_leaves_out_small_matrices() -> None:
    small = ["linear_attn.conv1d", "linear_attn.in_proj_ba", "linear_attn.norm", "mlp.gate", "mlp.shared_expert_gate"]
    names = [f"model.layers.{i}.{name}" for i in range(4) for name in small if i < 3 or "linear" not in name]
    spec = quantised({"model_type": "qwen3_next", "num_hidden_layers": 4}, ["lm_head", "mtp.fc", *names])
    delta = spec.blocks["gated_delta"].formats
    assert "in_proj_ba" not in delta and "ssm" not in delta
    assert delta["in_proj_qkvz"] == delta["out_proj"] == delta["moe_routed"] == "fp8_block"
    assert spec.blocks["global"].formats["attn"] == "fp8_block" and spec.formats == {}


def test_fp8_of_mimo_leaves_out_output_projections() -> None:
    names = [f"model.layers.{i}.self_attn.o_proj" for i in range(48)]
    config = {"model_type": "mimo_v2_flash"}
    spec = quantised(config, [*names, "model.decoder.self_attn.o_proj"], key="ignored_layers")
    formats = spec.blocks[spec.layer_blocks[1]].formats
    assert "o_proj" not in formats and formats["q_proj"] == "fp8_block"


def test_a_name_that_is_no_matrix_is_refused() -> None:
    with pytest.raises(InputError, match=r"self_attn\.qq_proj"):
        quantised({"model_type": "glm_moe_dsa"}, ["model.layers.3.self_attn.qq_proj"])
