"""Bytes of tensors alive at once during a step: by the allocator on a GPU, else by following every tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tfsim.measure.backend import Backend


class Steps(Protocol):
    """A step to run: ``held`` exist before it."""

    @property
    def call(self) -> Callable[[], Any]: ...
    def held(self) -> list[Tensor]: ...


def peak_bytes(step: Steps, where: Backend) -> int:
    """Bytes of tensors alive at once in a step after a first one, which makes what the optimizer keeps."""
    step.call()
    if where.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step.call()
        return int(torch.cuda.max_memory_allocated())
    gradients = [tensor.grad for tensor in step.held() if tensor.grad is not None]
    with LiveTensors([*step.held(), *gradients]) as live:
        del gradients
        step.call()
    peak: int = live.peak
    return peak


class LiveTensors(TorchDispatchMode):
    """Follows every storage that operators return until it is freed: ``peak`` bytes at once, those ``held`` before
    included."""

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in held:
            self.add(tensor)

    def add(self, tensor: Tensor) -> None:
        """Count the tensor's storage, unless it is counted already."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen or not size:
            return

        def freed(_: Any) -> None:
            self.now -= size
            del self.seen[key]

        self.seen[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return out
