"""Fitted constants of the timing formulas: read from hardware/calibration, or borrowed from a relative.

A class of operators has a frozen dataclass of a dozen floats at most, each with bounds and a unit (``constant``). The
files under ``hardware/calibration`` hold their values per device and variant (number format, kernel generation); they
are written by ``tfsim calibrate operators`` and never by hand. A device without measurements of its own takes the
geometric mean of its architecture's, then of its vendor's nearest architecture, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from tfsim.errors import InputError, quote
from tfsim.files import data_dir, read_yaml
from tfsim.hardware import Device, load_device

C = TypeVar("C")


def constant(default: float, low: float, high: float, *, unit: str = "") -> Any:
    """A fitted constant of a dataclass: where a fit starts, what it may take, and its unit ("" for a fraction)."""
    return field(default=default, metadata={"low": low, "high": high, "unit": unit})


@dataclass(frozen=True, slots=True)
class Fitted(Generic[C]):
    """Constants for a device and where they come from: ``own`` when measured on that device; ``source`` in words;
    ``median_ape``: what the fit left on the rows of the measured devices (the largest), None for published figures."""

    values: C
    own: bool
    source: str
    median_ape: float | None = None


# Nearest first: whose constants an architecture without measurements takes. A group is what one generation of tensor
# units and caches has in common; the datasheet carries the rest.
RELATIVES: Mapping[str, tuple[str, ...]] = {
    "kepler": ("ampere",),
    "pascal": ("ampere",),
    "volta": ("ampere",),
    "turing": ("ampere",),
    "ampere": ("hopper", "ada"),
    "ada": ("ampere", "blackwell"),
    "hopper": ("ampere", "blackwell"),
    "blackwell": ("hopper", "ada", "ampere"),
    "blackwell-ultra": ("blackwell", "hopper", "ampere"),
    "xe2": ("ampere",),
}
_DEFAULT_RELATIVES = ("ampere", "hopper", "ada", "blackwell", "xe2", "tpu-v6e")


def constants(kind: str, cls: type[C], device: Device, variant: str, *, without_own: bool = False) -> Fitted[C]:
    """Constants of operator class ``kind`` (such as "matmul") for ``variant`` on ``device``.

    Those in the device's own profile first, then its own file; else the geometric mean over measured devices of its
    architecture; else of the nearest architecture (``RELATIVES``). ``without_own``: as if the device itself had not
    been measured.

    Raises InputError when no device was measured for that class and variant.
    """
    if not without_own and (kind, variant) in _inside(device).tables:
        return _own(kind, cls, device, variant)
    found: Fitted[C] = _found(kind, cls, device.name, _family(device), variant, without_own)  # type: ignore[arg-type]
    return found


def _own(kind: str, cls: type[C], device: Device, variant: str) -> Fitted[C]:
    """Constants that the device's profile brings, read once."""
    key = f"constants {kind} {variant}"
    if key not in device.memo:
        file = _inside(device)
        error = file.tables[kind, variant].error["median_ape"]
        device.memo[key] = Fitted(_read(cls, file, kind, variant), True, f"measured on {device.name}", error)
    found: Fitted[C] = device.memo[key]  # type: ignore[assignment]
    return found


def _inside(device: Device) -> _File:
    """The constants in the device's profile as a file of them."""
    if "calibration" not in device.memo:
        tables = {
            (kind, variant): _Table(table.constants, table.fitted_on.rows, table.error.model_dump())
            for kind, variants in device.profile.calibration.items()
            for variant, table in variants.items()
        }
        device.memo["calibration"] = _File(device.name, _family(device), f"{device.name}: calibration", tables)
    found: _File = device.memo["calibration"]  # type: ignore[assignment]
    return found


def is_measured(device: Device) -> bool:
    """Whether the profile of ``device`` brings constants that were measured on it."""
    return bool(device.profile.calibration)


def _family(device: Device) -> tuple[str, bool]:
    """Architecture, and whether the memory is HBM: the two dies of one name (A100 and A40, B200 and RTX PRO 6000)."""
    return device.architecture, device.profile.memory.type.startswith("HBM")


def has_relatives(device: Device) -> bool:
    """Whether kernels of ``device`` take fitted constants: its generation, or one near it, has been measured."""
    return device.architecture in RELATIVES


def generation_measured(kind: str, device: Device, variant: str) -> bool:
    """Whether ``device``, or one of its architecture and kind of memory, has been measured for a class and variant.

    Raises InputError when a calibration file is malformed.
    """
    return _measured_in(kind, device.name, _family(device), variant)


@cache
def _measured_in(kind: str, name: str, family: tuple[str, bool], variant: str) -> bool:
    if name in _devices() and (kind, variant) in _file(name).tables:
        return True
    kin = (other for other in _devices() if _family(load_device(other)) == family)
    return any((kind, variant) in _file(other).tables for other in kin)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What stands behind the times of one class of operators on a device. ``own``: measured on it; ``source``: in
    words; ``rows`` that were fitted on, and the median and 90th percentile of the error they leave, as shares: of the
    devices that lend, where the constants are borrowed (the largest of each)."""

    kind: str
    variant: str
    own: bool
    source: str
    rows: int
    median_ape: float
    p90_ape: float


def calibrations(device: Device) -> list[Calibration]:
    """Per measured class of operators and variant, what ``device`` takes its constants from. Empty where it takes none:
    then its times are a roofline.

    Raises InputError when a calibration file is malformed.
    """
    found = []
    inside = _inside(device)
    for kind, variant in sorted({key for m in (inside, *_measured()) for key in m.tables}):
        try:
            lenders, own, source = _lenders(kind, device.name, _family(device), variant, False)
        except InputError:
            lenders, own, source = [], False, ""  # nobody near it has been measured
        if (kind, variant) in inside.tables:
            lenders, own, source = [inside], True, f"measured on {device.name}"
        if not lenders:
            continue
        # of a TPU the matrix products alone take fitted constants that are not its own
        borrows = kind == "systolic" if device.kind == "tpu" else has_relatives(device)
        if not own and not (borrows and all(load_device(m.device).kind == device.kind for m in lenders)):
            continue
        tables = [m.tables[kind, variant] for m in lenders]
        worst = [max(t.error[name] for t in tables) for name in ("median_ape", "p90_ape")]
        found.append(Calibration(kind, variant, own, source, sum(t.rows for t in tables), *worst))
    return found


@cache
def _found(kind: str, cls: type[C], name: str, family: tuple[str, bool], variant: str, without: bool) -> Fitted[C]:
    lenders, own, source = _lenders(kind, name, family, variant, without)
    values = _mean([_read(cls, m, kind, variant) for m in lenders])
    return Fitted(values, own, source, max(m.tables[kind, variant].error["median_ape"] for m in lenders))


def _lenders(
    kind: str, name: str, family: tuple[str, bool], variant: str, without: bool
) -> tuple[list[_File], bool, str]:
    """The files whose constants the device ``name`` takes, whether that is its own, and that in words."""
    if not without and name in _devices() and (kind, variant) in _file(name).tables:
        return [_file(name)], True, f"measured on {name}"
    others: dict[tuple[str, bool], list[_File]] = {m.family: [] for m in _measured()}
    for file in _measured():
        if file.device != name and (kind, variant) in file.tables:
            others[file.family].append(file)
    architecture, hbm = family
    relatives = dict.fromkeys((architecture, *RELATIVES.get(architecture, ()), *_DEFAULT_RELATIVES))
    for wanted in [(a, memory) for a in relatives for memory in (hbm, not hbm)]:
        kin = others.get(wanted, [])
        if kin:
            return kin, False, f"borrowed from {', '.join(m.device for m in kin)} ({wanted[0]})"
    raise InputError(f"no calibration holds {kind} {variant}: run tfsim calibrate operators")


@dataclass(frozen=True, slots=True)
class _Table:
    constants: Mapping[str, float]
    rows: int
    error: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _File:
    device: str
    family: tuple[str, bool]
    path: str
    tables: Mapping[tuple[str, str], _Table]


def _folder() -> Path:
    return data_dir("hardware") / "calibration"


@cache
def _devices() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


@cache
def _measured() -> tuple[_File, ...]:
    return tuple(_file(name) for name in _devices())


@cache
def _file(name: str) -> _File:
    """A device's file: parsing one takes a tenth of a second, so only those asked for are read."""
    path = _folder() / f"{name}.yaml"
    tables = {
        (kind, variant): _table(path, f"operators.{kind}.{variant}", table)
        for kind, variants in _mapping(path, "operators", read_yaml(path).get("operators", {})).items()
        for variant, table in _mapping(path, f"operators.{kind}", variants).items()
    }
    return _File(name, _family(load_device(name)), str(path), tables)


def _table(path: Path, where: str, table: Any) -> _Table:
    parts = _mapping(path, where, table)
    values, fitted_on, error = (
        _mapping(path, f"{where}.{name}", parts.get(name)) for name in ("constants", "fitted_on", "error")
    )
    for field_name, group, names in (
        ("constants", values, values),
        ("fitted_on", fitted_on, ["rows"]),
        ("error", error, ["median_ape", "p90_ape"]),
    ):
        for name in names:
            value = group.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise InputError(f"{path}: {where}.{field_name}.{name}: {quote(value)} is not a number from 0 up")
    return _Table(values, fitted_on["rows"], error)


def _mapping(path: Path, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{path}: {where}: {quote(value)} is not 'key: value' pairs")
    return value


def _read(cls: type[C], file: _File, kind: str, variant: str) -> C:
    values = file.tables[kind, variant].constants
    table = {f.name: f.metadata for f in fields(cls)}  # type: ignore[arg-type]
    where = f"{file.path}: operators.{kind}.{variant}"
    if set(values) != set(table):
        wrong = ", ".join(sorted(set(table) ^ set(values)))
        raise InputError(f"{where}: {wrong}: not the constants of this version")
    for name, value in values.items():
        # files keep four digits, so a constant at a bound may lie just outside
        if not 0.999 * table[name]["low"] <= value <= 1.001 * table[name]["high"]:
            limits = f"{table[name]['low']:g} to {table[name]['high']:g}"
            raise InputError(f"{where}.{name}: {value:g} is outside of {limits}")
    return cls(**values)


def _mean(found: list[C]) -> C:
    """Geometric mean, constant by constant (they are scales: times, rates, fractions)."""
    first = found[0]
    if len(found) == 1:
        return first  # to the last digit
    return type(first)(
        **{
            f.name: math.exp(sum(math.log(getattr(x, f.name)) for x in found) / len(found))
            for f in fields(first)  # type: ignore[arg-type]
        }
    )


def forget() -> None:
    """Drop what was read: for a program that has just written calibration files."""
    for read in (_devices, _measured, _measured_in, _file, _found):
        read.cache_clear()
