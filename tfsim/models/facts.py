"""What one wants to know about a model at a glance: sizes, bytes, and FLOPs per token under each named convention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfsim.errors import unknown
from tfsim.models.conventions import conventions_of, training_flops
from tfsim.models.counts import Parameters, cache_bytes, count, cross_bytes, parameters, state_bytes, stored_weights
from tfsim.models.positions import describe_positions
from tfsim.models.spec import Block, LMHead, ModelSpec
from tfsim.models.weights import with_weights
from tfsim.operators.core import total
from tfsim.operators.formats import FORMAT_NAMES, element_bytes
from tfsim.units import Number

USUAL_SEQ_LEN = 8192


@dataclass(frozen=True)
class ModelFacts:
    """One model. Bytes are plain bytes, FLOPs 2 per multiply-add.

    ``layers``: the pattern of block names; ``blocks``: what each is; ``reads`` and ``encoder_reads``: what it and its
    encoder read if not tokens; ``head``: what it answers if not with text; ``action_tokens``: decoded per control step
    of a robot; ``decodes``: whether it generates text; ``encoder_layers``: number and pattern of its encoder's;
    ``positions``: how they are told apart; ``weights_dtype``: the format asked for (None: as specified); ``formats``:
    number formats of the stored weights, the most used first; ``weight_bytes``: in them, quantisation scales included;
    ``weight_bytes_as``: all weights in ``dtype``; ``kv_bytes_per_token``: cached, mean over ``seq_len`` tokens (windows
    forget); ``kv_bytes_per_sequence``: of ``seq_len`` tokens; ``cross_bytes_per_sequence``: keys and values of the
    encoder's output (of ``seq_len`` tokens, or of a recording's own length); ``state_bytes_per_sequence``: recurrent
    states, whatever its length; ``image_tower``: what looks at images, in words, of ``tower_parameters`` (its projector
    included), which makes ``tokens_per_image`` of an image with ``tower_flops_per_image``;
    ``training_flops_per_token``: forward and backward, by convention; ``prefill_flops_per_token``: forward, causal mask
    counted as executed;
    ``decode_flops_per_token``: one new token after ``seq_len`` cached ones (0: the model does not decode).
    """

    name: str
    family: str
    source: str
    note: str
    d_model: int
    n_layers: int
    layers: str
    encoder_layers: str | None
    blocks: dict[str, str]
    reads: str | None
    encoder_reads: str | None
    head: str | None
    decodes: bool
    vocab_size: int
    tied_embeddings: bool
    max_seq_len: int | None
    positions: str
    parameters: Parameters
    weights_dtype: str | None
    formats: tuple[str, ...]
    weight_bytes: Number
    dtype: str
    weight_bytes_as: Number
    kv_format: str
    kv_bytes_per_token: Number
    seq_len: int
    kv_bytes_per_sequence: Number
    cross_bytes_per_sequence: Number
    state_bytes_per_sequence: Number
    image_tower: str | None
    tower_parameters: int
    tokens_per_image: int
    tower_flops_per_image: Number
    action_tokens: int
    training_flops_per_token: dict[str, Number]
    prefill_flops_per_token: Number
    decode_flops_per_token: Number

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**self.__dict__, "parameters": self.parameters.to_dict(), "formats": list(self.formats)}


def model_facts(
    model: ModelSpec, *, seq_len: int | None = None, dtype: str = "bf16", weights_dtype: str | None = None
) -> ModelFacts:
    """The facts of ``model`` for sequences of ``seq_len`` tokens (default 8,192, or less if the model takes less) with
    activations and cache in ``dtype``, and weights in ``weights_dtype`` (see tfsim.models.weights; default: as
    published).

    Raises InputError for a seq_len, dtype or weights_dtype out of range.
    """
    if dtype not in FORMAT_NAMES:
        raise unknown("dtype", dtype, FORMAT_NAMES)
    if weights_dtype is not None:
        model = with_weights(model, weights_dtype, dtype)
    length = min(USUAL_SEQ_LEN, model.own_len or USUAL_SEQ_LEN) if seq_len is None else seq_len
    source = length if model.reads_source else None
    decode = (
        count(model, past_len=length, phase="decode", dtype=dtype, encoder_len=source).flops if model.decodes else 0
    )
    weights = stored_weights(model)
    sizes: dict[str, Number] = {}
    for weight, repeat in weights:
        sizes[weight.fmt] = sizes.get(weight.fmt, 0) + weight.bytes * repeat
    per_token: dict[str, Number] = {
        name: _each(training_flops(model, length, name), length) for name in conventions_of(model)
    }
    params = parameters(model)
    cached = cache_bytes(model, batch=1, tokens=length, dtype=dtype)
    return ModelFacts(
        name=model.name,
        family=model.family,
        source=model.source,
        note=model.note,
        d_model=model.d_model,
        n_layers=model.n_layers,
        layers=model.layers,
        encoder_layers=f"{model.encoder.n_layers}: {model.encoder.layers}" if model.encoder else None,
        blocks={name: describe(block) for name, block in model.all_blocks.items()},
        reads=model.frontend.describe() if model.frontend else None,
        encoder_reads=model.encoder.frontend.describe() if model.encoder and model.encoder.frontend else None,
        head=None if isinstance(model.head, LMHead) and not model.action_tokens else model.head.describe(),
        decodes=model.decodes,
        vocab_size=model.vocab_size,
        tied_embeddings=model.tied_embeddings,
        max_seq_len=model.max_seq_len,
        positions=describe_positions(model),
        parameters=params,
        weights_dtype=weights_dtype,
        formats=tuple(sorted(sizes, key=lambda name: -sizes[name])),
        weight_bytes=total(sizes.values()),
        dtype=dtype,
        weight_bytes_as=params.total * element_bytes(dtype),
        kv_format=model.kv_format or dtype,
        kv_bytes_per_token=_each(cached, length),
        seq_len=length,
        kv_bytes_per_sequence=cached,
        cross_bytes_per_sequence=_cross(model, length, dtype),
        state_bytes_per_sequence=state_bytes(model, batch=1, dtype=dtype),
        image_tower=_tower(model.vision) if model.vision else None,
        tower_parameters=parameters(model.vision).total if model.vision else 0,
        tokens_per_image=model.tokens_per_image,
        tower_flops_per_image=count(model.vision).flops if model.vision else 0,
        action_tokens=model.action_tokens,
        training_flops_per_token=per_token,
        prefill_flops_per_token=_each(training_flops(model, length, "exact"), 3 * length),
        decode_flops_per_token=decode,
    )


def _tower(tower: ModelSpec) -> str:
    """An image tower in words: input, layers of each stack, and what becomes a token."""
    assert tower.frontend is not None
    stacks = [spec for spec in (tower.encoder, tower) if spec is not None]
    layers = (f"{n} x {describe(spec.blocks[name])}" for spec in stacks for name, n in spec.block_counts.items())
    return f"{tower.frontend.describe()}; {' beside '.join(layers)}; {tower.head.describe()}"


def _cross(model: ModelSpec, length: int, dtype: str) -> Number:
    if model.encoder is None:
        return 0
    own = model.encoder.frontend.seq_len if model.encoder.frontend else length
    return cross_bytes(model, batch=1, encoder_len=own, dtype=dtype)


def describe(block: Block) -> str:
    """A block in words: "GQA 64 heads / 8 KV heads of 128; SwiGLU FFN 28,672"."""
    words = {"": block.mixer, "cross-attention ": block.cross, " ": block.ffn}
    return "; ".join(f"{before}{part.describe()}".strip() for before, part in words.items() if part is not None)


def _each(flops: Number, tokens: int) -> Number:
    return flops // tokens if isinstance(flops, int) and flops % tokens == 0 else flops / tokens
