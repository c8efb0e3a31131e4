"""Precision policies: what runs in which format, and at which rate."""

from __future__ import annotations

import pytest

from tfsim.hardware import load_system
from tfsim.models import load_model
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape
from tfsim.operators.backward import backward
from tfsim.operators.core import Operator, Style
from tfsim.software import PRECISIONS, precision
from tfsim.training import train
from tfsim.training.layers import compute_spec


def step(name: str, model: str = "mixtral-8x7b") -> list[Operator]:
    policy = precision(name)
    style = Style(policy.compute, "fused", "fused")
    parts = segments(compute_spec(load_model(model), policy), Shape(1, 128, style=style), loss=True)
    forward = [op for part in parts for op in part.operators]
    return forward + backward(forward, style)


def test_fp8_is_transformer_engines_recipe() -> None:
    """Forward and both gradients of the blocks' matrices in fp8; all else bf16 (E5M2 gradients: the same rate)."""
    rates = {(op.name.split(".")[0], op.rate) for op in step("fp8") if op.flops}
    narrow = {name for name, rate in rates if rate == "fp8"}
    assert narrow == {"q_proj", "k_proj", "v_proj", "o_proj", "experts_up", "experts_down"}
    assert {name for name, rate in rates if rate != "fp8"} == {"attention", "router", "head"}
    assert {rate for name, rate in rates if name not in narrow} == {"bf16"}
    wide = [w for op in step("fp8") for w in op.weights if w.group in ("norm", "moe_router", "head", "embed_token")]
    assert wide and all(w.fmt == "bf16" for w in wide)
    policy = precision("fp8")
    assert (policy.weights, policy.gradients, policy.master, policy.moments) == (2, 4, 4, 8)


@pytest.mark.parametrize(("name", "rate"), [("fp32", "fp32"), ("tf32", "tf32"), ("bf16", "bf16"), ("fp16", "fp16")])
def test_every_product_runs_at_the_policys_rate(name: str, rate: str) -> None:
    assert {op.rate for op in step(name) if op.flops} == {rate}


def test_rates_show_in_time() -> None:
    """A100: 312 TFLOP/s in bf16, 156 in tf32, 19.5 in fp32 (no fp32 matrix unit); bytes of tf32 are fp32's."""
    system = load_system("dgx-a100")
    seconds = {
        name: train(
            load_model("llama-3.2-1b"), system, devices=8, seq_len=2048, global_batch=64, plan={}, precision=name
        )
        for name in ("bf16", "tf32", "fp32")
    }
    assert seconds["bf16"].step_time_s < seconds["tf32"].step_time_s < seconds["fp32"].step_time_s
    assert seconds["fp32"].step_time_s > 4 * seconds["tf32"].step_time_s
    assert seconds["tf32"].memory_bytes == seconds["fp32"].memory_bytes


def test_every_policy_says_what_it_is() -> None:
    assert all(policy.about for policy in PRECISIONS.values())
