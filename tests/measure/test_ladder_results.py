"""The ladder that was trained and is committed (reports/measured/ladder.csv): its counts, its shape and its page."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tfsim.measure.ladder_plan import LENGTH, plan, sizes, step_flops
from tfsim.measure.ladder_source import make_source
from tfsim.scaling import extrapolate, fit, isoflop, read_runs

RESULTS = Path(__file__).parents[2] / "reports" / "measured"


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    return pd.read_csv(RESULTS / "ladder.csv")


def test_committed_counts_are_tfsims_and_torchs(results: pd.DataFrame) -> None:
    for row in results.itertuples():
        n = sizes(row.width)
        assert (row.N, row.N_non_embedding, row.N_torch) == (*n, n[0])
        assert row.flops == row.flops_torch == step_flops(row.width, row.batch_tokens) * row.steps
        assert row.steps * row.batch_tokens == row.D
        assert row.C == 6 * row.N * row.D


def test_committed_runs_are_the_plans(results: pd.DataFrame) -> None:
    planned = {(run.width, run.steps, run.batch, run.learning_rate, run.seed) for run in plan()}
    columns = results[["width", "steps", "batch_tokens", "learning_rate", "seed"]]
    assert {tuple(row) for row in columns.itertuples(index=False)} == planned


def test_committed_losses_are_valleys_above_the_entropy(results: pd.DataFrame) -> None:
    assert (results["loss"] > make_source().floor(LENGTH)).all()
    best = [rows.reset_index()["loss"].idxmin() / (len(rows) - 1) for _, rows in results.groupby("group")]
    assert all(0.1 < place < 0.9 for place in best)  # inside, with runs on both sides
    lowest = results.groupby(results["group"].astype(float))["loss"].min()
    assert (lowest.diff().dropna() < 0).all()  # more compute, lower loss


def test_the_page_tells_what_the_runs_fit_to() -> None:
    runs = read_runs(RESULTS / "ladder.csv", n_means="total", c_means="6nd")
    found = fit(runs)
    wanted = {name: getattr(found, name) for name in ("A", "B", "E", "alpha", "beta", "a")}
    wanted["exponent"] = isoflop(runs).law.exponent
    text = (RESULTS / "ladder.md").read_text(encoding="utf-8")
    for name, value in wanted.items():
        told = re.search(rf"^\| {name} \| (\S+) \|", text, re.MULTILINE)
        assert told is not None, name
        assert float(told[1]) == pytest.approx(value, rel=2e-3), name
    held_out = extrapolate(runs, from_c=0.9 * float(runs.column("C").max()))
    assert f"mean error of {held_out.mape:.2%}" in " ".join(text.split())
