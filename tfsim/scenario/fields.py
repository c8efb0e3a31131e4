"""What the questions of a scenario are made of: numbers with units, overrides of a system's figures, plans."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from tfsim.errors import InputError, quote
from tfsim.units import parse_quantity


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


def quantity(dimension: str, *, whole: bool = False, least: float = 0) -> BeforeValidator:
    """A field that takes a number, or text with a unit, of a dimension of ``tfsim.units``."""
    return BeforeValidator(partial(_quantity, dimension=dimension, whole=whole, least=least))


Devices = Annotated[int, quantity("count", whole=True, least=1)]
Tokens = Annotated[int, quantity("tokens", whole=True, least=1)]
Images = Annotated[int, quantity("count", whole=True)]
Degree = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


def one_paragraph(value: str) -> str:
    """Text on one line; ValueError for control characters."""
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

    price: Annotated[float, quantity("price")] | None = None
    power: Annotated[float, quantity("power")] | None = None
    pue: Annotated[float, quantity("count", least=1)] | None = None
    carbon: Annotated[float, quantity("carbon")] | None = None
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
