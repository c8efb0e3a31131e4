"""The answers to a scenario's questions, each with the system that it holds for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tfsim.hardware import System
from tfsim.models.facts import ModelFacts
from tfsim.models.spec import ModelSpec

if TYPE_CHECKING:
    from pandas import DataFrame

    from tfsim.comparison import Crossing
    from tfsim.scenario import Scenario
    from tfsim.serving import ServingEstimate
    from tfsim.sizing import SizingEstimate
    from tfsim.training import TrainingEstimate

TOP_PLANS = 5


@dataclass(frozen=True)
class TrainingAnswer:
    """An estimate, the system it holds for, and the best plans of the search behind it (None: the plan was given)."""

    estimate: TrainingEstimate
    system: System
    plans: DataFrame | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plans = {} if self.plans is None else {"plans": self.plans.head(TOP_PLANS).to_dict(orient="records")}
        return self.estimate.to_dict() | plans


@dataclass(frozen=True)
class ServingAnswer:
    """An estimate, the system it holds for, and what the model keeps of past tokens (a KV cache, a state)."""

    estimate: ServingEstimate
    system: System
    kept: str = "KV cache"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self.estimate.to_dict()


@dataclass(frozen=True)
class ComparisonAnswer:
    """The table of a comparison (columns as ``tfsim.compare``), where its cases cross, and the system it holds for."""

    table: DataFrame
    crossings: list[Crossing]
    system: System
    confidence: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "system": self.system.name,
            "device": self.system.device.name,
            "rows": self.table.to_dict(orient="records"),
            "crossings": [asdict(crossing) for crossing in self.crossings],
            "notes": list(self.notes),
            "confidence": self.confidence,
        }


@dataclass(frozen=True)
class SizingAnswer:
    """An estimate, and the system it holds for (None: no system was named)."""

    estimate: SizingEstimate
    system: System | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return self.estimate.to_dict()


@dataclass(frozen=True)
class ScenarioResult:
    """The answers to a scenario."""

    scenario: Scenario
    model: ModelSpec | None = None
    facts: ModelFacts | None = None
    train: TrainingAnswer | None = None
    serve: ServingAnswer | None = None
    compare: ComparisonAnswer | None = None
    size: SizingAnswer | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "title": self.scenario.title,
            "about": self.scenario.about,
            "model": None if self.facts is None else self.facts.to_dict(),
            "train": None if self.train is None else self.train.to_dict(),
            "serve": None if self.serve is None else self.serve.to_dict(),
            "compare": None if self.compare is None else self.compare.to_dict(),
            "size": None if self.size is None else self.size.to_dict(),
            "scenario": self.scenario.model_dump(by_alias=True, exclude_none=True),
        }
