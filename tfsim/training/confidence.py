"""How far to trust a training time: what published runs of the same device took beside their prediction."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tfsim.files import read_yaml
from tfsim.models.spec import Attention, DenseFFN, ModelSpec
from tfsim.timing import basis
from tfsim.training.job import Job

CHECK = Path(__file__).with_name("first_check.yaml")  # written by tools/first_check.py


@cache
def checked_devices() -> dict[str, dict[str, Any]]:
    """Per device: ``rows`` compared, and measured / predicted step time (median) by software style."""
    found: dict[str, dict[str, Any]] = read_yaml(CHECK)["devices"]
    return found


def published_factor(device: str, style: str) -> float | None:
    """Measured / predicted step time (median) of the published runs on a device, by software style; None where none
    was compared."""
    factor = checked_devices().get(device, {}).get(style)
    return None if factor is None else float(factor)


def confidence(job: Job) -> str:
    """One sentence for people."""
    device = job.system.device.name
    factor = published_factor(device, job.style.name)
    if factor is None:
        return f"{basis(job.system.device)}; no published run on this device compared yet"
    rows = checked_devices()[device]["rows"]
    words = f"{rows} published runs of dense decoders on {device} took {factor:.2f} times as long"
    other = "" if like_those_checked(job.model) else ", none of them of a model of this kind"
    return f"{basis(job.system.device)}; {words}{other}"


def like_those_checked(model: ModelSpec) -> bool:
    """Whether a model is like those whose runs were compared: a decoder of softmax attention and dense FFNs."""
    plain = all(isinstance(b.mixer, Attention) and isinstance(b.ffn, DenseFFN) for b in model.blocks.values())
    return plain and model.decodes and model.encoder is None
