"""What a formula says of an operator's kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.units import Number


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Device time of an operator's kernels: ``seconds`` of work, and ``launch`` seconds of starting them."""

    seconds: Number
    launch: Number
