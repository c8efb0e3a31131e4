"""A layer of experts takes, kernel by kernel, what the fused layers of engines were measured to take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfsim.hardware import load_system
from tfsim.models import load_model
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape
from tfsim.operators.backward import backward
from tfsim.operators.core import Operator, Style
from tfsim.serving.workload import served
from tfsim.software import software
from tfsim.timing import Groups, operator_time
from tfsim.timing.constants import constants
from tfsim.timing.kernels import timer
from tfsim.timing.machine import machine
from tfsim.timing.moe import KERNELS, MoEConstants, even_load, moe_seconds

GRAPH = software("graph")
CHAIN = {
    "router.score", "router.softmax", "router.choose", "moe.permute", "experts_up", "experts_gate", "experts_act",
    "experts_down", "moe.combine",
}  # fmt: skip


def chain(model: str, weights: str | None = None, *, pointwise: Any = "fused", **shape: Any) -> list[Operator]:
    given = {"batch": 1, "seq_len": 2048, "causal": "halved", "style": Style("bf16", pointwise), **shape}
    parts = segments(served(load_model(model), "bf16", weights, "bf16"), Shape(**given))
    layer = next(part for part in reversed(parts) if any(op.name == "experts_up" for op in part.operators))
    return [op for op in layer.operators if op.name in CHAIN]


@pytest.mark.parametrize(
    ("model", "weights", "system", "variant", "sizes"),
    [
        # hidden, width, experts, top_k, bytes of a weight and of an activation that a product reads, gated
        ("qwen3-30b-a3b", "bf16", "dgx-h100", "bfloat16", (2048, 768, 128, 8, 2, 2, True)),
        ("qwen3-30b-a3b", "fp8_block", "dgx-h100", "fp8_block", (2048, 768, 128, 8, None, 1, True)),
        ("mixtral-8x7b", "bf16", "l40s-8x", "bfloat16", (4096, 14336, 8, 2, 2, 2, True)),
        ("gpt-oss-20b", None, "dgx-h100", "w4a16_mxfp4", (2880, 2880, 32, 4, None, 2, True)),
        ("nemotron-3-nano-30b-a3b", "bf16", "dgx-b200", "bfloat16", (2688, 1856, 128, 6, 2, 2, False)),
    ],
)
@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_the_kernels_of_a_layer_sum_to_the_fused_layer(
    model: str, weights: str | None, system: str, variant: str, sizes: tuple[Any, ...], tokens: int
) -> None:
    on = load_system(system).device
    ops = chain(model, weights, seq_len=tokens)
    hidden, width, experts, top_k, stored, act, gated = sizes
    up = next(op for op in ops if op.name == "experts_up")
    each = stored or up.weights[0].bytes / up.weights[0].elements
    copies = tokens * top_k
    expected = moe_seconds(
        tokens, experts, even_load(copies, experts * (1 - (1 - top_k / experts) ** tokens)), hidden, width,
        machine(on), constants("moe", MoEConstants, on, variant).values,
        dtype=up.rate, weight_bytes=each, input_bytes=act, gated=gated, blocks=variant == "fp8_block",
    )  # fmt: skip
    times = [timer(on).time(op, GRAPH) for op in ops]
    assert len(ops) == KERNELS
    assert sum(float(t.seconds + t.launch) for t in times) == pytest.approx(float(expected), rel=1e-6)


def test_unfused_layers_stay_operations_of_their_own() -> None:
    kinds = {op.kind for op in chain("qwen3-30b-a3b", pointwise="eager")}
    assert kinds <= {"softmax", "pointwise", "grouped_matmul"}


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-b200", "l40s-8x", "dgx-a100", "mi300x-8x"])
@pytest.mark.parametrize("weights", ["bf16", "fp8", "fp8_block"])
def test_a_layer_is_never_faster_than_its_bytes_and_more_bandwidth_never_slower(system: str, weights: str) -> None:
    on = load_system(system)
    faster = on.with_overrides({"device.memory.bandwidth": "20 TB/s"})
    for tokens in (16, 16384):
        ops = chain("qwen3-30b-a3b", weights, seq_len=tokens)
        ops += backward(ops, Style("bf16", "fused"))
        for op in ops:
            seconds = operator_time(op, on, GRAPH, Groups()).seconds
            narrow = op.output.elements if op.dims.get("feeds") and weights != "bf16" else 0
            least = (op.bytes_moved - narrow) / on.device.require("bandwidth")
            assert seconds >= (least if op.bytes_moved > 2 * machine(on.device).cache else least / 8), op.name
            assert operator_time(op, faster, GRAPH, Groups()).seconds <= seconds * (1 + 1e-9), op.name


def test_arrays_of_tokens_equal_each_alone() -> None:
    on = load_system("dgx-h100")
    many = chain("qwen3-30b-a3b", seq_len=np.array([1.0, 100, 8192]))
    for i, tokens in enumerate((1, 100, 8192)):
        for one, row in zip(chain("qwen3-30b-a3b", seq_len=tokens), many, strict=True):
            together = np.broadcast_to(operator_time(row, on, GRAPH, Groups()).seconds, 3)[i]
            assert together == pytest.approx(operator_time(one, on, GRAPH, Groups()).seconds, rel=1e-9)
