"""How far to trust a training time: what published runs of the same device took beside their prediction."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tfsim.files import read_yaml
from tfsim.training.job import Job

CHECK = Path(__file__).with_name("first_check.yaml")  # written by tools/first_check.py


@cache
def checked_devices() -> dict[str, dict[str, Any]]:
    """Per device: ``rows`` compared, and measured / predicted step time (median) by software style."""
    found: dict[str, dict[str, Any]] = read_yaml(CHECK)["devices"]
    return found


def confidence(job: Job) -> str:
    """One sentence for people."""
    device = job.system.device.name
    found = checked_devices().get(device)
    if found is None or job.style.name not in found:
        return "uncalibrated roofline; no published run on this device compared yet"
    factor, rows = found[job.style.name], found["rows"]
    return f"uncalibrated roofline; {rows} published runs of dense models on {device} took {factor:.2f} times as long"
