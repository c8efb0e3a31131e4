"""The tables of scans, pointwise operations and layers: rows to formulas, without the measured time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tfsim.hardware import load_device
from tfsim.timing.machine import machine
from tfsim.timing.matmul import MatmulConstants
from tfsim.timing.memory import MemoryConstants
from tfsim.timing.systolic import SystolicConstants
from tfsim.validation.operators.layers import LAYERS, MODELS
from tfsim.validation.operators.pointwise import POINTWISE
from tfsim.validation.operators.run import predict, table_of
from tfsim.validation.operators.scans import SCANS
from tfsim.validation.operators.table import Table, visible


def layers(device: str, model: str, *rows: tuple[str, int, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["layer", "tp", "tokens"])
    empty = dict.fromkeys(("batch", "q_len", "kv_len"), np.nan)
    return frame.assign(source="llmservingsim", device=device, timing="kernel", model=model, time_s=1e-3, **empty)


def part(table: Table, kind: str) -> object:
    return next(p for p in table.parts if p.kind == kind)


def test_names_stand_for_dimensions() -> None:
    rows = LAYERS.prepare(
        layers(
            "h100-sxm-80gb", "Llama-3.1-8B", ("q_proj", 2, 7), ("down_proj", 1, 7), ("rope", 1, 7), ("lm_head", 1, 7)
        )
    )
    assert rows["n"].tolist()[:2] == [2048, 4096] and rows["k"].tolist()[:2] == [4096, 14336]
    assert rows.loc[2, "cols"] == 5120 and rows.loc[3, "n"] == 128256
    assert set(rows["style"]) == {"eager"}
    fused = LAYERS.prepare(layers("rtx-4090", "Llama-3.1-8B", ("qkv_proj", 1, 7), ("act_fn", 1, 7)))
    assert set(fused["style"]) == {"fused"} and fused.loc[0, "n"] == 6144


def test_experts_were_measured_whole() -> None:
    rows = LAYERS.prepare(layers("h100-sxm-80gb", "Mixtral-8x7B-v0.1", ("expert.w1", 1, 8), ("expert.w1", 4, 8)))
    assert rows["n"].tolist() == [14336, 14336]


@pytest.mark.parametrize("model", MODELS)
def test_every_layer_of_every_model_has_a_formula(model: str) -> None:
    names = ("embedding", "q_proj", "o_proj", "final_layernorm", "rope", "lm_head", "act_fn")
    rows = LAYERS.prepare(layers("h100-sxm-80gb", model, *((name, 1, 64) for name in names)))
    assert (rows["op"] != "").all()
    sizes = np.where(rows["op"] == "product", rows["m"] * rows["n"] * rows["k"], rows["rows"] * rows["cols"])
    assert np.isfinite(sizes).all() and (sizes > 0).all()


def test_faults_are_the_named_ones() -> None:
    tpu = layers("tpu-v6e", "Llama-3.1-8B", ("q_proj", 1, 63), ("q_proj", 1, 65))
    assert LAYERS.faults(tpu, load_device("tpu-v6e")).tolist() == ["TPU rows below 64 tokens jump by 2x", ""]
    fast = layers("rtx-3090", "Llama-3.1-8B", ("q_proj", 1, 2048)).assign(time_s=1e-6)
    assert LAYERS.faults(fast, load_device("rtx-3090")).tolist() == ["above the device's peak rate"]


def test_a_tpu_fits_on_even_rows() -> None:
    rows = layers("tpu-v6e", "Llama-3.1-8B", ("q_proj", 1, 64), ("q_proj", 1, 65))
    for kind in ("systolic", "on_chip"):
        assert part(LAYERS, kind).fit_rows(rows).tolist() == [True, False]  # type: ignore[attr-defined]


POINTWISE_ROWS = pd.DataFrame(
    [
        ("vidur", "a100-sxm-80gb", "kernel", op, "float16", 4096, 8192, 1.0, "m", 1e-4)
        for op in ("add", "emb", "mlp_act")
    ],
    columns=["source", "device", "timing", "op", "dtype", "rows", "cols", "gated", "model", "time_s"],
)


def test_predictions_ignore_the_measured_time_and_the_source() -> None:
    first = predict(POINTWISE, POINTWISE_ROWS)
    other = predict(POINTWISE, POINTWISE_ROWS.assign(time_s=7.0, source="other", model="x"))
    assert (first["skipped"] == "").all()
    assert first["predicted"].tolist() == other["predicted"].tolist()
    assert (first["predicted"] > first["baseline"]).all()
    assert set(first["constants"]) == {"published figures"}


def test_sections_are_recognised_by_their_columns() -> None:
    assert table_of(POINTWISE_ROWS) is POINTWISE
    assert table_of(layers("tpu-v6e", "Llama-3.1-8B", ("q_proj", 1, 64))) is LAYERS


def test_scan_kernels_by_name() -> None:
    base = dict.fromkeys(("nheads", "head_dim", "n_groups", "d_state", "chunk_size"), np.nan) | {
        "num_k_heads": 16.0, "head_k_dim": 128.0, "num_v_heads": 32.0, "head_v_dim": 128.0,
        "device": "h100-sxm-80gb", "timing": "graph", "kind": "gdn", "batch_size": 4, "seq_len": 256, "d_conv": 4,
        "time_s": 1e-5,
    }  # fmt: skip
    kernels = ("causal_conv1d_fn", "causal_conv1d_update", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
    rows = pd.DataFrame([base | {"kernel": name} for name in kernels])
    assert table_of(rows) is SCANS
    found = [index for p in SCANS.parts for index, variant in p.variant(rows).items() if variant]
    assert sorted(found) == [0, 1, 2, 3]  # type: ignore[type-var]
    h100 = machine(load_device("h100-sxm-80gb"))
    for p in SCANS.parts:
        for variant, chosen in rows.groupby(p.variant(rows)):
            if variant:
                seconds = p.seconds(visible(chosen), h100, p.constants(), str(variant))
                assert (seconds >= p.roofline(visible(chosen), h100, str(variant))).all()


def test_layer_formulas_run_with_the_constants_of_their_class() -> None:
    h100, v6e = machine(load_device("h100-sxm-80gb")), machine(load_device("tpu-v6e"))
    rows = LAYERS.prepare(layers("h100-sxm-80gb", "Llama-3.1-8B", ("q_proj", 1, 64), ("o_proj", 1, 64)))
    gpu = part(LAYERS, "matmul").seconds(visible(rows), h100, MatmulConstants(), "bfloat16")  # type: ignore[attr-defined]
    assert (gpu > 0).all()
    rows = LAYERS.prepare(layers("tpu-v6e", "Llama-3.1-8B", ("q_proj", 1, 64), ("o_proj", 1, 64)))
    tpu = part(LAYERS, "systolic").seconds(visible(rows), v6e, SystolicConstants(), "bfloat16")  # type: ignore[attr-defined]
    assert tpu[1] < tpu[0]  # o_proj's weights are there already
    assert MemoryConstants().memory < 1
