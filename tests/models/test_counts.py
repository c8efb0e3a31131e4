"""Published figures, conventions and invariants of the counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import oracle
from tfsim.errors import InputError
from tfsim.models import load_model
from tfsim.models.conventions import training_flops
from tfsim.models.counts import Counts, cache_bytes, count, parameters
from tfsim.models.decoder import block_operators, segments
from tfsim.models.shape import Shape, Shards
from tfsim.models.spec import RMS_NORM, ModelSpec, compress_layers, expand_layers
from tfsim.operators.core import Style, kept_for_backward, total

# GFLOP per token printed by training frameworks: (zoo name, tokens, convention, value). Sources: MaxText READMEs and
# logs, NVIDIA NeMo 24.07, Megatron-Bridge performance summary, Primus; the convention is the one each source documents.
PRINTED = [
    ("gpt3-175b", 2048, "megatron", 1076.4),
    ("llama-2-70b", 4096, "megatron", 444.5),
    ("llama-3-8b", 8192, "megatron", 57.91),
    ("llama-3-8b", 8192, "exact", 51.47),
    ("llama-3-70b", 8192, "megatron", 481.4),
    ("llama-3-70b", 8192, "exact", 449.2),
    ("llama-3-70b", 131072, "exact", 932.4),
    ("llama-3.1-405b", 8192, "megatron", 2625.4),
    ("llama-3.1-405b", 8192, "exact", 2524.0),
    ("mixtral-8x7b", 4096, "megatron", 82.93),
    ("mixtral-8x22b", 4096, "megatron", 250.67),
    ("qwen3-30b-a3b", 4096, "exact", 23.0),
    ("qwen3-235b-a22b", 4096, "exact", 148.0),
    ("deepseek-v3", 4096, "exact", 249.7),
    ("deepseek-v3", 4096, "exact", 250.5),
    ("deepseek-v3", 8192, "exact", 281.2),
    ("gpt-oss-120b", 4096, "exact", 32.6),
    ("gpt-oss-120b", 8192, "exact", 34.5),
    ("llama-4-scout", 8192, "exact", 108.9),
    ("llama-4-maverick", 8192, "megatron", 121.1),
]


@pytest.mark.parametrize(("name", "seq_len", "convention", "printed"), PRINTED)
def test_printed_flops_per_token(name: str, seq_len: int, convention: str, printed: float) -> None:
    assert training_flops(load_model(name), seq_len, convention) / seq_len / 1e9 == pytest.approx(printed, rel=0.005)


def test_printed_flops_with_the_prediction_module() -> None:
    flops = training_flops(load_model("deepseek-v3"), 4096, "exact", mtp=True)
    assert flops / 4096 / 1e9 == pytest.approx(260.0, rel=0.005)


def test_printed_flops_of_nanotron() -> None:
    """huggingface/nanotron's benchmark model: 28 layers of 3072, vocabulary 131072, 3.57B parameters."""
    layer = {
        "mixer": {"kind": "attention", "n_heads": 24, "n_kv_heads": 24, "d_head": 128, "rope": {}},
        "ffn": {"kind": "dense", "d_ff": 8192},
    }
    sizes = {"d_model": 3072, "vocab_size": 131072, "tied_embeddings": True}
    model = ModelSpec.model_validate({"name": "nanotron", "blocks": {"layer": layer}, "layers": "layer*28", **sizes})
    assert parameters(model).total / 1e9 == pytest.approx(3.57, abs=0.005)
    assert training_flops(model, 4096, "megatron") / 4096 / 1e9 == pytest.approx(25.67, rel=0.005)


@pytest.mark.parametrize(
    ("name", "seq_len", "printed", "cause"),
    [
        # Megatron-Bridge leaves the router out: 384 x 7168 in 60 layers is 0.99 GFLOP a token
        ("kimi-k2", 4096, 204.4, 6 * 60 * 384 * 7168 / 1e9),
        # MaxText halves the window itself as well: 40 local layers at half of 1,024 keys, 0.99 GFLOP a token
        ("gemma-3-12b", 32768, 78.0, 6 * 40 * 512 * 2 * 16 * 256 / 1e9),
    ],
)
def test_printed_flops_that_differ_do_so_for_a_known_cause(
    name: str, seq_len: int, printed: float, cause: float
) -> None:
    ours = training_flops(load_model(name), seq_len, "exact") / seq_len / 1e9
    assert ours - cause == pytest.approx(printed, rel=0.002)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x7b", 46.7e9, 12.9e9),  # Mistral AI, release of 8x7B: 46.7B, 12.9B a token
        ("mixtral-8x22b", 141e9, 39e9),  # the same of 8x22B: 141B, 39B
        ("grok-1", 314e9, 0.25 * 314e9),  # xai-org/grok-1 README: 314B; release: a quarter of the weights on a token
    ],
)
def test_published_totals_and_active_parameters_of_two_experts(name: str, total: float, active: float) -> None:
    found = parameters(load_model(name))
    assert found.total == pytest.approx(total, rel=0.006)
    assert found.active == pytest.approx(active, rel=0.07 if name == "grok-1" else 0.005)


def test_cache_of_llama_2_70b() -> None:
    model = load_model("llama-2-70b")
    assert cache_bytes(model, batch=16, tokens=8192, dtype="fp16") == 42_949_672_960
    block = model.blocks["layer"]
    full = block.model_copy(update={"mixer": block.mixer.model_copy(update={"n_kv_heads": 64})})
    every_head = model.model_copy(update={"blocks": {"layer": full}})
    assert cache_bytes(every_head, batch=16, tokens=8192, dtype="fp16") == 8 * 42_949_672_960


def test_weights_of_llama_3_1_70b() -> None:
    counted = count(load_model("llama-3.1-70b"), batch=1, seq_len=1, dtype="fp16")
    assert counted.parameters.total == 70_553_706_496
    assert counted.weight_bytes == 141_107_412_992  # 141.1 GB in two bytes each


def test_absorbed_latent_attention_equals_the_oracle() -> None:
    """One attention layer with absorbed weights, run in torch for the oracle (s-mla-absorbed-layer)."""
    model = oracle.spec("s-deepseek-v3", "2")
    found = [r for r in oracle.rows("flops") if r["variant"] == "s-mla-absorbed-layer"]
    assert len(found) == 3
    for row in found:
        shape = Shape(int(row["batch"]), 1, int(row["past_len"]), phase="decode")
        ops = block_operators(model, model.layer_blocks[0], shape)
        attention = [op.flops for op in ops if op.component in ("attn_proj", "attn_core")]
        assert sum(attention) == int(row["flops_total"])


def test_latents_are_cached_once_whatever_the_heads() -> None:
    per_token = cache_bytes(load_model("deepseek-v3-bf16"), batch=1, tokens=1, dtype="bf16")
    assert per_token == 70_272  # oracle.md, finding 1


def test_causal_halves_and_logits_shrink() -> None:
    model = load_model("llama-3-8b")
    full, halved = (count(model, batch=2, seq_len=512, causal=c) for c in ("full", "halved"))
    assert halved.flops_by_component["attn_core"] * 2 == full.flops_by_component["attn_core"]
    last = count(model, batch=2, seq_len=512, logits="last")
    assert last.flops_by_component["head"] * 512 == full.flops_by_component["head"]


def test_a_window_never_counts_more_than_full_attention() -> None:
    model = load_model("mistral-7b-v0.1")
    windowed = count(model, batch=1, seq_len=16384, causal="halved").flops_by_component["attn_core"]
    block = model.blocks["layer"]
    open_block = block.model_copy(update={"mixer": block.mixer.model_copy(update={"window": None})})
    full = count(model.model_copy(update={"blocks": {"layer": open_block}}), batch=1, seq_len=16384, causal="halved")
    # 2 W S - W^2 of S^2 pairs, W = S / 4
    assert windowed * 16 == full.flops_by_component["attn_core"] * 7


def test_prefill_in_pieces_counts_what_prefill_at_once_counts() -> None:
    for name in ("llama-3-8b", "mistral-7b-v0.1", "llama-4-scout"):
        model = load_model(name)
        whole = count(model, batch=1, seq_len=12288, causal="halved").flops_by_component["attn_core"]
        first = count(model, batch=1, seq_len=4096, causal="halved")
        rest = count(model, batch=1, seq_len=8192, past_len=4096, causal="halved")
        assert first.flops_by_component["attn_core"] + rest.flops_by_component["attn_core"] == whole


def test_recomputation_trades_kept_bytes_for_flops() -> None:
    model = load_model("llama-3-8b")
    none, selective, full = (
        count(model, batch=1, seq_len=2048, phase="forward_backward", attention="eager", recompute=mode)
        for mode in ("none", "selective", "full")
    )
    assert none.saved_bytes > selective.saved_bytes > full.saved_bytes
    forward = count(model, batch=1, seq_len=2048)
    in_blocks = forward.flops - forward.flops_by_component["head"]
    assert full.flops - none.flops == in_blocks
    assert selective.flops - none.flops == forward.flops_by_component["attn_core"]
    # eager attention: backward is exactly twice forward; fused computes the scores again
    assert none.flops == 3 * forward.flops
    fused = count(model, batch=1, seq_len=2048, phase="forward_backward")
    assert fused.flops == 3 * forward.flops + forward.flops_by_component["attn_core"] // 2


def test_fused_kernels_keep_and_move_less() -> None:
    for name in ("gpt2", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b"):
        eager, fused = (count(load_model(name), batch=1, seq_len=1024, style=s) for s in ("eager", "fused"))
        assert fused.saved_bytes < eager.saved_bytes
        assert fused.bytes_moved < eager.bytes_moved
        assert fused.flops == eager.flops


def test_shards_hold_the_whole_model() -> None:
    """tp shards hold every parameter once, norms, routers and latent projections on each device."""
    for name in ("llama-3-8b", "mixtral-8x7b", "deepseek-v3"):
        model = load_model(name)
        whole = _elements(model, Shards())
        for tp in (2, 4, 8):
            part = _elements(model, Shards(tp=tp))
            assert part < whole <= tp * part
        if "moe" in str(model.blocks):
            spread = _elements(model, Shards(ep=8, etp=1))
            assert spread < whole


def _elements(model: ModelSpec, shards: Shards) -> float:
    parts = segments(model, Shape(1, 64, shards=shards))
    return float(total(w.elements * p.repeat for p in parts for op in p.operators for w in op.weights))


def test_operators_add_up_to_the_totals() -> None:
    counted = count(load_model("mixtral-8x7b"), batch=2, seq_len=256, phase="forward_backward")
    assert counted.flops == sum(op.flops * repeat for _, repeat, op in counted.operators)
    assert counted.flops == sum(counted.flops_by_component.values())
    blocks = counted.saved_bytes_by_block
    assert counted.saved_bytes == counted.saved_bytes_fixed + 32 * blocks["layer"]
    assert sum(counted.parameters.by_group.values()) == counted.parameters.total


def test_a_shared_storage_counts_once() -> None:
    model = load_model("llama-3-8b")
    ops = block_operators(model, "layer", Shape(1, 128, style=Style("bf16", "eager", "fused")))
    naive = total(t.bytes for op in ops for t in op.saves)
    assert kept_for_backward(ops).bytes < naive


ARRAY_FIELDS = ("flops", "kv_bytes", "saved_bytes", "saved_bytes_per_layer", "bytes_moved")


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["s-gpt2", "s-mixtral", "s-deepseek-v3", "s-gemma3", "s-llama4", "s-gpt-oss"]),
    batches=st.lists(st.integers(1, 10**5), min_size=1, max_size=3),
    seq_lens=st.lists(st.integers(1, 10**6), min_size=1, max_size=3),
    past=st.integers(0, 10**6),
    phase=st.sampled_from(["forward", "forward_backward", "decode"]),
    causal=st.sampled_from(["full", "halved"]),
)
def test_arrays_equal_scalars(
    name: str, batches: list[int], seq_lens: list[int], past: int, phase: Any, causal: Any
) -> None:
    model = oracle.spec(name, min(oracle.configurations()["small"][name]))
    options: dict[str, Any] = {"past_len": past, "phase": phase, "causal": causal}
    table = count(model, batch=np.array(batches)[:, None], seq_len=seq_lens, **options)
    for i, batch in enumerate(batches):
        for j, seq_len in enumerate(seq_lens):
            single = count(model, batch=batch, seq_len=seq_len, **options)
            for field in ARRAY_FIELDS:
                _same(table, single, field, (i, j), (len(batches), len(seq_lens)))


def _same(table: Counts, single: Counts, field: str, at: tuple[int, int], shape: tuple[int, int]) -> None:
    scalar = getattr(single, field)
    assert isinstance(scalar, int | float)
    value = np.broadcast_to(getattr(table, field), shape)[at]
    if isinstance(scalar, int) and scalar < 2**53:
        assert value == scalar
    else:
        assert value == pytest.approx(scalar, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": -1}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": 1.5}, "batch"),
        ({"seq_len": float("nan")}, "seq_len"),
        ({"seq_len": "many"}, "seq_len"),
        ({"past_len": -1}, "past_len"),
        ({"phase": "backward"}, "phase"),
        ({"dtype": "fp5"}, "dtype"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": float("nan")}, "dropout"),
        ({"causal": "half"}, "causal"),
    ],
)
def test_bad_arguments_name_the_field(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        count(load_model("gpt2"), **{"batch": 1, "seq_len": 8, **arguments})


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=60))
def test_patterns_round_trip(names: list[str]) -> None:
    assert list(expand_layers(compress_layers(names))) == names


@pytest.mark.parametrize("pattern", ["", "a*0", "(a", "a)", "a**2", "a*99999", "((a*999)*999)", "3a", "a b*-1"])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="layers"):
        expand_layers(pattern)
    assert RMS_NORM.kind == "rmsnorm"


def test_parameters_do_not_depend_on_the_pass() -> None:
    model = load_model("mixtral-8x7b")
    assert count(model, batch=3, seq_len=7, phase="decode").parameters == parameters(model)


def test_conventions_of_parameters_per_token_are_for_one_stack_of_tokens() -> None:
    from tfsim.models.conventions import CONVENTIONS, conventions_of

    assert conventions_of(load_model("llama-3.1-8b")) == conventions_of(load_model("bert-base")) == tuple(CONVENTIONS)
    for name in ("whisper-tiny", "clip-vit-b-32", "dit-s-2", "alphafold2-evoformer", "vit-b16", "t5-small"):
        assert conventions_of(load_model(name)) == ("exact", "megatron")


def test_cache_per_token_multiplies_out() -> None:
    from tfsim.models.facts import model_facts

    for name in ("llama-3.1-8b", "gemma-3-4b", "deepseek-v4-flash"):
        facts = model_facts(load_model(name), seq_len=65_536)
        assert facts.kv_bytes_per_token * 65_536 == pytest.approx(facts.kv_bytes_per_sequence)


def test_patterns_fold_what_repeats_after_a_prefix() -> None:
    assert compress_layers(["a", "a", *["b", "c"] * 20, "b"]) == "a*2 (b c)*20 b"
    assert compress_layers(["d", *["a"] * 4, *["b", *["a"] * 5] * 7, "b"]) == "d a*4 (b a*5)*7 b"
    assert compress_layers(["a"] * 7) == "a*7"
