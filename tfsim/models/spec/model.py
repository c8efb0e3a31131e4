"""The specification of a whole model."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from tfsim.errors import InputError, quote
from tfsim.models.spec.base import RMS_NORM, Count, Flag, Norm, Real, Size, Strict, known_format
from tfsim.models.spec.block import Block
from tfsim.models.spec.pattern import expand_layers


class LearnedPositions(Strict):
    """A learned table of absolute positions with ``n_positions`` rows (padding rows such as OPT's two included)."""

    n_positions: Size


class ModelSpec(Strict):
    """A decoder-only language model. See ``docs/models.md`` for the YAML form.

    ``layers`` is the pattern of block names, with ``*N`` repeats and brackets: ``dense*3 moe*58``,
    ``(local*5 global)*8``. ``dtype``: number format of the weights as published; ``formats`` overrides it by parameter
    group (``embed_token``, ``head``). ``kv_format``: format of the KV cache. ``n_mtp_modules``: multi-token-prediction
    modules stored with the checkpoint (not part of the main model; counted only on request).
    """

    schema_version: Literal[1] = Field(1, alias="schema")
    name: Annotated[str, Field(min_length=1, max_length=120)]
    family: Annotated[str, Field(max_length=60)] = "custom"
    source: Annotated[str, Field(max_length=500)] = ""
    note: Annotated[str, Field(max_length=1000)] = ""
    d_model: Size
    vocab_size: Size
    max_seq_len: Size | None = None
    blocks: Annotated[dict[str, Block], Field(min_length=1)]
    layers: Annotated[str, Field(min_length=1, max_length=2000)]
    norm: Norm = RMS_NORM
    final_norm: Flag = True
    embedding_norm: Flag = False
    d_embed: Size | None = None
    positions: LearnedPositions | None = None
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
        for name, block in self.blocks.items():
            width = None if block.mixer is None else block.mixer.output_width
            if width is not None and width != self.d_model:
                raise ValueError(f"block {name!r} hands on {width} values, but d_model is {self.d_model}")
        unused = [name for name in self.blocks if name not in set(self.layer_blocks)]
        if unused:
            raise ValueError(f"block {unused[0]!r} is defined but layers never uses it")
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


def require_model(value: object) -> ModelSpec:
    """``value``, when it is a loaded model. Raises InputError otherwise (a name, say)."""
    if not isinstance(value, ModelSpec):
        raise InputError(f"model: {quote(value)} is not a model: use tfsim.load_model")
    return value
