"""Any piece of hardware by name, and several side by side with ratios to the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfsim.errors import InputError, unknown
from tfsim.hardware.device import Device
from tfsim.hardware.dtypes import DTYPES
from tfsim.hardware.library import _known, _named, _path_in, _plain, _read, load_device, load_system
from tfsim.hardware.system import System
from tfsim.units import (
    format_bandwidth,
    format_bytes,
    format_flop_rate,
    format_power,
    format_price,
)

Hardware = Device | System


@dataclass(frozen=True)
class Comparison:
    """One row: what is compared, each piece's value in SI units (None: not published) and in words, and its ratio to
    the first piece's."""

    quantity: str
    values: tuple[float | None, ...]
    words: tuple[str, ...]
    ratios: tuple[float | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"quantity": self.quantity, "values": list(self.values), "ratios": list(self.ratios)}


def load_hardware(name: str | os.PathLike[str]) -> Hardware:
    """The device or, failing that, the system of this name, alias or path (a system's file has a ``device``).

    Raises: InputError for an unknown name, with the nearest valid one, or a faulty file.
    """
    path = _path_in(name)
    if path is not None:
        return load_system(path) if "device" in _read(path) else load_device(path)
    text = os.fspath(name)
    device, system = _named("devices", text), _named("systems", text)
    if device is None and system is None:
        raise unknown("device or system", text, [*_known("devices"), *_known("systems")])
    # "gb200-nvl72" is an alias of a device and the name of a system: the name counts
    if system is not None and (device is None or system.stem == _plain(text)):
        return load_system(system)
    return load_device(text)


def compare(pieces: Sequence[Hardware]) -> list[Comparison]:
    """Rows of what devices can do; when all are systems, of their nodes and networks too.

    Quantities that none of the pieces has are left out. Raises: InputError for fewer than two pieces.
    """
    if len(pieces) < 2:
        raise InputError("compare: give two devices or systems, or more")
    devices = [piece.device if isinstance(piece, System) else piece for piece in pieces]
    rows = _device_rows(devices)
    systems = [piece for piece in pieces if isinstance(piece, System)]
    if len(systems) == len(pieces):
        rows += _system_rows(systems)
    return [row for row in rows if any(value is not None for value in row.values)]


def _device_rows(devices: list[Device]) -> list[Comparison]:
    def peak(dtype: str) -> Callable[[Device], float | None]:
        return lambda d: d.matrix_peak.get(dtype)

    rows = [_row(f"matrix {dtype}", devices, peak(dtype), lambda x: format_flop_rate(x, 4)) for dtype in DTYPES]
    rows.append(_row("vector fp32", devices, lambda d: d.vector_peak.get("fp32"), lambda x: format_flop_rate(x, 4)))
    bytes_of: dict[str, Callable[[Device], float | None]] = {
        "memory": lambda d: d.capacity_bytes,
        "L2 cache": lambda d: d.l2_bytes,
    }
    rows += [_row(name, devices, read, lambda x: format_bytes(x)) for name, read in bytes_of.items()]
    rates: dict[str, Callable[[Device], float | None]] = {
        "memory bandwidth": lambda d: d.bandwidth,
        "scale-up links": lambda d: d.scale_up.bandwidth,
        "network": lambda d: d.nic_bandwidth,
        "PCIe": lambda d: d.pcie_bandwidth,
    }
    rows += [_row(name, devices, read, lambda x: format_bandwidth(x, 4)) for name, read in rates.items()]
    rows.append(_row("bf16 FLOP per byte", devices, _balance, lambda x: f"{x:,.0f}"))
    rows.append(_row("power limit", devices, lambda d: d.tdp_w, lambda x: format_power(x, 4)))
    return [*rows, _price_row(devices)]


def _system_rows(systems: list[System]) -> list[Comparison]:
    return [
        _row("devices per node", systems, lambda s: s.devices_per_node, lambda x: f"{x:,.0f}"),
        _row("largest system", systems, lambda s: s.max_devices, lambda x: f"{x:,.0f}"),
        _row("node power", systems, lambda s: s.profile.node_power.value, lambda x: format_power(x, 4)),
        _row("innermost domain", systems, _domain, lambda x: f"{x:,.0f} devices"),
        _row("node memory", systems, _node_memory, lambda x: format_bytes(x)),
    ]


def _row(
    quantity: str, pieces: Sequence[Any], read: Callable[[Any], float | None], words: Callable[[float], str]
) -> Comparison:
    values = tuple(read(piece) for piece in pieces)
    first = values[0]
    return Comparison(
        quantity,
        values,
        tuple("-" if value is None else words(float(value)) for value in values),
        tuple(value / first if value is not None and first else None for value in values),
    )


def _balance(device: Device) -> float | None:
    peak = device.matrix_peak.get("bf16")
    return None if peak is None or device.bandwidth is None else peak / device.bandwidth


def _price_row(devices: Sequence[Device]) -> Comparison:
    """Default prices, each with its kind; ratios only between prices of one kind: a market figure is no quote."""
    values: list[float | None] = []
    words: list[str] = []
    kinds: list[str] = []
    for device in devices:
        try:
            value, source = device.price()
        except InputError:  # nobody quotes one
            values.append(None)
            words.append("-")
            kinds.append("")
            continue
        kind = "market" if "market" in source else "on-demand"
        values.append(value)
        words.append(f"{format_price(value)} ({kind})")
        kinds.append(kind)
    first = values[0]
    ratios = [
        None if value is None or first is None or kind != kinds[0] else value / first
        for value, kind in zip(values, kinds, strict=True)
    ]
    return Comparison("price per device", tuple(values), tuple(words), tuple(ratios))


def _domain(system: System) -> float | None:
    return system.levels[0].size if system.levels else None


def _node_memory(system: System) -> float | None:
    capacity = system.device.capacity_bytes
    return None if capacity is None else capacity * system.devices_per_node
