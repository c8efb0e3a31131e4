"""Every public entry point takes anything and answers with numbers or one line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfsim
from tfsim.errors import InputError

MODEL = tfsim.load_model("llama-3.2-1b")
MOE = tfsim.load_model("qwen1.5-moe-a2.7b")
SYSTEM = tfsim.load_system("dgx-h100")
JUNK: list[Any] = [
    None, True, "llama", "", [], [1, "a"], {}, {"a": 1}, -1, 0, 1.5, float("nan"), float("inf"), 10**400, 1e300, b"x",
    [[1, 2], [3]], np.array([]), np.array(["a"]), np.array([1, np.nan]), object(), 1j, {5: 1}, [1, 2, 3],
]  # fmt: skip


def refuse_or_answer(call: Any) -> None:
    try:
        call()
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("value", JUNK, ids=lambda v: repr(v)[:20])
def test_wrong_kinds(value: Any) -> None:
    calls = [
        lambda: tfsim.count(value, batch=1, seq_len=8),
        lambda: tfsim.train(value, SYSTEM, global_batch=8),
        lambda: tfsim.train(MODEL, value, global_batch=8),
        lambda: tfsim.search_plans(value, SYSTEM, global_batch=8),
        lambda: tfsim.search_plans(MODEL, value, global_batch=8),
        lambda: tfsim.serve(value, SYSTEM),
        lambda: tfsim.serve(MODEL, value),
        lambda: tfsim.load_model(value),
        lambda: tfsim.load_system(value),
        lambda: tfsim.load_device(value),
        lambda: SYSTEM.with_overrides(value),
    ]
    for call in calls:
        refuse_or_answer(call)


COUNT = ("batch", "seq_len", "past_len", "phase", "attention", "dtype", "style", "causal", "logits", "dropout",
         "recompute", "latent", "experts")  # fmt: skip
TRAIN = ("devices", "seq_len", "global_batch", "plan", "tokens", "precision", "software", "price", "power", "pue",
         "carbon", "provider", "term")  # fmt: skip
SERVE = ("devices", "plan", "input_len", "output_len", "batch", "dtype", "weights_dtype", "kv_dtype", "software",
         "memory_utilization", "max_batch", "max_prefill_tokens", "price", "power", "pue", "carbon", "provider",
         "term")  # fmt: skip
PLAN = ("tp", "pp", "dp", "ep", "etp", "micro_batch", "zero_stage", "recompute", "magic")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_arguments_are_refused_in_one_line(data: st.DataObject) -> None:
    what = data.draw(st.sampled_from(["count", "train", "search", "serve"]))
    junk = st.sampled_from(range(len(JUNK)))
    names = {"count": COUNT, "train": TRAIN, "search": TRAIN[:4] + TRAIN[5:7], "serve": SERVE}[what]
    arguments: dict[str, Any] = {"train": {"global_batch": 8}, "search": {"global_batch": 8}}.get(what, {})
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    arguments |= {name: JUNK[data.draw(junk)] for name in chosen}
    if "plan" in chosen and data.draw(st.booleans()):
        arguments["plan"] = {data.draw(st.sampled_from(PLAN)): JUNK[data.draw(junk)]}
    model = data.draw(st.sampled_from([MODEL, MOE]))
    calls = {
        "count": lambda: tfsim.count(model, **{"seq_len": 16, **arguments}),
        "train": lambda: tfsim.train(model, SYSTEM, **{"seq_len": 512, **arguments}),
        "search": lambda: tfsim.search_plans(model, SYSTEM, **{"seq_len": 512, **arguments}),
        "serve": lambda: tfsim.serve(model, SYSTEM, **arguments),
    }
    refuse_or_answer(calls[what])


@pytest.mark.parametrize(
    "call",
    [
        lambda: tfsim.count(MODEL, batch=[1, 2], seq_len=[1, 2, 3]),
        lambda: tfsim.train(MODEL, SYSTEM, global_batch=[8, 16], seq_len=[1, 2, 3]),
        lambda: tfsim.train(MODEL, SYSTEM, global_batch=[8, 16], plan={"tp": [1, 2, 4]}),
        lambda: tfsim.train(MODEL, SYSTEM, global_batch=[8, 16], tokens=[1e9, 2e9, 3e9]),
        lambda: tfsim.train(MODEL, SYSTEM, global_batch=[8, 16], price=[1, 2, 3]),
        lambda: tfsim.serve(MODEL, SYSTEM, devices=[1, 2], price=[1, 2, 3]),
        lambda: tfsim.serve(MODEL, SYSTEM, power=[1, 2], pue=[1, 2, 3]),
    ],
)
def test_shapes_that_do_not_broadcast(call: Any) -> None:
    with pytest.raises(InputError, match="do not broadcast"):
        call()


def test_experts_spread_further_than_tensor_parallelism_are_refused() -> None:
    with pytest.raises(InputError, match="ep 8 does not divide tp 1"):
        tfsim.serve(MOE, SYSTEM, devices=8, plan={"tp": 1, "ep": 8})
    table = tfsim.serve(MOE, SYSTEM, devices=8, plan={"tp": [1, 4], "ep": 4})
    assert np.isnan(table.tpot_ms[0])
    assert table.tpot_ms[1] > 0


def test_a_tied_embedding_is_held_on_both_pipeline_ends() -> None:
    model = tfsim.load_model("gemma-3-1b")
    plan = {"pp": 2, "zero_stage": 0, "micro_batch": 3}
    tied = tfsim.train(model, SYSTEM, devices=2, seq_len=8192, global_batch=3, plan=plan)
    untied = model.model_copy(update={"tied_embeddings": False})
    own = tfsim.train(untied, SYSTEM, devices=2, seq_len=8192, global_batch=3, plan=plan)
    assert tied.memory_bytes == own.memory_bytes
    one = {"plan": {"zero_stage": 0}, "devices": 1, "seq_len": 512, "global_batch": 1}
    gap = tfsim.train(untied, SYSTEM, **one).memory_bytes - tfsim.train(model, SYSTEM, **one).memory_bytes
    assert gap == 262144 * 1152 * 18


def test_training_keeps_what_count_says() -> None:
    plan = {"micro_batch": 1, "recompute": "none"}
    estimate = tfsim.train(MODEL, SYSTEM, devices=1, seq_len=4096, global_batch=1, plan=plan)
    counted = tfsim.count(MODEL, batch=1, seq_len=4096, style="fused")
    tables = 2 * 4096 * 64 * 2  # rotary cosines and sines, once whatever the layers
    assert estimate.memory["activations"] == counted.saved_bytes - tables


def test_sharded_gradients_are_reduced_after_every_micro_batch() -> None:
    arguments: dict[str, Any] = {"devices": 64, "seq_len": 512, "global_batch": 64 * 16}
    once, every = (
        tfsim.train(MODEL, SYSTEM, plan={"zero_stage": z}, **arguments).time["data_parallel"] for z in (1, 2)
    )
    assert every > 2 * once


def test_zero_3_never_needs_more_than_zero_2() -> None:
    single = MODEL.model_copy(update={"layers": "layer"})
    single.__dict__.pop("layer_blocks", None)
    single.__dict__.pop("block_counts", None)
    for model in (single, MODEL):
        two, three = (
            tfsim.train(model, SYSTEM, devices=2, seq_len=512, global_batch=2, plan={"zero_stage": z}).memory_bytes
            for z in (2, 3)
        )
        assert three <= two


def test_spread_experts_move_tokens_once() -> None:
    """Without a shared expert, experts spread one way (etp 1) need no gather or reduction over tp."""
    from tfsim.models.decoder import block_operators
    from tfsim.models.shape import Shape, Shards

    def moved(name: str, shards: Shards) -> dict[str, float]:
        model = tfsim.load_model(name)
        ops = block_operators(model, model.layer_blocks[-1], Shape(1, 1024, shards=shards))
        return {op.name: float(op.comm.bytes) for op in ops if op.comm}

    spread = Shards(tp=4, ep=8, etp=1, sequence_parallel=True)
    mixtral = moved("mixtral-8x7b", spread)
    assert mixtral["ffn.gather"] == mixtral["ffn.reduce"] == 0
    assert mixtral["moe.dispatch"] == mixtral["moe.collect"] == 1024 * 2 * 4096 * 2 / 4
    assert moved("deepseek-v2-lite", spread)["ffn.reduce"] == 1024 * 2048 * 2  # its shared expert is cut over tp
    whole = moved("mixtral-8x7b", Shards(tp=4, sequence_parallel=True))
    assert whole["ffn.gather"] == whole["ffn.reduce"] == 1024 * 4096 * 2
    assert whole["moe.dispatch"] == 0


def test_weights_count_in_the_dtype_asked_for() -> None:
    wide = tfsim.serve(MODEL, SYSTEM, weights_dtype="fp32")
    assert wide.memory.weights > 1.6 * tfsim.serve(MODEL, SYSTEM).memory.weights
    full = tfsim.load_model("gpt2").model_copy(update={"dtype": "fp32"})
    counted = tfsim.count(full, batch=1, seq_len=8)
    assert counted.weight_bytes == 4 * counted.parameters.total


def test_results_with_arrays_are_json() -> None:
    table = tfsim.train(MODEL, SYSTEM, devices=[8, 7], seq_len=512, global_batch=56, plan={"tp": 2}, tokens=1e9)
    assert json.loads(json.dumps(table.to_dict()))["step_time_s"][1] is None
    assert table.reasons[1].startswith("tp 2 x pp 1 x dp 3 is not the 7 devices")
    counted = tfsim.count(MODEL, batch=[1, 2], seq_len=8)
    assert json.loads(json.dumps(counted.to_dict()))["flops"][1] == counted.flops[1]


def test_notes_say_what_was_assumed() -> None:
    a100 = tfsim.load_system("dgx-a100")
    estimate = tfsim.train(tfsim.load_model("gpt2"), a100, devices=8, seq_len=4096, global_batch=8, precision="fp8")
    assert any("max_seq_len of 1,024" in note for note in estimate.notes)
    assert any("no fp8 unit" in note for note in estimate.notes)


def test_a_search_names_what_is_wrong() -> None:
    with pytest.raises(InputError, match="joins at most 1 devices"):
        tfsim.train(MODEL, tfsim.load_system("workstation-1x-rtx-4090"), devices=2, seq_len=512, global_batch=8)
    plans = tfsim.search_plans(MODEL, SYSTEM, seq_len=512, global_batch=64, plan={"dp": [1, 2], "tp": 4})
    assert set(plans.dp) == {1, 2}
    mixed = tfsim.train(MODEL, SYSTEM, devices=[8, 7919], seq_len=512, global_batch=64)
    assert mixed.step_time_s[0] > 0
    assert np.isnan(mixed.step_time_s[1])
