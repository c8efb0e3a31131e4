"""The validated description of a decoder-only model.

A model is a set of named *blocks* and a *pattern* that says in which order they repeat; nothing else in tfsim knows a
model by its name. Sizes follow the field's names (``d_model``, ``n_heads``, ``d_ff``, ...), are counted in elements,
and are plain integers. Facts about numerics (which steps run in fp32) are part of the description, because they decide
how many bytes training keeps.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tfsim.errors import InputError, quote
from tfsim.files import not_a_flag
from tfsim.operators.formats import FORMAT_NAMES

MAX_SIZE = 10**9
MAX_LAYERS = 10_000

Size = Annotated[int, Field(strict=True, gt=0, le=MAX_SIZE)]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)]
Flag = Annotated[bool, Field(strict=True)]
Real = Annotated[float, Field(strict=True, gt=0, le=1e12, allow_inf_nan=False)]


class Strict(BaseModel):
    """Base of every part of a specification: unknown fields are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Norm(Strict):
    """A normalisation over the last dimension.

    ``weight``/``bias``: learned scale and shift. ``unit_offset``: the scale is stored as (w - 1) and applied in fp32
    (Gemma). ``upcast``: computed in fp32 whatever the model's dtype (every RMSNorm, OLMo's LayerNorm); ``late_cast``:
    scaled in fp32 too, and cast last (OLMo-2, gpt-oss). ``fused``: a single kernel exists in plain torch (LayerNorm).
    """

    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    weight: Flag = True
    bias: Flag = False
    unit_offset: Flag = False
    upcast: Flag = True
    late_cast: Flag = False
    fused: Flag = False


LAYER_NORM = Norm(kind="layernorm", bias=True, upcast=False, fused=True)
RMS_NORM = Norm()


ScalingKind = Literal["linear", "dynamic", "ntk", "yarn", "llama3", "longrope"]


class RopeScaling(Strict):
    """How rotary frequencies are stretched beyond the trained context (a description: it changes no count).

    linear: Chen et al. 2023 (position interpolation); dynamic and ntk: NTK-aware scaling; yarn: Peng et al. 2023;
    llama3: Llama-3.1's frequency bands; longrope: Ding et al. 2024 (Phi-3).
    """

    kind: ScalingKind
    factor: Real | None = None
    original_max_seq_len: Size | None = None
    low_freq_factor: Real | None = None
    high_freq_factor: Real | None = None
    beta_fast: Real | None = None
    beta_slow: Real | None = None


class Rope(Strict):
    """Rotary position embedding (Su et al. 2021) of the first ``rotary_dim`` of each head (all of it when absent).

    ``interleaved``: pairs of neighbours are rotated (GPT-J, Cohere, Llama-4) instead of the two halves.
    """

    theta: Real = 10000.0
    rotary_dim: Size | None = None
    interleaved: Flag = False
    scaling: RopeScaling | None = None


class QKNorm(Strict):
    """Normalisation of queries and keys. ``head``: one scale of d_head shared by all heads; ``each_head``: a scale per
    head; ``full``: over the whole projection."""

    scope: Literal["head", "each_head", "full"] = "head"
    norm: Norm = RMS_NORM


class Attention(Strict):
    """Softmax attention with grouped keys and values: MHA (n_kv_heads = n_heads), GQA, MQA (n_kv_heads = 1).

    ``window``: a query sees at most this many latest tokens, itself included; ``chunk``: it sees the tokens of its own
    aligned chunk. ``sinks``: one learned logit per head takes part in the softmax (gpt-oss). ``softmax_fp32``: scores
    are cast to fp32 for the softmax and back; ``scores_fp32``: queries and keys are cast before their product (GPT-J).
    """

    kind: Literal["attention"] = "attention"
    n_heads: Size
    n_kv_heads: Size
    d_head: Size
    qkv_bias: Flag = False
    out_bias: Flag = False
    fused_qkv: Flag = False
    rope: Rope | None = None
    alibi: Flag = False
    qk_norm: QKNorm | None = None
    window: Size | None = None
    chunk: Size | None = None
    sinks: Flag = False
    logit_softcap: Real | None = None
    clip_qkv: Real | None = None
    softmax_fp32: Flag = True
    scores_fp32: Flag = False

    @model_validator(mode="after")
    def _consistent(self) -> Attention:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        if self.window is not None and self.chunk is not None:
            raise ValueError("give window or chunk, not both")
        if self.rope and self.rope.rotary_dim and self.rope.rotary_dim > self.d_head:
            raise ValueError(f"rope.rotary_dim ({self.rope.rotary_dim}) is larger than d_head ({self.d_head})")
        return self


class MLA(Strict):
    """Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): keys and values from one cached latent of
    ``kv_lora_rank`` plus a shared rotary key of ``qk_rope_head_dim``; ``q_lora_rank`` null = plain query projection."""

    kind: Literal["mla"] = "mla"
    n_heads: Size
    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    bias: Flag = False
    rope: Rope | None = Rope(interleaved=True)
    softmax_fp32: Flag = True


ActivationName = Literal["relu", "gelu", "gelu_tanh", "gelu_new", "silu", "quick_gelu", "clamped_swiglu"]


class DenseFFN(Strict):
    """Two-matrix (``gated: false``) or three-matrix gated feed-forward network (Shazeer 2020: SwiGLU, GeGLU)."""

    kind: Literal["dense"] = "dense"
    d_ff: Size
    activation: ActivationName = "silu"
    gated: Flag = True
    bias: Flag = False
    fused_gate_up: Flag = False


class SharedExpert(Strict):
    """An expert every token passes; ``gate``: its output is scaled by a learned sigmoid (Qwen-MoE)."""

    d_ff: Size
    gate: Flag = False


class MoE(Strict):
    """Sparse mixture of ``n_experts`` FFNs of width ``d_ff`` of which a token visits ``top_k``, plus a shared expert.

    ``router``: softmax over all experts then top-k, top-k then softmax, or sigmoid scores (DeepSeek-V3);
    ``router_fp32``: the router matmul runs in fp32; ``normalize_top_k``: chosen weights are rescaled to sum to one;
    ``weigh_input``: the routing weight scales an expert's input, not its output (Llama-4).
    """

    kind: Literal["moe"] = "moe"
    n_experts: Size
    top_k: Size
    d_ff: Size
    activation: ActivationName = "silu"
    gated: Flag = True
    bias: Flag = False
    shared: SharedExpert | None = None
    router: Literal["softmax_topk", "topk_softmax", "sigmoid"] = "softmax_topk"
    router_bias: Flag = False
    router_fp32: Flag = False
    normalize_top_k: Flag = True
    weigh_input: Flag = False
    n_groups: Size = 1

    @model_validator(mode="after")
    def _consistent(self) -> MoE:
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k ({self.top_k}) is larger than n_experts ({self.n_experts})")
        return self


FormatName = Annotated[str, Field(description="a number format of tfsim.operators.formats")]


def _known_format(name: str) -> str:
    if name not in FORMAT_NAMES:
        raise ValueError(f"unknown number format {name!r}: one of {', '.join(FORMAT_NAMES)}")
    return name


Residual = Literal["pre", "post", "output", "sandwich", "parallel", "parallel_shared"]


class Block(Strict):
    """One layer: a mixer and an FFN around a residual stream.

    ``residual``: ``pre`` (norm before each), ``post`` (norm after each addition, 2017), ``output`` (norm on each
    output before the addition, OLMo-2), ``sandwich`` (both, Gemma-2), ``parallel`` (mixer and FFN side by side, a norm
    each), ``parallel_shared`` (side by side under one norm).
    ``formats``: weight format by parameter group (``attn``, ``ffn_dense``, ``moe_routed``, ...) or by operator name
    (``q_proj``, ...; the narrower wins) where it differs from the model's.
    """

    mixer: Annotated[Attention | MLA, Field(discriminator="kind")]
    ffn: Annotated[DenseFFN | MoE, Field(discriminator="kind")]
    residual: Residual = "pre"
    formats: dict[str, str] = {}

    @field_validator("formats")
    @classmethod
    def _formats(cls, value: dict[str, str]) -> dict[str, str]:
        return {key: _known_format(name) for key, name in value.items()}


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

    schema_version: Annotated[Literal[1], BeforeValidator(not_a_flag)] = Field(1, alias="schema")
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
    formats: dict[str, str] = {}
    kv_format: str | None = None
    n_mtp_modules: Count = 0

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("dtype")
    @classmethod
    def _dtype(cls, value: str) -> str:
        return _known_format(value)

    @field_validator("kv_format")
    @classmethod
    def _kv_format(cls, value: str | None) -> str | None:
        return None if value is None else _known_format(value)

    @field_validator("formats")
    @classmethod
    def _formats(cls, value: dict[str, str]) -> dict[str, str]:
        return {key: _known_format(name) for key, name in value.items()}

    @field_validator("layers", mode="before")
    @classmethod
    def _spaces(cls, value: object) -> object:
        return " ".join(value.split()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _pattern(self) -> ModelSpec:
        unknown = [name for name in dict.fromkeys(self.layer_blocks) if name not in self.blocks]
        if unknown:
            raise ValueError(f"layers names block {unknown[0]!r}, which is not one of blocks: {', '.join(self.blocks)}")
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


_TOKEN = re.compile(r"\s*(?:(\()|(\))(?:\*(\d{1,6}))?|([A-Za-z_][\w.-]*)(?:\*(\d{1,6}))?)")


def expand_layers(pattern: str) -> tuple[str, ...]:
    """The block names of a pattern such as ``dense*3 (local*5 global)*2``.

    Raises ValueError when the pattern is malformed or has more than ``MAX_LAYERS`` layers.
    """
    stack: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise ValueError(f"layers: cannot read {pattern[position : position + 20]!r}; write e.g. 'dense*3 moe*58'")
        opening, closing, group_repeat, name, repeat = match.groups()
        if opening:
            stack.append([])
        else:
            if closing and len(stack) == 1:
                raise ValueError("layers: a ')' without '('")
            part = stack.pop() if closing else [name]
            times = int((group_repeat if closing else repeat) or 1)
            if len(part) * times + sum(map(len, stack)) > MAX_LAYERS:
                raise ValueError(f"layers: more than {MAX_LAYERS} layers")
            if times == 0:
                raise ValueError("layers: a repeat of 0")
            stack[-1].extend(part * times)
        position = match.end()
    if len(stack) != 1:
        raise ValueError("layers: a '(' without ')'")
    if not stack[0]:
        raise ValueError("layers: no layer at all")
    return tuple(stack[0])


def compress_layers(names: list[str]) -> str:
    """A short pattern for a list of block names: the shortest repeating period, or run lengths."""

    def runs(part: list[str]) -> str:
        words: list[str] = []
        start = 0
        for end in range(1, len(part) + 1):
            if end == len(part) or part[end] != part[start]:
                words.append(part[start] if end - start == 1 else f"{part[start]}*{end - start}")
                start = end
        return " ".join(words)

    plain = runs(names)
    for period in range(2, len(names) // 2 + 1):
        whole = len(names) // period
        if names[: whole * period] == names[:period] * whole:
            rest = runs(names[whole * period :])
            candidate = f"({runs(names[:period])})*{whole}" + (f" {rest}" if rest else "")
            return min(plain, candidate, key=len)
    return plain
