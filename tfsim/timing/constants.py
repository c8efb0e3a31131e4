"""Fitted constants of the timing formulas: read from hardware/calibration, or borrowed from a relative.

A class of operators has a frozen dataclass of a dozen floats at most, each with bounds and a unit (``constant``). The
files under ``hardware/calibration`` hold their values per device and variant (number format, kernel generation); they
are written by ``tfsim calibrate operators`` and never by hand. A device without measurements of its own takes the
geometric mean of its architecture's, then of its vendor's nearest architecture, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
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
    """Constants for a device and where they come from: ``own`` when measured on that device; ``source`` in words."""

    values: C
    own: bool
    source: str


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
    measured = {m.device: m for m in _measured() if (kind, variant) in m.tables}
    own = measured.pop(name, None)
    if own is not None and not without:
        return Fitted(_read(cls, own, kind, variant), True, f"measured on {name}")
    architecture, hbm = family
    relatives = (architecture, *RELATIVES.get(architecture, _DEFAULT_RELATIVES))
    for wanted in [(a, memory) for a in relatives for memory in (hbm, not hbm)]:
        kin = [m for m in measured.values() if m.family == wanted]
        if kin:
            mean = _mean([_read(cls, m, kind, variant) for m in kin])
            return Fitted(mean, False, f"borrowed from {', '.join(m.device for m in kin)} ({wanted[0]})")
    raise InputError(f"no calibration holds {kind} {variant}: run tfsim calibrate operators")


@dataclass(frozen=True, slots=True)
class _File:
    device: str
    family: tuple[str, bool]
    path: str
    tables: Mapping[tuple[str, str], Mapping[str, Any]]


@cache
def _measured() -> tuple[_File, ...]:
    return tuple(_files())


def _files() -> Iterator[_File]:
    for path in sorted((data_dir("hardware") / "calibration").glob("*.yaml")):
        data = read_yaml(path)
        tables = {
            (kind, variant): table
            for kind, variants in data.get("operators", {}).items()
            for variant, table in variants.items()
        }
        yield _File(path.stem, _family(load_device(path.stem)), str(path), tables)


def _read(cls: type[C], file: _File, kind: str, variant: str) -> C:
    values = file.tables[kind, variant]["constants"]
    expected = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if set(values) != expected:
        wrong = ", ".join(sorted(expected ^ set(values)))
        raise InputError(f"{file.path}: operators.{kind}.{variant}: {wrong}: not the constants of this version")
    return cls(**values)


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
    _measured.cache_clear()
    _found.cache_clear()
