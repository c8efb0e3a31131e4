"""Small pieces of text that tables, panels and reports share."""

from typing import Any

from tfsim.units import format_bytes


def two_units(size: Any) -> str:
    """Bytes in decimal and binary units, which people confuse: "141.1 GB (131.4 GiB)"."""
    return f"{format_bytes(float(size))} ({format_bytes(float(size), binary=True)})"
