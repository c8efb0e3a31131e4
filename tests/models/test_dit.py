"""Diffusion Transformers: parameters, FLOPs and kept bytes equal torch's; published sizes."""

from __future__ import annotations

import pytest

from tests import oracle_more as oracle
from tfsim.models import load_model
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.huggingface import spec_from_config

ZOO = ("dit-s-2", "dit-b-2", "dit-l-2", "dit-xl-2", "dit-xl-4", "dit-xl-8")
SIZES = {"s": (384, 12, 6), "b": (768, 12, 12), "l": (1024, 24, 16), "xl": (1152, 28, 16)}


def run(row: dict[str, str], key: str, **options: str) -> Counts:
    return count(
        oracle.spec(row[key], row.get("layers", "")),
        batch=oracle.number(row["batch"]),
        seq_len=oracle.number(row["seq_enc"]),
        attention="fused" if oracle.number(row["sdpa"]) else "eager",
        **options,  # type: ignore[arg-type]
    )


def test_parameters_are_equal() -> None:
    rows = oracle.rows("params", "dit")
    assert len(rows) == 4
    assert [oracle.unequal_parameters(row, parameters(oracle.spec(row["name"]))) for row in rows] == [{}] * 4


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str) -> None:
    held = load_model(name)
    size, patch = name.removeprefix("dit-").split("-")
    hidden, layers, heads = SIZES[size]
    config = {"model_type": "dit", "hidden_size": hidden, "num_layers": layers, "num_heads": heads}
    made = spec_from_config({**config, "patch_size": int(patch)}, name=name)
    assert held.model_copy(update={"source": "", "note": "", "dtype": "bf16"}) == made.model_copy(update={"note": ""})


@pytest.mark.parametrize(
    ("name", "params", "gmacs"),
    [("s-2", 33e6, 6.06), ("b-2", 130e6, 23.01), ("l-2", 458e6, 80.71), ("xl-2", 675e6, 118.64), ("xl-8", None, 7.39)],
)
def test_published_sizes(name: str, params: float | None, gmacs: float) -> None:
    """Peebles and Xie 2023, tables 1 and 4; their Gflops are multiply-accumulates."""
    model = load_model(f"dit-{name}")
    if params:
        assert parameters(model).total == pytest.approx(params, rel=0.005)
    assert count(model).flops / 2e9 == pytest.approx(gmacs, rel=0.005)


def test_flops_of_facebookresearch() -> None:
    """DiT-S/2 of facebookresearch/DiT under torch's flop counter, at 256 pixels; XL/2 at 512 (README: 525)."""
    assert count(load_model("dit-s-2")).flops == 12_111_347_712
    assert count(load_model("dit-xl-2"), image_size=64).flops / 2e9 == pytest.approx(525, rel=0.002)


def test_flops_are_equal() -> None:
    """Backward is short of twice the forward where the input is data: patches, and the timestep's sines."""
    rows = [(row, "variant") for row in oracle.rows("flops", "dit")]
    rows += [(row, "name") for row in oracle.rows("flops_fullsize", "dit")]
    assert len(rows) == 19
    unequal = [oracle.unequal_flops(row, run(row, key, phase=oracle.PHASES[row["mode"]])) for row, key in rows]
    assert unequal == [{}] * 19


def test_saved_bytes_are_equal() -> None:
    rows = oracle.rows("activations", "dit")
    assert len(rows) == 16
    for row in rows:
        got = count(
            oracle.spec(row["variant"], row["layers"]),
            batch=oracle.number(row["batch"]),
            dtype=row["precision"],
            attention="fused" if row["attn_impl"] == "sdpa" else "eager",
            recompute="full" if row["checkpoint"] == "per_layer" else "none",
        )
        expected = [float(row[f"saved_act_bytes{part}"]) for part in ("", "_per_layer", "_fixed")]
        assert [got.saved_bytes, got.saved_bytes_per_layer, got.saved_bytes_fixed] == expected


def test_the_condition_costs_no_more_for_a_larger_image() -> None:
    small, large = (count(load_model("dit-xl-2"), image_size=side) for side in (32, 64))
    assert large.flops_by_component["adaln"] == small.flops_by_component["adaln"]
    assert large.flops_by_component["attn_core"] == 16 * small.flops_by_component["attn_core"]  # 4 times the patches
    assert large.flops_by_component["ffn"] == 4 * small.flops_by_component["ffn"]


def test_fused_kernels_keep_less() -> None:
    eager = count(load_model("dit-xl-2"), batch=8, style="eager").saved_bytes_per_layer
    assert count(load_model("dit-xl-2"), batch=8, style="fused").saved_bytes_per_layer < eager


def test_a_modulated_block_needs_a_condition() -> None:
    spec = load_model("dit-s-2")
    with pytest.raises(ValueError, match="the model has no condition"):
        type(spec).model_validate({**spec.model_dump(by_alias=True), "condition": None})
