"""The charts of a scenario's reports: results to plots to pictures."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tfsim.reports.render import Picture
    from tfsim.scenario import ScenarioResult
    from tfsim.sizing import SizingEstimate


def pictures(result: "ScenarioResult") -> "list[Picture]":
    """Rooflines, memory bars and time breakdowns of what the scenario asks."""
    from tfsim.plots.style import image
    from tfsim.reports.render import Picture

    return [
        Picture(name, caption, image(figure, "png"), image(figure, "svg")) for name, caption, figure in _charts(result)
    ]


def _charts(result: "ScenarioResult") -> "Iterator[tuple[str, str, Figure]]":
    from tfsim.comparison import QUANTITIES
    from tfsim.plots.bars import MemoryBar, memory_bars, time_breakdown
    from tfsim.plots.context import by_context
    from tfsim.plots.points import serving_points, training_points
    from tfsim.plots.roofline import roofline
    from tfsim.reports.summary import serving_memory, serving_times, training_memory, training_times

    if result.compare is not None:
        device = result.compare.system.device
        panels = {column: QUANTITIES[column] for column in ("prefill_s", "decode_s", "train_s", "infer_memory_bytes")}
        chart = by_context(result.compare.table, panels, float(device.require("capacity_bytes")), f"One {device.name}")
        yield "context", "Time and memory against context length; dotted: more memory than the device has.", chart
    if result.size is not None:
        yield from _sizing(result.size.estimate)
    if result.model is None or result.facts is None:
        return
    training, serving, name = result.train, result.serve, result.facts.name
    bars = []
    if training is not None:
        bars.append(MemoryBar("training", training_memory(training), training.estimate.usable_bytes))
    if serving is not None and result.scenario.serve is not None:
        bars.append(MemoryBar("serving", serving_memory(serving), float(serving.estimate.memory.usable)))
    if bars:
        yield "memory", "Memory of the fullest device by part.", memory_bars(bars, f"Memory: {name}")
    if training is not None:
        yield (
            "step-time",
            "Where the time of one training step goes.",
            time_breakdown(training_times(training), f"Training step: {name}"),
        )
        device = training.system.device
        chart = roofline(training_points(result.model, training), device, f"Training {name} on {device.name}")
        yield "roofline-training", "Operators of a training step on one device; area: share of the time.", chart
    if serving is not None and result.scenario.serve is not None and serving.estimate.fits:
        yield (
            "serving-time",
            "What bounds the two phases of serving.",
            time_breakdown(serving_times(serving), f"Serving phases: {name}"),
        )
        device = serving.system.device
        points = serving_points(result.model, result.scenario.serve, serving)
        chart = roofline(points, device, f"Serving {name} on {device.name}")
        yield "roofline-serving", "Operators of prefill and decode on one device; area: share of the phase.", chart


def _sizing(e: "SizingEstimate") -> "Iterator[tuple[str, str, Figure]]":
    from tfsim.plots.laws import Advice, law_comparison
    from tfsim.plots.scaling import Sized, allocation, isoflops, loss_surface
    from tfsim.reports.sizing_page import standing_laws
    from tfsim.sizing.by_law import curve
    from tfsim.units import format_flops

    sized = Sized(e.law_parameters, e.tokens, e.compute)
    surface = curve(e.law, e.facts)
    if surface is not None:
        chart = isoflops(e.law, surface, sized, f"Loss over size: {e.law.name}", e.facts)
        yield "isoflop", "Loss over N at several budgets; the best N of each, and the model here.", chart
        chart = loss_surface(e.law, surface, sized, f"Loss over N and D: {e.law.name}", e.facts)
        yield "loss-surface", "Contours of the loss; along a budget's line the best N and D have the lowest.", chart
    chart = allocation(e.law, sized, f"Best N and D over the budget: {e.law.name}", e.facts)
    yield "allocation", "The best N and D with the law's band, and published models at 6ND.", chart
    own = Advice(e.law.name, float(e.parameters), e.tokens)
    others = [Advice(other.law, other.total_parameters, other.tokens) for other in standing_laws(e)]
    band = None if e.band is None or e.law.n != "total" else e.band.parameters
    title = f"Best size by law at {format_flops(e.compute)}"
    chart = law_comparison(e.law, own, others, e.compute, band, title, e.facts)
    yield "laws", "All parameters of the best model, by law.", chart
