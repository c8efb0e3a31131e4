"""The tables of mixtures: loads as the measurements routed them, rows read into formulas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tfsim.hardware import load_device
from tfsim.timing.expert_alltoall import ExchangeConstants
from tfsim.timing.machine import machine
from tfsim.timing.moe import MoEConstants
from tfsim.validation.operators.expert_alltoall import EXPERT_ALLTOALL
from tfsim.validation.operators.moe import GROUPED, MOE, loads
from tfsim.validation.operators.run import predict, table_of
from tfsim.validation.operators.table import visible

FUSED = {
    "device": "h100-sxm-80gb",
    "timing": "graph",
    "part": "fused",
    "dtype": "bfloat16",
    "kernel": "moe_torch_flow_cutlass",
    "gated": 1,
    "tokens": 64,
    "hidden": 4096,
    "inter": 1536,
    "topk": 8,
    "experts": 128,
    "moe_tp": 1,
    "moe_ep": 1,
    "distribution": "balanced",
    "phase": np.nan,
    "num_local_experts": np.nan,
    "tokens_per_expert": np.nan,
    "time_s": 1.0,
}
EXCHANGE = {
    "device": "h100-sxm-80gb",
    "timing": "kernel",
    "op": "dispatch",
    "kind": "normal",
    "nodes": 1,
    "hidden": 7168,
    "tokens_per_gpu": 4096,
    "topk": 8,
    "experts": 256,
    "sms": 20.0,
    "time_s": 4.9e-4,
}


def frame(base: dict[str, object], *changes: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame([{**base, **change} for change in changes or ({},)])


@pytest.mark.parametrize("distribution", ["balanced", "power_law_1.01", "power_law_1.2"])
@pytest.mark.parametrize("tokens", [1, 16, 100, 4096])
def test_one_rank_holds_every_token_copy(distribution: str, tokens: int) -> None:
    load = loads(frame(FUSED, {"distribution": distribution, "tokens": tokens}))
    assert load.copies[0] == pytest.approx(tokens * 8, rel=0.01)
    assert load.touched[0] <= min(128, tokens * 8) * (1 + 1e-9)


def test_skew_loads_the_fullest_rank_and_leaves_experts_idle() -> None:
    even, skewed = (
        loads(frame(FUSED, {"distribution": x, "moe_ep": 16, "tokens": 256})) for x in ("balanced", "power_law_1.2")
    )
    assert skewed.copies[0] > 1.5 * even.copies[0]
    assert skewed.rows[0].max() > 3 * even.rows[0].max()
    small = loads(frame(FUSED, {"distribution": "power_law_1.2", "tokens": 64}))
    assert small.touched[0] < 128


def test_columns_tell_the_table() -> None:
    assert table_of(frame(FUSED)) is MOE
    assert table_of(frame(EXCHANGE)) is EXPERT_ALLTOALL


def test_rows_go_to_the_formula_of_their_kind() -> None:
    product = {"part": "up", "kernel": "grouped_gemm", "dtype": "fp8_block_kernel", "phase": "decode"}
    local = {"num_local_experts": 8, "tokens_per_expert": 32}
    rows = frame(FUSED, {}, {**product, **local}, {"part": "else"})
    fused, product = (part.variant(visible(rows)) for part in MOE.parts)
    assert list(fused) == ["bfloat16", "", ""]
    assert list(product) == ["", "fp8_block_kernel", ""]
    assert MOE.parts[1].borrow("fp8_block_kernel") == "fp8_block"


def test_a_share_of_the_experts_or_of_their_width_takes_less_time() -> None:
    on, part = machine(load_device("h100-sxm-80gb")), MOE.parts[0]
    changes: list[dict[str, object]] = [{"moe_tp": tp, "moe_ep": ep} for tp, ep in ((1, 1), (4, 1), (1, 4), (4, 4))]
    rows = frame(FUSED, *changes)
    whole, cut, spread, both = part.seconds(visible(rows), on, MoEConstants(), "bfloat16")
    assert both < min(cut, spread) < max(cut, spread) < 0.5 * whole


def test_grouped_products_are_read_per_rank() -> None:
    on, part = machine(load_device("h20-96gb")), MOE.parts[1]
    # 128 experts of 4096 x 1536, one matrix: bytes of the weights alone
    row = frame(
        FUSED,
        {
            "part": "down", "phase": "prefill", "num_local_experts": 128.0, "tokens_per_expert": 64.0,
            "device": "h20-96gb", "kernel": "grouped_gemm", "dtype": "fp8_block_kernel", "tokens": 1024,
        },
    )  # fmt: skip
    (time,) = part.seconds(visible(row), on, MoEConstants(), "fp8_block_kernel")
    padded = 2 * 128 * 128 * 4096 * 1536 / float(on.peak("fp8"))  # 64 rows are padded to 128
    assert padded < time < 3 * padded


def test_the_exchange_takes_the_links_of_its_device() -> None:
    part = EXPERT_ALLTOALL.parts[0]
    rows = frame(EXCHANGE, {}, {"sms": 4.0}, {"nodes": 4}, {"kind": "ll", "sms": np.nan})
    variants = part.variant(visible(rows))
    assert list(variants) == ["normal_dispatch", "normal_dispatch", "normal_dispatch", "ll_dispatch"]
    on = machine(load_device("h100-sxm-80gb"))
    times = part.seconds(visible(rows[:3]), on, ExchangeConstants(), "normal_dispatch")
    assert times[0] < times[1] and times[0] < times[2]
    (low,) = part.seconds(visible(rows[3:]), on, ExchangeConstants(), "ll_dispatch")
    assert np.isfinite(low)


def test_groups_of_the_gemm_table_are_products_of_experts() -> None:
    rows = pd.DataFrame({"dtype": "fp8_block_kernel", "groups": [1, 4, 8], "m": [4096] * 3, "n": 7168.0, "k": 2048.0})
    assert list(GROUPED.variant(rows)) == ["", "fp8_block_kernel", "fp8_block_kernel"]
    on = machine(load_device("h800-sxm-80gb"))
    four, eight = GROUPED.seconds(rows[1:], on, MoEConstants(), "fp8_block_kernel")
    assert 1.8 * four < eight < 2.2 * four
    assert (GROUPED.roofline(rows[1:], on, "fp8_block_kernel") < [four, eight]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"distribution": "uniform"}, {"distribution": np.nan}, {"dtype": "fp7"}, {"experts": 0}, {"experts": np.nan},
        {"experts": 1e30}, {"experts": 4}, {"moe_ep": 0}, {"moe_ep": 0.5}, {"moe_tp": np.nan}, {"tokens": -1},
        {"part": "up", "phase": "decode"}, {"part": "down", "phase": "other", "num_local_experts": 8},
    ],
)  # fmt: skip
def test_rows_that_describe_no_layer_are_skipped(wrong: dict[str, object]) -> None:
    found = predict(MOE, pd.DataFrame([FUSED, {**FUSED, **wrong}]))
    reasons = ("no formula for this kind of row", "a size is below 0 or infinite")
    assert found["skipped"][0] == "" and found["skipped"][1] in reasons
