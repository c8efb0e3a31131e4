"""What is asked: models, machines and numbers of one training job, or of arrays of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsim.errors import InputError
from tfsim.hardware import System, require_system
from tfsim.models.images import TOWER_WHOLE, read_images
from tfsim.models.spec import VISION_LEFT_OUT, ModelSpec, require_model
from tfsim.software import Precision, Software, precision, software
from tfsim.training.plan import Grid
from tfsim.units import Array, as_number

USABLE = 0.95  # PyTorch's caching allocator leaves a few per cent in fragments; a plan closer to the edge runs out


@dataclass(frozen=True)
class Job:
    """A model trained on a system, with the precision policy and software style; the numbers may be arrays.

    ``model``: without its image tower where there are no ``images`` (per sequence); ``text_only`` says that one was
    left out."""

    model: ModelSpec
    system: System
    policy: Precision
    style: Software
    devices: Any
    seq_len: Any
    global_batch: Any
    images: Any = 0
    text_only: bool = False

    @property
    def sizes(self) -> dict[str, Any]:
        """The numbers by name."""
        names = ("devices", "seq_len", "global_batch", "images")
        return {name: getattr(self, name) for name in names}

    @property
    def capacity(self) -> int:
        """Bytes a program can address on one device. Raises InputError when nobody published them."""
        return int(self.system.device.require("capacity_bytes"))

    @property
    def usable(self) -> int:
        """Bytes that a plan may need: the allocator's fragments take the rest."""
        return int(USABLE * self.capacity)


def read_job(
    model: Any, system: Any, devices: Any, seq_len: Any, global_batch: Any, images: Any, policy: Any, style: Any
) -> Job:
    """A Job from a user's arguments: devices default to one node, seq_len to the model's own length.

    Raises InputError naming the argument that is missing or malformed.
    """
    spec, machine = require_model(model), require_system(system)
    if seq_len is None and spec.own_len is None:
        raise InputError("seq_len: give the tokens per sequence; the model states no max_seq_len")
    length = as_number(spec.own_len if seq_len is None else seq_len, "seq_len", at_least=1, whole=True)
    seen = read_images(spec, images, "seq_len", length)
    text_only = spec.vision is not None and isinstance(seen, int) and not seen
    return Job(
        spec.model_copy(update={"vision": None}) if text_only else spec,
        machine,
        precision(policy),
        software(style),
        as_number(machine.devices_per_node if devices is None else devices, "devices", at_least=1, whole=True),
        length,
        as_number(global_batch, "global_batch", at_least=1, whole=True),
        seen,
        text_only,
    )


def with_tokens(grid: Grid, shape: tuple[int, ...], tokens: Any) -> tuple[Grid, tuple[int, ...], Array]:
    """Broadcast the tokens of the run against the jobs."""
    index, spread = np.broadcast_arrays(np.arange(len(grid), dtype=float).reshape(shape), np.asarray(tokens, float))
    return grid.select(np.ravel(index).astype(int)), index.shape, np.ravel(spread)


def notes(job: Job) -> tuple[str, ...]:
    """What a reader should know about the answer: a context beyond the model's, formats the device lacks."""
    found = [VISION_LEFT_OUT] if job.text_only else []
    if job.model.vision is not None:
        found.append(TOWER_WHOLE)
    longest = job.model.max_seq_len
    if longest is not None and np.any(np.asarray(job.seq_len) > longest):
        found.append(f"seq_len exceeds the model's max_seq_len of {longest:,}")
    for fmt in dict.fromkeys((job.policy.matmul, job.policy.compute)):
        rate = job.system.device.matmul_peak(fmt)
        if rate.reason is not None:
            found.append(f"{job.system.device.name}, {fmt} matrices: {rate.reason}")
    return tuple(found)
