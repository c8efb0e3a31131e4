"""The formats that a user puts a model's weights into."""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.errors import choice, quote
from tfsim.models.gguf import FILE_TYPES, quantised
from tfsim.models.parts import MATRIX_GROUPS
from tfsim.models.spec import ModelSpec
from tfsim.operators.core import Style
from tfsim.operators.formats import FORMATS
from tfsim.operators.matmul import matmul_rate
from tfsim.plain import plain_fields

_NUMBER_FORMATS = tuple(fmt for fmt in FORMATS.values() if not fmt.ggml)
WEIGHT_FORMATS = (*(fmt.name for fmt in _NUMBER_FORMATS), *FILE_TYPES)
"""What ``weights_dtype`` may be: a number format, or a GGUF file type (a mixture of ggml's formats)."""


def with_weights(model: ModelSpec, weights_dtype: str, compute: str) -> ModelSpec:
    """The model with its weights in ``weights_dtype`` (case does not matter).

    A number format holds the matrices of the blocks, router apart; embeddings, head, norms and the rest stay in
    ``compute``. A GGUF file type lays every tensor out as llama.cpp does. Raises InputError for another name.
    """
    name = weights_dtype.lower() if isinstance(weights_dtype, str) else quote(weights_dtype)
    choice("weights_dtype", name, WEIGHT_FORMATS)
    if name in FILE_TYPES:
        return quantised(model, name)
    formats = dict.fromkeys(MATRIX_GROUPS, name)
    blocks = {key: block.model_copy(update={"formats": formats}) for key, block in model.blocks.items()}
    encoder = None if model.encoder is None else with_weights(model.encoder, name, compute)
    return model.model_copy(update={"blocks": blocks, "formats": {}, "dtype": compute, "encoder": encoder})


HIGH_PRECISION = {
    "number format": "matrices of the blocks; embeddings, head, norms, router and biases in the activations' format",
    "GGUF file type": "every matrix; norms, router, biases, convolutions and positions fp32",
}


@dataclass(frozen=True)
class WeightFormat:
    """One line of ``tfsim model formats``.

    ``kind``: a key of HIGH_PRECISION, which says what stays wide; ``bits_per_weight``: with its scales, of most
    matrices; ``matmul_rate``: the format whose matrix rate applies; ``note``: how it is stored, and which tensors are
    stored in another type.
    """

    name: str
    kind: str
    bits_per_weight: float
    matmul_rate: str
    note: str

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {**plain_fields(self), "high_precision": HIGH_PRECISION[self.kind]}


def weight_formats() -> list[WeightFormat]:
    """Everything that ``weights_dtype`` may be, narrowest last within its kind."""
    number, file = HIGH_PRECISION
    plain = [WeightFormat(f.name, number, f.bits_per_weight, _rate(f.name), f.source) for f in _NUMBER_FORMATS]
    files = [
        WeightFormat(name, file, FORMATS[mix.base].bits_per_weight, _rate(mix.base), mix.describe())
        for name, mix in FILE_TYPES.items()
    ]
    return [*plain, *sorted(files, key=lambda f: -f.bits_per_weight)]


def _rate(fmt: str) -> str:
    """Of the matrix units; weight-only formats are widened to the activations' format first."""
    rate = matmul_rate(fmt, Style("bf16"))
    return "activations' format" if rate == "bf16" else rate
