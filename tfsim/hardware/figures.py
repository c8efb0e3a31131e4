"""A figure: one sourced number of a hardware profile, or a null that says why it is missing."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tfsim import units

# Two keys of `sources` are reserved: what with_overrides() sets, and what a profile assumes.
OVERRIDE = "override"

Text = Annotated[str, Field(min_length=1, max_length=600)]


class Strict(BaseModel):
    """Base of every part of a profile: immutable, and no key beyond the declared ones."""

    # defer_build: a command that only needs devices should not wait for the schema of systems.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Source(Strict):
    """Where a figure was read: a datasheet, a page, a measurement, or a stated assumption."""

    title: Text
    url: Text | None = None
    date: Annotated[str, Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")] | None = None


class Figure(Strict):
    """A number in SI units with the key of its source, or null with the reason.

    In YAML the value is a string with its unit ("3350 GB/s") or a plain number in SI units.
    """

    dimension: ClassVar[str] = ""
    may_be_zero: ClassVar[bool] = False

    value: int | float | None
    source: Text | None = None
    reason: Text | None = None
    note: Text | None = None

    @field_validator("value", mode="before")
    @classmethod
    def _in_si_units(cls, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("must be a number, a string with a unit, or null")
        return cls.parse(value)

    @classmethod
    def parse(cls, value: int | float | str) -> int | float:
        """A user's value as a number in SI units. Raises: InputError."""
        return units.parse_quantity(value, cls.dimension, "value")

    @model_validator(mode="after")
    def _explained(self) -> Self:
        if self.value is None:
            if not self.reason:
                raise ValueError("a null value needs a 'reason'")
        elif not self.source:
            raise ValueError("a value needs a 'source'")
        elif self.value < 0 or (self.value == 0 and not self.may_be_zero):
            raise ValueError("must be above zero")
        return self


class Bytes(Figure):
    """A size [bytes]."""

    dimension = "bytes"


class BytesPerSecond(Figure):
    """A bandwidth [bytes/s]: of a link, per device and per direction."""

    dimension = "bandwidth"


class FlopPerSecond(Figure):
    """A dense arithmetic rate [FLOP/s]; one multiply-add is 2 FLOPs; integer OP/s count alike."""

    dimension = "flop_rate"


class Hertz(Figure):
    """A clock [Hz]."""

    @classmethod
    def parse(cls, value: int | float | str) -> int | float:
        """A clock such as "1830 MHz" or 1.83e9 in Hz. Raises: InputError."""
        text = str(value).strip()
        for unit, size in (("GHz", 1e9), ("MHz", 1e6), ("Hz", 1.0)):
            if text.endswith(unit):
                return units.parse_quantity(text.removesuffix(unit), "count", "value") * size
        return units.parse_quantity(value, "count", "value")


class Watts(Figure):
    """A power [W]."""

    dimension = "power"


class Seconds(Figure):
    """A duration [s]."""

    dimension = "time"
    may_be_zero = True


class Count(Figure):
    """A whole number of things."""

    dimension = "count"

    @field_validator("value")
    @classmethod
    def _whole(cls, value: int | float | None) -> int | None:
        if value is not None and value != int(value):
            raise ValueError("must be a whole number")
        return None if value is None else int(value)


class Ratio(Figure):
    """A plain factor [1], such as a PUE or the achieved fraction of a peak rate."""

    dimension = "count"


class Achieved(Ratio):
    """What is reached of a peak; a little above 1 where in-switch reduction saves traffic."""

    @field_validator("value")
    @classmethod
    def _of_a_peak(cls, value: int | float | None) -> int | float | None:
        if value is not None and value > 1.2:
            raise ValueError("an achieved fraction is at most 1.2")
        return value


class Overhead(Ratio):
    """Site power / computer power, at least 1 (PUE)."""

    @field_validator("value")
    @classmethod
    def _at_least_one(cls, value: int | float | None) -> int | float | None:
        if value is not None and value < 1:
            raise ValueError("a PUE is at least 1")
        return value


class UsdPerKwh(Figure):
    """An electricity price [USD/kWh]."""

    dimension = "money"


class KgPerKwh(Figure):
    """A carbon intensity [kg CO2e/kWh]."""

    dimension = "carbon"


def figures_in(part: Any, path: str = "") -> dict[str, Figure]:
    """Every figure below `part` (a model or mapping) by dotted path, as --set names it."""
    found: dict[str, Figure] = {}
    if isinstance(part, Figure):
        return {path: part}
    if isinstance(part, BaseModel):
        children: Mapping[str, Any] = {name: getattr(part, name) for name in type(part).model_fields}
    elif isinstance(part, Mapping):
        children = part
    elif isinstance(part, tuple | list):
        children = {str(getattr(item, "name", i)): item for i, item in enumerate(part)}
    else:
        return found
    for name, child in children.items():
        found |= figures_in(child, f"{path}.{name}" if path else name)
    return found
