"""From a number of parameters to an architecture: layers, width, heads, FFN, vocabulary.

The shape of a decoder as published ones are: RMSNorm, rotary positions, SwiGLU with an FFN near 8/3 d_model, grouped
queries with up to 8 KV heads, and a width / depth that grows with size as in the zoo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tfsim.errors import InputError
from tfsim.models.spec import ModelSpec
from tfsim.scaling import Law
from tfsim.units import format_count, where

# ln(d_model / n_layers) = _ASPECT_LEVEL + _ASPECT_GROWTH ln(parameters less embeddings): least squares over the zoo's
# decoders of softmax attention and dense FFNs from 30M parameters on (tests/sizing refits them; 57 at 100M, 142 at
# 70B). Published models scatter around it by a factor of 1.35 (one standard deviation).
_ASPECT_LEVEL, _ASPECT_GROWTH, _ASPECT_SCATTER = 1.446, 0.1407, 0.30
_FFN_RATIO, _FFN_SCATTER = 8 / 3, 0.10  # SwiGLU's width at the FLOPs of a plain FFN of 4 d_model (Shazeer 2020)
_CLOSENESS = 0.007  # how far a count may be off before it weighs as much as one scatter
MOST_OFF = 0.02  # no shape is given whose count is further off than this
# M / 6 knows layers and width only: without d_ff to come close with, the same distances are worth three times as much
_COARSE_COUNT, _COARSER = "flops_per_token_by_6", 3.0
MOST_KV_HEADS = 8
TIED_BELOW = 4e9  # parameters: smaller published models share the two tables (Llama 3.2, Qwen2.5, Gemma)
_LAYERS = np.array([*range(2, 16), *range(16, 32, 2), *range(32, 129, 4), *range(136, 513, 8)], float)
_WIDTHS = np.array(
    [*range(128, 2048, 128), *range(2048, 4096, 512), *range(4096, 32_768, 1024), *range(32_768, 131_073, 2048)], float
)
_WIDE = 2048  # from here heads are 128 wide and the FFN a multiple of 256


@dataclass(frozen=True)
class Architecture:
    """What is fixed before the size: vocabulary, experts (1: dense) of which a token visits top_k, sequence length,
    and degrees of parallelism that the shape has to divide by."""

    vocab_size: int
    seq_len: int
    experts: int = 1
    top_k: int = 1
    tp: int = 1
    pp: int = 1


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a decoder. ``d_ff``: of one expert where there are ``experts``. Fields may be arrays."""

    d_model: Any
    n_layers: Any
    n_heads: Any
    n_kv_heads: Any
    d_head: Any
    d_ff: Any
    vocab_size: int
    tied_embeddings: Any
    seq_len: int
    experts: int = 1
    top_k: int = 1

    @property
    def table(self) -> Any:
        """Parameters of one token table."""
        return self.vocab_size * self.d_model

    @property
    def idle(self) -> Any:
        """Parameters of experts that a token does not visit."""
        return (self.experts - self.top_k) * 3 * self.d_model * self.d_ff * self.n_layers

    @property
    def non_embedding(self) -> Any:
        """Parameters without the tables."""
        d = self.d_model
        attention = 2 * d * self.d_head * (self.n_heads + self.n_kv_heads)
        router = d * self.experts if self.experts > 1 else 0
        return self.n_layers * (attention + 3 * self.experts * d * self.d_ff + router + 2 * d) + d

    @property
    def total(self) -> Any:
        """All parameters."""
        return self.non_embedding + self.table * where(self.tied_embeddings, 1, 2)

    @property
    def active(self) -> Any:
        """Parameters that a token uses."""
        return self.total - self.idle

    @property
    def embedding_share(self) -> float:
        """The tables' share of the parameters."""
        return float(1 - self.non_embedding / self.total)

    @property
    def dense(self) -> ModelShape:
        """The dense model that does the work of one token, for laws that know no experts."""
        return replace(self, experts=1, top_k=1, d_ff=self.d_ff * self.top_k)

    def parameters(self, count: str) -> Any:
        """N in a law's count (tfsim.scaling: law.n). C / 6D of Llama 3 is read as the parameters that matrices
        multiply, DeepSeek's M / 6 as its formula; a count that a paper does not state as the total."""
        if count in ("total", "not_stated"):
            return self.total
        if count == "non_embedding":
            return self.non_embedding
        if count == "with_head":
            return self.non_embedding + self.table
        if count == "active":
            return self.active
        if count == "active_non_embedding":
            return self.non_embedding - self.idle
        if count == "compute_per_6d":
            return self.non_embedding - self.idle + self.table
        if count == "exact_flops_per_token_by_6":
            return self.exact_flops_per_token / 6
        if count == "flops_per_token_by_6":  # M = 72 L d^2 + 12 L d l (arXiv:2401.02954, Eq. 2)
            return self.n_layers * self.d_model * (12 * self.d_model + 2 * self.seq_len)
        raise InputError(f"law: no architecture is made of parameters counted as {count}")

    def flops_per_token(self, law: Law) -> Any:
        """Training FLOPs per token in a law's count of C."""
        if law.c == "exact":
            return self.exact_flops_per_token
        if law.form == "sparse":  # 6 N (1 - S) D
            return 6 * self.active
        return 6 * self.parameters(law.n)

    @property
    def exact_flops_per_token(self) -> Any:
        """Training FLOPs per token of the convention `exact` (tfsim.models): 3 x forward, causal attention halved."""
        matrices = self.non_embedding - self.idle - (2 * self.n_layers + 1) * self.d_model + self.table
        attention = 2 * self.n_layers * self.n_heads * self.d_head * self.seq_len
        return 3 * (2 * matrices + attention)

    def spec(self, name: str) -> ModelSpec:
        """The model, as tfsim.train and tfsim.serve take it."""
        wide = {"d_ff": self.d_ff}
        if self.experts > 1:
            ffn: dict[str, Any] = {"kind": "moe", "n_experts": self.experts, "top_k": self.top_k, **wide}
        else:
            ffn = {"kind": "dense", **wide}
        heads = {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads, "d_head": self.d_head}
        mixer = {"kind": "attention", **heads, "rope": {"theta": 500_000.0}}
        return ModelSpec.model_validate(
            {
                "schema": 1,
                "name": name,
                "family": "sized",
                "source": "tfsim size",
                "d_model": self.d_model,
                "vocab_size": self.vocab_size,
                "max_seq_len": self.seq_len,
                "tied_embeddings": self.tied_embeddings,
                "blocks": {"layer": {"mixer": mixer, "ffn": ffn}},
                "layers": f"layer*{self.n_layers}",
            }
        )


def aspect(non_embedding: Any) -> Any:
    """d_model / n_layers of a typical published dense decoder with so many parameters outside its tables."""
    return np.exp(_ASPECT_LEVEL + _ASPECT_GROWTH * np.log(non_embedding))


def shape_of(parameters: float, count: str, architecture: Architecture) -> ModelShape:
    """The most typical shape with so many parameters, in a law's count, to within a per cent or two (M / 6: 6 %).

    Among widths (heads of 64, from 2,048 on of 128), depths and FFN widths, it weighs the distance from the count asked
    against those from the zoo's d_model / n_layers and from 8/3 d_model.

    Raises: InputError when no shape comes within 2 % (6 %).
    """
    grid = _candidates(architecture)
    counts = grid.parameters(count)
    width = aspect(grid.non_embedding - grid.idle)
    ffn = grid.top_k * grid.d_ff / (_FFN_RATIO * grid.d_model)
    coarser = _COARSER if count == _COARSE_COUNT else 1.0
    with np.errstate(divide="ignore"):
        score = (
            (np.log(counts / parameters) / (coarser * _CLOSENESS)) ** 2
            + (np.log(grid.d_model / grid.n_layers / width) / _ASPECT_SCATTER) ** 2
            + (np.log(ffn) / _FFN_SCATTER) ** 2
        )
    near = np.abs(counts / parameters - 1) <= coarser * MOST_OFF
    if not near.any():
        raise _no_shape(parameters, counts, architecture)
    best = int(np.argmin(np.where(near, score, np.inf)))
    return ModelShape(
        **{name: int(getattr(grid, name)[best]) for name in _DIMENSIONS},
        vocab_size=grid.vocab_size,
        tied_embeddings=bool(grid.tied_embeddings[best]),
        seq_len=grid.seq_len,
        experts=grid.experts,
        top_k=grid.top_k,
    )


def _no_shape(parameters: float, counts: Any, wanted: Architecture) -> InputError:
    size, words = format_count(parameters), f"vocabulary {wanted.vocab_size:,}"
    least, most = float(counts.min()), float(counts.max())
    if parameters < least:
        return InputError(
            f"no shape of {size} parameters: the smallest with {words} has {format_count(least)};"
            " raise the budget or lower vocab_size"
        )
    if parameters > most:
        return InputError(f"no shape of {size} parameters: the largest with {words} has {format_count(most)}")
    near = format_count(float(counts[np.argmin(np.abs(np.log(counts / parameters)))]))
    return InputError(f"no shape of {size} parameters with {words}, tp {wanted.tp}, pp {wanted.pp}: {near} is nearest")


_DIMENSIONS = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff")


@lru_cache(maxsize=8)
def _candidates(wanted: Architecture) -> ModelShape:
    """Every shape there is to choose from, as arrays of one dimension."""
    around = np.arange(-4, 5)
    d, layers, step = (x.ravel() for x in np.meshgrid(_WIDTHS, _LAYERS, around, indexing="ij"))
    d_head = np.where(d < _WIDE, 64.0, 128.0)
    heads = d / d_head
    kv = np.gcd(heads.astype(int), MOST_KV_HEADS).astype(float)
    multiple = np.where(d < _WIDE, 128.0, 256.0)
    if wanted.experts > 1:
        multiple = np.maximum(64.0, multiple / 2 ** np.floor(np.log2(wanted.top_k)))
    d_ff = multiple * (np.round(_FFN_RATIO * d / wanted.top_k / multiple) + step)
    good = (
        (d_ff > 0)
        & (heads % wanted.tp == 0)
        & (np.maximum(kv, wanted.tp) % np.minimum(kv, wanted.tp) == 0)
        & (d_ff % wanted.tp == 0)
        & (layers % wanted.pp == 0)
    )
    if not good.any():
        raise InputError(f"plan: no shape divides by tp {wanted.tp} and pp {wanted.pp}: powers of two up to 512 do")

    columns = {"d_model": d, "n_layers": layers, "n_heads": heads, "n_kv_heads": kv, "d_head": d_head, "d_ff": d_ff}
    untied = ModelShape(
        **{name: values[good] for name, values in columns.items()},
        vocab_size=wanted.vocab_size,
        tied_embeddings=np.zeros(int(good.sum()), bool),
        seq_len=wanted.seq_len,
        experts=wanted.experts,
        top_k=wanted.top_k,
    )
    return replace(untied, tied_embeddings=untied.total - untied.table < TIED_BELOW)
