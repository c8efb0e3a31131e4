"""Attention over compressed keys and values (DeepSeek-V4, 2026, section 2.3)."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tfsim.models.spec.base import Flag, Rope, Size, Strict
from tfsim.models.spec.indexer import Indexer
from tfsim.models.spec.mixers import MixerSpec
from tfsim.units import Number, floor_div, minimum


class Compression(Strict):
    """One cached entry per ``ratio`` tokens: a gated average of their projections (equations 9 to 12, 20 to 23).

    ``overlap``: an entry also averages a second series of the window before (compressed sparse attention); without it,
    windows stand alone (heavily compressed attention). ``indexer``: a query attends to the entries it selects only; it
    compresses keys of its own at its own width, and ``top_k`` counts entries.
    """

    ratio: Size
    overlap: Flag = False
    indexer: Indexer | None = None

    @property
    def series(self) -> int:
        """Vectors that a token contributes."""
        return 2 if self.overlap else 1


class CompressedAttention(MixerSpec):
    """DeepSeek-V4's attention: one KV head whose keys are its values, queries from a latent of ``q_lora_rank``, a
    ``window`` of latest tokens beside ``compression`` of all earlier ones, a sink per head, and an output projected in
    ``o_groups`` groups of heads to ``o_lora_rank`` each before they mix."""

    kind: Literal["compressed"] = "compressed"
    n_heads: Size
    d_head: Size
    q_lora_rank: Size
    o_groups: Size
    o_lora_rank: Size
    window: Size
    rope: Rope | None = None
    compression: Compression | None = None
    softmax_fp32: Flag = False

    @model_validator(mode="after")
    def _consistent(self) -> CompressedAttention:
        if self.n_heads % self.o_groups:
            raise ValueError(f"o_groups ({self.o_groups}) must divide n_heads ({self.n_heads})")
        return self

    @property
    def n_parts(self) -> int:
        """Groups of the output projection."""
        return self.o_groups

    @property
    def span(self) -> tuple[int | None, bool]:
        """The window of uncompressed tokens; compressed entries reach back on all."""
        return self.window, False

    @property
    def score_width(self) -> int:
        """Scores and values of every head."""
        return 2 * self.n_heads * self.d_head

    def entries(self, tokens: Number) -> Number:
        """Compressed entries of ``tokens``: whole windows only."""
        return floor_div(tokens, self.compression.ratio) if self.compression else 0

    def cached_per_token(self, tp: Number = 1) -> Number:
        """Of the uncompressed window: one vector, key and value at once, whole on each device."""
        return self.d_head

    def cached(self, tokens: Number, tp: Number = 1) -> Number:
        """The window and, per compressed entry, its vector and its index key."""
        index = self.compression.indexer.d_head if self.compression and self.compression.indexer else 0
        return minimum(tokens, self.window) * self.d_head + self.entries(tokens) * (self.d_head + index)

    def state_bytes(self, element: Number, tp: Number = 1) -> Number:
        """Values and gates of a window that is not full yet, and of the last one where windows overlap."""
        if self.compression is None:
            return 0
        index = self.compression.indexer.d_head if self.compression.indexer else 0
        kept = self.compression.ratio * (self.compression.series + (1 if self.compression.overlap else 0))
        return 2 * kept * (self.d_head + index) * element

    def describe(self) -> str:
        """Such as "64 heads of 512, one KV vector, window 128 + 1/4 of the rest, top 512 keys by ..."."""
        words = f"{self.n_heads} heads of {self.d_head}, one KV vector, window {self.window:,}"
        if self.compression is None:
            return words
        chosen = f", {self.compression.indexer.describe()}" if self.compression.indexer else ""
        return f"{words} + an entry per {self.compression.ratio} tokens{chosen}"
