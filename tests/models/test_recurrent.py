"""Recurrent language models: counts equal torch's; work is linear in length; steps are a cost."""

from __future__ import annotations

import pytest

import tfsim
from tests import oracle_more as oracle
from tfsim.errors import InputError
from tfsim.models import load_model
from tfsim.models.counts import Counts, count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.software import software
from tfsim.timing.collectives import Groups
from tfsim.timing.roofline import operator_time

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
    assert held.model_copy(update={"source": "", "note": ""}) == oracle.spec(name)
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


def test_saved_bytes_are_equal_but_for_the_labels() -> None:
    """The oracle's loss takes the input ids as labels; a causal model of transformers keeps a shifted copy."""
    rows = oracle.rows("activations", "rnn")
    assert len(rows) == 18
    for row in rows:
        batch, seq = oracle.number(row["batch"]), oracle.number(row["seq"])
        got = count(oracle.spec(row["variant"], row["layers"]), batch=batch, seq_len=seq, dtype=row["precision"])
        assert got.saved_bytes_per_layer == float(row["saved_act_bytes_per_layer"])
        assert got.saved_bytes - 8 * batch * seq == float(row["saved_act_bytes"])


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
    with pytest.raises(InputError, match="tp 2 does not divide"):
        tfsim.train(model, system, devices=2, seq_len=32, global_batch=2, plan={"tp": 2})


def test_width_must_be_the_models() -> None:
    spec = oracle.spec("lstm-ptb-small").model_dump(by_alias=True)
    with pytest.raises(ValueError, match="hands on 200 values, but d_model is 100"):
        type(oracle.spec("lstm-ptb-small")).model_validate({**spec, "d_model": 100})
