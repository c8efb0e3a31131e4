"""How the attention tables are read: conventions of their rows, and nothing that a predictor must not see."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tfsim.validation.operators.run import predict
from tfsim.validation.operators.tables import TABLES

ROW = {
    "source": "x", "device": "h100-sxm-80gb", "timing": "graph", "phase": "prefill", "dtype": "bfloat16",
    "kv_dtype": "bfloat16", "head_dim": 128, "n_heads": 32, "n_kv_heads": 8, "window": 0, "causal": 1, "batch": 2,
    "q_len": 512, "kv_len": 512, "time_s": 1e-4,
}  # fmt: skip


def rows(*changes: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame([{**ROW, **change} for change in changes])


def test_variants_name_the_kernel() -> None:
    found = predict(
        TABLES["attention"],
        rows(
            {},
            {"dtype": "fp8", "kv_dtype": "fp8"},
            {"kv_dtype": "fp8"},
            {"phase": "encoder", "causal": 0},
            {"phase": "encoder", "causal": 0, "head_dim": 72},
            {"phase": "decode", "q_len": 1},
            {"phase": "decode", "q_len": 1, "n_heads": 64, "n_kv_heads": 1, "kv_dtype": "fp8"},
            {"phase": "decode", "q_len": 1, "timing": "kernel"},
            {"phase": "decode", "q_len": 1, "timing": "kernel", "device": "tpu-v6e", "batch": 65},
        ),
    )
    assert list(found["variant"]) == [
        "bf16", "fp8", "bf16-fp8kv", "encoder", "encoder-unaligned", "bf16", "fp8-heads", "flash2", "tpu-odd",
    ]  # fmt: skip
    assert list(found["part"])[5:8] == ["decode_attention", "decode_attention", "prefill_attention"]
    assert (found["skipped"] == "").all() and (found["predicted"] > 0).all()


def test_a_users_device_is_fitted_on_the_kernels_that_its_estimates_take() -> None:
    """Ampere's stand under "flash2", whatever the cache's format (``attention_kernels.flash``); Ada has its own."""
    found = predict(
        TABLES["attention"],
        rows({"device": "a40"}, {"device": "a40", "kv_dtype": "fp8"}, {"device": "rtx-4090"}, {"device": "l40s"}),
    )
    assert list(found["variant"]) == ["flash2", "flash2", "bf16", "bf16"]
    assert found["predicted"][1] < found["predicted"][0]  # half the bytes of keys and values


def test_a_tpu_prefill_is_met() -> None:
    """Llama-3.1 8B on one v6e, 704 tokens after 1,024 (LLMServingSim's profile, MIT)."""
    row = {"device": "tpu-v6e", "timing": "kernel", "batch": 1, "q_len": 704, "kv_len": 1024, "time_s": 3.39e-4}
    found = predict(TABLES["attention"], rows(row))
    assert found["skipped"][0] == "" and found["predicted"][0] == pytest.approx(3.39e-4, rel=0.05)


def test_formats_that_no_kernel_has_are_skipped() -> None:
    decode = {"phase": "decode", "q_len": 1}
    found = predict(
        TABLES["attention"],
        rows({"dtype": "fp7"}, {"kv_dtype": "int8"}, {**decode, "kv_dtype": "fp7"}, {"dtype": "fp16"}),
    )
    assert list(found["skipped"]) == ["no formula for this kind of row"] * 3 + [""]


def test_predictions_do_not_depend_on_time_or_source() -> None:
    frame = rows({}, {"phase": "decode", "q_len": 1, "batch": 64, "kv_len": 4096})
    changed = frame.assign(time_s=1.0, source="someone else")
    table = TABLES["attention"]
    assert np.array_equal(predict(table, frame)["predicted"], predict(table, changed)["predicted"])


def test_a_profiled_gpu_decode_counts_the_keys_of_all_sequences() -> None:
    one = {"phase": "decode", "q_len": 1, "timing": "kernel"}
    found = predict(
        TABLES["attention"], rows({**one, "batch": 1, "kv_len": 2000}, {**one, "batch": 4, "kv_len": 8000})
    )["predicted"]
    assert found[0] <= found[1] < 2 * found[0]  # four sequences of as many keys run beside each other, not four times


def test_named_faults_are_excluded() -> None:
    found = predict(
        TABLES["attention"],
        rows(
            {"head_dim": 256, "n_heads": 96, "batch": 16, "q_len": 6144, "kv_len": 6144},
            {"head_dim": 256, "n_heads": 96, "batch": 16, "q_len": 6144, "kv_len": 6144, "dtype": "fp8"},
            {"device": "tpu-v6e", "timing": "kernel", "batch": 1, "q_len": 32},
            {"device": "tpu-v6e", "timing": "kernel", "batch": 1, "q_len": 96},
        ),
    )
    assert list(found["skipped"]) == ["implies more than the peak", "", "TPU below 64 tokens", ""]


def test_latent_and_mixed_rows() -> None:
    latent = {
        "source": "x", "device": "h100-sxm-80gb", "timing": "graph", "phase": "decode", "dtype": "bfloat16",
        "kv_dtype": "fp8", "n_heads": 128, "batch": 64, "q_len": 1, "kv_len": 8192, "tp": 1, "kv_lora_rank": 512,
        "time_s": 1e-3,
    }  # fmt: skip
    found = predict(TABLES["mla"], pd.DataFrame([latent, {**latent, "phase": "prefill", "q_len": 8192}]))
    assert list(found["variant"]) == ["fp8", "fp8"] and (found["predicted"] > found["baseline"]).all()
    step = {
        "source": "x", "device": "rtx-4090", "timing": "kernel", "model": "Llama-3.1-8B", "tp": 1, "prefill_chunk": 512,
        "kv_prefill": 1024, "n_decode": 16, "kv_decode": 2048, "time_s": 1e-3,
    }  # fmt: skip
    mixed = predict(
        TABLES["attention_mixed"],
        pd.DataFrame([step, {**step, "prefill_chunk": 0}, {**step, "n_decode": 0}, {**step, "model": "unknown"}]),
    )
    both, decodes, prefill, unknown = mixed["predicted"]
    assert decodes < both and prefill < both
    assert np.isnan(unknown) and mixed["skipped"][3] == "a size the formula needs is missing"


def test_decodes_alone_read_the_keys_of_a_group_once() -> None:
    """Llama-3.1 8B on RTX 4090, vLLM 0.19: 64 sequences of 4,096 keys took 1.185 ms, the bytes of the cache 1.065 ms; a
    query head that reads keys for itself would take four times as long."""
    step = {
        "source": "x", "device": "rtx-4090", "timing": "kernel", "model": "Llama-3.1-8B", "tp": 1, "prefill_chunk": 0,
        "kv_prefill": 0, "n_decode": 64, "kv_decode": 4096, "time_s": 1.185e-3,
    }  # fmt: skip
    found = predict(TABLES["attention_mixed"], pd.DataFrame([step, {**step, "prefill_chunk": 1, "kv_prefill": 4095}]))
    assert list(found["variant"]) == ["bf16", "flash2"]
    assert found["predicted"][0] == pytest.approx(1.185e-3, rel=0.25)
