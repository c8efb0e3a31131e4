"""Find, read and list the profiles of hardware/devices and hardware/systems."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tfsim.errors import InputError, name_or_path, quote, unknown
from tfsim.files import data_dir, read_json, read_yaml, validate
from tfsim.hardware.device import Device
from tfsim.hardware.profile import DeviceProfile
from tfsim.hardware.system import System, SystemProfile
from tfsim.units import format_bandwidth, format_bytes, format_flop_rate

_Folder = Literal["devices", "systems"]
_NAME_LIMIT = 300  # characters
# Aliases stand on one line of each profile (a test says so): finding one must not parse all files.
_ALIASES = re.compile(r"^aliases: *\[(.*)\]", re.MULTILINE)
_DEVICE = re.compile(r"^device: *(\S+)", re.MULTILINE)


class Entry(NamedTuple):
    """One profile in a list: its name, its aliases and the main facts on one line."""

    name: str
    aliases: tuple[str, ...]
    facts: str


def load_device(name: str | os.PathLike[str]) -> Device:
    """A device by name or alias (case does not matter; "_" and space count as "-"), or by path.

    A path is anything with a separator or ending in .yaml, .yml or .json.

    Raises: InputError for an unknown name (with the nearest valid one) or a faulty file.
    """
    text = name_or_path("device", name)
    path = _path_in(name)
    if path is None:
        path = _named("devices", text)
    if path is None:
        raise unknown("device", text, _known("devices"))
    return Device(validate(DeviceProfile, _read(path), str(path)))


def load_system(name: str | os.PathLike[str]) -> System:
    """A system with its device, by name, alias or path; see load_device.

    The `device` of a system file is a device's name (a file of that name beside it comes first), or a whole device.

    Raises: InputError for an unknown name (for a device's name: with the systems that have it) or
    a faulty file.
    """
    text = name_or_path("system", name)
    path = _path_in(name)
    if path is None:
        path = _named("systems", text)
    if path is None:
        raise _no_system(text)
    data = _read(path)
    if isinstance(data.get("device"), dict):
        return parse_system(data, str(path))
    profile = _system_profile(str(path), data)
    beside = path.parent / f"{profile.device}.yaml"
    return System(profile, load_device(beside if beside.is_file() else profile.device))


def parse_system(data: dict[str, Any], where: str) -> System:
    """A system from the content of a file that holds its whole device; ``where`` names the file in errors.

    Raises: InputError for a faulty one.
    """
    device = Device(validate(DeviceProfile, data["device"], f"{where}: device"))
    return System(_system_profile(where, {**data, "device": device.name}), device)


def list_devices() -> list[Entry]:
    """All devices, by name."""
    devices = [load_device(path) for path in _files("devices").values()]
    return [Entry(device.name, device.aliases, _facts(device)) for device in devices]


def list_systems() -> list[Entry]:
    """All systems, by name."""
    profiles = [_system_profile(str(path), _read(path)) for path in _files("systems").values()]
    return [Entry(profile.name, profile.aliases, profile.description) for profile in profiles]


def systems_with(device: str) -> list[str]:
    """Names of the systems whose `device` is this canonical name."""
    return [
        name
        for name, path in _files("systems").items()
        for found in [_DEVICE.search(path.read_text(encoding="utf-8"))]
        if found and found[1] == device
    ]


def _facts(device: Device) -> str:
    rate = max(device.matrix_peak.get("bf16", 0), device.matrix_peak.get("fp16", 0))
    parts = [
        device.architecture,
        f"{format_flop_rate(rate)} 16-bit" if rate else "",
        format_bytes(device.capacity_bytes) if device.capacity_bytes else "",
        format_bandwidth(device.bandwidth) if device.bandwidth else "",
        (device.release_date or "")[:4],
    ]
    return ", ".join(part for part in parts if part)


def _system_profile(where: str, data: dict[str, Any]) -> SystemProfile:
    if "site" not in data:
        site = read_yaml(data_dir("hardware") / "site.yaml")
        data["site"] = site["site"]
        if isinstance(data.get("sources"), dict):
            data["sources"] = {**site["sources"], **data["sources"]}
    return validate(SystemProfile, data, where)


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)


def _path_in(name: str | os.PathLike[str]) -> Path | None:
    """`name` as a path if it looks like one, else None."""
    text = os.fspath(name)
    if not isinstance(name, str) or "/" in text or os.sep in text:
        return Path(text)
    return Path(text) if text.lower().endswith((".yaml", ".yml", ".json")) else None


def _named(folder: _Folder, name: str) -> Path | None:
    wanted = _plain(name)
    files = _files(folder)
    return files.get(wanted) or files.get(_aliases(folder).get(wanted, ""))


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name[:_NAME_LIMIT].strip().lower())


def _known(folder: _Folder) -> list[str]:
    return [*_files(folder), *_aliases(folder)]


def _no_system(name: str) -> InputError:
    path = _named("devices", name)
    if path is None:
        return unknown("system", name, _known("systems"))
    having = systems_with(path.stem)
    if not having:
        return InputError(
            f"{quote(name)} is a device, and no system with it is known: describe one in a YAML file (docs/hardware.md)"
        )
    return InputError(f"{quote(name)} is a device, not a system: use {' or '.join(having)}")


@cache
def _files(folder: _Folder) -> dict[str, Path]:
    """Profile files by name."""
    return {path.stem: path for path in sorted((data_dir("hardware") / folder).glob("*.yaml"))}


@cache
def _aliases(folder: _Folder) -> dict[str, str]:
    """Name of the profile by alias."""
    found: dict[str, str] = {}
    for name, path in _files(folder).items():
        line = _ALIASES.search(path.read_text(encoding="utf-8"))
        if line:
            found |= dict.fromkeys((a.strip(" \"'") for a in line[1].split(",") if a.strip()), name)
    return found
