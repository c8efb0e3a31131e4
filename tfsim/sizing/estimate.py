"""The answer of ``size``: a model that can be built, what it is trained on, what that takes, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfsim.models.spec import ModelSpec
from tfsim.plain import plain, plain_fields
from tfsim.scaling import Allocation, Band, Law, Range
from tfsim.serving import ServingEstimate
from tfsim.sizing.budget import Budget
from tfsim.sizing.shapes import ModelShape
from tfsim.training import TrainingEstimate
from tfsim.units import format_count, format_money, format_time, format_tokens


@dataclass(frozen=True)
class BowlSize:
    """A model of ``factor`` times the answer's N, as a shape of its own, on the same devices with the same batch.

    ``tokens``, ``extra_compute`` (a share, in the law's FLOPs), ``days`` of training, ``cost_usd`` (serving included
    where it is asked): to the same loss; infinite where no amount of data reaches it, None without a system (or price).
    ``loss_same_budget``: with what the answer spends (device-hours on a system, else FLOPs) spent on this size, NaN
    where serving takes it all.
    """

    factor: float
    shape: ModelShape
    parameters: int
    tokens: float
    extra_compute: float
    days: float | None
    cost_usd: float | None
    loss_same_budget: float


@dataclass(frozen=True)
class OtherLaw:
    """What another law makes of the same run's FLOPs, counted as it counts them (``compute``).

    ``parameters``: N in its own count ``n``; ``total_parameters``: all those of a shape of that N; ``loss``: in its own
    unit, None where it states none.
    """

    law: str
    n: str
    c: str
    compute: float
    parameters: float
    total_parameters: float
    tokens: float
    loss: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ServingBill:
    """What serving ``tokens`` (prompts and answers) over the model's life takes, and the model that ignores it.

    ``estimate``: of one replica group under steady load, whose device-seconds per token are charged.
    ``alone_parameters``, ``alone_tokens``: the model without this demand; ``alone_device_hours``: what it takes
    to train and serve that one, ``alone_loss`` its loss (of a fixed budget: after serving is paid, NaN where nothing
    is left to train it).
    """

    tokens: float
    device_hours: float
    cost_usd: float | None
    estimate: ServingEstimate
    alone_parameters: int
    alone_tokens: float
    alone_device_hours: float
    alone_loss: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return plain_fields(self)


@dataclass(frozen=True)
class SizingEstimate:
    """A model, its tokens and its loss, by ``law``, and on a system what training takes.

    - ``asked``: the question in words; ``budget``: what was to be spent, None when not asked so;
    - ``allocation``: the law's own optimum, in its own counts, before it became a shape; None where N was given;
    - ``shape``, ``model``: the architecture; ``parameters``, ``active_parameters``, ``law_parameters``: all, those
      that a token uses, and N as the law counts it;
    - ``tokens``, ``tokens_per_parameter`` (D / N as the law counts), ``loss`` (None where the law states none),
      ``epochs`` (None without ``unique_tokens``);
    - ``compute``: training FLOPs in the law's count; ``exact_flops``: in the architecture's own (tfsim.count);
    - ``training``: the run on the system, None without one; ``devices_because``, ``batch_because``: how those were
      chosen; ``achieved_flops_per_device``: exact model FLOPs per second;
    - ``serving``: the bill of ``serve_tokens``; ``total_cost_usd``: both bills;
    - ``band``: quantiles of the law's best N and D for these FLOPs; ``loss_band``: of the loss of this very model;
      ``band_because``: what they rest on, or why there are none;
    - ``bowl``: other sizes; empty for a law without a loss; ``cheapest``: of those tried, the one that reaches the loss
      in the least device time, None where it saves less than 1 % or N was not the law's to choose;
    - ``others``, ``left_out``: the other laws, and why not;
    - ``warnings``: what to know before believing it.
    """

    asked: str
    budget: Budget | None
    law: Law
    convention: str
    facts: Mapping[str, Any]
    allocation: Allocation | None
    shape: ModelShape
    model: ModelSpec
    parameters: int
    active_parameters: int
    law_parameters: float
    tokens: float
    tokens_per_parameter: float
    loss: float | None
    epochs: float | None
    compute: float
    exact_flops: float
    seq_len: int
    system: str | None
    devices: int | None
    devices_because: str
    global_batch: int | None
    batch_because: str
    training: TrainingEstimate | None
    days: float | None
    device_hours: float | None
    cost_usd: float | None
    energy_kwh: float | None
    carbon_kg: float | None
    achieved_flops_per_device: float | None
    mfu: float | None
    serving: ServingBill | None
    total_cost_usd: float | None
    band: Band | None
    loss_band: Range | None
    band_because: str
    bowl: tuple[BowlSize, ...]
    cheapest: BowlSize | None
    others: tuple[OtherLaw, ...]
    left_out: Mapping[str, str]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        shown = plain_fields(self, leave_out=("model", "allocation", "law", "band"))
        shown["law"] = self.law.name
        shown["band"] = None if self.band is None else plain_fields(self.band, leave_out=("law",))
        shown["allocation"] = None if self.allocation is None else _allocated(self.allocation)
        return shown

    def __repr__(self) -> str:
        words = f"{format_count(self.parameters)} parameters on {format_tokens(self.tokens)}"
        loss = "" if self.loss is None else f", loss {self.loss:.3f}"
        if self.training is None or self.days is None:
            return f"SizingEstimate({self.asked}: {words}{loss}; law {self.law.name})"
        money = "" if self.cost_usd is None else f", {format_money(self.cost_usd)}"
        where = f"{format_time(self.days * 86400)} on {self.devices} x {self.system}{money}"
        return f"SizingEstimate({self.asked}: {words}{loss}; {where}; law {self.law.name})"


def _allocated(found: Allocation) -> dict[str, Any]:
    names = ("parameters", "tokens", "compute", "loss", "total_parameters", "epochs")
    return {name: plain(getattr(found, name)) for name in names}
