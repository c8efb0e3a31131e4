"""The YAML question: parse it, check it, answer it.

A scenario names one model and asks what training it takes, what serving it gives, or both; or it compares several
models as the context grows. ``docs/cli.md`` shows the form; ``tfsim train``, ``serve``, ``compare`` and ``size`` build
the same questions from their options.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tfsim.errors import InputError, unknown
from tfsim.files import data_dir, not_a_flag, read_yaml, validate
from tfsim.hardware import load_system
from tfsim.models.facts import model_facts
from tfsim.models.load import load_model, load_models
from tfsim.models.spec import ModelSpec
from tfsim.scenario.answers import (
    TOP_PLANS,
    ComparisonAnswer,
    ScenarioResult,
    ServingAnswer,
    SizingAnswer,
    TrainingAnswer,
)
from tfsim.scenario.fields import (
    NO_OVERRIDES,
    AnyServingPlan,
    AnyTrainingPlan,
    Devices,
    Images,
    Name,
    Overrides,
    ServingPlan,
    Strict,
    Tokens,
    TrainingPlan,
    one_paragraph,
    quantity,
)

__all__ = [
    "CONTEXTS",
    "TOP_PLANS",
    "ComparisonAnswer",
    "ComparisonQuestion",
    "Overrides",
    "Scenario",
    "ScenarioResult",
    "ServingAnswer",
    "ServingPlan",
    "ServingQuestion",
    "SizingAnswer",
    "SizingQuestion",
    "TrainingAnswer",
    "TrainingPlan",
    "TrainingQuestion",
    "answer_comparison",
    "answer_serving",
    "answer_sizing",
    "answer_training",
    "list_scenarios",
    "load_scenario",
    "run_scenario",
    "scenario_name",
]

_ENDINGS = (".yaml", ".yml", ".json")


class TrainingQuestion(Strict):
    """Train on ``devices`` of ``system`` (default one node) with ``global_batch`` sequences of ``seq_len`` tokens
    (default the model's longest) and ``images`` each per step; ``tokens`` in all for days, money and energy.

    ``plan``: ``auto``, the fastest plan that fits, or its fields; ``fixed``: fields that ``auto`` has to keep.
    """

    system: Name
    devices: Devices | None = None
    seq_len: Tokens | None = None
    global_batch: Annotated[int, quantity("count", whole=True, least=1)]
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
    batch: Annotated[int, quantity("count", whole=True, least=1)] | None = None
    plan: AnyServingPlan = "auto"
    dtype: Name | None = None
    weights_dtype: Name | None = None
    kv_dtype: Name | None = None
    software: Name = "graph"
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_batch: Annotated[int, quantity("count", whole=True, least=1)] = 512
    max_prefill_tokens: Tokens = 8192
    overrides: Overrides = Overrides()


CONTEXTS = (128, 1024, 8192, 65_536, 1_048_576)


class ComparisonQuestion(Strict):
    """The same pass of ``batch`` sequences for several ``models`` on one device of ``system``, at each of ``seq_lens``.
    ``ignore_fields``: fields of a Hugging Face config.json to leave out. Other fields as in ``tfsim.compare``."""

    models: Annotated[list[Name], Field(min_length=1, max_length=20)]
    system: Name
    seq_lens: Annotated[list[Tokens], Field(min_length=1, max_length=64)] = Field(
        default_factory=lambda: list(CONTEXTS)
    )
    batch: Annotated[int, quantity("count", whole=True, least=1)] = 1
    dtype: Name = "bf16"
    software: Name = "fused"
    ignore_fields: Annotated[list[Name], Field(max_length=100)] = Field(default_factory=list)
    overrides: Overrides = Overrides()


class SizingQuestion(Strict):
    """What model, on how much data: fields and defaults as in ``tfsim.size``."""

    budget: str | float | None = None
    system: Name | None = None
    devices: Devices | None = None
    deadline: Annotated[float, quantity("time")] | None = None
    params: Annotated[float, quantity("count", least=1)] | None = None
    tokens: Tokens | None = None
    loss: Annotated[float, Field(gt=0)] | None = None
    law: Name | None = None
    seq_len: Tokens = 4096
    vocab_size: Annotated[int, quantity("count", whole=True, least=1)] = 128_256
    unique_tokens: Tokens | None = None
    serve_tokens: Annotated[float, quantity("tokens", least=1)] | None = None
    experts: Annotated[int, quantity("count", whole=True, least=2)] | None = None
    top_k: Annotated[int, quantity("count", whole=True, least=1)] | None = None
    granularity: Annotated[float, Field(ge=1)] | None = None
    bits: Annotated[float, Field(gt=0)] | None = None
    global_batch: Annotated[int, quantity("count", whole=True, least=1)] | None = None
    plan: AnyTrainingPlan = "auto"
    precision: Name = "bf16"
    software: Name = "fused"
    overrides: Overrides = Overrides()


class Scenario(Strict):
    """One file of scenarios/. ``model`` is what ``train`` and ``serve`` are about; ``compare`` names its own, ``size``
    finds one.
    ``overrides`` hold for all questions; those inside each come first."""

    schema_version: Annotated[Literal[1], BeforeValidator(not_a_flag)] = Field(alias="schema")
    title: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_paragraph)]
    about: Annotated[str, Field(max_length=2000), AfterValidator(one_paragraph)] = ""
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
