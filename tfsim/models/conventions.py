"""Model FLOPs per token of a training step under the conventions people quote. The convention is always named."""

from __future__ import annotations

from typing import Literal

from tfsim.errors import choice
from tfsim.models.counts import parameters
from tfsim.models.decoder import segments
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec
from tfsim.operators.core import Style, total
from tfsim.units import Number

CONVENTIONS: dict[str, str] = {
    "exact": "3 x forward matmuls, attention only where the causal mask, window or chunk lets it",
    "megatron": "3 x forward matmuls, full attention rectangle, logits in (Narayanan 2021 without recomputation)",
    "palm": "6 N + 12 L H Q T, N = active parameters less the input embedding (Chowdhery 2022, appendix B)",
    "6nd": "6 N, N = active parameters less the input embedding (Kaplan 2020)",
}


def conventions_of(model: ModelSpec, images: Number = 0) -> tuple[str, ...]:
    """The conventions that fit ``model``: those of parameters per token only where one stack reads tokens, and no image
    tower runs besides."""
    tokens = model.encoder is None and model.vocab_size > 0 and isinstance(images, int) and not images
    return tuple(name for name in CONVENTIONS if tokens or name in ("exact", "megatron"))


def training_flops(
    model: ModelSpec, seq_len: Number, convention: str, *, images: Number = 0, mtp: bool = False
) -> Number:
    """FLOPs of forward and backward for one sequence of ``seq_len`` tokens; recomputation is never in.

    ``images``: per sequence, through the image tower (its tokens are part of seq_len).

    ``mtp``: include the model's multi-token-prediction modules, each one more layer of the last kind, a 2 d -> d
    projection and another pass of the output matrix (DeepSeek-V3, section 2.2).
    Raises InputError for an unknown convention.
    """
    choice("FLOP convention", convention, CONVENTIONS)
    if convention in ("palm", "6nd"):
        attention = _attention_width(model) if convention == "palm" else 0
        per_token = 6 * parameters(model).active_less_input_embedding + 6 * attention * seq_len
        return per_token * seq_len
    causal: Literal["halved", "full"] = "halved" if convention == "exact" else "full"
    shape = Shape(1, seq_len, causal=causal, images=images, style=Style(attention="fused"))
    parts = segments(model, shape)
    forward = total(op.flops * part.repeat for part in parts for op in part.operators)
    if mtp and model.n_mtp_modules:
        last = model.layer_blocks[-1]
        extra = [op.flops for part in parts if part.name in (last, "head") for op in part.operators]
        extra.append(4 * model.d_model * model.d_model * seq_len)
        forward = forward + model.n_mtp_modules * total(extra)
    return 3 * forward


def _attention_width(model: ModelSpec) -> int:
    """Sum over layers of heads x (d_qk + d_v): 2 L H Q of PaLM's formula when both are Q."""
    blocks = (model.all_blocks[name] for name in model.all_layers)
    return sum(mixer.score_width for block in blocks for mixer in (block.mixer, block.cross) if mixer is not None)
