"""The page of a sizing: its tables, words and charts agree with the estimate and the law."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from tfsim.cli.main import main
from tfsim.files import validate
from tfsim.plots.labels import name_points
from tfsim.plots.laws import Advice, law_comparison
from tfsim.plots.scaling import Sized, allocation, isoflops, loss_surface
from tfsim.plots.style import image
from tfsim.reports.figures import used_figures
from tfsim.reports.render import html, markdown
from tfsim.reports.sizing_page import how_far, laws_spread, sizing_tables, sizing_terms, standing_laws
from tfsim.reports.summary import confidence, sections
from tfsim.scaling import band, curve_of, law, optimal, trained_models
from tfsim.scenario import Scenario, ScenarioResult, run_scenario
from tfsim.sizing import SizingEstimate

BUDGET = 1e23


@pytest.fixture(scope="module")
def result() -> ScenarioResult:
    asked = {"schema": 1, "title": "t", "size": {"budget": "1e23flops"}}
    return run_scenario(validate(Scenario, asked, "here"))


@pytest.fixture(scope="module")
def estimate(result: ScenarioResult) -> SizingEstimate:
    assert result.size is not None
    return result.size.estimate


@pytest.fixture(scope="module")
def sized() -> Sized:
    best = optimal(compute=BUDGET)
    return Sized(float(best.parameters), float(best.tokens), BUDGET)


def labels(figure: Figure) -> set[str]:
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return {text.get_text() for legend in legends if legend is not None for text in legend.get_texts()}


def test_isoflop_curves_have_their_lowest_point_at_the_best_size(sized: Sized) -> None:
    figure = isoflops(law(), curve_of(law()), sized, "Title")
    axes = figure.axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) == 200]
    assert [text.get_text() for text in axes.texts] == ["1e18", "1e19", "1e20", "1e21", "1e22", "1e23"]
    for line, compute in zip(curves, (1e18, 1e19, 1e20, 1e21, 1e22, 1e23), strict=True):
        n, loss = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        assert n[loss.argmin()] == pytest.approx(optimal(compute=compute).parameters, rel=0.03)
        assert line.is_dashed() == (not 1.4e18 < compute < 1.3e22)  # beyond the budgets of the fit
    assert "parameters N (total)" in axes.get_xlabel() and "nats per token" in axes.get_ylabel()
    assert {"the budget asked", "best N", "the model here"} <= labels(figure)


def test_the_loss_surface_shows_the_budgets_and_the_answer(sized: Sized) -> None:
    figure = loss_surface(law(), curve_of(law()), sized, "Title")
    axes = figure.axes[0]
    budgets = [line for line in axes.lines if line.get_linestyle() == "--"]
    for line, compute in zip(budgets, (1e18, 1e19, 1e20, 1e21, 1e22, 1e23), strict=True):
        product = np.asarray(line.get_xdata()) * np.asarray(line.get_ydata())
        assert product == pytest.approx(np.full(len(product), compute / 6))
    star = axes.lines[-1]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (sized.parameters, sized.tokens)
    assert {"best N and D", "runs the law was fitted on"} <= labels(figure)


def test_allocation_draws_the_band_and_published_models(sized: Sized) -> None:
    figure = allocation(law(), sized, "Title")
    assert {"80 % band", "best by refit-240", "published models, C at 6ND"} <= labels(figure)
    for axes, name in zip(figure.axes, ("parameters", "tokens"), strict=True):
        assert {text.get_text() for text in axes.texts} == {model.name for model in trained_models()}
        edges = axes.collections[0].get_paths()[0].vertices
        at = edges[np.isclose(edges[:, 0], 1e26), 1]
        ends = getattr(band(compute=1e26), name)
        assert (at.min(), at.max()) == pytest.approx((ends.low, ends.high))
    assert "80 % band" not in labels(allocation(law("chinchilla-3"), sized, "Title"))


def test_published_models() -> None:
    found = {model.name: model for model in trained_models()}
    assert found["Chinchilla"].compute == pytest.approx(5.88e23)
    assert found["Llama 3.1 405B"].compute == pytest.approx(3.8e25, rel=0.01)  # arXiv:2407.21783 prints 3.8e25
    assert all(model.source.startswith("arXiv:") for model in found.values())


def test_names_of_points_cover_nothing() -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 10), ylim=(0, 10))
    points = [(5 + 0.1 * i, 5 + 0.05 * i, f"a model {i}") for i in range(5)]
    name_points(axes, points, avoid=[(5.8, 5.2)])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 5
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_law_comparison_sorts_and_marks_its_own() -> None:
    own = Advice("refit-240", 30e9, 5e11)
    others = [Advice("kaplan", 2e11, 1e11), Advice("marin-comma", 1e10, 1e12)]
    figure = law_comparison(law(), own, others, BUDGET, band(compute=BUDGET).parameters, "Title")
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["marin-comma", "refit-240", "kaplan"]
    assert {text.get_text() for text in left.texts} == {"10B", "30B", "200B"}
    named = {text.get_text() for text in right.texts}
    assert {"refit-240", "kaplan", "llama-3"} <= named
    assert "chinchilla-3-printed" not in named
    assert image(figure, "png").startswith(b"\x89PNG")


def test_tables_agree_with_the_estimate(estimate: SizingEstimate) -> None:
    tables = {table.title: table.rows for table in sizing_tables(estimate)}
    assert list(tables) == ["How sure", "The shape", "Other sizes", "Every law", "Laws left out"]
    sure = {row[""]: row for row in tables["How sure"]}
    assert sure["parameters N"]["here"] == "29.7B"
    assert sure["parameters N"]["refit-240, 80 %"] == "24.4B to 38B (median 30.1B)"
    assert {row["dimension"]: row["value"] for row in tables["The shape"]}["parameters"] == f"{estimate.parameters:,}"
    assert [row["size"] for row in tables["Other sizes"]] == ["0.5x", "0.7x", "1x", "1.5x", "2x"]
    assert len(tables["Every law"]) == len(estimate.others)
    marked = {row["law"] for row in tables["Every law"] if row["law"].endswith("*")}
    assert "chinchilla-3-printed *" in marked and "llama-3 *" not in marked


def test_the_spread_is_over_laws_that_stand(estimate: SizingEstimate) -> None:
    found = laws_spread(estimate)
    assert found.laws == ("refit-240", *(other.law for other in standing_laws(estimate)))
    assert found.parameters.low < estimate.parameters < found.parameters.high
    assert estimate.band is not None
    assert found.parameters.high - found.parameters.low > estimate.band.parameters.high - estimate.band.parameters.low


def test_the_page_says_its_conventions_and_how_far_it_reaches(result: ScenarioResult, estimate: SizingEstimate) -> None:
    assert how_far(estimate) == "law refit-240, fitted on runs of 1.4e18 to 1.3e22 FLOP and asked 7.72 times above them"
    assert how_far(estimate) in confidence(result)
    assert sizing_terms(estimate)["N of refit-240"] == "all parameters, both token tables included"
    assert sections(result)[0].title.startswith("Model: sized-")
    assert used_figures(result) == {}
    for page in (html(result, []), markdown(result, [], "name")):
        assert "How sure" in page and "Every law" in page and "arXiv:2404.10102" in page
        assert "TTFT" not in page and "bound by" not in page


@pytest.mark.parametrize("asked", [{"budget": "1e22flops", "law": "kaplan"}, {"tokens": "1T", "law": "llama-3"}])
def test_laws_without_a_loss_or_a_band_have_a_page_too(asked: dict[str, str]) -> None:
    found = run_scenario(validate(Scenario, {"schema": 1, "title": "t", "size": asked}, "here"))
    assert found.size is not None
    rows = {row[""]: row for row in sizing_tables(found.size.estimate)[0].rows}
    assert rows["parameters N"][f"{asked['law']}, 80 %"] == "-"
    assert rows["loss"]["here"] in ("-", f"{found.size.estimate.loss:.3f}" if found.size.estimate.loss else "-")
    assert "prints no error" in html(found, [])


def test_size_writes_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--budget", "1e22flops", "--out", str(tmp_path / "r"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in printed["reports"]] == ["sizing.md", "sizing.html"]
    names = {path.name for path in (tmp_path / "r").iterdir()}
    pictures = {f"sizing-{name}.png" for name in ("isoflop", "loss-surface", "allocation", "laws")}
    assert names == {"sizing.md", "sizing.html"} | pictures
    text = (tmp_path / "r" / "sizing.md").read_text(encoding="utf-8")
    assert "Answered by: tfsim size --budget 1e22flops" in text
    assert all(f"]({name})" in text for name in pictures)
