"""Images as work: how many a sequence holds, and the pass of an image tower over them.

Early fusion (Llama-4, Qwen3-VL, Gemma-3): an image of the tower's size becomes ``ModelSpec.tokens_per_image`` tokens of
the same stream as the text, so the sequence is at least as long as its images' tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfsim.errors import InputError, quote
from tfsim.models.shape import ONE_DEVICE, Shape
from tfsim.models.spec import ModelSpec
from tfsim.units import Number, as_number, common_shape

TOWER_WHOLE = "the image tower is on the first pipeline stage, whole on each device: tensor parallelism does not cut it"


def read_images(model: ModelSpec, images: Any, name: str, length: Number | None) -> Number:
    """A user's ``images`` per sequence of ``length`` tokens, which is called ``name``.

    0 leaves the tower out altogether; an array is of 1 or more, for an idle tower would still be held.
    Raises InputError for a value out of range, a model without a tower, or images that the sequence cannot hold.
    """
    found = as_number(images, "images", at_least=0, whole=True)
    if isinstance(found, int) and not found:
        return 0
    if not model.tokens_per_image:
        raise InputError(f"images: {quote(images)}, but {model.name} has no image tower beside its text part")
    if not isinstance(found, int | float) and bool((found == 0).any()):
        raise InputError("images: an array must be of 1 or more; give the number 0 to leave the tower out")
    assert length is not None
    common_shape(images=found, **{name: length})
    need = found * model.tokens_per_image
    if _any(length < need):
        raise InputError(
            f"{name}: {quote(length)} is too short for {quote(images)} image(s) of {model.tokens_per_image:,} tokens"
            f" each: give at least {_largest(need):,}"
        )
    return found


def _any(condition: Any) -> bool:
    return condition if isinstance(condition, bool) else bool(condition.any())


def _largest(x: Number) -> int:
    return int(x if isinstance(x, int | float) else x.max())


def tower_shape(tower: ModelSpec, shape: Shape) -> Shape:
    """The tower's own pass: each of batch x images with all its patches at once, on every device of a tensor-parallel
    group alike (towers are small: what cutting them saves, their collectives cost)."""
    assert tower.frontend is not None
    return replace(
        shape,
        batch=shape.batch * shape.images,
        seq_len=tower.frontend.seq_len,
        past_len=0,
        logits="all",
        encoder_len=None,
        images=0,
        shards=ONE_DEVICE,
    )
