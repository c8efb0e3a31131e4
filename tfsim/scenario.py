"""The YAML question: parse it, check it, answer it.

A scenario names one model and asks what training it takes, what serving it gives, or both; or it compares several
models as the context grows. ``docs/cli.md`` shows the form; ``tfsim train``, ``serve``, ``compare`` and ``size`` build
the same questions from their options.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from tfsim.errors import InputError, quote, unknown
from tfsim.files import data_dir, not_a_flag, read_yaml, validate
from tfsim.hardware import System, load_system
from tfsim.models.facts import ModelFacts, model_facts
from tfsim.models.load import load_model, load_models
from tfsim.models.spec import ModelSpec
from tfsim.units import parse_quantity

if TYPE_CHECKING:
    from pandas import DataFrame

    from tfsim.comparison import Crossing
    from tfsim.serving import ServingEstimate
    from tfsim.sizing import SizingEstimate
    from tfsim.training import TrainingEstimate

TOP_PLANS = 5
_ENDINGS = (".yaml", ".yml", ".json")


def _quantity(value: Any, *, dimension: str, whole: bool = False, least: float = 0) -> int | float:
    """A number, or text with a unit, in the base unit of its dimension; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number, or a number with its unit as text")
    try:
        number = parse_quantity(value, dimension, "value")
    except InputError as error:
        raise ValueError(str(error).removeprefix(f"value: {quote(value)} ")) from None
    if whole and number != int(number):
        raise ValueError("must be a whole number")
    if number < least:
        raise ValueError(f"must be at least {least:g}")
    return int(number) if whole else number


def _read(dimension: str, *, whole: bool = False, least: float = 0) -> BeforeValidator:
    return BeforeValidator(partial(_quantity, dimension=dimension, whole=whole, least=least))


Devices = Annotated[int, _read("count", whole=True, least=1)]
Tokens = Annotated[int, _read("tokens", whole=True, least=1)]
Images = Annotated[int, _read("count", whole=True)]
Degree = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


def _one_paragraph(value: str) -> str:
    text = " ".join(value.split())
    if not text.isprintable():
        raise ValueError("holds control characters")
    return text


class Strict(BaseModel):
    """Base of every part of a scenario: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Overrides(Strict):
    """What replaces the system's own figures: ``price`` [$/device-hour], ``power`` [W per device, before PUE], ``pue``,
    ``carbon`` [kg CO2e/kWh], and any other field of the profile by ``set``."""

    price: Annotated[float, _read("price")] | None = None
    power: Annotated[float, _read("power")] | None = None
    pue: Annotated[float, _read("count", least=1)] | None = None
    carbon: Annotated[float, _read("carbon")] | None = None
    set: dict[str, str | int | float] = {}

    def over(self, below: Overrides) -> Overrides:
        """These, and those of ``below`` that these leave out."""
        mine = self.model_dump(exclude_none=True, exclude={"set"})
        return Overrides(**below.model_dump(exclude_none=True, exclude={"set"}) | mine, set={**below.set, **self.set})

    @property
    def rates(self) -> dict[str, Any]:
        """The four as keyword arguments of ``train`` and ``serve``."""
        return {"price": self.price, "power": self.power, "pue": self.pue, "carbon": self.carbon}


NO_OVERRIDES = Overrides()


class TrainingPlan(Strict):
    """Fields of a training plan; those left out take the defaults of ``tfsim.train``."""

    tp: Degree | None = None
    pp: Degree | None = None
    dp: Degree | None = None
    ep: Degree | None = None
    etp: Degree | None = None
    micro_batch: Degree | None = None
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3)] | None = None
    recompute: Literal["none", "selective", "full"] | None = None


class ServingPlan(Strict):
    """Fields of a serving plan; those left out are 1."""

    tp: Degree | None = None
    pp: Degree | None = None
    ep: Degree | None = None


def _plan_kind(value: Any) -> str:
    return "auto" if isinstance(value, str) else "fields"


# the callable tells pydantic which of the two was meant, so that its message is about that one
Auto = Annotated[Literal["auto"], Tag("auto")]
AnyTrainingPlan = Annotated[Auto | Annotated[TrainingPlan, Tag("fields")], Discriminator(_plan_kind)]
AnyServingPlan = Annotated[Auto | Annotated[ServingPlan, Tag("fields")], Discriminator(_plan_kind)]


class TrainingQuestion(Strict):
    """Train on ``devices`` of ``system`` (default one node) with ``global_batch`` sequences of ``seq_len`` tokens
    (default the model's longest) and ``images`` each per step; ``tokens`` in all for days, money and energy.

    ``plan``: ``auto``, the fastest plan that fits, or its fields; ``fixed``: fields that ``auto`` has to keep.
    """

    system: Name
    devices: Devices | None = None
    seq_len: Tokens | None = None
    global_batch: Annotated[int, _read("count", whole=True, least=1)]
    images: Images = 0
    tokens: Tokens | None = None
    plan: AnyTrainingPlan = "auto"
    fixed: TrainingPlan = TrainingPlan()
    precision: Name = "bf16"
    software: Name = "fused"
    overrides: Overrides = Overrides()

    @model_validator(mode="after")
    def _one_plan(self) -> Self:
        if self.plan != "auto" and self.fixed != TrainingPlan():
            raise ValueError("'fixed' belongs to plan: auto; give all fields in 'plan', or in 'fixed'")
        return self


class ServingQuestion(Strict):
    """Serve on ``devices`` of ``system`` requests of ``input_len`` prompt and ``output_len`` generated tokens. Fields
    and defaults as in ``tfsim.serve``; ``plan``: ``auto``, the most output tokens per second and device, or its
    fields."""

    system: Name
    devices: Devices = 1
    input_len: Tokens | None = None
    output_len: Tokens | None = None
    images: Images | None = None
    batch: Annotated[int, _read("count", whole=True, least=1)] | None = None
    plan: AnyServingPlan = "auto"
    dtype: Name | None = None
    weights_dtype: Name | None = None
    kv_dtype: Name | None = None
    software: Name = "graph"
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_batch: Annotated[int, _read("count", whole=True, least=1)] = 512
    max_prefill_tokens: Tokens = 8192
    overrides: Overrides = Overrides()


CONTEXTS = (128, 1024, 8192, 65_536, 1_048_576)


class ComparisonQuestion(Strict):
    """The same pass of ``batch`` sequences for several ``models`` on one device of ``system``, at each of ``seq_lens``.
    ``ignore_fields``: fields of a Hugging Face config.json to leave out. Other fields as in ``tfsim.compare``."""

    models: Annotated[list[Name], Field(min_length=1, max_length=20)]
    system: Name
    seq_lens: Annotated[list[Tokens], Field(min_length=1, max_length=64)] = list(CONTEXTS)
    batch: Annotated[int, _read("count", whole=True, least=1)] = 1
    dtype: Name = "bf16"
    software: Name = "fused"
    ignore_fields: Annotated[list[Name], Field(max_length=100)] = []
    overrides: Overrides = Overrides()


class SizingQuestion(Strict):
    """What model, on how much data: fields and defaults as in ``tfsim.size``."""

    budget: str | float | None = None
    system: Name | None = None
    devices: Devices | None = None
    deadline: Annotated[float, _read("time")] | None = None
    params: Annotated[float, _read("count", least=1)] | None = None
    tokens: Tokens | None = None
    loss: Annotated[float, Field(gt=0)] | None = None
    law: Name | None = None
    seq_len: Tokens = 4096
    vocab_size: Annotated[int, _read("count", whole=True, least=1)] = 128_256
    unique_tokens: Tokens | None = None
    serve_tokens: Annotated[float, _read("tokens", least=1)] | None = None
    experts: Annotated[int, _read("count", whole=True, least=2)] | None = None
    top_k: Annotated[int, _read("count", whole=True, least=1)] | None = None
    granularity: Annotated[float, Field(ge=1)] | None = None
    bits: Annotated[float, Field(gt=0)] | None = None
    global_batch: Annotated[int, _read("count", whole=True, least=1)] | None = None
    plan: AnyTrainingPlan = "auto"
    precision: Name = "bf16"
    software: Name = "fused"
    overrides: Overrides = Overrides()


class Scenario(Strict):
    """One file of scenarios/. ``model`` is what ``train`` and ``serve`` are about; ``compare`` names its own, ``size``
    finds one.
    ``overrides`` hold for all questions; those inside each come first."""

    schema_version: Annotated[Literal[1], BeforeValidator(not_a_flag)] = Field(alias="schema")
    title: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_paragraph)]
    about: Annotated[str, Field(max_length=2000), AfterValidator(_one_paragraph)] = ""
    model: Name | None = None
    train: TrainingQuestion | None = None
    serve: ServingQuestion | None = None
    compare: ComparisonQuestion | None = None
    size: SizingQuestion | None = None
    overrides: Overrides = Overrides()

    @model_validator(mode="after")
    def _about_something(self) -> Self:
        alone = self.compare is not None or self.size is not None
        if self.model is None and (self.train is not None or self.serve is not None or not alone):
            raise ValueError("'model' is missing: what to train and serve (only compare and size need none)")
        return self


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


def load_scenario(name_or_path: str | os.PathLike[str]) -> Scenario:
    """The scenario of this name among those that ship with tfsim, or in this file.

    Models and systems that are paths are looked up beside the scenario's file.
    Raises: InputError, one line naming the file and field, or the nearest name.
    """
    path = _scenario_path(os.fspath(name_or_path))
    data = read_yaml(path)
    _localise(data, "model", path.parent)
    for part in ("train", "serve", "compare", "size"):
        if isinstance(data.get(part), dict):
            _localise(data[part], "system", path.parent)
            _localise(data[part], "models", path.parent)
    return validate(Scenario, data, str(path))


def scenario_name(name_or_path: str | os.PathLike[str]) -> str:
    """The name of a scenario, or of its file without folder and ending."""
    name = Path(name_or_path).name
    return next((name[: -len(end)] for end in _ENDINGS if name.lower().endswith(end)), name) or "scenario"


def list_scenarios() -> list[str]:
    """The names of the scenarios that ship with tfsim."""
    return [file.stem for file in sorted(data_dir("scenarios").glob("*.yaml"))]


def run_scenario(scenario: Scenario, overrides: Overrides = NO_OVERRIDES) -> ScenarioResult:
    """Answer a scenario; ``overrides`` come before the scenario's own.

    Raises: InputError when the model, a system or a plan cannot be.
    """

    def rates_of(question: TrainingQuestion | ServingQuestion | ComparisonQuestion | SizingQuestion) -> Overrides:
        return overrides.over(question.overrides.over(scenario.overrides))

    model = facts = training = serving = comparison = sizing = None
    if scenario.model is not None:
        model = load_model(scenario.model)
        if scenario.train is not None:
            training = answer_training(model, scenario.train, rates_of(scenario.train))
        if scenario.serve is not None:
            serving = answer_serving(model, scenario.serve, rates_of(scenario.serve))
        facts = model_facts(model, seq_len=None if training is None else int(training.estimate.seq_len))
    if scenario.compare is not None:
        comparison = answer_comparison(scenario.compare, rates_of(scenario.compare))
    if scenario.size is not None:
        sizing = answer_sizing(scenario.size, rates_of(scenario.size))
    return ScenarioResult(scenario, model, facts, training, serving, comparison, sizing)


def answer_training(
    model: ModelSpec, question: TrainingQuestion, overrides: Overrides = NO_OVERRIDES
) -> TrainingAnswer:
    """Answer one training question. Raises: InputError when the system or the plan cannot be."""
    from tfsim.training import search_plans, train

    system = load_system(question.system).with_overrides(overrides.set)
    job: dict[str, Any] = {name: getattr(question, name) for name in ("devices", "seq_len", "global_batch", "images")}
    how: dict[str, Any] = {"precision": question.precision, "software": question.software}
    plans = None
    if isinstance(question.plan, TrainingPlan):
        plan = question.plan.model_dump(exclude_none=True)
    else:
        plans = search_plans(model, system, **job, plan=question.fixed.model_dump(exclude_none=True), **how)
        best = plans.iloc[0]
        plan = {name: best[name] for name in TrainingPlan.model_fields}
    estimate = train(model, system, **job, plan=plan, tokens=question.tokens, **how, **overrides.rates)
    return TrainingAnswer(estimate, system, plans)


def answer_serving(model: ModelSpec, question: ServingQuestion, overrides: Overrides = NO_OVERRIDES) -> ServingAnswer:
    """Answer one serving question. Raises: InputError when the system or the plan cannot be."""
    from tfsim.serving import serve

    system = load_system(question.system).with_overrides(overrides.set)
    asked = {name: getattr(question, name) for name in type(question).model_fields}
    given = {name: value for name, value in asked.items() if name not in ("system", "plan", "overrides")}
    plan = question.plan.model_dump(exclude_none=True) if isinstance(question.plan, ServingPlan) else "auto"
    return ServingAnswer(serve(model, system, plan=plan, **given, **overrides.rates), system, model.kept_words)


def answer_comparison(question: ComparisonQuestion, overrides: Overrides = NO_OVERRIDES) -> ComparisonAnswer:
    """Answer one comparison. Raises: InputError when a model, the system or a length cannot be."""
    from tfsim.comparison import compare, crossings

    system = load_system(question.system).with_overrides(overrides.set)
    models = load_models(question.models, question.ignore_fields)
    how: dict[str, Any] = {name: getattr(question, name) for name in ("seq_lens", "batch", "dtype")}
    table = compare(models, system, **how, software_name=question.software)
    longest = max(question.seq_lens)
    notes = tuple(
        f"{model.name} takes {model.max_seq_len:,} tokens: longer rows show the architecture, not the published model"
        for model in models
        if model.max_seq_len is not None and model.max_seq_len < longest
    )
    from tfsim.timing import basis  # loads NumPy, which a question alone does not need

    confidence = f"{basis(system.device)}; one device, whole passes not compared with runs"
    return ComparisonAnswer(table, crossings(table), system, confidence, notes)


def answer_sizing(question: SizingQuestion, overrides: Overrides = NO_OVERRIDES) -> SizingAnswer:
    """Answer one sizing question. Raises: InputError when it contradicts itself or no model answers it."""
    from tfsim.sizing import size

    if question.system is None and overrides.set:
        raise InputError(f"set: {next(iter(overrides.set))} is a figure of a system: name it with system")
    system = None if question.system is None else load_system(question.system).with_overrides(overrides.set)
    asked = {name: getattr(question, name) for name in type(question).model_fields}
    given = {name: value for name, value in asked.items() if name not in ("system", "plan", "overrides")}
    plan: Any = question.plan.model_dump(exclude_none=True) if isinstance(question.plan, TrainingPlan) else "auto"
    return SizingAnswer(size(system=system, plan=plan, **given, **overrides.rates), system)


def _scenario_path(text: str) -> Path:
    if not text:
        raise InputError("a scenario is a name or a path, not an empty text")
    if _is_path(text):
        return Path(text)
    if text not in list_scenarios():
        raise unknown("scenario", text, list_scenarios())
    return data_dir("scenarios") / f"{text}.yaml"


def _is_path(text: str) -> bool:
    return text.lower().endswith(_ENDINGS) or any(separator in text for separator in (os.sep, os.altsep) if separator)


def _localise(data: dict[str, Any], key: str, folder: Path) -> None:
    """Turn a relative path under ``key``, or each in a list of them, into one from ``folder``."""
    value = data.get(key)
    if isinstance(value, list):
        data[key] = [_from(folder, item) for item in value]
    elif value is not None:
        data[key] = _from(folder, value)


def _from(folder: Path, value: Any) -> Any:
    return str(folder / value) if isinstance(value, str) and _is_path(value) else value
