"""What is run: batch, lengths, and how the model is cut over devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tfsim.operators.core import Style
from tfsim.units import Number, ceil_div


@dataclass(frozen=True, slots=True)
class Shards:
    """How one model replica is cut. ``tp``: tensor parallel; ``sequence_parallel``: activations between the matmuls
    are cut along tokens too (Korthikanti et al. 2022); ``ep``: experts spread over that many devices, each expert's
    matrices cut ``etp`` ways (``etp`` = tp when experts are not spread)."""

    tp: Number = 1
    ep: Number = 1
    etp: Number | None = None
    sequence_parallel: bool = False

    @property
    def expert_tp(self) -> Number:
        """Ways an expert's own matrices are cut."""
        return self.tp if self.etp is None else self.etp


ONE_DEVICE = Shards()


@dataclass(frozen=True, slots=True)
class Shape:
    """One pass over ``batch`` sequences of ``seq_len`` new tokens after ``past_len`` cached ones, on one shard.

    ``causal``: ``full`` counts the whole score rectangle, as kernels without mask skipping execute it; ``halved`` only
    what the causal mask, window or chunk lets through. ``logits``: head over ``all`` positions or the ``last`` one.
    ``latent``: how a decode step uses an MLA cache, ``absorbed`` (attention over the latents, as engines run it) or
    ``expanded`` (every cached latent through kv_b_proj again, as transformers runs it). ``experts``: ``routed`` tokens
    only, or ``all`` experts on every token (Llama-4 in transformers). ``encoder_len``: positions of the encoder of an
    encoder-decoder (None: what its frontend makes, else seq_len). ``images``: per sequence, whose tokens are part of
    seq_len; an image tower runs on batch x images of them before the rest, and rests in a decode step.
    """

    batch: Number
    seq_len: Number
    past_len: Number = 0
    phase: Literal["forward", "decode"] = "forward"
    causal: Literal["full", "halved"] = "full"
    logits: Literal["all", "last"] = "all"
    latent: Literal["absorbed", "expanded"] = "absorbed"
    experts: Literal["routed", "all"] = "routed"
    encoder_len: Number | None = None
    images: Number = 0
    shards: Shards = ONE_DEVICE
    style: Style = field(default_factory=Style)

    @property
    def tokens(self) -> Number:
        """New tokens of the pass."""
        return self.batch * self.seq_len

    @property
    def stream_tokens(self) -> Number:
        """Tokens of the residual stream one device holds (cut by sequence parallelism)."""
        return ceil_div(self.tokens, self.shards.tp) if self.shards.sequence_parallel else self.tokens
