"""The specification of a whole model."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tfsim.errors import InputError, quote
from tfsim.files import not_a_flag
from tfsim.models.spec.base import RMS_NORM, Count, Flag, Norm, Real, Size, Strict, known_format
from tfsim.models.spec.block import Adapters, Block
from tfsim.models.spec.disentangled import Disentangled
from tfsim.models.spec.dit import Condition
from tfsim.models.spec.ffn import ActivationName
from tfsim.models.spec.frontends import Frontend, PatchFrontend
from tfsim.models.spec.heads import Head, LMHead, MaskedLMHead, Merger
from tfsim.models.spec.pattern import expand_layers

ENCODER, VISION = "encoder.", "vision."
"""What the names of an encoder's segments and blocks start with, and those of an image tower's."""
VISION_LEFT_OUT = "text part only: the image tower's weights and work are left out (images is 0)"


class LearnedPositions(Strict):
    """A table of absolute positions with ``n_positions`` rows (padding rows such as OPT's two included), learned unless
    ``frozen`` (Whisper's encoder keeps a sinusoidal table as a parameter). ``indices`` of its rows: made in each pass,
    once for the ``batch`` or for every ``sequence`` of it (OPT, Whisper), or ``stored`` beside the table (CLIP)."""

    n_positions: Size
    frozen: Flag = False
    indices: Literal["batch", "sequence", "stored"] = "batch"


class RelativePositions(Strict):
    """One table for all layers of a stack, ``n_buckets`` distances.

    ``bias``: a number per head, added to the scores (Raffel et al. 2020, T5). ``disentangled``: a vector of d_model,
    normalised, which every layer projects to keys and queries of positions (He et al. 2021, DeBERTa).
    """

    kind: Literal["bias", "disentangled"] = "bias"
    n_buckets: Size


class PerLayerInput(Strict):
    """A table of ``vocab_size`` rows that holds a vector of ``width`` for every layer (Gemma-3n, Gemma-4)."""

    vocab_size: Size
    width: Size
    activation: ActivationName = "gelu_tanh"


class ModelSpec(Strict):
    """A stack of layers between a frontend and a head; a decoder-only language model unless said otherwise. See
    ``docs/models.md`` for the YAML form.

    ``layers`` is the pattern of block names, with ``*N`` repeats and brackets: ``dense*3 moe*58``,
    ``(local*5 global)*8``. ``dtype``: number format of the weights as published; ``formats`` overrides it by parameter
    group (``embed_token``, ``head``). ``kv_format``: format of the KV cache. ``n_mtp_modules``: multi-token-prediction
    modules stored with the checkpoint (not part of the main model; counted only on request).

    ``frontend``: what makes the sequence where it is not tokens (then ``vocab_size`` is 0). ``token_types``: rows of a
    segment embedding. ``projected_sum``: the sum of embeddings, each ``d_embed`` wide, is projected to d_model
    (ELECTRA); else the token embedding alone (OPT). ``relative_positions``: one table of them for the whole stack.
    ``condition``: the vector that blocks of residual ``adaln`` and a denoising head are modulated by (DiT).
    ``embedding_norm_in_layer``: the first layer computes it, again under full recomputation (RWKV). ``residual_fp32``:
    the stream between layers stays in fp32 (Mamba). ``sinusoidal``: computed positions are added, without parameters
    (Vaswani et al. 2017). ``encoder``: a stack
    that runs before this one: blocks with ``cross`` attend to its output, without any it stands beside (CLIP) or makes
    tokens. ``hyper_streams``: residual streams that hyper-connections mix (DeepSeek-V4; 1: a plain residual), after
    ``sinkhorn_steps`` that make their mixing matrix doubly stochastic.
    ``shared_embeddings``: it reads this stack's token table.
    ``adapters``: the model is fine-tuned with them, its own matrices frozen.
    ``vision``: an image tower whose tokens join the stream of the first stack that reads tokens (early fusion): stored
    with this model, in a parameter group of its own, and run once per image (``images``) before all else.
    """

    schema_version: Annotated[Literal[1], BeforeValidator(not_a_flag)] = Field(1, alias="schema")
    name: Annotated[str, Field(min_length=1, max_length=120)]
    family: Annotated[str, Field(max_length=60)] = "custom"
    source: Annotated[str, Field(max_length=500)] = ""
    note: Annotated[str, Field(max_length=1000)] = ""
    d_model: Size
    vocab_size: Count = 0
    max_seq_len: Size | None = None
    blocks: Annotated[dict[str, Block], Field(min_length=1)]
    layers: Annotated[str, Field(min_length=1, max_length=2000)]
    norm: Norm = RMS_NORM
    final_norm: Flag = True
    residual_fp32: Flag = False
    embedding_norm: Flag = False
    embedding_norm_in_layer: Flag = False
    d_embed: Size | None = None
    positions: LearnedPositions | None = None
    frontend: Frontend | None = Field(None, discriminator="kind")
    token_types: Count = 0
    projected_sum: Flag = False
    relative_positions: RelativePositions | None = None
    condition: Condition | None = None
    sinusoidal: Flag = False
    head: Head = Field(LMHead(), discriminator="kind")
    encoder: ModelSpec | None = None
    shared_embeddings: Flag = False
    vision: ModelSpec | None = None
    hyper_streams: Size = 1
    sinkhorn_steps: Size = 20
    per_layer_input: PerLayerInput | None = None
    adapters: Adapters | None = None
    tied_embeddings: Flag = False
    head_bias: Flag = False
    final_logit_softcap: Real | None = None
    dropout_sites: tuple[Literal["embedding", "attention", "residual"], ...] = ("attention",)
    dtype: str = "bf16"
    formats: dict[str, str] = Field(default_factory=dict)
    kv_format: str | None = None
    n_mtp_modules: Count = 0

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("dtype")
    @classmethod
    def _dtype(cls, value: str) -> str:
        return known_format(value)

    @field_validator("kv_format")
    @classmethod
    def _kv_format(cls, value: str | None) -> str | None:
        return None if value is None else known_format(value)

    @field_validator("formats")
    @classmethod
    def _formats(cls, value: dict[str, str]) -> dict[str, str]:
        return {key: known_format(name) for key, name in value.items()}

    @field_validator("layers", mode="before")
    @classmethod
    def _spaces(cls, value: object) -> object:
        return " ".join(value.split()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _pattern(self) -> ModelSpec:
        unknown = [name for name in dict.fromkeys(self.layer_blocks) if name not in self.blocks]
        if unknown:
            raise ValueError(f"layers names block {unknown[0]!r}, which is not one of blocks: {', '.join(self.blocks)}")
        width = self.d_model
        for name in self.layer_blocks:
            mixer = self.blocks[name].mixer
            if mixer is not None:
                if (mixer.input_width or self.d_model) != width:
                    raise ValueError(f"block {name!r} reads {mixer.input_width or self.d_model} values, given {width}")
                width = mixer.output_width or self.d_model
        if width != self.d_model:
            raise ValueError(f"the last layer hands on {width} values, but d_model is {self.d_model}")
        unused = [name for name in self.blocks if name not in set(self.layer_blocks)]
        if unused:
            raise ValueError(f"block {unused[0]!r} is defined but layers never uses it")
        return self

    @model_validator(mode="after")
    def _input_and_output(self) -> ModelSpec:
        if self.frontend is None and not self.vocab_size:
            raise ValueError("vocab_size: missing, and required by a model that reads tokens")
        if self.frontend is not None and self.vocab_size:
            raise ValueError("vocab_size: a model with a frontend reads no tokens")
        if self.frontend is not None and isinstance(self.head, LMHead | MaskedLMHead):
            raise ValueError(f"head {self.head.kind}: a model with a frontend has no vocabulary")
        if self.condition is None and any(block.residual == "adaln" for block in self.blocks.values()):
            raise ValueError("a block has residual adaln, but the model has no condition")
        if self.encoder is None and any(block.cross for block in self.blocks.values()):
            raise ValueError("a block has cross, but the model has no encoder")
        far = self.relative_positions is not None and self.relative_positions.kind == "disentangled"
        if far != any(isinstance(block.mixer, Disentangled) for block in self.blocks.values()):
            raise ValueError("relative_positions of kind disentangled and disentangled attention need each other")
        if self.encoder is not None and self.encoder.encoder is not None:
            raise ValueError("encoder.encoder: an encoder has none of its own")
        if self.shared_embeddings and (self.encoder is None or self.encoder.vocab_size != self.vocab_size):
            raise ValueError("shared_embeddings needs an encoder with the same vocab_size")
        return self

    @model_validator(mode="after")
    def _streams(self) -> ModelSpec:
        blocks = self.blocks.values()
        if self.hyper_streams > 1 and any(
            block.mixer is None or block.ffn is None or block.cross or block.residual != "pre" for block in blocks
        ):
            raise ValueError(
                "hyper_streams: hyper-connections are around a mixer and an ffn, with residual pre, no cross"
            )
        if self.per_layer_input is not None and (
            self.hyper_streams > 1 or any(block.residual not in ("pre", "output", "sandwich") for block in blocks)
        ):
            raise ValueError("per_layer_input needs residual pre, output or sandwich, and hyper_streams 1")
        return self

    @model_validator(mode="after")
    def _images(self) -> ModelSpec:
        tower = self.vision
        for name, inner in (("encoder", self.encoder), ("vision", tower)):
            if inner is not None and inner.vision is not None:
                raise ValueError(f"{name}.vision: the image tower belongs to the whole model")
        if tower is not None and not (isinstance(tower.frontend, PatchFrontend) and isinstance(tower.head, Merger)):
            raise ValueError("vision: an image tower has a frontend of patches and a head of kind merger")
        if tower is not None and not self.tokens_per_image:
            raise ValueError("vision: an image holds fewer patches than the merger makes a token of")
        if isinstance(self.head, Merger) and self.head.joins_encoder and self.encoder is None:
            raise ValueError("head.joins_encoder: the model has no encoder")
        if isinstance(self.head, Merger) and self.head.taps > self.n_layers:
            raise ValueError(
                f"head.taps: {self.head.taps} mergers on earlier layers, of which there are {self.n_layers}"
            )
        return self

    @cached_property
    def layer_blocks(self) -> tuple[str, ...]:
        """The block name of each layer, first to last."""
        return expand_layers(self.layers)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layer_blocks)

    @cached_property
    def block_counts(self) -> dict[str, int]:
        """How many layers use each block."""
        return {name: self.layer_blocks.count(name) for name in self.blocks}

    @property
    def all_blocks(self) -> dict[str, Block]:
        """The blocks of every stack, an encoder's under names such as ``encoder.layer``."""
        inner = self.encoder.blocks if self.encoder else {}
        return {**{f"{ENCODER}{name}": block for name, block in inner.items()}, **self.blocks}

    @property
    def all_layers(self) -> tuple[str, ...]:
        """The block name of each layer in the order they run, an encoder's first."""
        inner = self.encoder.layer_blocks if self.encoder else ()
        return (*(f"{ENCODER}{name}" for name in inner), *self.layer_blocks)

    @property
    def stacks(self) -> tuple[tuple[str, ...], ...]:
        """The layers of each stack in the order they run, by block name: an image tower's (``vision.layer``), an
        encoder's (``encoder.layer``), its own."""
        inner = ((VISION, self.vision), (ENCODER, self.encoder))
        before = (tuple(f"{prefix}{name}" for name in stack) for prefix, spec in inner if spec for stack in spec.stacks)
        return (*before, self.layer_blocks)

    @property
    def own_len(self) -> int | None:
        """Positions of a sequence unless told otherwise: what the frontend makes, else ``max_seq_len``."""
        return self.frontend.seq_len if self.frontend else self.max_seq_len

    @property
    def tokens_per_image(self) -> int:
        """Tokens that an image of the tower's ``image_size`` becomes; 0 without a tower."""
        if self.vision is None:
            return 0
        front, head = self.vision.frontend, self.vision.head
        assert isinstance(front, PatchFrontend) and isinstance(head, Merger)
        return (front.seq_len - front.class_tokens) // head.patches

    @property
    def action_tokens(self) -> int:
        """Tokens that one control step of a robot decodes; 0: the model does not act."""
        return self.head.action_tokens if isinstance(self.head, LMHead) else 0

    @property
    def reads_source(self) -> bool:
        """Whether an encoder reads tokens, whose number is the user's to say (an image or a recording has its own)."""
        return self.encoder is not None and self.encoder.frontend is None

    @property
    def kept_words(self) -> str:
        """What it keeps of the tokens before: a KV cache, a state of constant size, or both."""
        mixers = [block.mixer for block in self.blocks.values() if block.mixer is not None]
        cached = any(mixer.cached_per_token() for mixer in mixers)
        state = any(mixer.state_bytes(1) for mixer in mixers)
        return "KV cache and state" if cached and state else "state" if state else "KV cache"

    @property
    def decodes(self) -> bool:
        """Whether it generates text: causal layers under a language model's head."""
        causal = all(getattr(block.mixer, "causal", True) for block in self.blocks.values())
        return causal and isinstance(self.head, LMHead)


def require_decoder(value: object) -> ModelSpec:
    """``value``, when it is a loaded model that generates text by itself. Raises InputError otherwise."""
    model = require_model(value)
    if not model.decodes:
        raise InputError(f"model: {model.name} generates no text: serving is for decoders")
    if model.encoder is not None:
        raise InputError(f"model: {model.name} has an encoder: serving is for models of one stack")
    return model


def require_model(value: object) -> ModelSpec:
    """``value``, when it is a loaded model. Raises InputError otherwise (a name, say)."""
    if not isinstance(value, ModelSpec):
        raise InputError(f"model: {quote(value)} is not a model: use tfsim.load_model")
    return value
