"""Diffusion Transformers: what a layer is conditioned on, and the head that denoises (Peebles and Xie 2023)."""

from __future__ import annotations

from typing import Literal

from tfsim.models.spec.base import Count, Flag, Size, Strict


class Condition(Strict):
    """A vector per image: the timestep's, two layers above ``n_frequencies`` sines, plus the class label's.

    ``n_classes`` 0: no labels; ``null_class``: one more row stands for none (classifier-free guidance).
    """

    n_frequencies: Size = 256
    n_classes: Count = 1000
    null_class: Flag = True

    @property
    def n_labels(self) -> int:
        """Rows of the label table."""
        return self.n_classes + (1 if self.n_classes and self.null_class else 0)


class DenoiseHead(Strict):
    """A modulated norm and a linear map of each position to its patch of the noise (and its variance): ``d_out``
    values."""

    kind: Literal["denoise"] = "denoise"
    d_out: Size

    def describe(self) -> str:
        """Such as "noise, 32 values a patch"."""
        return f"noise, {self.d_out} values a patch"
