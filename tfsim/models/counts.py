"""Exact counts of one pass: parameters, FLOPs, cache, saved activations, bytes moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tfsim.errors import InputError, choice, quote
from tfsim.models.decoder import Segment, segments
from tfsim.models.images import read_images
from tfsim.models.saved import saved_activations
from tfsim.models.shape import Shape
from tfsim.models.spec import AlignmentFrontend, LMHead, MaskedLMHead, ModelSpec, MoE, PatchFrontend, require_model
from tfsim.operators.backward import backward
from tfsim.operators.backward import recompute as recomputed
from tfsim.operators.core import Operator, Style, Weight, total
from tfsim.operators.formats import FORMAT_NAMES, element_bytes
from tfsim.plain import plain_fields
from tfsim.units import Number, as_number, common_shape

GROUPS = (
    "embed_token",
    "embed_pos",
    "embed_other",
    "head",
    "attn",
    "ffn_dense",
    "moe_routed",
    "moe_shared",
    "moe_router",
    "ssm",
    "rnn",
    "adaln",
    "pair",
    "norm",
    "other",
    "vision",
)
COMPONENTS = (
    "attn_proj",
    "attn_core",
    "ffn",
    "moe_experts",
    "moe_shared",
    "router",
    "ssm",
    "rnn",
    "embed_frontend",
    "head",
    "adaln",
    "pair",
    "other",
)
MAX_IMAGE = 65_536
EMBEDDINGS = ("embed_token", "embed_pos", "embed_other")


@dataclass(frozen=True)
class Parameters:
    """Parameter counts. ``total``: of the model as it is; ``tied``/``untied``: with the output matrix shared with the
    input embedding or not; ``active``: what one token of text touches, without experts not chosen and an image tower;
    ``active_less_input_embedding``: less the input table where it is not the output matrix as well;
    ``non_embedding``: without token, position and other embeddings and the untied output matrix (Kaplan 2020);
    ``by_group``: by what they do (``attn``, ``ffn_dense``, ...), with ``vision``, a multimodal model's image tower."""

    total: int
    tied: int
    untied: int
    active: int
    active_less_input_embedding: int
    active_non_embedding: int
    non_embedding: int
    by_group: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return plain_fields(self)


@dataclass(frozen=True)
class Counts:
    """What ``count`` returns. FLOPs: 2 per multiply-accumulate, matrix products only. Bytes are plain bytes.

    ``kv_bytes``, ``cross_bytes``: the cache of past tokens and of the encoder's output; ``state_bytes``: fixed states;
    ``saved_bytes``: kept for the backward pass; ``saved_bytes_per_layer``: its slope in depth, the mean over the last
    repeating period of layers; ``saved_bytes_by_block`` per kind of block; ``bytes_moved``: through device memory;
    ``weight_bytes``: stored weights in their formats; ``operators``: the rows behind the sums, as (segment, repeat,
    operator)."""

    parameters: Parameters
    flops: Number
    flops_by_component: dict[str, Number]
    kv_bytes: Number
    state_bytes: Number
    cross_bytes: Number
    saved_bytes: Number
    saved_bytes_per_layer: Number
    saved_bytes_fixed: Number
    saved_bytes_by_block: dict[str, Number]
    bytes_moved: Number
    weight_bytes: Number
    operators: tuple[tuple[str, int, Operator], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, operators left out."""
        return plain_fields(self, leave_out=("operators",))


def weights_of(parts: Iterable[Segment]) -> list[tuple[Weight, int]]:
    """Every distinct weight with its number of copies over layers; a shared (tied) weight once."""
    found: dict[tuple[str, str], tuple[Weight, int]] = {}
    for part in parts:
        for op in part.operators:
            for weight in op.weights:
                key = ("", weight.name) if weight.shared else (part.name, weight.name)
                found.setdefault(key, (weight, 1 if weight.shared else part.repeat))
    return list(found.values())


def stored_weights(spec: ModelSpec) -> list[tuple[Weight, int]]:
    """Every weight that the model is stored with and its number of copies, an image tower's included."""
    own = weights_of(segments(spec, Shape(1, 1)))
    return own if spec.vision is None else own + stored_weights(spec.vision)


def parameters(spec: ModelSpec) -> Parameters:
    """Exact parameter counts of ``spec``."""
    groups = dict.fromkeys(GROUPS, 0)
    idle = 0  # what a text token does not touch
    seen: set[str] = set()
    for part in segments(spec, Shape(1, 1)):
        moe = spec.all_blocks[part.name].ffn if part.layer else None
        for weight, repeat in weights_of([part]):
            if weight.shared and weight.name in seen:
                continue
            seen.add(weight.name)
            elements = int(weight.elements) * repeat
            groups[weight.group] += elements
            if weight.group == "moe_routed" and isinstance(moe, MoE):
                idle += elements * (moe.n_experts - moe.top_k) // moe.n_experts
    if spec.vision is not None:
        tower = parameters(spec.vision)
        groups["other"] += tower.by_group["other"]
        groups["vision"] += tower.total - tower.by_group["other"]
        idle += tower.total
    whole = sum(groups.values())
    table = spec.vocab_size * (spec.d_embed or spec.d_model)
    embeddings = sum(groups[name] for name in EMBEDDINGS)
    output = table if isinstance(spec.head, LMHead | MaskedLMHead) else 0
    tied = spec.tied_embeddings and bool(output)
    head = 0 if tied else output
    active = whole - idle
    return Parameters(
        total=whole,
        tied=whole if tied else whole - output,
        untied=whole + table if tied else whole,
        active=active,
        active_less_input_embedding=active if tied else active - table,
        active_non_embedding=active - embeddings - head,
        non_embedding=whole - embeddings - head,
        by_group=groups,
    )


def layer_cache_bytes(spec: ModelSpec, block: str, *, tokens: Number, dtype: str, tp: Number = 1) -> Number:
    """Bytes that one layer of kind ``block`` caches for ``tokens``: a window or chunk keeps at most its span."""
    mixer = spec.blocks[block].mixer
    if mixer is None or not spec.decodes:
        return 0
    return mixer.cached(tokens, tp) * element_bytes(spec.kv_format or dtype)


def layer_state_bytes(spec: ModelSpec, block: str, *, dtype: str, tp: Number = 1) -> Number:
    """Bytes of the fixed-size state that one layer of kind ``block`` keeps per sequence, whatever its length."""
    mixer = spec.blocks[block].mixer
    return 0 if mixer is None else mixer.state_bytes(element_bytes(dtype), tp)


def cache_bytes(spec: ModelSpec, *, batch: Number, tokens: Number, dtype: str, tp: Number = 1) -> Number:
    """Bytes of the KV cache for ``batch`` sequences of ``tokens``."""
    return _whole(
        total(
            repeat * batch * layer_cache_bytes(spec, name, tokens=tokens, dtype=dtype, tp=tp)
            for name, repeat in spec.block_counts.items()
        )
    )


def cross_bytes(spec: ModelSpec, *, batch: Number, encoder_len: Number, dtype: str, tp: Number = 1) -> Number:
    """Bytes of the keys and values of ``encoder_len`` positions that cross-attention keeps for ``batch`` sequences."""
    element = element_bytes(spec.kv_format or dtype)
    return _whole(
        total(
            repeat * batch * encoder_len * block.cross.cached_per_token(tp) * element
            for block, repeat in ((spec.blocks[name], repeat) for name, repeat in spec.block_counts.items())
            if block.cross is not None
        )
    )


def state_bytes(spec: ModelSpec, *, batch: Number, dtype: str, tp: Number = 1) -> Number:
    """Bytes of the recurrent states of ``batch`` sequences: a constant in their length."""
    return _whole(
        total(
            repeat * batch * layer_state_bytes(spec, name, dtype=dtype, tp=tp)
            for name, repeat in spec.block_counts.items()
        )
    )


def _whole(x: Number) -> Number:
    return int(x) if isinstance(x, float) and x == int(x) else x


def _own_length(model: ModelSpec, image_size: int | None) -> int:
    if isinstance(model.frontend, PatchFrontend) and image_size is not None:
        return _image_positions(model.frontend, image_size)
    if model.own_len is None:
        raise InputError("seq_len: give the number of tokens; the model states no max_seq_len")
    return model.own_len


def _image_positions(front: PatchFrontend, image_size: int) -> int:
    if type(image_size) is not int or not front.patch_size <= image_size <= MAX_IMAGE:
        raise InputError(
            f"image_size: {quote(image_size)} is not a whole number of pixels from {front.patch_size} to {MAX_IMAGE}"
        )
    return front.positions(image_size)


def encoder_positions(model: ModelSpec, encoder_len: Any, image_size: int | None, *, seq_len: Any) -> Number | None:
    """Positions of the model's encoder, or sequences of its alignment; None without either.

    Raises InputError for an ``encoder_len`` out of range, or missing with nothing to take it from.
    """
    if isinstance(model.frontend, AlignmentFrontend):
        rows = model.frontend.n_sequences if encoder_len is None else encoder_len
        return as_number(rows, "encoder_len", at_least=1, whole=True)
    if model.encoder is None:
        if encoder_len is not None:
            raise InputError(f"encoder_len: {model.name} has no encoder")
        return None
    front = model.encoder.frontend
    if encoder_len is None and isinstance(front, PatchFrontend) and image_size is not None:
        encoder_len = _image_positions(front, image_size)
    elif encoder_len is None:
        encoder_len = front.seq_len if front else seq_len
    if encoder_len is None:
        raise InputError(f"encoder_len: give the encoder's positions; {model.name} has cross-attention")
    return as_number(encoder_len, "encoder_len", at_least=1, whole=True)


def count(
    model: ModelSpec,
    *,
    batch: Any = 1,
    seq_len: Any = None,
    past_len: Any = 0,
    encoder_len: Any = None,
    image_size: int | None = None,
    images: Any = 0,
    phase: Literal["forward", "forward_backward", "decode"] = "forward",
    attention: Literal["fused", "eager"] = "fused",
    dtype: str = "bf16",
    style: Literal["eager", "fused"] = "eager",
    causal: Literal["full", "halved"] = "full",
    logits: Literal["all", "last"] = "all",
    dropout: float = 0.0,
    recompute: Literal["none", "selective", "full"] = "none",
    latent: Literal["absorbed", "expanded"] = "absorbed",
    experts: Literal["routed", "all"] = "routed",
) -> Counts:
    """Exact counts of one pass of ``model``.

    batch, seq_len, past_len: sequences, new tokens per sequence, tokens already cached; numbers or arrays that
    broadcast. seq_len defaults to 1 in ``decode``, to what an image or audio frontend makes (of ``image_size`` pixels a
    side, the model's own by default), and to the model's max_seq_len otherwise. ``encoder_len``: positions of an
    encoder; defaults to what its frontend makes, else to seq_len (in ``decode`` it must be given). ``images``: per
    sequence, through the model's image tower (none by default); their tokens are part of the sequence. ``dtype``:
    of activations and, unless the model fixes kv_format, of the cache. ``causal``: ``full`` counts the whole score
    rectangle (torch's flop counter), ``halved`` what the mask lets through. ``style``: unfused torch or fused kernels,
    decides what is kept and moved. ``recompute`` adds forward work and drops kept tensors. ``latent``,
    ``experts``: see Shape.
    Raises InputError for a value out of range.
    """
    require_model(model)
    batch_ = as_number(batch, "batch", at_least=1, whole=True)
    past = as_number(past_len, "past_len", at_least=0, whole=True)
    choice("phase", phase, ("forward", "forward_backward", "decode"))
    if phase == "decode" and not model.decodes:
        raise InputError(f"phase: {model.name} has no decoder: it runs forward or forward_backward only")
    readers = [m for m in (model, model.encoder) if m is not None and isinstance(m.frontend, PatchFrontend)]
    if image_size is not None and not readers:
        raise InputError(f"image_size: {model.name} reads no images")
    if image_size is not None and seq_len is not None and model in readers:
        raise InputError("image_size: give it or seq_len, not both")
    if seq_len is None:
        seq_len = 1 if phase == "decode" else _own_length(model, image_size)
    source = encoder_positions(model, encoder_len, image_size, seq_len=None if phase == "decode" else seq_len)
    seq = as_number(seq_len, "seq_len", at_least=1, whole=True)
    choice("attention", attention, ("fused", "eager"))
    choice("style", style, ("eager", "fused"))
    choice("causal", causal, ("full", "halved"))
    choice("logits", logits, ("all", "last"))
    choice("recompute", recompute, ("none", "selective", "full"))
    choice("latent", latent, ("absorbed", "expanded"))
    choice("experts", experts, ("routed", "all"))
    choice("dtype", dtype, FORMAT_NAMES)
    rate = as_number(dropout, "dropout", at_least=0)
    if not isinstance(rate, int | float) or rate >= 1:
        raise InputError(f"dropout: {quote(dropout)} is not one probability in [0, 1)")
    read = source if model.reads_source else past + seq
    seen = read_images(model, images, "encoder_len" if model.reads_source else "seq_len", read)
    common_shape(
        images=seen, batch=batch_, seq_len=seq, past_len=past, **({} if source is None else {"encoder_len": source})
    )
    run = Style(dtype, style, attention, float(rate))
    shape = Shape(
        batch_,
        seq,
        past,
        phase="decode" if phase == "decode" else "forward",
        causal=causal,
        logits=logits,
        latent=latent,
        experts=experts,
        encoder_len=source,
        images=seen,
        style=run,
    )
    training = phase == "forward_backward"
    forward = segments(model, shape, loss=True)
    saved = saved_activations(model, forward, recompute)
    ran = forward if training else segments(model, shape)
    rows: list[tuple[str, int, Operator]] = []
    for part in ran:
        ops = list(part.operators)
        if training:
            ops += recomputed(part.operators, recompute if part.layer else "none")
            ops += backward(part.operators, run)
        rows += [(part.name, part.repeat, op) for op in ops]
    by_component: dict[str, Number] = {}
    for name in COMPONENTS:
        by_component[name] = total(op.flops * repeat for _, repeat, op in rows if op.component == name)
    return Counts(
        parameters=parameters(model),
        flops=total(by_component.values()),
        flops_by_component=by_component,
        kv_bytes=cache_bytes(model, batch=batch_, tokens=past + seq, dtype=dtype),
        state_bytes=state_bytes(model, batch=batch_, dtype=dtype),
        cross_bytes=0 if source is None else cross_bytes(model, batch=batch_, encoder_len=source, dtype=dtype),
        saved_bytes=saved.total,
        saved_bytes_per_layer=saved.per_layer,
        saved_bytes_fixed=saved.fixed,
        saved_bytes_by_block=saved.by_block,
        bytes_moved=total(op.bytes_moved * repeat for _, repeat, op in rows),
        weight_bytes=total(weight.bytes * repeat for weight, repeat in stored_weights(model)),
        operators=tuple(rows),
    )
