"""A model as operators: frontend, blocks, head; before them those of its encoder, if it has one.

Each block reads like its paper: norm, projections, rotary, attention, output projection, residual; norm, FFN or
experts, residual. All sizes are one device's share under ``Shape.shards``; numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tfsim.errors import choice
from tfsim.models.cross import cross_attention, encoder_shape, memory, source_len
from tfsim.models.dit import modulated_block
from tfsim.models.evoformer import both_streams
from tfsim.models.experts import experts
from tfsim.models.feedforward import mlp
from tfsim.models.frontends import frontend_operators, position_biases, relative_positions
from tfsim.models.heads import head_operators
from tfsim.models.hyper import hyper_block
from tfsim.models.images import tower_shape
from tfsim.models.mixers import mix
from tfsim.models.parts import BlockContext, as_stream, layer_scale, model_norm, stream_tensor, to_stream
from tfsim.models.per_layer import layer_input, per_layer_tables
from tfsim.models.rwkv import channel_mix
from tfsim.models.shape import Shape
from tfsim.models.spec import ENCODER, VISION, Attention, Block, Disentangled, Evoformer, ModelSpec, MoE, Recurrent
from tfsim.models.spec.ssm import ChannelMix
from tfsim.operators.adapters import adapted
from tfsim.operators.core import Operator, Tensor, activation, prefixed
from tfsim.operators.elementwise import residual

FIRST, LAST = "embedding", "head"


@dataclass(frozen=True, slots=True)
class Segment:
    """``repeat`` identical pieces of the model: the embedding, each kind of block, the head with the loss.

    ``layer``: whether it is a layer (which recomputation and pipelines cut), not an end. ``stream``: the activation it
    is given; ``given``: what it is given besides, one storage for all layers. An encoder's segments are
    named ``encoder.embedding`` and so on, an image tower's ``vision.embedding``.
    """

    name: str
    repeat: int
    operators: tuple[Operator, ...]
    stream: Tensor
    layer: bool = False
    given: tuple[Tensor, ...] = ()


def segments(spec: ModelSpec, shape: Shape, *, loss: bool = False) -> tuple[Segment, ...]:
    """The whole model for one pass: embedding, blocks in order of first use, head; ``loss`` adds the loss.

    An image tower's come first, then an encoder's; neither runs in a decode step.
    """
    stream = stream_tensor("stream.in", spec, shape)
    blocks = tuple(
        Segment(
            name,
            repeat,
            tuple(_fine_tuned(spec, name, shape)),
            block_input(spec, name, shape),
            True,
            given(spec, name, shape),
        )
        for name, repeat in spec.block_counts.items()
    )
    return (
        *(_tower(spec.vision, shape) if spec.vision and shape.phase != "decode" else ()),
        *(_encoder(spec, spec.encoder, shape) if spec.encoder and shape.phase != "decode" else ()),
        Segment(FIRST, 1, (*frontend_operators(spec, shape), *per_layer_tables(spec, shape)), stream),
        *blocks,
        Segment(LAST, 1, tuple(_frozen_head(spec, head_operators(spec, shape, loss=loss), shape)), stream),
    )


def _fine_tuned(spec: ModelSpec, name: str, shape: Shape) -> list[Operator]:
    """One layer of kind ``name``, with the model's adapters. Raises InputError for targets that no layer has."""
    ops = block_operators(spec, name, shape)
    if spec.adapters is None:
        return ops
    linear = [op.name for op in ops if op.kind == "matmul" and op.weights and "copies" not in op.dims]
    for target in spec.adapters.targets:
        choice("adapters.targets", target, linear)
    return adapted(ops, spec.adapters.rank, spec.adapters.targets, shape.style)


def _frozen_head(spec: ModelSpec, ops: list[Operator], shape: Shape) -> list[Operator]:
    return ops if spec.adapters is None else adapted(ops, spec.adapters.rank, (), shape.style)


def block_input(spec: ModelSpec, name: str, shape: Shape) -> Tensor:
    """The activation that a layer of kind ``name`` is given."""
    mixer = spec.blocks[name].mixer
    if isinstance(mixer, Evoformer):
        return both_streams(spec, mixer, shape)
    if isinstance(mixer, Recurrent) and mixer.d_input:
        return activation("stream.in", shape.tokens * mixer.d_input, shape.style)
    return stream_tensor("stream.in", spec, shape)


def given(spec: ModelSpec, name: str, shape: Shape) -> tuple[Tensor, ...]:
    """What a layer of kind ``name`` is called with besides the stream, and keeps even when it runs again: the encoder's
    output, relative biases, a mask of scores (on the batch's own queries, or on keys alone where all are seen).

    torch's checkpoint saves what a layer is called with by position; what transformers hands over by name (rotary
    tables, DeBERTa's vectors of distances, most decoders' masks) lives as long, but is no saved tensor.
    """
    found: tuple[Tensor, ...] = ()
    block = spec.blocks[name]
    relative = spec.relative_positions
    if block.cross is not None:
        found += (memory(spec, shape),)
        if relative is not None:  # cross-attention has no distances: its biases are zeros
            found += (position_biases(spec, shape, source_len(spec, shape), "cross_positions"),)
    if relative is not None and relative.kind == "bias":
        found += (relative_positions(spec, relative, shape),)
    return found + given_mask(block, shape)


def given_mask(block: Block, shape: Shape) -> tuple[Tensor, ...]:
    """The mask that layers are given to add to scores in memory; DeBERTa's is fp32 in any case."""
    mixer = block.mixer
    pairs = shape.tokens * (shape.past_len + shape.seq_len)
    if isinstance(mixer, Disentangled):
        return (Tensor("given_mask", pairs, 4, scope="model"),)
    if not isinstance(mixer, Attention) or not mixer.given_mask or shape.style.attention != "eager":
        return ()
    return (Tensor("given_mask", pairs if mixer.causal else shape.tokens, shape.style.act, scope="model"),)


def _tower(tower: ModelSpec, shape: Shape) -> Iterator[Segment]:
    """The image tower's segments, when there are images; its operators, too, are named ``vision.q_proj`` and so on, for
    it shares nothing with the rest."""
    if isinstance(shape.images, int) and not shape.images:
        return
    for part in segments(tower, tower_shape(tower, shape)):
        also = tuple(replace(t, name=f"{VISION}{t.name}") for t in part.given)
        yield replace(part, name=f"{VISION}{part.name}", operators=tuple(prefixed(VISION, part.operators)), given=also)


def _encoder(spec: ModelSpec, encoder: ModelSpec, shape: Shape) -> Iterator[Segment]:
    """The encoder's segments under names of their own, so that what its layers share stays its own."""
    for part in segments(encoder, encoder_shape(spec, shape)):
        mine = tuple(_own(op, shares_table=spec.shared_embeddings) for op in part.operators)
        also = tuple(replace(t, name=f"{ENCODER}{t.name}") for t in part.given)
        yield replace(part, name=f"{ENCODER}{part.name}", operators=mine, given=also)


def _own(op: Operator, *, shares_table: bool) -> Operator:
    return replace(
        op,
        weights=tuple(
            replace(w, name=f"{ENCODER}{w.name}") if w.shared and not shares_table else w for w in op.weights
        ),
        saves=tuple(replace(t, name=f"{ENCODER}{t.name}") if t.scope == "model" else t for t in op.saves),
    )


def feed_forward(context: BlockContext, x: Tensor) -> list[Operator]:
    """The FFN of a block applied to the (normalised) stream ``x``."""
    ffn, d_model, shape = context.block.ffn, context.spec.d_model, context.shape
    assert ffn is not None
    if isinstance(ffn, MoE):
        return experts(context, ffn, x)
    if isinstance(ffn, ChannelMix):
        return channel_mix(context, ffn, x)
    x, gathered = as_stream("ffn.gather", x, d_model, shape)
    ops = gathered + mlp(context, ffn, x, prefix="", group="ffn_dense", component="ffn")
    return [*ops, to_stream("ffn.reduce", ops[-1].output, d_model, shape)]


def block_operators(spec: ModelSpec, name: str, shape: Shape) -> list[Operator]:
    """One layer of kind ``name``."""
    block = spec.blocks[name]
    context = BlockContext(spec, block, shape)
    stream = shape.stream_tokens * spec.d_model
    x, middle = stream_tensor("stream.in", spec, shape), stream_tensor("stream.middle", spec, shape)
    crossed = stream_tensor("stream.crossed", spec, shape)
    site = "residual" in spec.dropout_sites

    def normed(label: str, of: Tensor) -> Operator:
        return model_norm(label, of, spec, shape)

    def add(label: str) -> Operator:
        return residual(label, stream, shape.style, site=site)

    def scale(label: str, of: Tensor) -> list[Operator]:
        return [layer_scale(label, of, spec, shape)] if block.layer_scale else []

    if spec.hyper_streams > 1:
        return hyper_block(context, mix, feed_forward)
    if block.residual in ("parallel", "parallel_shared"):
        first = normed("input_norm", x)
        second = first if block.residual == "parallel_shared" else normed("post_attention_norm", x)
        norms = [first] if second is first else [first, second]
        return [
            *norms,
            *mix(context, first.output),
            *feed_forward(context, second.output),
            add("stream.middle"),
            add("stream.out"),
        ]
    if block.residual == "post":
        ops = [*mix(context, x), add("stream.middle"), normed("input_norm", middle)]
        if block.cross is not None:
            ops += cross_attention(context, block.cross, ops[-1].output)
            ops += [add("stream.crossed"), normed("cross_norm", crossed)]
        ops += feed_forward(context, ops[-1].output)
        last = Tensor("stream.last", stream, shape.style.act)
        return [*ops, add("stream.last"), normed("post_attention_norm", last)]
    if block.residual == "adaln":
        return modulated_block(context, x, middle, mix, feed_forward)
    if block.residual == "none":
        ops = mix(context, x) if block.mixer is not None else []
        if block.cross is not None:
            ops += cross_attention(context, block.cross, ops[-1].output)
        return ops + (feed_forward(context, ops[-1].output if ops else x) if block.ffn is not None else [])
    before = block.residual in ("pre", "sandwich")
    after = block.residual in ("output", "sandwich")
    ops = []
    if block.mixer is not None:
        ops += [normed("input_norm", x)] if before and block.input_norm else []
        ops += mix(context, ops[-1].output if ops else x)
        ops += [normed("post_mixer_norm", ops[-1].output)] if after else []
        ops += scale("mixer_scale", ops[-1].output)
        ops.append(add("stream.middle"))
        x = middle
    if block.cross is not None:
        ops.append(normed("cross_norm", x))
        ops += [*cross_attention(context, block.cross, ops[-1].output), add("stream.crossed")]
        x = crossed
    if block.ffn is not None:
        ops += [normed("post_attention_norm", x)] if before else []
        ops += feed_forward(context, ops[-1].output if before else x)
        ops += [normed("post_ffn_norm", ops[-1].output)] if after else []
        ops += scale("ffn_scale", ops[-1].output)
        ops.append(add("stream.out"))
    if spec.per_layer_input is not None:
        ops += layer_input(context, spec.per_layer_input, ops[-1].output)
    return ops
