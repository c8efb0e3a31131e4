"""What turns an input that is not tokens into a sequence: image patches, audio convolutions."""

from __future__ import annotations

from typing import Literal

from tfsim.models.spec.base import Count, Flag, Size, Strict
from tfsim.models.spec.evoformer import AlignmentFrontend


class PatchFrontend(Strict):
    """Square image patches, each a linear map of its pixels (Dosovitskiy et al. 2021, equation 1).

    ``image_size``: the side the published model was trained at, in pixels; ``class_tokens``: learned tokens put before
    the patches (1: ViT's class token; 2 with DeiT's distillation token; 0: none); ``frames``: images that make one
    patch (2 in Qwen-VL).
    """

    kind: Literal["patches"] = "patches"
    image_size: Size
    patch_size: Size
    channels: Size = 3
    frames: Size = 1
    bias: Flag = True
    class_tokens: Count = 1

    @property
    def patch_values(self) -> int:
        """Pixel values of one patch."""
        return self.patch_size * self.patch_size * self.channels * self.frames

    @property
    def seq_len(self) -> int:
        """Positions of an image of the published size, class tokens included."""
        return self.positions(self.image_size)

    def positions(self, image_size: int) -> int:
        """Positions of a square image of ``image_size`` pixels a side; what does not fill a patch is left out."""
        side = image_size // self.patch_size
        return side * side + self.class_tokens

    def describe(self) -> str:
        """Such as "patches of 16 x 16 from 224 x 224 images"."""
        return f"patches of {self.patch_size} x {self.patch_size} from {self.image_size} x {self.image_size} images"


class AudioFrontend(Strict):
    """Two convolutions over mel frames, the second of stride 2 (Radford et al. 2022, section 2.2).

    ``n_frames``: positions after the convolutions of the longest input (1,500 for 30 s).
    """

    kind: Literal["audio"] = "audio"
    n_mels: Size
    n_frames: Size
    kernel: Size = 3

    @property
    def seq_len(self) -> int:
        """Positions of the longest input."""
        return self.n_frames

    def describe(self) -> str:
        """Such as "80 mel bins, 1,500 positions"."""
        return f"{self.n_mels} mel bins, {self.n_frames:,} positions"


Frontend = PatchFrontend | AudioFrontend | AlignmentFrontend
