"""Operators by hand: small shapes whose counts can be written down."""

from __future__ import annotations

import numpy as np
import pytest

from tfsim.operators.attention import attention, keys_in_reach, pairs_twice, prefill_pairs_twice
from tfsim.operators.backward import RULES, backward, recompute
from tfsim.operators.collectives import collective
from tfsim.operators.core import Style, Tensor, Weight, activation, kept_for_backward
from tfsim.operators.elementwise import activate, cross_entropy, embedding, gate, norm, residual, rotary
from tfsim.operators.formats import FORMATS, element_bytes, weight_bytes
from tfsim.operators.matmul import grouped_linear, linear

BF16 = Style("bf16", "eager", "eager")


def x(elements: int) -> Tensor:
    return activation("x", elements, BF16)


def test_linear() -> None:
    op = linear("up", x(10 * 4), tokens=10, n=6, k=4, style=BF16, group="ffn_dense", component="ffn", bias=True)
    assert op.flops == 2 * 10 * 6 * 4
    assert [w.elements for w in op.weights] == [24, 6]
    assert op.bytes_moved == 2 * (10 * 4 + 10 * 6 + 24 + 6)
    assert [t.name for t in op.saves] == ["x"]
    to_input, to_weight, to_bias = backward([op], BF16)
    assert to_bias.flops == 0 and to_bias.bytes_moved == 2 * (10 * 6 + 6)  # eager: a sum over rows of its own
    assert len(backward([op], Style("bf16", "fused"))) == 2
    assert to_input.flops == to_weight.flops == op.flops
    assert (to_input.dims["n"], to_input.dims["k"]) == (4, 6)
    assert (to_weight.dims["m"], to_weight.dims["n"], to_weight.dims["k"]) == (6, 4, 10)


def test_grouped_linear_reads_only_the_experts_it_needs() -> None:
    op = grouped_linear("up", x(40), rows=10, n=6, k=4, experts=8, experts_read=3, style=BF16, fmt="bf16", bias=False)
    assert op.flops == 2 * 10 * 6 * 4
    assert op.weights[0].elements == 8 * 24
    assert op.bytes_moved == 2 * (40 + 60 + 3 * 24)


def test_attention_flops_and_kept_scores() -> None:
    arguments = {
        "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 8, "kv_len": 8, "d_qk": 16, "d_v": 16, "pairs2": 2 * 64,
        "kv_bytes": 2,
    }  # fmt: skip
    eager = attention(x(1), x(1), x(1), style=BF16, **arguments)
    assert eager.flops == 2 * 2 * 2 * 4 * 64 * 16
    kept = {t.name: t for t in eager.saves}
    assert kept["attention.probabilities"].bytes == 2 * 4 * 8 * 8 * 4
    assert kept["attention.k"].elements == 2 * 4 * 8 * 16  # keys repeated to all heads
    fused = attention(x(1), x(1), x(1), style=Style("bf16", "eager", "fused"), **arguments)
    assert fused.bytes_moved < eager.bytes_moved
    assert sum(op.flops for op in backward([eager], BF16)) == 2 * eager.flops
    assert sum(op.flops for op in backward([fused], Style("bf16", "eager", "fused"))) == 5 * eager.flops // 2
    probabilities = 2 * 4 * 8 * 8 * (4 + 2)  # fp32, and the bf16 copy that multiplies the values
    assert kept_for_backward([eager]).bytes - kept_for_backward([eager], selective=True).bytes == probabilities


@pytest.mark.parametrize(
    ("q_len", "past", "span", "chunked", "twice"),
    [
        (8, 0, None, False, 64),
        (8, 8, None, False, 192),
        (8, 0, 4, False, 2 * 4 * 8 - 16),
        (8, 0, 100, False, 64),
        (2, 100, 4, False, 16),
        (8, 0, 4, True, 32),
        (6, 0, 4, True, 20),
        (2, 4, 4, True, 4),
    ],
)
def test_pairs(q_len: int, past: int, span: int | None, chunked: bool, twice: int) -> None:
    assert pairs_twice(q_len, past, span, chunked=chunked) == twice
    array = pairs_twice(np.array([q_len], float), np.array([past], float), span, chunked=chunked)
    assert np.asarray(array)[0] == twice


def test_full_rectangle_and_cached_keys() -> None:
    assert prefill_pairs_twice(4, 6, None, chunked=False, halved=False) == 2 * 4 * 10
    assert keys_in_reach(1, 100, None) == 101
    assert keys_in_reach(1, 100, 16) == 16
    assert keys_in_reach(4, 100, 16) == 19  # fifteen cached and the new ones


def test_norms_keep_what_torch_keeps() -> None:
    rms = norm("n", x(64), rows=4, width=16, style=BF16, rms=True)
    assert [t.bytes for t in rms.saves] == [64 * 4, 4 * 4, 64 * 2]
    layer = norm("n", x(64), rows=4, width=16, style=BF16, rms=False, bias=True, upcasts=False, one_kernel=True)
    assert [t.bytes for t in layer.saves] == [64 * 2, 4 * 2, 4 * 2]
    assert sum(w.elements for w in layer.weights) == 32
    fused = norm("n", x(64), rows=4, width=16, style=Style("bf16", "fused"), rms=True)
    assert [t.bytes for t in fused.saves] == [64 * 2, 4 * 4]


def test_activations_and_gates() -> None:
    assert [t.name for t in activate("a", "relu", x(8), elements=8, style=BF16).saves] == ["a.out"]
    assert len(activate("a", "gelu_new", x(8), elements=8, style=BF16).saves) == 4
    eager = [
        t.name for op in gate("g", x(8), activation("up", 8, BF16), "silu", elements=8, style=BF16) for t in op.saves
    ]
    assert eager == ["x", "g.act.out", "up"]
    fused = gate("g", x(8), activation("up", 8, BF16), "silu", elements=8, style=Style("bf16", "fused"))
    assert [t.name for op in fused for t in op.saves] == ["x", "up"]


def test_embedding_rotary_residual_and_loss() -> None:
    table = Weight("w", "embed_token", 100, 16, shared=True)
    gathered = embedding("e", table, tokens=8, width=16, style=BF16)
    assert gathered.flops == 0
    assert gathered.bytes_moved == 2 * 8 * 16 * 2
    tables = (Tensor("cos", 32, 2, scope="model"),)
    assert rotary("r", x(64), elements=64, tables=tables, style=BF16).saves == tables
    assert residual("s", 64, BF16).saves == ()
    masks = [residual("s", 64, Style("bf16", kind, "eager", 0.1), site=True).saves for kind in ("eager", "fused")]
    assert [[t.bytes for t in kept] for kept in masks] == [[128], [64]]
    loss = cross_entropy(x(800), tokens=8, vocab=100, style=BF16)
    assert [t.bytes for t in loss.saves] == [8 * 100 * 4, 8 * 8, 4]


def test_collectives_vanish_on_one_device_and_transpose_backward() -> None:
    alone = collective("c", "all_gather", "tp", x(8), devices=1, bytes=100)
    assert alone.comm is not None
    assert alone.comm.bytes == 0
    gather = collective("c", "all_gather", "tp", x(8), devices=4, bytes=100)
    (grad,) = backward([gather], BF16)
    assert grad.comm is not None
    assert (grad.comm.kind, grad.comm.bytes) == ("reduce_scatter", 100)
    one_way = collective("c", "all_reduce", "tp", x(8), devices=4, bytes=100, backward="none")
    assert backward([one_way], BF16) == []
    sizes = collective("c", "all_reduce", "tp", x(8), devices=np.array([1.0, 2.0]), bytes=100)
    assert sizes.comm is not None
    assert list(np.asarray(sizes.comm.bytes)) == [0, 100]


def test_recompute_modes() -> None:
    mlp = linear("up", x(40), tokens=10, n=6, k=4, style=BF16, group="ffn_dense", component="ffn")
    core = attention(
        x(1),
        x(1),
        x(1),
        batch=1,
        heads=1,
        kv_heads=1,
        q_len=2,
        kv_len=2,
        d_qk=4,
        d_v=4,
        pairs2=8,
        style=BF16,
        kv_bytes=2,
    )
    assert recompute([mlp, core], "none") == []
    assert [op.kind for op in recompute([mlp, core], "selective")] == ["attention"]
    assert [op.kind for op in recompute([mlp, core], "full")] == ["matmul", "attention"]
    assert {op.kind for op in (mlp, core)} <= set(RULES)


@pytest.mark.parametrize(
    ("fmt", "rows", "columns", "expected"),
    [
        ("bf16", 10, 10, 200),
        ("fp32", 10, 10, 400),
        ("fp8_block", 256, 256, 256 * 256 + 4 * 4),
        ("fp8_block", 130, 130, 130 * 130 + 4 * 4),
        ("mxfp4", 8, 64, 8 * 64 // 2 + 8 * 2),
        ("nvfp4", 8, 64, 8 * 64 // 2 + 8 * 4 + 8),
        ("int8", 8, 64, 8 * 64 + 8 * 4),
    ],
)
def test_quantised_weights_count_their_scales(fmt: str, rows: int, columns: int, expected: int) -> None:
    assert weight_bytes(fmt, rows, columns) == expected


def test_formats_are_sane() -> None:
    for name, fmt in FORMATS.items():
        assert fmt.ggml or fmt.bits in (4, 8, 16, 32)
        assert element_bytes(name) == (fmt.bits_per_weight if fmt.ggml else fmt.bits) / 8
        assert fmt.bits <= weight_bytes(name, 1024, 1024) * 8 / 2**20 <= fmt.bits + 1
        assert weight_bytes(name, 4096, 4096) * 8 / 2**24 == pytest.approx(fmt.bits_per_weight, abs=0.01)


@pytest.mark.parametrize(
    ("name", "elements", "block_bytes"),
    # static_assert lines of llama.cpp's ggml-common.h
    [
        ("q4_0", 32, 2 + 16),
        ("q4_1", 32, 2 * 2 + 16),
        ("q5_0", 32, 2 + 4 + 16),
        ("q5_1", 32, 2 * 2 + 4 + 16),
        ("q8_0", 32, 2 + 32),
        ("q2_k", 256, 2 * 2 + 16 + 64),
        ("q3_k", 256, 2 + 64 + 32 + 12),
        ("q4_k", 256, 2 * 2 + 12 + 128),
        ("q5_k", 256, 2 * 2 + 12 + 128 + 32),
        ("q6_k", 256, 2 + 16 + 192),
        ("iq1_s", 256, 2 + 32 + 16),
        ("iq1_m", 256, 32 + 16 + 8),
        ("iq2_xxs", 256, 2 + 2 * 32),
        ("iq2_xs", 256, 2 + 2 * 32 + 8),
        ("iq2_s", 256, 2 + 64 + 16),
        ("iq3_xxs", 256, 2 + 3 * 32),
        ("iq3_s", 256, 2 + 13 * 8 + 4),
        ("iq4_nl", 32, 2 + 16),
        ("iq4_xs", 256, 2 + 2 + 4 + 128),
    ],
)
def test_ggml_blocks(name: str, elements: int, block_bytes: int) -> None:
    assert weight_bytes(name, 3, 8 * elements) == 24 * block_bytes
    assert FORMATS[name].bits_per_weight == 8 * block_bytes / elements
