"""tfsim.compare: how architectures grow with the context, and where they cross."""

import math

import numpy as np
import pandas as pd
import pytest

import tfsim
from tfsim.comparison import QUANTITIES, compare, crossings
from tfsim.scenario import ComparisonQuestion, answer_comparison

LENGTHS = (512, 1024, 2048)


@pytest.fixture(scope="module")
def a100() -> object:
    return tfsim.load_system("dgx-a100")


@pytest.fixture(scope="module")
def table(a100: object) -> pd.DataFrame:
    models = [tfsim.load_model(name) for name in ("lstm-370m", "gpt2-medium", "mamba-370m")]
    return compare(models, a100, seq_lens=LENGTHS)


def column(table: pd.DataFrame, model: str, name: str) -> np.ndarray:
    return table[table["model"] == model].sort_values("seq_len")[name].to_numpy(float)


def test_attention_is_compared_with_and_without_its_scores_in_memory(table: pd.DataFrame) -> None:
    assert list(dict.fromkeys(table["model"])) == [
        "lstm-370m", "gpt2-medium", "gpt2-medium (standard attention)", "mamba-370m",
    ]  # fmt: skip
    assert all(tuple(case["seq_len"]) == LENGTHS for _, case in table.groupby("model"))


def test_work_per_token_is_constant_without_attention_and_linear_with_it(table: pd.DataFrame) -> None:
    for model in ("lstm-370m", "mamba-370m"):
        flops = column(table, model, "flops_per_token")
        assert flops == pytest.approx(np.full(3, flops[0]), rel=1e-3)
    flops = column(table, "gpt2-medium", "flops_per_token")
    assert flops[2] - flops[1] == pytest.approx(2 * (flops[1] - flops[0]))


def test_a_recurrence_waits_for_each_of_its_steps(table: pd.DataFrame) -> None:
    depth = column(table, "lstm-370m", "sequential_depth")
    assert np.diff(depth).tolist() == [8 * 2 * 512, 8 * 2 * 1024]  # 8 layers; a matmul and the gates in each step
    assert np.ptp(column(table, "gpt2-medium", "sequential_depth")) == 0
    assert column(table, "lstm-370m", "prefill_s")[2] > 40 * column(table, "gpt2-medium", "prefill_s")[2]


def test_caches_grow_and_states_do_not(table: pd.DataFrame) -> None:
    assert column(table, "gpt2-medium", "cache_bytes").tolist() == [2 * 24 * 1024 * n * 2 for n in LENGTHS]
    assert column(table, "lstm-370m", "cache_bytes").tolist() == [8 * 2 * 2048 * 2] * 3
    assert np.ptp(column(table, "mamba-370m", "cache_bytes")) == 0


def test_standard_attention_keeps_scores(table: pd.DataFrame) -> None:
    flash, standard = (
        column(table, m, "train_memory_bytes") for m in ("gpt2-medium", "gpt2-medium (standard attention)")
    )
    more = standard - flash
    assert more[1:] / more[:-1] == pytest.approx([4, 4], rel=0.02)  # quadratic
    assert np.diff(flash)[1] == pytest.approx(2 * np.diff(flash)[0], rel=1e-6)  # linear


def test_crossings_are_between_neighbouring_lengths() -> None:
    values = {"a": [1.0, 2.0, 4.0, 8.0], "b": [3.0, 3.0, 3.0, 3.0], "none": [math.nan] * 4}
    table = pd.DataFrame(
        [
            {"model": model, "seq_len": n, **dict.fromkeys(QUANTITIES, 1.0), "decode_s": value}
            for model, column in values.items()
            for n, value in zip((1, 2, 4, 8), column, strict=True)
        ]
    )
    (found,) = crossings(table)
    assert (found.quantity, found.winner, found.loser, found.after, found.by) == ("decode_s", "b", "a", 2, 4)


def test_mamba_overtakes_flash_attention_and_standard_attention_sooner(a100: object) -> None:
    models = [tfsim.load_model(name) for name in ("gpt2-medium", "mamba-370m")]
    found = crossings(compare(models, a100, seq_lens=[2**k for k in range(7, 18)]))
    by = {c.loser: c.by for c in found if (c.quantity, c.winner) == ("prefill_s", "mamba-370m")}
    assert by["gpt2-medium (standard attention)"] < by["gpt2-medium"] <= 65_536


def test_what_decodes_nothing_has_no_cache_and_no_decode_time(a100: object) -> None:
    table = compare([tfsim.load_model("dit-xl-2")], a100, seq_lens=256)
    assert table[["cache_bytes", "decode_s"]].isna().all(axis=None)
    assert (table["prefill_s"] > 0).all()


def test_an_encoder_reads_as_much_as_its_decoder_writes(a100: object) -> None:
    table = compare([tfsim.load_model("t5-small")], a100, seq_lens=[128, 256])
    one_layer = 2 * 512 * 2  # keys and values of 8 heads of 64, two bytes
    assert column(table, "t5-small", "cache_bytes").tolist() == [6 * one_layer * (n + n) for n in (128, 256)]
    assert (table["decode_s"] > 0).all()


def test_more_than_the_device_has_is_said(a100: object) -> None:
    table = compare([tfsim.load_model("llama-3.1-70b")], a100, seq_lens=[128])
    assert not table["train_fits"].any()
    assert not table["infer_fits"].any()
    assert (table["infer_memory_bytes"] > 2 * 70e9).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seq_lens": [0]}, "seq_lens"),
        ({"seq_lens": 1.5}, "seq_lens"),
        ({"batch": [1, 2]}, "batch"),
        ({"batch": math.nan}, "batch"),
        ({"dtype": "fp7"}, "fp7"),
        ({"dtype": "nvfp4"}, "nvfp4"),
        ({"software_name": "fusd"}, "did you mean fused"),
        ({"system": "dgx-a100"}, "load_system"),
        ({"models": "gpt2"}, "models"),
        ({"models": []}, "models"),
        ({"models": ["gpt2"]}, "load_model"),
    ],
)
def test_bad_input_is_one_line(a100: object, change: dict[str, object], words: str) -> None:
    given = {"models": [tfsim.load_model("gpt2")], "system": a100, "seq_lens": [128]} | change
    with pytest.raises(tfsim.InputError, match=words) as error:
        compare(given.pop("models"), given.pop("system"), **given)
    assert "\n" not in str(error.value)


def test_a_model_given_twice_is_refused(a100: object) -> None:
    gpt2 = tfsim.load_model("gpt2")
    with pytest.raises(tfsim.InputError, match="gpt2 is given twice"):
        compare([gpt2, gpt2], a100, seq_lens=[128])


def test_contexts_beyond_a_model_are_noted() -> None:
    question = ComparisonQuestion(models=["gpt2", "mamba-130m"], system="dgx-a100", seq_lens=[1024, 2048])
    (note,) = answer_comparison(question).notes
    assert note.startswith("gpt2 takes 1,024 tokens")
