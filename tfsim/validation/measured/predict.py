"""What tfsim says of one measured case: exact counts, seconds, bytes of memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from tfsim.errors import InputError
from tfsim.hardware import Device, System
from tfsim.models.counts import Counts, count, encoder_positions
from tfsim.models.spec import AlignmentFrontend, ModelSpec, PatchFrontend
from tfsim.operators.core import Operator, total
from tfsim.software import software
from tfsim.timing import Groups, exposed_dispatch, operator_time
from tfsim.timing.kernels import MATRIX_KINDS
from tfsim.training import TrainingEstimate, train
from tfsim.units import maximum

STYLES = {
    ("eager", "fused"): "eager",
    ("eager", "eager"): "unfused-attention",
    ("compile", "fused"): "fused",
    ("compile", "eager"): "fused",
}
"""Software style of a run, by its ``mode`` and how it runs attention."""
_COUNTED = {"forward": "forward", "train": "forward_backward", "decode": "decode"}


@dataclass(frozen=True)
class Case:
    """What a row says was run: no measured number, no name."""

    phase: str
    batch: int
    seq_len: int
    past_len: int
    encoder_len: int
    mode: str
    attention: str
    recompute: str

    @classmethod
    def of(cls, row: Mapping[Hashable, Any]) -> Case:
        """The case of a row of ``read_runs``."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


def counts(model: ModelSpec, case: Case, causal: str = "full") -> Counts:
    """tfsim.count of the case; a fused kernel that skips masked keys executes ``halved`` scores."""
    return count(
        model,
        batch=case.batch,
        seq_len=case.seq_len,
        past_len=case.past_len,
        encoder_len=case.encoder_len or None,
        phase=_COUNTED[case.phase],  # type: ignore[arg-type]
        attention=case.attention,  # type: ignore[arg-type]
        recompute=case.recompute if case.phase == "train" else "none",  # type: ignore[arg-type]
        causal=causal,  # type: ignore[arg-type]
        dtype="fp32",
    )


def check_positions(model: ModelSpec, case: Case) -> None:
    """An image has as many positions as its patches, whatever a row says. Raises InputError where the two differ."""
    if isinstance(model.frontend, PatchFrontend):
        patches = model.frontend.positions(model.frontend.image_size)
        if case.seq_len != patches:
            raise InputError(f"seq_len: an image of {model.name} has {patches} positions, not {case.seq_len}")


def counted(model: ModelSpec, case: Case) -> dict[str, Any]:
    """The quantities that torch counts too: ``parameters``, ``flops``, ``saved_bytes``, ``cache_bytes``."""
    check_positions(model, case)
    got = counts(model, case)
    return {
        "parameters": got.parameters.total,
        "flops": got.flops,
        "saved_bytes": got.saved_bytes,
        "cache_bytes": got.kv_bytes + got.state_bytes + got.cross_bytes,
    }


def trained(model: ModelSpec, case: Case, system: System) -> TrainingEstimate:
    """tfsim.train of one step on one device, all in fp32.

    Raises InputError for lengths that ``train`` does not take: it reads an encoder's off the specification.
    """
    if isinstance(model.frontend, AlignmentFrontend):  # its number of sequences is part of the specification
        update = {"frontend": model.frontend.model_copy(update={"n_sequences": case.encoder_len})}
        model = model.model_copy(update=update)
    elif case.encoder_len not in (0, source := encoder_positions(model, None, None, seq_len=case.seq_len)):
        raise InputError(f"encoder_len: training is predicted with {source} encoder positions, not {case.encoder_len}")
    return train(
        model,
        system,
        devices=1,
        seq_len=case.seq_len,
        global_batch=case.batch,
        plan={"micro_batch": case.batch, "recompute": case.recompute},
        precision="fp32",
        software=STYLES[case.mode, case.attention],
    )


@dataclass(frozen=True)
class Prediction:
    """``seconds`` of a case; ``memory_bytes`` of tensors alive at once in a training step (None of other phases)."""

    seconds: float
    memory_bytes: float | None


def predict(model: ModelSpec, case: Case, system: System) -> Prediction:
    """A training step as ``tfsim.train`` gives it, its memory less the runtime's reserve; a pass without training is
    its operators, one after the other, with what the host adds. Raises InputError for a case that cannot be."""
    check_positions(model, case)
    if case.phase == "train":
        step = trained(model, case, system)
        memory = sum(value for name, value in step.memory.items() if name != "reserve")
        return Prediction(float(step.step_time_s), float(memory))
    style = software(STYLES[case.mode, case.attention])
    busy = kernels = 0.0
    for _, repeat, op in counts(model, case, "halved" if case.attention == "fused" else "full").operators:
        if op.comm is None:
            time = operator_time(op, system, style, Groups(), recorded=False)
            busy += repeat * float(time.seconds)
            kernels += repeat * float(time.kernels)
    return Prediction(busy + float(exposed_dispatch(busy, kernels, style)), None)


def roofline_seconds(model: ModelSpec, case: Case, device: Device) -> float:
    """The longer of arithmetic at the device's peaks and traffic at its bandwidth, summed over operators."""
    operators = counts(model, case).operators
    return float(total(repeat * _roofline(op, device) for _, repeat, op in operators if op.comm is None))


def _roofline(op: Operator, device: Device) -> Any:
    peak = device.matmul_peak(op.rate).flop_per_s
    work = op.flops / peak if op.kind in MATRIX_KINDS else 0
    return maximum(work, op.bytes_moved / device.require("bandwidth"))
