"""Words, charts and reports of results."""

from pathlib import Path

import numpy as np
import pytest

from tfsim.errors import InputError
from tfsim.files import validate
from tfsim.hardware import load_device, load_system
from tfsim.plots.bars import MemoryBar, memory_bars, time_breakdown
from tfsim.plots.points import Point, serving_points, training_points
from tfsim.plots.roofline import roofline
from tfsim.plots.style import image
from tfsim.reports.figures import figure_rows, used_figures
from tfsim.reports.render import html, markdown, write_reports
from tfsim.reports.summary import Bar, Fact, sections
from tfsim.scenario import Scenario, ScenarioResult, run_scenario


@pytest.fixture(scope="module")
def result() -> ScenarioResult:
    data = {
        "schema": 1,
        "title": "<b>title</b> & more",
        "model": "mixtral-8x7b",
        "train": {"system": "dgx-h100", "devices": 64, "seq_len": 4096, "global_batch": 64, "tokens": "1T"},
        "serve": {"system": "dgx-h100", "devices": 8, "input_len": 1000, "output_len": 100},
    }
    return run_scenario(validate(Scenario, data, "here"))


def test_bars_show_the_whole(result: ScenarioResult) -> None:
    bars = [item for section in sections(result) for item in section.items if isinstance(item, Bar)]
    assert [bar.label for bar in bars] == ["step time", "bound by", "memory", "prefill", "decode", "memory"]
    for bar in bars:
        whole = sum(part.share for part in bar.parts)
        assert whole <= 1 + 1e-9
        if bar.label != "memory":
            assert whole == pytest.approx(1, abs=0.005)


def test_every_bound_and_rate_is_said(result: ScenarioResult) -> None:
    words = " ".join(
        " ".join((item.label, *item.pieces, item.aside))
        for section in sections(result)
        for item in section.items
        if isinstance(item, Fact)
    )
    for part in ("46.7B", "12.9B active", "megatron", "TTFT", "node maximum", "site profile", "quotes", "GiB"):
        assert part in words


def test_points_stay_under_the_roof(result: ScenarioResult) -> None:
    assert result.train is not None
    assert result.serve is not None
    assert result.scenario.serve is not None
    device = load_device("h100")
    points = training_points(result.model, result.train)
    points += serving_points(result.model, result.scenario.serve, result.serve)
    assert {p.phase for p in points} == {"forward", "backward", "prefill", "decode"}
    assert {p.component for p in points} >= {"attention", "experts", "output head"}
    for point in points:
        roof = point.intensity * device.require("bandwidth") * (1 if point.rate else 8)  # small tensors: from the cache
        if point.rate:
            roof = min(roof, device.matmul_peak(point.rate).flop_per_s)
        assert 0 < point.flop_per_s <= roof


def test_points_take_the_time_of_the_estimate() -> None:
    job = {"system": "dgx-h100", "devices": 64, "seq_len": 4096, "global_batch": 64}
    asked = {"schema": 1, "title": "t", "model": "mixtral-8x7b", "train": {**job, "plan": {"zero_stage": 3}}}
    result = run_scenario(validate(Scenario, asked, "here"))
    assert result.train is not None
    e = result.train.estimate
    assert e.plan["pp"] == 1
    forward = sum(p.seconds for p in training_points(result.model, result.train) if p.phase == "forward")
    micro_batches = e.global_batch / (e.plan["dp"] * e.plan["micro_batch"])
    # what moves tokens to their experts has no arithmetic, so no place on a roofline
    assert forward * micro_batches == pytest.approx(e.time["forward"], rel=0.02)
    assert forward * micro_batches < e.time["forward"]


def test_charts_have_titles_units_and_legends() -> None:
    points = [
        Point("a", "attention", "decode", 2.0, 1e12, 1e-3, "bf16"),
        Point("b", "experts", "decode", 500.0, 5e14, 2e-3, "fp8"),
    ]
    figure = roofline(points, load_device("h100"), "A title")
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "A title"
    assert "FLOP per byte" in axes.get_xlabel()
    assert "TFLOP/s" in axes.get_ylabel()
    legend = axes.get_legend()
    assert legend is not None
    assert {"attention", "experts", "decode", "published peak"} <= {text.get_text() for text in legend.get_texts()}
    assert {"bf16 989 TFLOP/s", "fp8 1.98 PFLOP/s"} <= {text.get_text() for text in axes.texts}

    memory = memory_bars([MemoryBar("x", {"weights": 9e9, "cache": 3e9}, 10e9)], "Memory")
    assert "GB" in memory.axes[0].get_xlabel()
    assert memory.axes[0].get_xlim()[1] > 12
    assert [text.get_text() for text in memory.legends[0].get_texts()] == ["weights", "cache"]

    shares = time_breakdown({"step": {"forward": 1.0, "backward": 3.0, "never": 0.0}}, "Time")
    assert sorted(text.get_text() for text in shares.axes[0].texts) == ["25.0%", "75.0%"]
    assert image(shares, "png").startswith(b"\x89PNG")
    assert image(shares, "svg") == image(shares, "svg")


def test_titles_cannot_inject_html(result: ScenarioResult) -> None:
    page = html(result, [])
    assert "<b>title</b>" not in page
    assert "&lt;b&gt;title&lt;/b&gt; &amp; more" in page
    assert "Best training plans" in page
    assert "Best training plans" in markdown(result, [], "name")


def test_reports_are_written_whole_or_not(result: ScenarioResult, tmp_path: Path) -> None:
    paths = write_reports(result, [], tmp_path / "a" / "b", "name")
    assert [path.name for path in paths] == ["name.md", "name.html"]
    assert not [path for path in (tmp_path / "a" / "b").iterdir() if path.name.startswith(".")]
    with pytest.raises(InputError, match="cannot make this folder"):
        write_reports(result, [], paths[0], "name")


def test_every_figure_has_a_unit_and_a_source(result: ScenarioResult) -> None:
    for hardware in (
        load_device("h100"),
        load_system("dgx-h100"),
        load_device("tpu-v5p"),
        load_system("macbook-pro-m1-max"),
    ):
        rows = figure_rows(hardware)
        assert len(rows) == len([name for name in hardware.figures if not name.startswith("device.")])
        assert all(row.value and row.source for row in rows)
    assert set(used_figures(result)) == {"h100-sxm-80gb", "dgx-h100"}


def test_facts_agree_with_count() -> None:
    import tfsim
    from tfsim.models.facts import model_facts

    model = tfsim.load_model("gemma-2-9b")
    found = model_facts(model, seq_len=6000)
    counts = tfsim.count(model, batch=1, seq_len=6000, causal="halved", style="fused")
    assert found.prefill_flops_per_token == pytest.approx(counts.flops / 6000)
    assert found.kv_bytes_per_sequence == counts.kv_bytes
    assert found.weight_bytes == counts.weight_bytes
    assert np.isclose(found.training_flops_per_token["exact"], 3 * found.prefill_flops_per_token)


@pytest.mark.parametrize(
    ("value", "words"), [(0.5, "0.5"), (8.791, "8.79"), (112.4, "112"), (3520.4, "3,520"), (1234567.0, "1,234,567")]
)
def test_rates_never_print_powers_of_ten(value: float, words: str) -> None:
    from tfsim.reports.summary import _three, energy_words

    assert _three(value) == words
    assert "e+" not in energy_words(value * 1e5)


def test_training_says_its_notes_and_no_bill_when_it_does_not_fit() -> None:
    job = {"system": "dgx-a100", "devices": 8, "seq_len": 4096, "global_batch": 8, "precision": "fp8", "tokens": "1T"}
    asked = {"schema": 1, "title": "t", "model": "llama-3.1-405b", "train": job}
    (training,) = (s for s in sections(run_scenario(validate(Scenario, asked, "here"))) if "Training" in s.title)
    words = {item.label: " ".join(item.pieces) for item in training.items if isinstance(item, Fact)}
    assert "no fp8 unit" in words["note"]
    assert "does not fit" in words["verdict"]
    assert "whole run" not in words
