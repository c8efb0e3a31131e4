"""What to know before believing a sizing: a law far from its runs, data used up, a run that is not as asked."""

from __future__ import annotations

from tfsim.scaling.laws import outside
from tfsim.scaling.surface import Curve
from tfsim.sizing.estimate import BowlSize
from tfsim.sizing.question import Question
from tfsim.sizing.runs import USUAL_DAYS, Runs
from tfsim.sizing.shapes import ModelShape
from tfsim.training import TrainingEstimate
from tfsim.training.confidence import published_factor
from tfsim.units import format_cost, format_count, format_percent, format_time, format_tokens

DAY = 86400.0
CHEAP_EPOCHS = 4  # repeats up to here cost next to nothing (Muennighoff et al. 2023, arXiv:2305.16264)
_SAME_PACE = 0.05  # relative
_SAME_LOSS = 1e-3  # relative: what half of the tokens may be worse by where the data is used up


def of_the_law(q: Question, compute: float, n: float, tokens: float) -> list[str]:
    """How far from its runs the law is asked, and what its entry says."""
    found = list(outside(q.law, compute=compute, parameters=n, tokens=tokens, tokens_per_parameter=tokens / n))
    if q.law.note:
        found.append(f"law {q.law.name}: {q.law.note}")
    if q.law.n == "not_stated":
        found.append(f"law {q.law.name} does not say what N counts: read as all parameters")
    return found


def of_repeats(surface: Curve | None, n: float, tokens: float, epochs: float | None, loss: float | None) -> list[str]:
    """Many epochs, and where half of them would do."""
    if epochs is None or epochs <= CHEAP_EPOCHS:
        return []
    found = [f"{epochs:,.1f} epochs: beyond {CHEAP_EPOCHS}, repeated tokens are worth less and less"]
    if surface is not None and loss is not None:
        half = float(surface.loss(n, tokens / 2))
        if half < loss * (1 + _SAME_LOSS):
            found.append(
                f"unique_tokens are used up: half of the run reaches loss {half:.4f}, all of it {loss:.4f}; more data"
                " would lower it, a larger budget does not"
            )
    return found


def of_the_run(q: Question, run: TrainingEstimate | None, runs: Runs | None) -> list[str]:
    """A plan that does not fit, a run longer than its deadline or than anybody waits."""
    if run is None or runs is None:
        return []
    found = list(run.notes)
    limit = (q.deadline or 0) / DAY
    if not run.fits:
        found.append(f"the model {run.verdict}")
    long = format_time(run.days * DAY)
    all_there_is = runs.more_devices(run.devices) is None
    if limit and run.days > limit * (1 + 1e-9):
        found.append(f"the run takes {long}, longer than the deadline of {limit:,.1f} days")
    elif run.days > USUAL_DAYS * (1 + 1e-9) and q.devices is None and all_there_is:
        found.append(f"the run takes {long}: {run.system} joins no more than {_devices(run.devices)}")
    elif run.days > 365:
        found.append(f"the run takes {long}: " + ("ask for less" if all_there_is else "give more devices"))
    return found


def _devices(count: int) -> str:
    return f"{count:,} device" + "s" * (count != 1)


def of_the_pace(
    q: Question,
    run: TrainingEstimate | None,
    runs: Runs | None,
    shape: ModelShape,
    tokens: float,
    surface: Curve | None,
) -> list[str]:
    """What the pace of published dense runs on this device makes of days, dollars and tokens, where it is another."""
    if run is None or runs is None or shape.experts > 1:
        return []
    device = runs.system.device.name
    factor = published_factor(device, run.software)
    if factor is None or abs(factor - 1) < _SAME_PACE:
        return []
    usd = "" if run.cost_usd is None else f" and {format_cost(factor * float(run.cost_usd))}"
    words = f"published runs on {device} took {factor:.2f} times as long as predicted; at their pace these tokens take"
    words += f" {format_time(factor * run.days * DAY)}{usd}"
    if q.spends_hours and surface is not None and q.serve_tokens is None:
        loss = float(surface.loss(float(shape.parameters(q.law.n)), tokens / factor))
        words += f", and the budget trains this model on {format_tokens(tokens / factor)}: loss {loss:.4f}"
    return [words]


def of_other_sizes(
    run: TrainingEstimate | None, bowl: tuple[BowlSize, ...], cheapest: BowlSize | None, loss: float | None
) -> list[str]:
    """A size that this system runs so much better, or that fits the budget so much better, that it is cheaper."""
    if cheapest is not None and run is not None and cheapest.days is not None:
        usd = "" if cheapest.cost_usd is None else f", {format_cost(cheapest.cost_usd)}"
        return [
            f"{cheapest.factor:.2g}x N ({format_count(cheapest.parameters)} on {format_tokens(cheapest.tokens)})"
            f" reaches the same loss in {format_percent(1 - cheapest.days / run.days)} less device time{usd}:"
            f" the law weighs FLOPs, not the speed of {run.system}"
        ]
    better = [b for b in bowl if loss is not None and b.loss_same_budget < loss - 5e-4]
    if not better or loss is None:
        return []
    best = min(better, key=lambda b: b.loss_same_budget)
    return [
        f"{best.factor:g}x N ends at loss {best.loss_same_budget:.4f}, below {loss:.4f}, for the same spending:"
        " the size asked is not the best use of it"
    ]
