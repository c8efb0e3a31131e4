"""State space models and hybrids: equal to the oracle row by row, and linear in length."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import tfsim
from tests import oracle_more as oracle
from tfsim.errors import InputError
from tfsim.models.counts import Counts, cache_bytes, count, parameters, state_bytes
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import ModelSpec

FAMILIES = ("mamba", "mamba2", "rwkv", "jamba")
REAL = Path(__file__).parents[1] / "data" / "hf_configs"


def _counts(row: dict[str, str], **changes: Any) -> Counts:
    arguments: dict[str, Any] = {
        "batch": oracle.number(row["batch"]),
        "seq_len": oracle.number(row["seq_q"]),
        "past_len": oracle.number(row["past_len"]),
        "phase": oracle.PHASES[row["mode"]],
        "attention": "fused" if row["attn_impl"] == "sdpa" else "eager",
        **changes,
    }
    return count(oracle.spec(row.get("variant") or row["name"], row.get("layers", "")), **arguments)


def _flops_rows() -> list[dict[str, str]]:
    return [row for table in ("flops", "flops_fullsize") for f in FAMILIES for row in oracle.rows(table, f)]


def test_parameters_of_every_model_and_group_are_equal() -> None:
    found = [row for family in FAMILIES for row in oracle.rows("params", family)]
    assert len(found) == 14
    assert {row["name"]: oracle.unequal_parameters(row, parameters(oracle.spec(row["name"]))) for row in found} == {
        row["name"]: {} for row in found
    }


def test_flops_of_every_row_and_component_are_equal() -> None:
    found = [row for row in _flops_rows() if not (row["mode"] == "decode" and row["family"] in ("mamba", "rwkv"))]
    assert len(found) == 42
    for row in found:
        assert oracle.unequal_flops(row, _counts(row)) == {}, row


def test_decode_rows_of_mamba_are_first_tokens_of_an_empty_cache() -> None:
    """The oracle passed ``past_key_values``, which transformers' Mamba does not read: every "decode" row ran one token
    through an empty cache, which pads the convolution's window to its 4 taps and convolves 4 + 3 positions. A torch
    run of that (and no other) gives these rows; with its state the step convolves 2 positions, as in Jamba's rows."""
    found = [row for row in _flops_rows() if row["mode"] == "decode" and row["family"] == "mamba"]
    assert len(found) == 4
    for row in found:
        first = _counts(row, phase="forward", past_len=0)
        batch, layers = oracle.number(row["batch"]), oracle.number(row["layers"])
        window = 2 * batch * 128 * 4 * 3 * layers  # positions 5 to 7, of 128 channels, 4 taps each
        assert first.flops + window == oracle.number(row["flops_total"])
        assert first.flops_by_component["ssm"] + window == oracle.number(row["c_ssm"])
    # the step itself, by torch.utils.flop_counter with the state passed in (transformers 5.24): s-mamba, batch 1
    assert _counts(found[0]).flops == 151_552


def test_decode_rows_of_rwkv_are_a_broadcast_of_the_batch() -> None:
    """transformers mixes a token [B, 1, d] with a state [B, d]: broadcasting makes B x B tokens of B."""
    found = [row for row in _flops_rows() if row["mode"] == "decode" and row["family"] == "rwkv"]
    assert len(found) == 4
    for row in found:
        assert oracle.unequal_flops(row, _counts(row, batch=oracle.number(row["batch"]) ** 2)) == {}, row


def test_state_bytes_are_equal_and_constant() -> None:
    found = [row for family in FAMILIES for row in oracle.rows("kv_cache", family)]
    assert len(found) == 88
    for row in found:
        model = oracle.spec(row["name"], row["layers"])
        batch, dtype = oracle.number(row["batch"]), {"float32": "fp32", "bfloat16": "bf16"}[row["dtype"]]
        cache = cache_bytes(model, batch=batch, tokens=oracle.number(row["tokens"]), dtype=dtype)
        state = state_bytes(model, batch=batch, dtype=dtype)
        assert (cache, state) == (oracle.number(row["kv_bytes"]), oracle.number(row["state_bytes"])), row


def test_saved_bytes_are_exact() -> None:
    found = [row for family in FAMILIES for row in oracle.rows("activations", family)]
    assert len(found) == 40
    for row in found:
        got = count(
            oracle.spec(row["variant"], row["layers"]),
            batch=oracle.number(row["batch"]),
            seq_len=oracle.number(row["seq"]),
            dtype=row["precision"],
            attention="fused" if row["attn_impl"] == "sdpa" else "eager",
            recompute="full" if row["checkpoint"] == "per_layer" else "none",
        )
        assert got.saved_bytes == oracle.number(row["saved_act_bytes"]), row
        assert got.saved_bytes_per_layer == float(row["saved_act_bytes_per_layer"]), row
        assert got.saved_bytes_fixed == float(row["saved_act_bytes_fixed"]), row


SMALL_MAMBA2 = {
    "model_type": "mamba2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 16,
    "n_groups": 2,
    "vocab_size": 256,
}


# Small hybrids and relatives, and what torch reports of them (transformers 5.24): parameters; FLOPs of a forward of
# 2 x 32 and 1 x 40 tokens and of a decode step of 2 after 31 tokens; bytes saved of 2 x 32 tokens in fp32 and bf16.
_HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256}
_NEMOTRON = {
    **_HEADS,
    "model_type": "nemotron_h",
    "head_dim": 16,
    "intermediate_size": 96,
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 80,
}
_GRANITE = {
    **_HEADS,
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "intermediate_size": 48,
    "shared_intermediate_size": 80,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_chunk_size": 16,
}
_FALCON = {"model_type": "falcon_mamba", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 256}
_BAMBA = {
    **_HEADS,
    "model_type": "bamba",
    "num_hidden_layers": 3,
    "attn_layer_indices": [1],
    "intermediate_size": 96,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_chunk_size": 16,
}
OWN_RUNS: list[tuple[dict[str, Any], int, tuple[int, int, int], tuple[int, int]]] = [
    (_FALCON, 75_712, (9_580_544, 5_986_304, 303_104), (2_503_428, 2_465_540)),
    (
        {**_NEMOTRON, "hybrid_override_pattern": "M*-EM-"},
        190_576,
        (20_219_904, 13_018_112, 583_680),
        (2_449_224, 2_128_968),
    ),
    (
        {**_NEMOTRON, "hybrid_override_pattern": "M*EM-", "moe_latent_size": 32},
        157_744,
        (18_384_896, 11_871_232, 526_336),
        (2_326_088, 2_050_632),
    ),
    (_BAMBA, 156_976, (20_642_816, 13_282_816, 595_968), (2_431_528, 2_047_784)),
    (
        {**_GRANITE, "num_local_experts": 8, "mamba_n_groups": 2},
        374_896,
        (27_297_792, 17_441_792, 804_864),
        (2_938_504, 2_300_296),
    ),
    (
        {**_GRANITE, "num_local_experts": 0, "position_embedding_type": "rope"},
        147_760,
        (19_463_168, 12_545_536, 559_104),
        (2_384_424, 2_024_232),
    ),
]


@pytest.mark.parametrize(("config", "n", "flops", "saved"), OWN_RUNS)
def test_relatives_equal_own_torch_runs(
    config: dict[str, Any], n: int, flops: tuple[int, int, int], saved: tuple[int, int]
) -> None:
    model = spec_from_config(config)
    assert parameters(model).total == n
    prefill, longer = (count(model, batch=b, seq_len=s, attention="eager").flops for b, s in ((2, 32), (1, 40)))
    step = count(model, batch=2, past_len=31, phase="decode").flops
    assert (prefill, longer, step) == flops
    for dtype, expected in zip(("fp32", "bf16"), saved, strict=True):
        got = count(model, batch=2, seq_len=32, dtype=dtype, attention="eager").saved_bytes
        # torch loops over experts here, and keeps an index and a copy more or less for each
        assert got == pytest.approx(expected, rel=0.035 if "E" in str(config) or "local" in str(config) else 0.001)


def _small_mamba2(**sizes: int) -> ModelSpec:
    return spec_from_config({**SMALL_MAMBA2, **sizes}, name="s-mamba2")


@pytest.mark.parametrize(
    ("phase", "batch", "seq_len", "flops"),
    [
        ("forward", 1, 16, 4_056_064),
        ("forward", 2, 32, 12_994_560),
        ("forward", 2, 64, 25_987_072),
        ("forward", 1, 40, 9_331_712),
        ("decode", 1, 1, 163_840),
        ("decode", 2, 1, 327_680),
    ],
)
def test_mamba2_flops_equal_own_torch_runs(phase: Any, batch: int, seq_len: int, flops: int) -> None:
    """torch.utils.flop_counter on transformers 5.24, oneDNN off."""
    model = _small_mamba2(state_size=16, chunk_size=32)
    assert count(model, batch=batch, seq_len=seq_len, past_len=0, phase=phase).flops == flops


@pytest.mark.parametrize(
    ("sizes", "seq_len", "dtype", "saved"),
    [
        ({"state_size": 16, "chunk_size": 16}, 32, "fp32", 1_889_832),
        ({"state_size": 16, "chunk_size": 16}, 32, "bf16", 1_711_144),
        ({"state_size": 16, "chunk_size": 16}, 40, "fp32", 2_599_940),
    ],
)
def test_mamba2_saved_bytes_equal_own_torch_runs(sizes: dict[str, int], seq_len: int, dtype: str, saved: int) -> None:
    """torch.autograd.graph.saved_tensors_hooks on transformers 5.24, storages counted once."""
    got = count(_small_mamba2(**sizes), batch=2, seq_len=seq_len, dtype=dtype, phase="forward_backward")
    assert got.saved_bytes == saved


@pytest.mark.parametrize(
    ("name", "millions"),
    # Gu and Dao 2023, Table 3 and the model names of github.com/state-spaces/mamba; Dao and Gu 2024, section 9
    [
        ("mamba-130m", 130),
        ("mamba-370m", 370),
        ("mamba-790m", 790),
        ("mamba-1.4b", 1400),
        ("mamba-2.8b", 2800),
        ("mamba2-130m", 130),
        ("mamba2-370m", 370),
        ("mamba2-780m", 780),
        ("mamba2-1.3b", 1300),
        ("mamba2-2.7b", 2700),
    ],
)
def test_published_sizes(name: str, millions: int) -> None:
    assert tfsim.load_model(name).name == name
    assert parameters(tfsim.load_model(name)).total == pytest.approx(millions * 1e6, rel=0.04)


def test_published_sizes_of_hybrids() -> None:
    # Lieber et al. 2024: 52B in all, 12B active
    jamba = parameters(tfsim.load_model("jamba-v0.1"))
    assert (round(jamba.total / 1e9), round(jamba.active / 1e9)) == (52, 12)
    # NVIDIA 2025: Nemotron-3 Nano 31.6B in all, 3.2B active (3.6B with embeddings)
    nano = parameters(tfsim.load_model("nemotron-3-nano-30b-a3b"))
    assert (round(nano.total / 1e9, 1), round(nano.active / 1e9, 1)) == (31.6, 3.6)


def test_doubling_the_sequence_doubles_mamba_and_quadruples_attention() -> None:
    long = 4096
    for name in ("mamba-130m", "mamba2-130m", "rwkv-4-169m"):
        one, two = (count(tfsim.load_model(name), batch=1, seq_len=n, style="fused").flops for n in (long, 2 * long))
        assert two == 2 * one, name
    one, two = (
        count(tfsim.load_model("jamba-v0.1"), batch=1, seq_len=n, style="fused").flops_by_component
        for n in (long, 2 * long)
    )
    assert two["attn_core"] == 4 * one["attn_core"]
    assert two["ssm"] == 2 * one["ssm"]


@pytest.mark.parametrize("style", ["eager", "fused"])
def test_a_decode_step_costs_the_same_whatever_came_before(style: Any) -> None:
    for name in ("mamba-130m", "mamba2-130m", "rwkv-4-169m"):
        model = tfsim.load_model(name)
        near, far = (count(model, batch=4, past_len=n, phase="decode", style=style) for n in (10, 1_000_000))
        assert (near.flops, near.bytes_moved, near.state_bytes) == (far.flops, far.bytes_moved, far.state_bytes)
        assert near.kv_bytes == far.kv_bytes == 0
        assert near.state_bytes > 0


def test_s4_convolves_in_training_and_steps_in_inference() -> None:
    model = tfsim.load_model("s4-wikitext103")
    layer = 1024 * (1 + 1 + 2 * 32 + 64) + 2 * 1024 * 1024 + 2 * 1024  # log dt, D, A, C; output projection and bias
    assert parameters(model).by_group["ssm"] == 16 * layer
    # FFTs: 2 (n log n) of vector work, no more
    one, two = (
        sum(op.vector_flops * n for _, n, op in count(model, seq_len=s).operators if op.name == "s4_convolution")
        for s in (4096, 8192)
    )
    assert 2 < two / one < 2.2
    near, far = (count(model, past_len=n, phase="decode") for n in (10, 1_000_000))
    assert (near.flops, near.bytes_moved) == (far.flops, far.bytes_moved)
    assert near.state_bytes == 16 * 1024 * 32 * 8 and near.kv_bytes == 0
    assert tfsim.count(model, seq_len=256, phase="forward_backward").flops == 3 * tfsim.count(model, seq_len=256).flops


@pytest.mark.parametrize(
    ("name", "tp", "message"),
    [
        ("mamba-130m", 5, "tp 5 does not divide the 1536 channels"),
        ("mamba2-130m", 5, "tp 5 does not divide the 24 Mamba heads"),
        ("nemotron-3-nano-30b-a3b", 3, "tp 3 does not divide the 64 Mamba heads"),
    ],
)
def test_cuts_are_refused_in_the_mixers_own_words(name: str, tp: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        tfsim.train(
            tfsim.load_model(name),
            tfsim.load_system("dgx-h100"),
            devices=tp,
            seq_len=2048,
            global_batch=tp,
            plan={"tp": tp},
        )
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mamba-2.8b", "mamba2-2.7b", "rwkv-4-3b", "jamba-v0.1", "nemotron-3-nano-30b-a3b"])
def test_they_train_and_serve(name: str) -> None:
    model, system = tfsim.load_model(name), tfsim.load_system("dgx-h100")
    for tp in (1, 8):
        step = tfsim.train(model, system, devices=64, seq_len=4096, global_batch=64, plan={"tp": tp, "zero_stage": 3})
        assert step.step_time_s > 0
    short, long = (
        tfsim.serve(model, system, devices=8, plan={"tp": 8}, input_len=n, output_len=100, batch=8)
        for n in (1_000, 100_000)
    )
    assert short.tpot_ms <= long.tpot_ms < 4 * short.tpot_ms
    if name.startswith(("mamba", "rwkv")):
        assert long.tpot_ms == pytest.approx(short.tpot_ms)


def test_backward_is_twice_the_forward() -> None:
    for name in ("mamba-130m", "mamba2-130m", "rwkv-4-169m"):
        model = tfsim.load_model(name)
        once, both = (count(model, batch=1, seq_len=256, phase=p).flops for p in ("forward", "forward_backward"))
        assert both == 3 * once


def test_arrays_broadcast() -> None:
    import numpy as np

    for name in ("mamba-130m", "mamba2-130m", "rwkv-4-169m", "jamba-v0.1", "s4-wikitext103"):
        model = tfsim.load_model(name)
        lengths = np.array([100, 256, 1000])
        many = count(model, batch=2, seq_len=lengths, phase="forward_backward")
        each = [count(model, batch=2, seq_len=int(n), phase="forward_backward") for n in lengths]
        assert many.flops.tolist() == [one.flops for one in each]
        assert many.saved_bytes.tolist() == [one.saved_bytes for one in each]


def test_nemotron_files_have_the_parameters_of_the_published_checkpoints() -> None:
    with (REAL / "hf_params.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model_type"] == "nemotron_h"]
    assert len(rows) == 2
    for row in rows:
        config = json.loads((REAL / row["name"] / "config.json").read_text())
        p = parameters(spec_from_config(config, name=row["name"]))
        assert p.total == int(row["params_total"])
        assert p.by_group["embed_token"] == int(row["params_embed"])
        assert p.by_group["moe_routed"] == int(row["params_experts"] or 0)
        assert p.by_group["head"] == int(row["params_head"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 7}, "num_heads x head_dim = expand x hidden_size = 128"),
        ({"n_groups": 3}, "n_heads (8) must be a multiple of n_groups (3)"),
        ({"hidden_act": "relu"}, "tfsim models only 'silu'"),
        ({"mystery": 1}, "field 'mystery': not known for this model type"),
    ],
)
def test_bad_files_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        spec_from_config({**SMALL_MAMBA2, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
