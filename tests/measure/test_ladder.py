"""The scaling ladder: its text, its plan, and its models against torch."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsim.cli.main import main
from tfsim.errors import InputError
from tfsim.measure.ladder_plan import BUDGETS, LENGTH, WIDTHS, Run, batch_of, plan, sizes, step_flops
from tfsim.measure.ladder_source import (
    ANY,
    LAST,
    OLDER,
    SUCCESSORS,
    VOCABULARY,
    Source,
    make_source,
    zipf,
)

# The text


def test_the_sources_entropy_is_that_of_what_it_writes() -> None:
    source = make_source()
    text = source.sample(20_000, LENGTH + 1, 1)
    nats = source.nats(text).mean(1)  # of independent sequences
    error = nats.std() / len(nats) ** 0.5
    assert source.floor(LENGTH) == pytest.approx(nats.mean(), abs=4 * error)
    assert error < 0.004


def probability(source: Source) -> np.ndarray:
    """Of each token after the two before it, shape (V, V, V), the older first."""
    return source.by_last + source.by_older[:, None]


def test_entropy_is_the_difference_of_block_entropies() -> None:
    """H(three tokens) - H(two) from the joint distribution: another sum than the source's."""
    source = make_source(seed=3, vocabulary=16)
    joint = source.stationary[..., None] * probability(source)
    entropy = [-(p * np.log(p)).sum() for p in (joint, source.stationary, source.stationary.sum(1))]
    assert source.entropy == pytest.approx(entropy[0] - entropy[1], abs=1e-10)
    assert source.first == pytest.approx(entropy[1] - entropy[2], abs=1e-10)
    assert source.floor(1) == source.first
    assert source.floor(10**9) == pytest.approx(source.entropy)


@given(seed=st.integers(0, 2**32), vocabulary=st.integers(4, 32))
@settings(max_examples=20, deadline=None)
def test_every_source_is_a_stationary_chain(seed: int, vocabulary: int) -> None:
    source = make_source(seed, vocabulary)
    np.testing.assert_allclose(probability(source).sum(-1), 1, atol=1e-12)
    following = np.einsum("ab,abc->bc", source.stationary, probability(source))
    np.testing.assert_allclose(following, source.stationary, atol=1e-12)
    assert 0 < source.entropy < source.first < math.log(vocabulary)
    for successors in (source.last, source.older):  # distinct
        assert (np.diff(np.sort(successors.astype(int), axis=-1), axis=-1) > 0).all()


def test_text_is_what_the_rules_say() -> None:
    source = make_source()
    before, last, token = source.sample(40_000, 3, 5).astype(int).T
    for successors, given_by, weight in ((source.last, last, LAST), (source.older, before, OLDER)):
        likeliest = successors[given_by, 0]
        expected = source.by_last[last, likeliest] + source.by_older[before, likeliest]
        assert (token == likeliest).mean() == pytest.approx(expected.mean(), abs=0.01)
        assert expected.mean() > weight * zipf(SUCCESSORS)[0]
    seen = np.bincount(last, minlength=VOCABULARY) / len(last)
    np.testing.assert_allclose(seen, source.stationary.sum(0), atol=0.008)
    assert pytest.approx(1) == LAST + OLDER + ANY


def test_text_is_the_seeds() -> None:
    source = make_source(seed=1)
    assert (source.sample(50, 20, 7) == make_source(seed=1).sample(50, 20, 7)).all()
    assert (source.sample(50, 20, 7) != source.sample(50, 20, 8)).any()
    assert (source.last != make_source(seed=2).last).any()
    assert source.sample(3, LENGTH, [0, 64]).tolist()[0][:8] == [57, 1, 1, 7, 7, 35, 5, 1]


# The plan


@pytest.mark.parametrize("width", WIDTHS)
def test_parameters_by_hand(width: int) -> None:
    layers = 2 * (12 * width**2 + 13 * width)
    assert sizes(width) == (layers + 2 * width + (VOCABULARY + LENGTH) * width, layers + 2 * width)


def test_the_plan_has_ten_sizes_at_each_of_three_budgets() -> None:
    runs = plan()
    assert len(BUDGETS) == 3
    for budget in BUDGETS:
        of = [run for run in runs if run.budget == budget]
        assert 9 <= len(of) <= 11
        assert all(run.flops_6nd == pytest.approx(budget, rel=0.01) for run in of)
        assert max(run.n for run in of) / min(run.n for run in of) > 10


def test_batches_grow_with_the_root_of_the_tokens() -> None:
    assert batch_of(4e6) == pytest.approx(2 * batch_of(1e6), rel=0.05)
    assert batch_of(100) == 8 * LENGTH
    assert batch_of(1e7) % LENGTH == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": (13,)}, "widths: 13 is not an even number"),
        ({"budgets": (-1.0,)}, "budgets: -1.0 is not a positive number"),
        ({"budgets": (float("nan"),)}, "budgets: nan is not a positive number"),
        ({"budgets": (1e6,)}, "budgets: 1e\\+06 FLOPs leaves no width"),
        ({"batches": (33,)}, "batches: 33 tokens is no whole number of sequences"),
        ({"learning_rates": (0.0,)}, "learning_rates: 0.0 is not"),
        ({"seeds": (-1,)}, "seeds: -1 is not"),
    ],
)
def test_a_plan_that_cannot_be(arguments: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(**arguments)  # type: ignore[arg-type]


# torch


@pytest.mark.parametrize("width", [12, 64])
def test_torch_counts_the_same(width: int) -> None:
    pytest.importorskip("torch", reason="needs the extra tfsim[measure]")
    from tfsim.measure.ladder_model import counted

    assert counted(width, 8 * LENGTH) == (sizes(width)[0], step_flops(width, 8 * LENGTH))


def test_a_model_learns_and_does_so_again() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra tfsim[measure]")
    from tfsim.measure.ladder_model import train

    torch.set_num_threads(1)
    source = make_source()
    frequencies = source.stationary.sum(0)
    unigram = float(-(frequencies * np.log(frequencies)).sum())
    run = Run(16, *sizes(16), 1e10, steps=100, batch=256, learning_rate=0.02, seed=0)
    found = train(run, source, sequences=1024)
    assert source.floor(LENGTH) < found["loss"] < unigram - 0.1
    assert train(run, source, sequences=1024)["loss"] == found["loss"]


def test_no_torch_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    out = tmp_path / "runs.csv"
    assert main(["measure", "ladder", "--quick", "--out", str(out)]) == 2
    assert "pip install 'tfsim[measure]'" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "12,x"], "--sizes: 'x' is not a number"),
        (["--sizes", "12.5"], "--sizes: 12.5 is not a whole number"),
        (["--budgets", "1e3"], "budgets: 1000 FLOPs leaves no width"),
        (["--device", "tpu"], "unknown torch device 'tpu'"),
        (["--workers", "0"], "workers: 0 is below 1"),
        (["--out", "no/such/folder/runs.csv"], "no/such/folder"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the extra tfsim[measure]")
    assert main(["measure", "ladder", "--quick", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_command_writes_what_fit_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="needs the extra tfsim[measure]")
    out = tmp_path / "runs.csv"
    options = ["--sizes", "6,8", "--budgets", "2e8", "--workers", "1", "--json", "--out", str(out)]
    assert main(["measure", "ladder", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = pd.read_csv(out)
    assert told["rows"] == rows.assign(group=rows["group"].map("{:.3g}".format)).to_dict("records")
    assert list(rows["width"]) == [6, 8]
    assert (rows["loss"] > told["floor"]).all()
