"""AlphaFold 2's Evoformer: parameters, FLOPs and kept bytes equal OpenFold's blocks run in torch."""

from __future__ import annotations

import pytest

from tests import oracle_more as oracle
from tfsim.errors import InputError
from tfsim.models import load_model
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import RMS_NORM
from tfsim.operators.core import total
from tfsim.units import Number


def run(row: dict[str, str], length: str, **options: str) -> Counts:
    return count(
        oracle.spec(row["variant"], row["layers"]),
        batch=oracle.number(row["batch"]),
        seq_len=oracle.number(row[length]),
        encoder_len=oracle.number(row["seq_enc"]),
        **options,  # type: ignore[arg-type]
    )


def test_published_parameters() -> None:
    """OpenFold's EvoformerStack of AlphaFold 2's size: 87,936,384 (issue 3's oracle instantiated it)."""
    held = load_model("alphafold2-evoformer")
    assert parameters(held).total == 87_936_384
    assert spec_from_config({"model_type": "evoformer"}).blocks == held.blocks
    groups = parameters(held).by_group
    assert {name: value for name, value in groups.items() if value} == {
        "head": 256 * 384 + 384,
        "attn": 39_493_632,
        "ffn_dense": 31_549_440,
        "pair": 16_598_016,
        "norm": 196_608,
    }


def test_flops_are_equal() -> None:
    rows = oracle.rows("flops", "evoformer")
    assert len(rows) == 15
    unequal = [oracle.unequal_flops(row, run(row, "seq_q", phase=oracle.PHASES[row["mode"]])) for row in rows]
    assert unequal == [{}] * 15


def test_saved_bytes_are_equal() -> None:
    """The biased attention runs as the math kernel in torch: for bf16 that casts q, k and v to fp32 and keeps the
    probabilities in fp32 only."""
    rows = oracle.rows("activations", "evoformer")
    assert len(rows) == 20
    for row in rows:
        recompute = "full" if row["checkpoint"] == "per_layer" else "none"
        got = run(row, "seq", dtype=row["precision"], recompute=recompute)
        quirk: Number = 0
        if row["attn_impl"] == "sdpa" and row["precision"] == "bf16" and recompute == "none":
            cores = [op for part, _, op in got.operators if part == "layer" and op.kind == "attention"]
            kept = [t for op in cores for t in op.saves]
            projected = total(t.elements for t in kept if t.name.endswith((".q", ".k", ".v")))
            scores = total(t.elements for t in kept if t.name.endswith("probabilities"))
            quirk = 2 * projected - 2 * scores
            assert abs(float(quirk)) < 0.014 * float(got.saved_bytes_per_layer)
        assert got.saved_bytes_per_layer + quirk == float(row["saved_act_bytes_per_layer"])
        assert got.saved_bytes_fixed == float(row["saved_act_bytes_fixed"])
        assert got.saved_bytes + quirk * oracle.number(row["layers"]) == float(row["saved_act_bytes"])


def _by_name(residues: int, sequences: int) -> dict[str, float]:
    got = count(load_model("alphafold2-evoformer"), seq_len=residues, encoder_len=sequences)
    found: dict[str, float] = {}
    for _, _, op in got.operators:
        found[op.name] = found.get(op.name, 0) + float(op.flops)
    return found


def test_a_norm_that_keeps_its_own_copy_keeps_nothing_of_the_data() -> None:
    """A norm that casts up keeps an fp32 copy, an activation: the first block's input is not kept at all."""
    model = load_model("alphafold2-evoformer")
    kept = [count(model.model_copy(update={"norm": norm})).saved_bytes for norm in (model.norm, RMS_NORM)]
    assert kept[1] > kept[0]


def test_triangle_terms_are_cubic_and_the_others_as_the_paper_says() -> None:
    once, twice, deeper = _by_name(256, 128), _by_name(512, 128), _by_name(256, 256)
    for name in ("outgoing.triangle", "incoming.triangle", "starting.attention", "ending.attention"):
        assert twice[name] == 8 * once[name]
        assert deeper[name] == once[name]
    assert once["outgoing.triangle"] == 2 * 256**3 * 128  # one block's operators are listed once
    for name, residues, sequences in (
        ("row.attention", 4, 2),  # S N^2
        ("column.attention", 2, 4),  # S^2 N
        ("outer_product.outer", 4, 2),
        ("outer_product.out", 4, 1),
        ("msa_transition.up_proj", 2, 2),
        ("pair_transition.up_proj", 4, 1),
    ):
        assert twice[name] == residues * once[name], name
        assert deeper[name] == sequences * once[name], name


def test_usual_lengths_are_alphafolds_and_decoding_is_refused() -> None:
    model = load_model("alphafold2-evoformer")
    assert count(model).flops == count(model, seq_len=256, encoder_len=128).flops
    with pytest.raises(InputError, match="phase"):
        count(model, phase="decode")
    with pytest.raises(InputError, match="encoder_len"):
        count(model, encoder_len=0)
