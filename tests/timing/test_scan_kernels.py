"""Scans, recurrences and convolutions of models take the formulas that kernels of their kind were measured for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfsim.hardware import System, load_system
from tfsim.models import load_model
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape
from tfsim.operators.backward import backward
from tfsim.operators.core import Operator, Style
from tfsim.software import software
from tfsim.timing import Groups, operator_time
from tfsim.timing.constants import constants
from tfsim.timing.fourier import convolution_seconds, factors
from tfsim.timing.machine import machine
from tfsim.timing.memory import PUBLISHED
from tfsim.timing.scans import (
    ChunkedConstants,
    RaggedConstants,
    StreamConstants,
    UpdateConstants,
    chunked_delta_seconds,
    conv1d_seconds,
    conv1d_update_seconds,
    selective_scan_seconds,
    state_space_dual_seconds,
)

H100 = load_system("dgx-h100")
FACTS = machine(H100.device)
KINDS = {
    "selective_scan", "state_space_dual", "linear_attention", "delta_rule", "conv", "state_step", "fourier_convolution",
}  # fmt: skip
MODELS = ("mamba-2.8b", "mamba2-2.7b", "qwen3-next-80b-a3b", "minimax-text-01", "s4-wikitext103")
GRAPH = software("graph")


def operators(model: str, *, pointwise: Any = "fused", **shape: Any) -> list[Operator]:
    """Scans and the like, forward and (but in decode) backward, by the kind of their mixer."""
    style = Style("bf16", pointwise)
    given: dict[str, Any] = {"batch": 2, "seq_len": 4096, "causal": "halved", "style": style, **shape}
    parts = segments(load_model(model), Shape(**given))
    found = [op for part in parts for op in part.operators if op.kind in KINDS or op.kind == "scan"]
    return found if given.get("phase") == "decode" else [*found, *backward(found, style)]


def decode(model: str, **shape: Any) -> list[Operator]:
    return operators(model, phase="decode", seq_len=1, past_len=2048, **shape)


def pick(ops: list[Operator], name: str) -> Operator:
    return next(op for op in ops if op.name == name)


def seconds(op: Operator, system: System = H100) -> Any:
    return operator_time(op, system, GRAPH, Groups()).seconds


def fitted(kind: str, cls: type[Any], variant: str) -> Any:
    return constants(kind, cls, H100.device, variant).values


def test_operators_take_their_measured_formulas() -> None:
    """Sizes from the models' configurations: Mamba-2 2.7B has 80 heads of 64, one group, a state of 128 and chunks of
    256; Qwen3-Next 16 heads of keys for 32 of values, all of 128; both convolve four taps."""
    ragged = fitted("ragged_scan", RaggedConstants, "conv1d")
    dual = fitted("ragged_scan", RaggedConstants, "state_space_dual")
    chunked = fitted("chunked_scan", ChunkedConstants, "chunked_delta")
    expected = {
        ("mamba2-2.7b", "conv1d"): conv1d_seconds(2, 4096, 5376, FACTS, ragged),
        ("mamba2-2.7b", "state_space_dual"): state_space_dual_seconds(2, 4096, 80, 64, 1, 128, 256, FACTS, dual),
        ("mamba-2.8b", "selective_scan"): selective_scan_seconds(2, 4096, 5120, 16, FACTS, ragged),
        ("qwen3-next-80b-a3b", "conv1d"): conv1d_seconds(2, 4096, 8192, FACTS, ragged),
        ("qwen3-next-80b-a3b", "delta_rule"): chunked_delta_seconds(2, 4096, 16, 32, 128, 128, FACTS, chunked),
        ("minimax-text-01", "linear_attention"): state_space_dual_seconds(
            2, 4096, 64, 128, 64, 128, 256, FACTS, dual
        ),
    }  # fmt: skip
    for (model, name), time in expected.items():
        op = pick(operators(model), name)
        # arithmetic inside a pass is slower than alone by the style's sustained fraction, and nothing else is
        least = op.flops / H100.device.matmul_peak("bf16").flop_per_s
        slower = (1 / GRAPH.sustained - 1) * least / H100.device.matmul_efficiency("bf16")
        matrix = name in ("state_space_dual", "delta_rule", "linear_attention")
        assert seconds(op) == pytest.approx(float(time) + matrix * slower, rel=1e-9), (model, name)


def test_backward_passes_follow_the_stated_rules() -> None:
    for model, name, times in (
        ("mamba2-2.7b", "state_space_dual", 3),
        ("mamba-2.8b", "selective_scan", 3),
        ("qwen3-next-80b-a3b", "delta_rule", 3),
        ("qwen3-next-80b-a3b", "conv1d", 2),
    ):
        ops = operators(model)
        assert seconds(pick(ops, f"{name}.backward")) == pytest.approx(times * seconds(pick(ops, name)), rel=0.02)


def test_a_decode_step_streams_its_state_from_memory() -> None:
    """Mamba-2 2.7B: 64 sequences x 80 heads x 64 x 128 fp32 numbers in and out; its window shifts."""
    c = fitted("stream_scan", StreamConstants, "recurrent_delta")
    op = pick(decode("mamba2-2.7b", batch=64), "state_space_dual")
    state = 64 * 80 * 64 * 128 * 4 * 2
    assert op.bytes_moved == pytest.approx(state, rel=0.01)
    assert seconds(op) == pytest.approx(c.launch + op.bytes_moved / (c.memory * FACTS.bandwidth), rel=1e-9)
    update = fitted("update_scan", UpdateConstants, "conv1d_update")
    shift = pick(decode("mamba2-2.7b", batch=64), "conv1d")
    assert seconds(shift) == pytest.approx(float(conv1d_update_seconds(64, 5376, 4, FACTS, update)), rel=1e-9)
    assert shift.read == 64 * 5376 * 4 * 2


def test_a_fused_convolution_applies_its_activation_itself() -> None:
    for model in ("mamba-2.8b", "qwen3-next-80b-a3b"):
        kinds = {
            style: [op for part in segments(load_model(model), Shape(batch=1, seq_len=64, style=Style("bf16", style)))
                    for op in part.operators if op.name.startswith("conv1d")]
            for style in ("eager", "fused")
        }  # fmt: skip
        assert [op.name for op in kinds["fused"]] == ["conv1d"]
        assert [op.name for op in kinds["eager"]] == ["conv1d", "conv1d.silu"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("system", ["dgx-h100", "dgx-b200", "dgx-a100", "t4-1x", "mi300x-8x", "tpu-v5p-pod"])
def test_never_above_the_peak_nor_faster_than_the_bytes(model: str, system: str) -> None:
    on = load_system(system)
    bandwidth, cache = on.device.require("bandwidth"), machine(on.device).cache
    for pointwise in ("fused", "eager"):
        for op in [*operators(model, pointwise=pointwise), *decode(model, pointwise=pointwise, batch=64)]:
            least = op.bytes_moved / (bandwidth if op.bytes_moved > 2 * cache else 8 * bandwidth)
            arithmetic = op.flops / on.device.matmul_peak(op.rate).flop_per_s
            assert seconds(op, on) >= max(least, arithmetic), (op.name, pointwise)


@pytest.mark.parametrize("model", MODELS)
def test_better_hardware_is_never_slower(model: str) -> None:
    ops = [*operators(model), *decode(model, batch=64)]
    for name, better in (("memory.bandwidth", "6 TB/s"), ("cores", 264), ("clock", "2.5 GHz")):
        on = H100.with_overrides({f"device.{name}": better})
        for op in ops:
            assert seconds(op, on) <= seconds(op) * (1 + 1e-9), (op.name, name)


@pytest.mark.parametrize("model", MODELS)
def test_arrays_equal_each_alone(model: str) -> None:
    batch, length = np.array([1.0, 4, 16]), np.array([512.0, 4096, 100])
    together = operators(model, batch=batch, seq_len=length)
    for i in range(3):
        alone = operators(model, batch=int(batch[i]), seq_len=int(length[i]))
        for one, many in zip(alone, together, strict=True):
            assert np.broadcast_to(seconds(many), 3)[i] == pytest.approx(seconds(one), rel=1e-9), one.name


def test_transforms_that_leave_the_chip_pass_once_more_per_factor() -> None:
    assert [float(factors(n)) for n in (1, 8192, 8193, 2**26, 2**26 + 1)] == [1, 1, 2, 2, 3]
    short, long = (convolution_seconds(1e5, n, 1e10, 0, FACTS, PUBLISHED) for n in (8192, 8193))
    again = 1e5 * 8193 * 16 / (PUBLISHED.memory * FACTS.bandwidth)
    assert long - short == pytest.approx(again, rel=0.01)
    flops = 1e13
    assert convolution_seconds(1, 1024, 1e6, flops, FACTS, PUBLISHED) == flops / FACTS.vector["fp32"]
