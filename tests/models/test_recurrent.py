"""Recurrent language models: counts equal torch's; work is linear in length; steps are a cost."""

from __future__ import annotations

import numpy as np
import pytest

import tfsim
from tests import oracle_more as oracle
from tfsim.errors import InputError
from tfsim.models import load_model
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.software import software
from tfsim.timing import operator_time
from tfsim.timing.collectives import Groups

ZOO = ("lstm-ptb-small", "lstm-ptb-medium", "gru-ptb-medium", "rnn-ptb-small", "rnn-ptb-medium")


def run(row: dict[str, str], key: str) -> Counts:
    return count(
        oracle.spec(row[key], row.get("layers", "")),
        batch=oracle.number(row["batch"]),
        seq_len=oracle.number(row["seq_q"]),
        phase=oracle.PHASES[row["mode"]],  # type: ignore[arg-type]
    )


def test_parameters_are_equal() -> None:
    rows = oracle.rows("params", "rnn")
    assert [row["name"] for row in rows] == list(ZOO)
    assert [oracle.unequal_parameters(row, parameters(oracle.spec(row["name"]))) for row in rows] == [{}] * 5


@pytest.mark.parametrize("name", ZOO)
def test_zoo_holds_the_same_models(name: str) -> None:
    held = load_model(name)
    assert held.model_copy(update={"source": "", "note": ""}) == oracle.spec(name).model_copy(update={"note": ""})
    assert held.source


def test_published_size() -> None:
    """Zaremba et al. 2014, large: 66M parameters (here with torch's two bias vectors a gate)."""
    config = {"model_type": "rnn_lm", "cell": "lstm", "vocab_size": 10000, "hidden_size": 1500, "num_layers": 2}
    assert parameters(spec_from_config(config)).total == 66_034_000


def test_flops_are_equal() -> None:
    """Backward is short of twice the forward: the state before the first step is given and needs no gradient."""
    rows = [(row, "variant") for row in oracle.rows("flops", "rnn")]
    rows += [(row, "name") for row in oracle.rows("flops_fullsize", "rnn")]
    assert len(rows) == 26
    assert [oracle.unequal_flops(row, run(row, key)) for row, key in rows] == [{}] * 26


def test_saved_bytes_are_equal() -> None:
    rows = oracle.rows("activations", "rnn")
    assert len(rows) == 18
    for row in rows:
        batch, seq = oracle.number(row["batch"]), oracle.number(row["seq"])
        got = count(oracle.spec(row["variant"], row["layers"]), batch=batch, seq_len=seq, dtype=row["precision"])
        expected = [float(row[f"saved_act_bytes{part}"]) for part in ("", "_per_layer", "_fixed")]
        assert [got.saved_bytes, got.saved_bytes_per_layer, got.saved_bytes_fixed] == expected


def test_work_is_linear_in_length_and_the_state_constant() -> None:
    model = load_model("lstm-ptb-medium")
    short, long = (count(model, batch=2, seq_len=n, phase="forward_backward") for n in (512, 1024))
    assert long.flops_by_component["head"] == 2 * short.flops_by_component["head"]
    # the one step without a state gradient does not grow
    free = 2 * model.n_layers * 2 * 4 * 650 * 650
    assert long.flops_by_component["rnn"] + free == 2 * (short.flops_by_component["rnn"] + free)
    assert long.kv_bytes == 0
    assert long.state_bytes == short.state_bytes == 2 * 2 * 2 * 650 * 2  # sequences, layers, h and c, bf16


def test_a_decode_step_costs_the_same_after_any_context() -> None:
    model = load_model("gru-ptb-medium")
    early, late = (count(model, past_len=n, phase="decode").flops for n in (1, 1_000_000))
    assert early == late == 2 * 2 * 2 * 3 * 650 * 650 + 2 * 650 * 10_000


def test_steps_follow_one_another_and_take_time() -> None:
    system = tfsim.load_system("dgx-a100")

    def seconds(seq_len: int, batch: int) -> float:
        rows = count(load_model("lstm-ptb-medium"), batch=batch, seq_len=seq_len).operators
        chain = [op for _, _, op in rows if op.kind.startswith("recurrent")]
        assert all(op.dims["steps"] == seq_len for op in chain)
        return sum(float(operator_time(op, system, software("eager"), Groups()).seconds) for op in chain)

    # the same tokens in one long row or in many short ones: as much arithmetic, 64 times as many dependent steps
    assert seconds(4096, 1) > 20 * seconds(64, 64)


def test_a_cell_is_not_cut() -> None:
    model, system = load_model("lstm-ptb-medium"), tfsim.load_system("dgx-a100")
    with pytest.raises(InputError, match="tp 2: a recurrent mixer is not cut"):
        tfsim.train(model, system, devices=2, seq_len=32, global_batch=2, plan={"tp": 2})


def test_width_must_be_the_models() -> None:
    spec = oracle.spec("lstm-ptb-small").model_dump(by_alias=True)
    with pytest.raises(ValueError, match="reads 100 values, given 200"):
        type(oracle.spec("lstm-ptb-small")).model_validate({**spec, "d_model": 100})


def run_gnmt(row: dict[str, str], key: str) -> Counts:
    return count(
        oracle.spec(row[key], row.get("layers", "")),
        batch=oracle.number(row["batch"]),
        seq_len=oracle.number(row["seq_q"]),
        encoder_len=oracle.number(row["seq_enc"]),
        phase=oracle.PHASES[row["mode"]],  # type: ignore[arg-type]
    )


def test_gnmt_parameters_and_full_size_flops_are_equal() -> None:
    """NVIDIA's GNMT v2; the zoo holds the same models."""
    rows = oracle.rows("params", "gnmt")
    assert [row["name"] for row in rows] == ["gnmt-v2-4layer", "gnmt-v2-8layer"]
    for row in rows:
        held = load_model(row["name"])
        assert held.model_copy(update={"source": "", "note": ""}) == oracle.spec(row["name"]).model_copy(
            update={"note": ""}
        )
        assert oracle.unequal_parameters(row, parameters(held)) == {}
    full = oracle.rows("flops_fullsize", "gnmt")
    assert [oracle.unequal_flops(row, run_gnmt(row, "name")) for row in full] == [{}] * 2


def test_gnmt_flops_are_equal() -> None:
    """In the small rows torch runs linear layers of the attention as batched products, depending on the layout, and the
    oracle files those under the core: there the two components are compared together."""
    rows = oracle.rows("flops", "gnmt")
    assert len(rows) == 7
    for row in rows:
        got = run_gnmt(row, "variant")
        attention = {"c_attn_proj", "c_attn_core"}
        assert set(oracle.unequal_flops(row, got)) <= attention
        if row["mode"] == "forward":
            expected = sum(oracle.number(row[name]) for name in attention)
            assert got.flops_by_component["attn_proj"] + got.flops_by_component["attn_core"] == expected


def test_gnmt_saved_bytes_are_equal() -> None:
    """The slope in depth shows where layers repeat: from four layers on, of which the upper two are alike."""
    rows = oracle.rows("activations", "gnmt")
    assert len(rows) == 6
    for row in rows:
        got = count(
            oracle.spec(row["variant"], row["layers"]),
            batch=oracle.number(row["batch"]),
            seq_len=oracle.number(row["seq"]),
            encoder_len=oracle.number(row["seq_enc"]),
            dtype=row["precision"],
        )
        assert got.saved_bytes == float(row["saved_act_bytes"])
        if row["layers"] == "4":
            assert got.saved_bytes_per_layer == float(row["saved_act_bytes_per_layer"])


def test_additive_attention_keeps_every_pair_unless_fused() -> None:
    model = load_model("gnmt-v2-4layer")

    def kept(length: int, style: str) -> float:
        got = count(model, seq_len=length, encoder_len=length, style=style)  # type: ignore[arg-type]
        return float(got.saved_bytes_by_block["layer"])

    assert kept(512, "eager") / kept(256, "eager") > 3.5  # pairs x 1,024 values
    assert kept(512, "fused") / kept(256, "fused") < 2.2


def test_gnmt_decodes_one_step_at_a_time() -> None:
    """Two states a layer; the attended keys and values of the sentence are all that grows with its length."""
    model = load_model("gnmt-v2-4layer")
    got = count(model, past_len=7, encoder_len=50, phase="decode")
    assert got.state_bytes == 4 * 2 * 1024 * 2
    assert got.cross_bytes == 50 * 2 * 1024 * 2
    assert got.kv_bytes == 0
    assert count(model, past_len=70, encoder_len=50, phase="decode").flops == got.flops


@pytest.mark.parametrize("name", ["lstm-ptb-medium", "gnmt-v2-4layer", "dit-xl-2", "alphafold2-evoformer"])
@pytest.mark.parametrize("style", ["eager", "fused"])
def test_arrays_give_what_scalars_give(name: str, style: str) -> None:
    """Recurrent and other families beside decoders: one pass over arrays, or one by one."""
    model, takes = load_model(name), name.startswith(("gnmt", "alphafold"))

    def run_one(batch: object, seq_len: object, encoder_len: object) -> Counts:
        source = encoder_len if takes else None
        return count(model, batch=batch, seq_len=seq_len, encoder_len=source, phase="forward_backward", style=style)  # type: ignore[arg-type]

    together = run_one(np.array([1, 2]), np.array([64, 128]), np.array([16, 32]))
    apart = [run_one(1, 64, 16), run_one(2, 128, 32)]
    for field in ("flops", "saved_bytes", "bytes_moved", "state_bytes"):
        assert np.allclose(getattr(together, field), [float(getattr(one, field)) for one in apart], rtol=1e-12), field
