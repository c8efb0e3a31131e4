"""Measured runs of the small models: what torch counts, what the clock says, and how much memory was in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor

from tfsim.measure import counting
from tfsim.measure.backend import Backend, facts
from tfsim.measure.clock import timed
from tfsim.measure.memory import peak_bytes
from tfsim.measure.models import Case, build, family, spec
from tfsim.measure.models.base import Decoder, Measured, Size

Mode = Literal["eager", "compile"]
SECONDS = {True: 0.1, False: 0.5}
"""Of repeats per case, quick or not."""


def measure_models(
    chosen: Iterable[Case], where: Backend, *, mode: Mode = "eager", seconds: float = SECONDS[False]
) -> Iterator[dict[str, Any]]:
    """A row per case, as it is measured. Columns: those of the case; ``attention`` and ``recompute`` of its family;
    ``mode``; ``parameters``, ``flops``, ``saved_bytes`` (kept for the backward pass; of training steps) and
    ``cache_bytes`` (keys, values and states; of decode steps) as torch counts them; ``peak_memory_bytes`` at once;
    ``time_s``, the median of ``samples`` steps, and ``spread``, the distance of their quartiles over it; what it ran
    on; ``error``: why there is no time.

    Counts and memory are those of eager runs.
    """
    machine = facts(where)
    model: Measured | None = None
    made: tuple[str, str] | None = None
    for case in chosen:
        if model is None or (case.model, case.set) != made:
            torch.manual_seed(0)
            made = case.model, case.set
            with torch.device(where.device):
                model = build(case.model, spec(*made))
        how = family(case.model)
        row = {**asdict(case), "attention": how.attention, "recompute": how.recompute, "mode": mode, "dtype": "fp32"}
        with torch.device(where.device):
            step = STEPS[case.phase](model, case)
        with _flushed_denormals():
            if mode == "eager":
                row |= {"parameters": counting.n_parameters(model), **step.counted()}
                row["peak_memory_bytes"] = peak_bytes(step, where)
            row |= _times(step, where, mode, seconds)
        yield row | {"threads": where.threads, "torch": machine.torch, "device": machine.model}


@contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Denormal numbers as zeros: a model that has learned its one batch has gradients that would cost a hundred times.

    The caller's arithmetic stays as it was: the mode is the thread's, not torch's alone.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _times(step: Step, where: Backend, mode: Mode, seconds: float) -> dict[str, Any]:
    call = step.call
    if mode == "compile":
        torch.compiler.reset()
        try:
            step.compile()
            call()
        except Exception as error:  # whatever the compiler cannot do with a model is an answer
            return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    time = timed(call, where, seconds)
    return {"time_s": time.median, "spread": time.spread, "samples": time.samples, "error": ""}


class Step:
    """One step of a phase, ready to run: ``call`` runs it."""

    def __init__(self, model: Measured, case: Case) -> None:
        self.model, self.case = model, case
        self.size = Size(case.batch, case.seq_len, case.past_len, case.encoder_len)
        self.model.train(case.phase == "train")
        self.model.zero_grad(set_to_none=True)

    @property
    def call(self) -> Callable[[], Any]:
        """What is timed."""
        raise NotImplementedError

    def counted(self) -> dict[str, int]:
        """FLOPs and bytes, as torch counts them."""
        return {"flops": counting.flops(self.call)}

    def held(self) -> list[Tensor]:
        """Tensors that exist before the step: parameters, buffers and what it is given."""
        return [*self.model.parameters(), *self.model.buffers()]

    def compile(self) -> None:
        """Have torch.compile make the pass."""
        raise NotImplementedError


class Forward(Step):
    """A pass over whole sequences, without gradients."""

    def __init__(self, model: Measured, case: Case) -> None:
        super().__init__(model, case)
        self.inputs, self.targets = model.example(self.size)
        self.run: Callable[..., Any] = model

    @property
    def call(self) -> Callable[[], Any]:
        def forward() -> Any:
            with torch.no_grad():
                return self.run(*self.inputs)

        return forward

    def held(self) -> list[Tensor]:
        return [*super().held(), *self.inputs, *self.targets]

    def compile(self) -> None:
        self.run = torch.compile(self.model)


class Train(Forward):
    """Forward, backward and AdamW's step (fused: one call for all parameters)."""

    def __init__(self, model: Measured, case: Case) -> None:
        super().__init__(model, case)
        learned = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=True)

    def loss(self) -> Tensor:
        """The forward pass with its loss."""
        return self.model.loss(self.run(*self.inputs), *self.targets)

    @property
    def call(self) -> Callable[[], Any]:
        def train() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss().backward()
            self.optimizer.step()

        return train

    def counted(self) -> dict[str, int]:
        kept = counting.saved_bytes(self.loss, self.held())
        return {**super().counted(), "saved_bytes": kept}

    def held(self) -> list[Tensor]:
        states = [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        return [*super().held(), *states]


class Decode(Step):
    """New tokens after those in the cache."""

    def __init__(self, model: Measured, case: Case) -> None:
        super().__init__(model, case)
        assert isinstance(model, Decoder)
        self.cache = model.cache(self.size)
        self.ids = torch.zeros(case.batch, case.seq_len, dtype=torch.long)
        self.run: Callable[..., Any] = model.step

    @property
    def call(self) -> Callable[[], Any]:
        def decode() -> Any:
            with torch.no_grad():
                return self.run(self.ids, self.cache, self.case.past_len)

        return decode

    def counted(self) -> dict[str, int]:
        return {**super().counted(), "cache_bytes": counting.bytes_of(self.cache)}

    def held(self) -> list[Tensor]:
        return [*super().held(), *counting.tensors_of(self.cache), self.ids]

    def compile(self) -> None:
        assert isinstance(self.model, Decoder)
        self.run = torch.compile(self.model.step)


STEPS: dict[str, type[Forward | Decode]] = {"forward": Forward, "train": Train, "decode": Decode}
