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

from tfsim.errors import InputError
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
_DEFAULT_RELATIVES = ("ampere", "hopper", "ada", "blackwell", "xe2")


def constants(kind: str, cls: type[C], device: Device, variant: str, *, without_own: bool = False) -> Fitted[C]:
    """Constants of operator class ``kind`` (such as "matmul") for ``variant`` on ``device``.

    The device's own file first; else the geometric mean over measured devices of its architecture; else of the nearest
    architecture (``RELATIVES``). ``without_own``: as if the device itself had not been measured.

    Raises InputError when no device was measured for that class and variant.
    """
    found: Fitted[C] = _found(kind, cls, device.name, _family(device), variant, without_own)  # type: ignore[arg-type]
    return found


def _family(device: Device) -> tuple[str, bool]:
    """Architecture, and whether the memory is HBM: the two dies of one name (A100 and A40, B200 and RTX PRO 6000)."""
    return device.architecture, device.profile.memory.type.startswith("HBM")


def has_relatives(device: Device) -> bool:
    """Whether kernels of ``device`` take fitted constants: its generation, or one near it, has been measured."""
    return device.architecture in RELATIVES


@cache
def _found(kind: str, cls: type[C], name: str, family: tuple[str, bool], variant: str, without: bool) -> Fitted[C]:
    if not without and name in _devices() and (kind, variant) in _file(name).tables:
        return Fitted(
            _read(cls, _file(name), kind, variant), True, f"measured on {name}", _error([_file(name)], kind, variant)
        )
    others: dict[tuple[str, bool], list[_File]] = {m.family: [] for m in _measured()}
    for file in _measured():
        if file.device != name and (kind, variant) in file.tables:
            others[file.family].append(file)
    architecture, hbm = family
    relatives = dict.fromkeys((architecture, *RELATIVES.get(architecture, ()), *_DEFAULT_RELATIVES))
    for wanted in [(a, memory) for a in relatives for memory in (hbm, not hbm)]:
        kin = others.get(wanted, [])
        if kin:
            mean = _mean([_read(cls, m, kind, variant) for m in kin])
            words = f"borrowed from {', '.join(m.device for m in kin)} ({wanted[0]})"
            return Fitted(mean, False, words, _error(kin, kind, variant))
    raise InputError(f"no calibration holds {kind} {variant}: run tfsim calibrate operators")


@dataclass(frozen=True, slots=True)
class _File:
    device: str
    family: tuple[str, bool]
    path: str
    tables: Mapping[tuple[str, str], Mapping[str, Any]]


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
    operators = read_yaml(path).get("operators", {})
    tables = {(kind, variant): table for kind, held in operators.items() for variant, table in held.items()}
    return _File(name, _family(load_device(name)), str(path), tables)


def _read(cls: type[C], file: _File, kind: str, variant: str) -> C:
    values = file.tables[kind, variant]["constants"]
    expected = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if set(values) != expected:
        wrong = ", ".join(sorted(expected ^ set(values)))
        raise InputError(f"{file.path}: operators.{kind}.{variant}: {wrong}: not the constants of this version")
    return cls(**values)


def _error(files: list[_File], kind: str, variant: str) -> float:
    return max(float(file.tables[kind, variant]["error"]["median_ape"]) for file in files)


def _mean(found: list[C]) -> C:
    """Geometric mean, constant by constant (they are scales: times, rates, fractions)."""
    first = found[0]
    return type(first)(
        **{
            f.name: math.exp(sum(math.log(getattr(x, f.name)) for x in found) / len(found))
            for f in fields(first)  # type: ignore[arg-type]
        }
    )


def forget() -> None:
    """Drop what was read: for a program that has just written calibration files."""
    for read in (_devices, _measured, _file, _found):
        read.cache_clear()
