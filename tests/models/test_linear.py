"""Linear attention against torch runs of MiniMax-Text-01's class, and what its papers say of its cost."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tfsim
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.load import load_model
from tfsim.models.spec import Block, DenseFFN, LinearAttention, ModelSpec

RUNS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "linear_runs.json").read_text())["variants"]
CASES = [(name, run) for name, row in RUNS.items() for run in row["runs"]]
IDS = [f"{name}-{run['batch']}x{run['seq']}" for name, run in CASES]


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
        dtype="fp32",
    )


@pytest.mark.parametrize("name", RUNS)
def test_parameters(name: str) -> None:
    assert parameters(variant(name)).total == RUNS[name]["params"]


@pytest.mark.parametrize(("name", "run"), CASES, ids=IDS)
def test_flops(name: str, run: dict[str, Any]) -> None:
    for phase in ("forward", "forward_backward", "decode"):
        assert counted(name, run, phase).flops == run[phase], phase


@pytest.mark.parametrize(("name", "run"), CASES, ids=IDS)
def test_cache_and_state_bytes(name: str, run: dict[str, Any]) -> None:
    got = counted(name, run, "decode")
    assert got.kv_bytes == run["cache"]["keys_values"]
    assert got.state_bytes == run["cache"]["recurrent_states"]


@pytest.mark.parametrize(("name", "run"), CASES, ids=IDS)
def test_saved_bytes(name: str, run: dict[str, Any]) -> None:
    assert counted(name, run, "forward_backward").saved_bytes == pytest.approx(run["saved"], rel=2e-4)


def test_minimax_text_01() -> None:
    """456B parameters, 45.9B of them active (MiniMax-01 2025, abstract); embeddings are not among the active."""
    model = load_model("minimax-text-01")
    found = parameters(model)
    assert found.total == pytest.approx(456e9, rel=1e-3)
    assert found.active_non_embedding == pytest.approx(45.9e9, rel=2e-3)
    assert model.block_counts == {"linear_attention": 70, "global": 10}
    # a linear layer keeps 64 heads of 128 x 128 in fp32, whatever the length; keys and values grow in 10 layers only
    short, long = (count(model, batch=1, past_len=n, phase="decode") for n in (1_000, 1_000_000))
    assert short.state_bytes == long.state_bytes == 70 * 64 * 128 * 128 * 4
    assert long.kv_bytes == 10 * 2 * 8 * 128 * 2 * 1_000_001
    config = {
        "model_type": "minimax", "hidden_size": 6144, "intermediate_size": 9216, "vocab_size": 200064,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "num_local_experts": 32, "rope_theta": 1e7, "max_position_embeddings": 10240000,
        "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
    }  # fmt: skip
    assert parameters(spec_from_config(config, name="x")) == found
    del config["layer_types"]
    older = {**config, "model_type": "minimax_text_01", "attn_type_list": ([0] * 7 + [1]) * 10, "rotary_dim": 64}
    assert spec_from_config(older, name="x").blocks == load_model("minimax-text-01").blocks
    with pytest.raises(tfsim.InputError, match="attn_type_list"):
        spec_from_config({**older, "attn_type_list": [2] * 80}, name="x")


def linear_gpt(feature: str = "elu", **changes: Any) -> ModelSpec:
    """A small model of nothing but linear attention (Katharopoulos et al. 2020)."""
    mixer = LinearAttention(n_heads=8, d_head=64, feature=feature, chunk=128, **changes)
    block = Block(mixer=mixer, ffn=DenseFFN(d_ff=2048))
    return ModelSpec(name="linear", d_model=512, vocab_size=1000, blocks={"layer": block}, layers="layer*4")


@pytest.mark.parametrize("feature", ["elu", "silu"])
def test_cost_is_linear_in_length_and_constant_in_decode(feature: str) -> None:
    """Equations 10 and 18 to 20: O(n) in training, a state instead of a cache at inference."""
    model = linear_gpt(feature)
    short, long = (count(model, batch=1, seq_len=n, phase="forward_backward") for n in (4096, 8192))
    assert long.flops / short.flops == pytest.approx(2, rel=1e-2)
    assert long.saved_bytes / short.saved_bytes == pytest.approx(2, rel=1e-2)
    steps = [count(model, batch=1, past_len=n, phase="decode") for n in (128, 131_072)]
    assert steps[0].flops == steps[1].flops and steps[0].bytes_moved == steps[1].bytes_moved
    assert steps[1].kv_bytes == 0
    row = 65 if feature == "elu" else 64  # the normaliser is one more column
    assert steps[1].state_bytes == 4 * 8 * 64 * row * 4


def test_chunks_by_hand() -> None:
    """300 tokens in chunks of 128: 128, 128, 44; each head multiplies 4 (c^2 + c d) d."""
    core = count(linear_gpt(), batch=2, seq_len=300).flops_by_component["attn_core"]
    assert core == 4 * 2 * 8 * sum(4 * (c * c + c * 64) * 64 for c in (128, 128, 44))


def test_parameters_of_either_form() -> None:
    plain, gated = (parameters(linear_gpt("silu", gated=g)).total for g in (False, True))
    assert gated - plain == 4 * (512 * 512 + 512)
    assert parameters(linear_gpt()).total == parameters(linear_gpt("silu", fused_qkv=True)).total


def test_it_trains_and_serves() -> None:
    model, system = load_model("minimax-text-01"), tfsim.load_system("dgx-h200")
    found = tfsim.serve(
        model, system, devices=8, plan={"tp": 8}, input_len=[1000, 100_000], weights_dtype="fp8", batch=1
    )
    assert found.fits.all()
    assert found.tpot_ms[1] < 1.1 * found.tpot_ms[0]
    step = tfsim.train(model, system, devices=256, seq_len=8192, global_batch=256, plan={"tp": 8, "pp": 8, "ep": 4})
    assert 0 < step.mfu["exact"] < 1
