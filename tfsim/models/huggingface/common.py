"""What the families share: rotary fields, activation names, layer patterns, and naming blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    FFN,
    RMS_NORM,
    ActivationName,
    Attention,
    Block,
    CompressedAttention,
    LearnedPositions,
    Mixer,
    Norm,
    Residual,
    Rope,
    RopeScaling,
    ScalingKind,
    compress_layers,
)


@dataclass(frozen=True)
class Decoder:
    """A decoder as a family's builder hands it back: one block per layer (equal layers share one object). ``encoder``:
    the stack before it (an encoder-only model is a decoder of another kind: see its ``head`` and ``causal``)."""

    layers: Sequence[Block]
    d_model: int
    vocab_size: int
    tied: bool
    max_seq_len: int | None = None
    norm: Norm = RMS_NORM
    dropout: tuple[str, ...] = ("attention",)
    extra: Mapping[str, Any] = field(default_factory=dict)
    encoder: Decoder | None = None


ACTIVATIONS: dict[str, ActivationName] = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
"""ACT2FN names of transformers that tfsim knows, by how they run: gelu_new is the unfused tanh formula."""

ROPE_FIELDS: dict[str, Any] = {
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rope_parameters": None,
    "partial_rotary_factor": None,
}
"""Rotary fields of both generations, with the default base of most classes."""

_SCALING: dict[str, ScalingKind | None] = {
    "default": None,
    "proportional": None,  # Gemma-4: the unrotated share has frequency 0
    "linear": "linear",
    "dynamic": "dynamic",
    "ntk": "ntk",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "su": "longrope",
    "mrope": None,  # Qwen2-VL: positions in three axes
}
_SCALING_NUMBERS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}
_SCALING_HARMLESS = words(
    "type rope_type rope_theta partial_rotary_factor original_max_position_embeddings attention_factor mscale "
    "mscale_all_dim truncate short_factor long_factor short_mscale long_mscale mrope_section mrope_interleaved alpha "
    "llama_4_scaling_beta max_position_embeddings"
)


def rope(
    f: Fields,
    d_head: int,
    *,
    layer_type: str | None = None,
    theta: str = "rope_theta",
    partial: float = 1.0,
    interleaved: bool = False,
    scaled: bool = True,
) -> Rope:
    """The rotary embedding that a file's old or new rotary fields describe.

    ``layer_type``: key of rope_parameters where it is given per layer type (Gemma-3); ``theta``: the field that holds
    the base; ``partial``: default of the rotated share of a head; ``scaled``: whether rope_scaling applies.
    """
    name = "rope_scaling" if scaled and f.mapping("rope_scaling") else "rope_parameters"
    given = f.mapping(name)
    if layer_type is not None and name == "rope_parameters":
        if set(given) - {"full_attention", "sliding_attention", "main", "compress"}:
            raise f.fault(name, "must hold one mapping per kind of layer", sorted(given))
        name = f"{name}.{layer_type}"
        inner = given.get(layer_type) or {}
        if not isinstance(inner, Mapping):
            raise f.fault(name, "must be a mapping", inner)
        given = inner
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SCALING:
        raise f.fault(f"{name}.rope_type", f"must be one of {', '.join(_SCALING)}", kind)
    for key in given:
        if key not in _SCALING_NUMBERS and key not in _SCALING_HARMLESS:
            raise f.fault(f"{name}.{key}", f"not a known rotary field (--ignore-field {name.split('.')[0]})")
    base = given.get("rope_theta")
    own = f.number(theta)
    factor = given.get("partial_rotary_factor")
    if factor is None:
        factor = f.raw("partial_rotary_factor")
    share = partial if factor is None else f.positive("partial_rotary_factor", factor)
    rotated = int(d_head * share)
    if not 0 < rotated <= d_head:
        raise f.fault("partial_rotary_factor", f"rotates {rotated} of the {d_head} dimensions of a head", factor)
    return Rope(
        theta=(own if own is not None else 10000.0) if base is None else f.positive(f"{name}.rope_theta", base),
        rotary_dim=rotated if rotated != d_head else None,
        interleaved=interleaved,
        scaling=_scaling(f, name, kind, given),
    )


def _scaling(f: Fields, name: str, kind: str, given: Mapping[str, Any]) -> RopeScaling | None:
    known = _SCALING[kind]
    if known is None:
        return None
    numbers = {
        ours: f.positive(f"{name}.{theirs}", given[theirs])
        for theirs, ours in _SCALING_NUMBERS.items()
        if given.get(theirs) is not None
    }
    original = given.get("original_max_position_embeddings")
    if original is not None:
        original = int(f.positive(f"{name}.original_max_position_embeddings", original))
        if not original:
            raise f.fault(f"{name}.original_max_position_embeddings", "must be at least 1")
    return RopeScaling(kind=known, original_max_seq_len=original, **numbers)


def heads(f: Fields, n_heads: int, name: str = "num_key_value_heads") -> int:
    """Key/value heads: null means as many as query heads; they must divide the query heads."""
    n_kv = f.maybe_size(name)
    if n_kv is None:
        return n_heads
    if n_heads % n_kv:
        raise f.fault(name, f"does not divide the {n_heads} attention heads", n_kv)
    return n_kv


def layer_types(f: Fields, n_layers: int, kinds: Sequence[str], default: Sequence[str]) -> Sequence[str]:
    """The attention type of each layer: the file's list, else ``default``."""
    rule = f"{n_layers} of {', '.join(kinds)}"
    return f.per_layer("layer_types", n_layers, rule, lambda entry: entry in kinds) or default


def stack(mixers: Sequence[Mixer | None], ffns: Sequence[FFN | None], residual: Residual = "pre") -> list[Block]:
    """The layers with these mixers and FFNs; equal layers share one block."""
    made: dict[tuple[int, int], Block] = {}
    for mixer, ffn in zip(mixers, ffns, strict=True):
        key = (id(mixer), id(ffn))
        if key not in made:
            made[key] = Block(mixer=mixer, ffn=ffn, residual=residual)
    return [made[id(mixer), id(ffn)] for mixer, ffn in zip(mixers, ffns, strict=True)]


def overrides(f: Fields, layers: Sequence[int], known: Sequence[str]) -> dict[str, int] | None:
    """What per_layer_config (transformers 5) sets for ``layers``, the same for each and nothing for others."""
    given = f.mapping("per_layer_config")
    if not given:
        return None
    # keys are layer numbers, padded with zeros to one width
    by_layer = {int(key): entry for key, entry in given.items() if isinstance(key, str) and key.isdecimal()}
    entries = [by_layer.get(i) for i in layers]
    first = entries[0] if entries else {}
    if not isinstance(first, Mapping):
        raise f.fault("per_layer_config", "must hold a mapping for each layer of one kind")
    good = all(entry == first for entry in entries) and len(given) == len(entries)
    if not good or not all(key in known and type(value) is int and value > 0 for key, value in first.items()):
        raise f.fault("per_layer_config", f"must set {' and '.join(known)} alike for the layers of one kind")
    return dict(first)


def positions(n: int, indices: Literal["batch", "sequence", "stored"] = "batch") -> dict[str, Any]:
    """A table of ``n`` learned positions, as an extra of a decoder."""
    return {"positions": LearnedPositions(n_positions=n, indices=indices)}


def stack_fields(decoder: Decoder, layers: Sequence[Block], dtype: str) -> dict[str, Any]:
    """A stack as fields of a specification."""
    blocks, names = name_blocks(layers)
    return {
        "d_model": decoder.d_model,
        "vocab_size": decoder.vocab_size,
        "max_seq_len": decoder.max_seq_len,
        "blocks": blocks,
        "layers": compress_layers(names),
        "norm": decoder.norm,
        "tied_embeddings": decoder.tied,
        "dropout_sites": decoder.dropout,
        "dtype": dtype,
        **decoder.extra,
    }


def name_blocks(layers: Sequence[Block]) -> tuple[dict[str, Block], list[str]]:
    """Names for the distinct blocks, and the name of each layer's block.

    Blocks are called after what tells them apart: ``dense`` or ``moe``; ``local`` or ``global``; a number where only
    number formats differ.
    """
    distinct: list[Block] = []
    index: dict[int, int] = {}
    for block in layers:
        if id(block) not in index:
            if block not in distinct:
                distinct.append(block)
            index[id(block)] = distinct.index(block)
    parts = [_parts(block) for block in distinct]
    telling = [len({part[axis] for part in parts}) > 1 for axis in range(2)]
    names: list[str] = []
    for part in parts:
        name = "_".join(word for word, tells in zip(part, telling, strict=True) if tells and word != "none") or "layer"
        seen = sum(other == name or other.startswith(f"{name}_v") for other in names)
        names.append(f"{name}_v{seen + 1}" if seen else name)
    return dict(zip(names, distinct, strict=True)), [names[index[id(block)]] for block in layers]


def _parts(block: Block) -> tuple[str, str]:
    mixer, ffn = block.mixer, block.ffn
    local = isinstance(mixer, Attention) and (mixer.window is not None or mixer.chunk is not None)
    if isinstance(mixer, CompressedAttention) and mixer.compression:
        return f"per_{mixer.compression.ratio}", "none" if ffn is None else ffn.kind
    local = local or isinstance(mixer, CompressedAttention)
    word = "none" if mixer is None else "local" if local else "global" if mixer.score_width else mixer.kind
    return word, "none" if ffn is None else ffn.kind
