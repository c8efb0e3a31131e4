"""What the hardware profiles parse to: devices, systems, network levels, prices."""

from tfsim.hardware.device import Device, Efficiency, Link
from tfsim.hardware.dtypes import MatmulRate, canonical_dtype
from tfsim.hardware.figures import Figure, Source
from tfsim.hardware.library import (
    Entry,
    list_devices,
    list_systems,
    load_device,
    load_system,
    systems_with,
)
from tfsim.hardware.prices import Price
from tfsim.hardware.system import Level, System, require_system

__all__ = [
    "Device",
    "Efficiency",
    "Entry",
    "Figure",
    "Level",
    "Link",
    "MatmulRate",
    "Price",
    "Source",
    "System",
    "canonical_dtype",
    "list_devices",
    "list_systems",
    "load_device",
    "load_system",
    "require_system",
    "systems_with",
]
