"""The serving estimate: exact memory, floors, monotonicity, sums, arrays equal to scalars, clear refusals."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.errors import InputError
from tfsim.hardware import load_system
from tfsim.models.counts import cache_bytes, count
from tfsim.models.load import load_model
from tfsim.models.weights import WEIGHT_FORMATS
from tfsim.serving import Phase, ServingEstimate, search_serving_plans, serve

H100 = load_system("dgx-h100")
A100 = load_system("dgx-a100")
LLAMA_8B = load_model("llama-3.1-8b")
LLAMA_70B = load_model("llama-3.1-70b")
MIXTRAL = load_model("mixtral-8x7b")
NUMBERS = [
    f.name
    for f in fields(ServingEstimate)
    if f.name
    not in {"model", "system", "software", "dtype", "weights_dtype", "kv_dtype", "verdict", "memory", "prefill"}
    | {"decode", "rates", "cost_note", "notes", "confidence", "fits"}
]
MEMORY = ["weights", "kv_cache", "workspace", "runtime_reserve", "total", "usable", "kv_bytes_per_sequence"]
PHASE = ["seconds", "compute", "memory", "network", "launch", "wait"]


def values(found: ServingEstimate) -> dict[str, Any]:
    plain = {name: getattr(found, name) for name in [*NUMBERS, "fits"]}
    plain |= {f"memory.{name}": getattr(found.memory, name) for name in MEMORY}
    for phase in ("prefill", "decode"):
        plain |= {f"{phase}.{name}": getattr(getattr(found, phase), name) for name in PHASE}
    return plain


# Memory


def test_kv_cache_of_llama_2_70b() -> None:
    grouped = load_model("llama-2-70b")
    assert cache_bytes(grouped, batch=16, tokens=8192, dtype="fp16") == 42_949_672_960
    found = serve(grouped, H100, devices=8, plan={"tp": 8}, input_len=8000, output_len=192, batch=16, dtype="fp16")
    assert 8 * found.memory.kv_cache == 42_949_672_960
    attention = grouped.blocks[grouped.layer_blocks[0]].mixer.model_copy(update={"n_kv_heads": 64})
    blocks = {name: b.model_copy(update={"mixer": attention}) for name, b in grouped.blocks.items()}
    full = grouped.model_copy(update={"blocks": blocks})
    assert cache_bytes(full, batch=16, tokens=8192, dtype="fp16") == 8 * 42_949_672_960


def test_weights_of_llama_3_1_70b_in_fp16() -> None:
    found = serve(LLAMA_70B, H100, devices=1, dtype="fp16")
    assert found.memory.weights == pytest.approx(141.1e9, rel=1e-3)
    assert found.memory.weights == count(LLAMA_70B, seq_len=1).parameters.total * 2


def test_memory_parts_add_up_and_the_limit_is_tight() -> None:
    for plan in ({"tp": 4}, {"tp": 2, "pp": 4}, {"tp": 8}):
        found = serve(LLAMA_70B, H100, devices=8, plan=plan)
        m = found.memory
        assert m.weights + m.kv_cache + m.workspace + m.runtime_reserve == m.total <= m.usable
        full = serve(LLAMA_70B, H100, devices=8, plan=plan, batch=found.max_concurrency)
        over = serve(LLAMA_70B, H100, devices=8, plan=plan, batch=found.max_concurrency + 1)
        assert full.fits
        assert full.memory.total <= full.memory.usable
        assert not over.fits
        assert over.memory.total > over.memory.usable


def test_shards_add_up_to_the_whole_model() -> None:
    whole = serve(LLAMA_70B, H100, devices=1).memory.weights
    halves = serve(LLAMA_70B, H100, devices=2, plan={"tp": 2}).memory.weights
    assert whole / 2 <= halves <= whole / 2 * 1.001  # norms are on both
    stages = serve(LLAMA_70B, H100, devices=8, plan={"pp": 8}).memory.weights
    assert whole / 8 < stages < whole / 8 * 1.15  # the heaviest stage has an end as well


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    one_kv_head = load_model("falcon-7b")
    alone = serve(one_kv_head, H100, devices=1, batch=1).memory.kv_bytes_per_sequence
    with pytest.raises(InputError, match="71 attention heads"):
        serve(one_kv_head, H100, devices=2, plan={"tp": 2})
    wide = serve(LLAMA_8B, H100, devices=8, plan={"tp": 8}, batch=1).memory.kv_bytes_per_sequence
    assert wide * 8 == serve(LLAMA_8B, H100, devices=1, batch=1).memory.kv_bytes_per_sequence
    assert alone > 0
    sixteen = serve(LLAMA_8B, load_system("gb200-nvl72"), devices=16, plan={"tp": 16}, batch=1)
    assert sixteen.memory.kv_bytes_per_sequence == wide


def test_formats_decide_bytes() -> None:
    plain = serve(LLAMA_70B, H100, devices=4, plan={"tp": 4}, batch=8)
    small = serve(LLAMA_70B, H100, devices=4, plan={"tp": 4}, batch=8, weights_dtype="fp8", kv_dtype="fp8")
    assert small.memory.kv_cache * 2 == plain.memory.kv_cache
    assert 0.5 < small.memory.weights / plain.memory.weights < 0.53  # embeddings and head stay
    assert small.tpot_ms < plain.tpot_ms
    assert (small.weights_dtype, small.kv_dtype, small.dtype) == ("fp8", "fp8", "bf16")


# Verdicts


def test_what_does_not_fit_says_what_would() -> None:
    found = serve(LLAMA_70B, H100, devices=1)
    assert found.fits is False
    assert found.verdict.startswith("does not fit: needs ")
    for words in (" of ", "per device", "largest parts weights 141.1 GB", "nearest plan that fits: tp 2, 2 devices"):
        assert words in found.verdict
    assert np.isnan(found.tpot_ms)
    assert found.to_dict()["tpot_ms"] is None
    more = serve(LLAMA_70B, H100, devices=8, plan={"tp": 1})
    assert "tp 2 on these devices" in more.verdict
    less = serve(LLAMA_70B, H100, devices=4, plan={"tp": 4}, batch=5000)
    assert "with this plan" in less.verdict


def test_auto_fits_and_is_the_first_row_of_the_table() -> None:
    for model in (LLAMA_8B, LLAMA_70B, MIXTRAL):
        found = serve(model, H100, devices=8)
        assert found.fits
        table = search_serving_plans(model, H100, devices=8)
        first = table.iloc[0]
        assert (first.tp, first.pp, first.ep) == (found.tp, found.pp, found.ep)
        assert first.output_tokens_per_s == pytest.approx(found.output_tokens_per_s, rel=1e-12)
        assert not table["fits"][table["output_tokens_per_s"].isna()].any()


def test_replicas_stay_inside_published_networks() -> None:
    found = serve(LLAMA_8B, load_system("l40s-8x"), devices=16)  # its network between nodes is nobody's datasheet
    assert found.fits
    assert found.tp * found.pp <= 8
    with pytest.raises(InputError, match="--set"):
        serve(LLAMA_8B, load_system("l40s-8x"), devices=16, plan={"tp": 8, "pp": 2})


# Floors and sums


@pytest.mark.parametrize("model", [LLAMA_8B, LLAMA_70B, MIXTRAL, load_model("deepseek-v2-lite")], ids=lambda m: m.name)
@pytest.mark.parametrize("plan", [{"tp": 4}, {"tp": 2, "pp": 2}, {"tp": 8}], ids=str)
def test_never_below_the_floors(model: Any, plan: dict[str, int]) -> None:
    for batch in (1, 4):
        found = serve(model, H100, devices=8, plan=plan, batch=batch, input_len=1000, output_len=100)
        n = found.tp * found.pp
        assert found.fits
        flops = count(model, batch=1, seq_len=1000, causal="halved", logits="last").flops
        assert found.ttft_ms >= 1e3 * flops / (n * H100.device.matmul_peak("bf16").flop_per_s)
        step = count(model, batch=batch, past_len=1050, phase="decode", style="fused")
        cache = cache_bytes(model, batch=batch, tokens=1050, dtype="bf16")
        if model is LLAMA_8B or model is LLAMA_70B:
            dense = step.weight_bytes - 2 * model.vocab_size * model.d_model  # one row of the input table is read
            assert found.tpot_ms >= 1e3 * (dense + cache) / (n * H100.device.require("bandwidth"))
        assert found.tpot_ms >= 1e3 * cache / (n * H100.device.require("bandwidth"))
        assert found.itl_ms >= found.tpot_ms * (found.output_len - 1) / found.output_len


def test_phases_add_up() -> None:
    for plan in ({"tp": 8}, {"tp": 2, "pp": 4}):
        for model in (LLAMA_70B, MIXTRAL):
            found = serve(model, H100, devices=8, plan=plan)
            for phase in (found.prefill, found.decode):
                assert isinstance(phase, Phase)
                parts = [getattr(phase, name) for name in Phase.LIMITS]
                assert sum(parts) == pytest.approx(phase.seconds, rel=1e-12)
                assert sum(phase.operators.values()) == pytest.approx(phase.seconds - phase.wait, rel=1e-12)
                assert sum(phase.shares.values()) == pytest.approx(1)
                assert phase.bound in Phase.LIMITS
            assert found.decode.seconds * 1e3 == pytest.approx(found.tpot_ms, rel=1e-12)


def test_rates_agree_with_each_other() -> None:
    found = serve(LLAMA_70B, H100, devices=8, plan={"tp": 4}, price="$2/h", power=700, pue=1.2, carbon="400 g/kWh")
    assert found.output_tokens_per_s == pytest.approx(found.replicas * found.batch * 1e3 / found.itl_ms)
    assert found.output_tokens_per_s == pytest.approx(found.requests_per_s * found.output_len)
    assert found.total_tokens_per_s == pytest.approx(found.requests_per_s * (2000 + 300))
    assert found.output_tokens_per_s_per_device == pytest.approx(found.output_tokens_per_s / 8)
    per_second = 8 * 2 / 3600
    assert found.usd_per_hour == 16
    assert found.usd_per_million_output_tokens == pytest.approx(per_second / found.output_tokens_per_s * 1e6)
    assert found.usd_per_million_tokens == pytest.approx(per_second / found.total_tokens_per_s * 1e6)
    joules = 8 * 700 * 1.2 / found.output_tokens_per_s
    assert found.joules_per_output_token == pytest.approx(joules)
    assert found.kwh_per_million_output_tokens == pytest.approx(joules / 3.6)
    assert found.carbon_g_per_million_output_tokens == pytest.approx(joules / 3.6 * 400)


def test_one_output_token_is_prefill_alone() -> None:
    found = serve(LLAMA_8B, H100, devices=1, output_len=1, input_len=8192, batch=1)
    assert found.itl_ms == pytest.approx(found.ttft_ms)
    assert found.request_latency_s == pytest.approx(found.ttft_ms / 1e3)


# What must grow or shrink


def test_more_bandwidth_is_never_slower() -> None:
    plan = {"tp": 4}
    usual = serve(LLAMA_70B, H100, devices=4, plan=plan, batch=32)
    for field, value in (("memory.bandwidth", "6 TB/s"), ("scale_up.bandwidth", "900 GB/s")):
        faster = serve(LLAMA_70B, H100.with_overrides({field: value}), devices=4, plan=plan, batch=32)
        assert faster.tpot_ms < usual.tpot_ms
        assert faster.ttft_ms <= usual.ttft_ms


def test_a_larger_batch_gives_more_tokens_while_memory_bound() -> None:
    batch = np.array([1, 2, 4, 8, 16, 32, 64])
    found = serve(LLAMA_8B, H100, devices=1, plan={}, batch=batch, input_len=500, output_len=500)
    assert set(found.decode.bound) == {"memory"}
    assert (np.diff(found.output_tokens_per_s) > 0).all()
    assert (np.diff(found.tpot_ms) > 0).all()


def test_longer_contexts_are_slower() -> None:
    length = np.array([100, 1000, 10_000, 50_000])
    found = serve(LLAMA_8B, H100, devices=1, plan={}, batch=4, input_len=length)
    assert (np.diff(found.ttft_ms) > 0).all()
    assert (np.diff(found.tpot_ms) > 0).all()
    assert (np.diff(found.max_concurrency) < 0).all()


def test_small_batches_read_few_experts() -> None:
    moe = MIXTRAL.blocks[MIXTRAL.layer_blocks[0]].ffn
    one = serve(MIXTRAL, H100, devices=2, plan={"tp": 2}, batch=1, input_len=100, output_len=10)
    many = serve(MIXTRAL, H100, devices=2, plan={"tp": 2}, batch=256, input_len=100, output_len=10)
    touched = 8 * (1 - (1 - 2 / 8) ** np.array([1, 256]))  # E (1 - (1 - k/E)^B)
    assert moe.kind == "moe"
    experts = [e.decode.operators["experts_down"] for e in (one, many)]
    assert experts[1] / experts[0] == pytest.approx(touched[1] / touched[0], rel=0.1)


def test_spreading_experts_keeps_their_bytes() -> None:
    cut = serve(MIXTRAL, H100, devices=8, plan={"tp": 8}, batch=8).memory.weights
    spread = serve(MIXTRAL, H100, devices=8, plan={"tp": 8, "ep": 8}, batch=8).memory.weights
    assert spread == pytest.approx(cut, rel=1e-3)


# Arrays


PLANS = [None, {"tp": 1}, {"tp": 2, "pp": 2}, {"tp": [1, 2, 4]}, {"pp": [1, 2, 3], "tp": 2}, {"tp": 4, "ep": [1, 2, 4]}]


@settings(max_examples=25, deadline=None)
@given(
    model_name=st.sampled_from([LLAMA_8B.name, LLAMA_70B.name, MIXTRAL.name]),
    system_name=st.sampled_from([H100.name, A100.name]),
    devices=st.lists(st.integers(1, 24), min_size=3, max_size=3),
    input_len=st.lists(st.integers(1, 20_000), min_size=3, max_size=3),
    output_len=st.lists(st.integers(1, 3000), min_size=3, max_size=3),
    batch=st.one_of(st.none(), st.integers(1, 600), st.lists(st.integers(1, 600), min_size=3, max_size=3)),
    plan=st.sampled_from(PLANS),
)
def test_arrays_equal_scalars(
    model_name: str, system_name: str, devices: Any, input_len: Any, output_len: Any, batch: Any, plan: Any
) -> None:
    model = {m.name: m for m in (LLAMA_8B, LLAMA_70B, MIXTRAL)}[model_name]
    system = {s.name: s for s in (H100, A100)}[system_name]
    load = {"devices": devices, "input_len": input_len, "output_len": output_len, "batch": batch}
    many = serve(model, system, plan=plan, **load)
    for i in range(3):

        def at(x: Any, i: int = i) -> Any:
            return x[i] if isinstance(x, list) else x

        one_plan = None if plan is None else {key: at(value) for key, value in plan.items()}
        try:
            one = serve(model, system, plan=one_plan, **{key: at(value) for key, value in load.items()})
        except InputError as error:
            assert str(error) == many.verdict[i]
            assert not many.fits[i]
            assert np.isnan(many.tpot_ms[i])
            continue
        for name, value in values(one).items():
            assert not isinstance(value, np.generic), name
            if value is None:  # no such figure, whatever the load
                assert values(many)[name] is None, name
                continue
            assert values(many)[name][i] == pytest.approx(value, rel=1e-12, abs=1e-18, nan_ok=True), name
        assert many.decode.bound[i] == one.decode.bound


def test_a_grid_broadcasts() -> None:
    found = serve(LLAMA_70B, H100, devices=8, plan={"tp": np.array([[1], [2], [4], [8]])}, batch=[1, 2, 4])
    assert found.tpot_ms.shape == found.batch.shape == found.memory.total.shape == (4, 3)
    assert found.fits.tolist() == [[False] * 3, [True] * 3, [True] * 3, [True] * 3]
    assert found.verdict[0, 0].startswith("does not fit")
    assert json.dumps(found.to_dict())
    assert "12 cases" in repr(found)


# Refusals


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"plan": {"tp": 16}}, "needs more than the 8 devices"),
        ({"plan": {"tp": 4, "pp": 4}}, "needs more than the 8 devices"),
        ({"plan": {"tp": 3}}, "not a multiple"),
        ({"devices": 128, "plan": {"tp": 128}}, "attention heads"),
        ({"devices": 81, "plan": {"pp": 81}}, "80 layers"),
        ({"plan": {"tp": 2, "ep": 2}}, "no experts"),
        ({"plan": {"tp": 2, "ep": 4}}, "does not divide tp"),
        ({"plan": {"tp": 0}}, "plan.tp"),
        ({"plan": {"tp": True}}, "plan.tp"),
        ({"plan": {"tpp": 2}}, "did you mean"),
        ({"plan": "best"}, "plan"),
        ({"devices": -1}, "devices"),
        ({"devices": 1.5}, "devices"),
        ({"devices": float("nan")}, "devices"),
        ({"devices": "8"}, "devices"),
        ({"input_len": 0}, "input_len"),
        ({"input_len": 10**19}, "implausibly large"),
        ({"input_len": 10**400}, "input_len"),
        ({"output_len": True}, "output_len"),
        ({"output_len": [1, float("inf")]}, "output_len"),
        ({"batch": 0}, "batch"),
        ({"batch": [1, 2], "input_len": [1, 2, 3]}, "broadcast"),
        ({"plan": {"tp": [1, 2, 4]}, "batch": [1, 2]}, "broadcast"),
        ({"dtype": "fp8"}, "weights_dtype"),
        ({"dtype": "float8"}, "dtype"),
        ({"weights_dtype": "int3"}, "weights_dtype"),
        ({"kv_dtype": "fp9"}, "kv_dtype"),
        ({"software": "magic"}, "software"),
        ({"memory_utilization": 0}, "memory_utilization"),
        ({"memory_utilization": 1.1}, "memory_utilization"),
        ({"memory_utilization": "90%"}, "memory_utilization"),
        ({"price": "free"}, "price"),
    ],
    ids=str,
)
def test_refusals_are_one_line(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        serve(LLAMA_70B, H100, **{"devices": 8, **wrong})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_refusals() -> None:
    with pytest.raises(InputError, match="load_model"):
        serve("llama-3.1-70b", H100)
    with pytest.raises(InputError, match="load_system"):
        serve(LLAMA_8B, "dgx-h100")
    with pytest.raises(InputError, match="at most 4"):
        serve(LLAMA_8B, load_system("t4-4x"), devices=8)
    with pytest.raises(InputError, match="scalars"):
        search_serving_plans(LLAMA_8B, H100, devices=[1, 2])


# Printing


def test_what_a_reader_sees() -> None:
    found = serve(LLAMA_70B, H100, devices=8)
    text = repr(found)
    for words in ("TTFT", "TPOT", "per million output tokens", "fits:", "bound by"):
        assert words in text
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["decode"]["bound"] == "memory"
    assert plain["memory"]["weights"] == found.memory.weights
    unpriced = serve(LLAMA_70B, load_system("gb300-nvl72"), devices=8)
    assert unpriced.usd_per_million_output_tokens is None
    assert "--price" in unpriced.cost_note
    longer = serve(LLAMA_8B, H100, input_len=200_000, batch=1)
    assert any("max_seq_len" in note for note in longer.notes)


def test_every_weight_format_can_be_served() -> None:
    for fmt in WEIGHT_FORMATS:
        found = serve(LLAMA_8B, H100, weights_dtype=fmt, batch=1, plan={})
        assert found.fits
        assert found.tpot_ms > 0


def test_gguf_on_a_laptop_and_a_cpu() -> None:
    """A decode step reads the file less the token table; weight-only formats multiply at the 16-bit rate."""
    for name in ("macbook-pro-m1-max", "cpu-server-spr-2s"):
        system = load_system(name)
        small = serve(LLAMA_8B, system, weights_dtype="Q4_K_M", dtype="fp16", batch=1)
        wide = serve(LLAMA_8B, system, dtype="fp16", batch=1)
        assert small.weights_dtype == "q4_k+q6_k" and small.fits
        assert small.memory.weights == pytest.approx(4.9129e9, rel=1e-4)
        table = 128256 * 4096 * 4.5 / 8
        bandwidth = system.device.require("bandwidth") * system.device.efficiency.memory
        assert small.decode.memory == pytest.approx((4.9129e9 - table) / bandwidth, rel=0.1)
        assert small.decode.memory < 0.4 * wide.decode.memory
        assert small.prefill.compute == pytest.approx(wide.prefill.compute, rel=1e-3)
    spread = serve(load_model("llama-3.1-70b"), H100, devices=4, plan={"tp": 2, "pp": 2}, weights_dtype="q4_k_m")
    assert spread.memory.weights == pytest.approx(42.51e9 / 4, rel=0.05)


def test_no_step_is_shorter_under_load() -> None:
    """Few sequences on a pipeline, short prompts: prefills fill gaps, and cost the others nothing."""
    for name in ("llama-3.1-8b", "mamba-370m"):
        found = serve(
            load_model(name), H100, devices=8, input_len=100, output_len=2000, batch=[1, 4, 64], plan={"pp": 4}
        )
        # a period over its tokens may round below the step it is made of
        assert (found.itl_ms >= found.tpot_ms * (1 - 1e-12)).all()
