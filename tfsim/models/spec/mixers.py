"""Token mixers: softmax attention and multi-head latent attention. Other families have modules of their own."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tfsim.models.spec.base import Flag, QKNorm, Real, Rope, Size, Strict
from tfsim.models.spec.indexer import Indexer
from tfsim.units import Number, ceil_div, maximum, minimum


class MixerSpec(Strict):
    """What the rest of tfsim asks of any token mixer, whatever its family."""

    @property
    def n_parts(self) -> int:
        """Equal parts tensor parallelism can cut it into (heads)."""
        raise NotImplementedError

    @property
    def part_names(self) -> tuple[str, str]:
        """What those parts are called, and those of the cache."""
        return "attention heads", "KV heads"

    @property
    def n_kv_parts(self) -> int | None:
        """Parts of its cache that are cut alike or, beyond their number, replicated (KV heads); None: no such parts."""
        return None

    @property
    def span(self) -> tuple[int | None, bool]:
        """(tokens a query can look back on, itself included, or None for all; whether that is an aligned chunk)."""
        return None, False

    @property
    def score_width(self) -> int:
        """heads x (query-key width + value width): what each visible key costs in multiply-adds."""
        return 0

    @property
    def input_width(self) -> int | None:
        """Width of what it is given where that is not the model's; None: d_model."""
        return None

    @property
    def output_width(self) -> int | None:
        """Width of what it hands on where that is not the model's by construction; None: always d_model."""
        return None

    def cached_per_token(self, tp: Number = 1) -> Number:
        """Cached elements per token on one device."""
        return 0

    def cached(self, tokens: Number, tp: Number = 1) -> Number:
        """Cached elements of a sequence of ``tokens`` on one device: at most those of its span."""
        span, _ = self.span
        return (tokens if span is None else minimum(tokens, span)) * self.cached_per_token(tp)

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """Bytes of the fixed-size state of one sequence on one device; ``element``: bytes of the cache's dtype."""
        return 0

    def describe(self) -> str:
        """In words, for people."""
        raise NotImplementedError


class Attention(MixerSpec):
    """Softmax attention with grouped keys and values: MHA (n_kv_heads = n_heads), GQA, MQA (n_kv_heads = 1).

    ``window``: a query sees at most this many latest tokens, itself included; ``chunk``: it sees the tokens of its own
    aligned chunk. ``sinks``: one learned logit per head takes part in the softmax (gpt-oss). ``softmax_fp32``: scores
    are cast to fp32 for the softmax and back; ``scores_fp32``: queries and keys are cast before their product (GPT-J).
    ``d_value``: width of a value head where it is not d_head (MiMo-V2); ``output_gate``: a sigmoid on the output before
    its projection, one per ``element`` from a query projection twice as wide (Qwen3-Next) or one per ``head`` from a
    projection of its own (Step-3); ``value``: how values are made, by their ``own`` projection, as the ``key``
    projection without its norm and rotation (Gemma-4), or with keys ``reused`` from an earlier layer, whose cache
    serves this one too; ``value_norm``: an unscaled norm on values (Gemma-4);
    ``indexer``: a query attends only to the keys it selects (MiniMax-M3).
    ``causal`` false: every query sees every key (encoders; a ``window`` then reaches half to each side, and each
    ``chunk`` runs as a sequence of its own: Qwen2.5-VL's windows). ``key_bias``
    false: the key projection has no bias where the others have one (Whisper). ``stored_mask``: eager attention keeps a
    boolean mask in each layer; ``given_mask``: it adds a mask made once for all layers, which a layer that runs again
    is given. ``head_major``: queries are copied so that each head's lie together (Whisper).
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
    d_value: Size | None = None
    output_gate: Literal["element", "head"] | None = None
    value: Literal["own", "key", "reused"] = "own"
    value_norm: Flag = False
    indexer: Indexer | None = None
    causal: Flag = True
    key_bias: Flag = True
    stored_mask: Flag = False
    given_mask: Flag = False
    head_major: Flag = False

    @model_validator(mode="after")
    def _consistent(self) -> Attention:
        if self.fused_qkv and (self.d_value or self.output_gate or self.value != "own"):
            raise ValueError("fused_qkv goes with plain queries, keys and values only")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads})")
        if self.window is not None and self.chunk is not None:
            raise ValueError("give window or chunk, not both")
        if self.rope and self.rope.rotary_dim and self.rope.rotary_dim > self.d_head:
            raise ValueError(f"rope.rotary_dim ({self.rope.rotary_dim}) is larger than d_head ({self.d_head})")
        return self

    @property
    def queries_by_head(self) -> bool:
        """Whether each head's queries lie together in memory, by a copy or because a rotated and a plain part are
        concatenated: a fused kernel lays its output out like its queries."""
        rope = self.rope
        parts = rope is not None and not rope.whole_head and (rope.rotary_dim or self.d_head) < self.d_head
        return self.head_major or parts

    @property
    def n_parts(self) -> int:
        """Query heads."""
        return self.n_heads

    @property
    def n_kv_parts(self) -> int | None:
        """Key and value heads."""
        return self.n_kv_heads

    @property
    def span(self) -> tuple[int | None, bool]:
        """The window or the chunk."""
        return (self.chunk, True) if self.chunk else (self.window, False)

    @property
    def score_width(self) -> int:
        """Scores and values: n_heads (d_head + value width)."""
        return self.n_heads * (self.d_head + self.value_width)

    @property
    def value_width(self) -> int:
        """Width of a value head."""
        return self.d_value or self.d_head

    def cached_per_token(self, tp: Number = 1) -> Number:
        """Keys and values of the device's KV heads: with more devices than heads every device keeps one."""
        if self.value == "reused":
            return 0
        index = self.indexer.d_head if self.indexer else 0
        return maximum(1, ceil_div(self.n_kv_heads, tp)) * (self.d_head + self.value_width) + index

    def describe(self) -> str:
        """Such as "GQA 64 heads / 8 KV heads of 128, window 4,096"."""
        if self.n_kv_heads == self.n_heads:
            words = f"MHA {self.n_heads} heads"
        elif self.n_kv_heads == 1:
            words = f"MQA {self.n_heads} heads / 1 KV head"
        else:
            words = f"GQA {self.n_heads} heads / {self.n_kv_heads} KV heads"
        span = f", window {self.window:,}" if self.window else f", chunk {self.chunk:,}" if self.chunk else ""
        width = f"{self.d_head} (values {self.d_value})" if self.d_value else f"{self.d_head}"
        gate = ", gated output" if self.output_gate else ""
        reused = ", keys and values of an earlier layer" if self.value == "reused" else ""
        chosen = f", {self.indexer.describe()}" if self.indexer else ""
        return f"{words} of {width}{span}{gate}{reused}{chosen}"


class MLA(MixerSpec):
    """Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): keys and values from one cached latent of
    ``kv_lora_rank`` plus a shared rotary key of ``qk_rope_head_dim``; ``q_lora_rank`` null = plain query projection.

    ``indexer``: a query attends only to the keys it selects (DeepSeek-V3.2, GLM-5); ``reuses_selection``: to those that
    an earlier layer selected, so that there is no indexer work, weight or cache in this one."""

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
    indexer: Indexer | None = None
    reuses_selection: Flag = False

    @model_validator(mode="after")
    def _selects(self) -> MLA:
        if self.indexer and not self.q_lora_rank:
            raise ValueError("an indexer takes its queries from the query latent: give q_lora_rank")
        if self.reuses_selection and not self.indexer:
            raise ValueError("reuses_selection needs the indexer whose keys it reuses")
        return self

    @property
    def n_parts(self) -> int:
        """Query heads."""
        return self.n_heads

    @property
    def score_width(self) -> int:
        """Scores over the key's two parts, and values."""
        return self.n_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    def cached_per_token(self, tp: Number = 1) -> Number:
        """The latent and the rotary key, whole on each device."""
        index = self.indexer.d_head if self.indexer and not self.reuses_selection else 0
        return self.kv_lora_rank + self.qk_rope_head_dim + index

    def describe(self) -> str:
        """Such as "MLA 128 heads, latent 512 + rotary 64 cached"."""
        chosen = f", {self.indexer.describe()}" if self.indexer else ""
        reused = " (selected by an earlier layer)" if self.reuses_selection else ""
        cached = f"latent {self.kv_lora_rank} + rotary {self.qk_rope_head_dim} cached"
        return f"MLA {self.n_heads} heads, {cached}{chosen}{reused}"
