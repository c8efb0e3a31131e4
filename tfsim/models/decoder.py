"""A decoder-only model as operators: embedding, blocks, head.

Each block reads like its paper: norm, projections, rotary, attention, output projection, residual; norm, FFN or
experts, residual. All sizes are one device's share under ``Shape.shards``; numbers or arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.models.experts import experts
from tfsim.models.feedforward import mlp
from tfsim.models.mixers import mix
from tfsim.models.parts import BlockContext, as_stream, model_norm, to_stream
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec, MoE
from tfsim.operators.collectives import collective
from tfsim.operators.core import CollectiveKind, Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import cross_entropy, embedding, pointwise, residual
from tfsim.operators.matmul import linear
from tfsim.units import Number, ceil_div

FIRST, LAST = "embedding", "head"


@dataclass(frozen=True, slots=True)
class Segment:
    """``repeat`` identical pieces of the model: the embedding, each kind of block, the head with the loss.

    ``layer``: whether it is a layer (which recomputation and pipelines cut), not an end.
    """

    name: str
    repeat: int
    operators: tuple[Operator, ...]
    layer: bool = False


def segments(spec: ModelSpec, shape: Shape, *, loss: bool = False) -> tuple[Segment, ...]:
    """The whole model for one pass: embedding, blocks in order of first use, head; ``loss`` adds the loss."""
    blocks = tuple(
        Segment(name, repeat, tuple(block_operators(spec, name, shape)), layer=True)
        for name, repeat in spec.block_counts.items()
    )
    return (
        Segment(FIRST, 1, tuple(embedding_operators(spec, shape))),
        *blocks,
        Segment(LAST, 1, tuple(head_operators(spec, shape, loss=loss))),
    )


def weight_format(spec: ModelSpec, group: str) -> str:
    """Number format of a parameter group outside the blocks."""
    return spec.formats.get(group, spec.dtype)


def token_table(spec: ModelSpec, shape: Shape) -> Weight:
    """The token embedding, cut over the vocabulary by tensor parallelism; the head shares it when tied."""
    rows = ceil_div(spec.vocab_size, shape.shards.tp)
    width = spec.d_embed or spec.d_model
    return Weight("embed_token.weight", "embed_token", rows, width, fmt=weight_format(spec, "embed_token"), shared=True)


def embedding_operators(spec: ModelSpec, shape: Shape) -> list[Operator]:
    """Token and position embeddings, with OPT's projection and BLOOM's norm where the model has them."""
    style, tokens = shape.style, shape.tokens
    width = spec.d_embed or spec.d_model
    ops = [embedding("embed_token", token_table(spec, shape), tokens=tokens, width=width, style=style)]
    whole = tokens * width * style.act
    ops.append(
        collective("embed_token.reduce", _reduction(shape), "tp", ops[-1].output, devices=shape.shards.tp, bytes=whole)
    )
    if spec.d_embed and spec.d_embed != spec.d_model:
        ops.append(
            linear(
                "project_in",
                ops[-1].output,
                tokens=tokens,
                n=spec.d_model,
                k=spec.d_embed,
                style=style,
                group="embed_other",
                component="embed_frontend",
                fmt=weight_format(spec, "embed_other"),
            )
        )
    if spec.positions:
        table = Weight("embed_pos.weight", "embed_pos", spec.positions.n_positions, spec.d_model, fmt=spec.dtype)
        ids = shape.seq_len
        ops.append(embedding("embed_pos", table, tokens=ids, width=spec.d_model, style=style, ids=ids))
    if spec.embedding_norm:
        stream = Tensor("embed.out", shape.stream_tokens * spec.d_model, style.act)
        ops.append(model_norm("embedding_norm", stream, spec, shape))
    if "embedding" in spec.dropout_sites and style.dropout:
        ops.append(residual("embed.dropout", shape.stream_tokens * spec.d_model, style, site=True))
    return ops


def _reduction(shape: Shape) -> CollectiveKind:
    return "reduce_scatter" if shape.shards.sequence_parallel else "all_reduce"


def head_operators(spec: ModelSpec, shape: Shape, *, loss: bool) -> list[Operator]:
    """Final norm, output matrix (cut over the vocabulary) and, for training, the loss."""
    style = shape.style
    positions: Number = shape.batch if shape.logits == "last" else shape.tokens
    ops: list[Operator] = []
    x = Tensor("stream.out", shape.stream_tokens * spec.d_model, style.act)
    if spec.final_norm:
        ops.append(model_norm("final_norm", x, spec, shape))
        x = ops[-1].output
    x, gathered = as_stream("head.gather", x, spec.d_model, shape)
    ops += gathered
    width = spec.d_model
    if spec.d_embed and spec.d_embed != spec.d_model:
        width = spec.d_embed
        ops.append(
            linear(
                "project_out",
                x,
                tokens=positions,
                n=width,
                k=spec.d_model,
                style=style,
                group="head",
                component="head",
                fmt=weight_format(spec, "head"),
            )
        )
        x = ops[-1].output
    vocab = ceil_div(spec.vocab_size, shape.shards.tp)
    own = Weight("head.weight", "head", vocab, width, fmt=weight_format(spec, "head"))
    matrix = token_table(spec, shape) if spec.tied_embeddings else own
    ops.append(
        linear(
            "head",
            x,
            tokens=positions,
            n=vocab,
            k=width,
            style=style,
            group="head",
            component="head",
            bias=spec.head_bias,
            bias_fmt=spec.dtype,
            weight=matrix,
        )
    )
    logits = ops[-1].output
    if spec.final_logit_softcap:
        capped = activation("head.softcap", positions * vocab, style)
        ops.append(
            pointwise("head.softcap", "pointwise", capped, saves=(capped,), vector_flops=0, passes=3, style=style)
        )
    if loss:
        ops.append(cross_entropy(logits, tokens=positions, vocab=vocab, style=style))
    return ops


def feed_forward(context: BlockContext, x: Tensor) -> list[Operator]:
    """The FFN of a block applied to the (normalised) stream ``x``."""
    ffn, d_model, shape = context.block.ffn, context.spec.d_model, context.shape
    assert ffn is not None
    if isinstance(ffn, MoE):
        return experts(context, ffn, x)
    x, gathered = as_stream("ffn.gather", x, d_model, shape)
    ops = gathered + mlp(context, ffn, x, prefix="", group="ffn_dense", component="ffn")
    return [*ops, to_stream("ffn.reduce", ops[-1].output, d_model, shape)]


def block_operators(spec: ModelSpec, name: str, shape: Shape) -> list[Operator]:
    """One layer of kind ``name``."""
    block = spec.blocks[name]
    context = BlockContext(spec, block, shape)
    stream = shape.stream_tokens * spec.d_model
    x = Tensor("stream.in", stream, shape.style.act)
    middle = Tensor("stream.middle", stream, shape.style.act)
    site = "residual" in spec.dropout_sites

    def normed(label: str, of: Tensor) -> Operator:
        return model_norm(label, of, spec, shape)

    def add(label: str) -> Operator:
        return residual(label, stream, shape.style, site=site)

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
        after_mixer, after_ffn = (
            normed("input_norm", middle),
            normed("post_attention_norm", Tensor("stream.last", stream, shape.style.act)),
        )
        return [
            *mix(context, x),
            add("stream.middle"),
            after_mixer,
            *feed_forward(context, after_mixer.output),
            add("stream.last"),
            after_ffn,
        ]
    if block.residual == "none":
        ops = mix(context, x) if block.mixer is not None else []
        return ops + (feed_forward(context, ops[-1].output if ops else x) if block.ffn is not None else [])
    before = block.residual in ("pre", "sandwich")
    after = block.residual in ("output", "sandwich")
    ops = []
    if block.mixer is not None:
        ops += [normed("input_norm", x)] if before else []
        ops += mix(context, ops[-1].output if before else x)
        ops += [normed("post_mixer_norm", ops[-1].output)] if after else []
        ops.append(add("stream.middle"))
        x = middle
    if block.ffn is not None:
        ops += [normed("post_attention_norm", x)] if before else []
        ops += feed_forward(context, ops[-1].output if before else x)
        ops += [normed("post_ffn_norm", ops[-1].output)] if after else []
        ops.append(add("stream.out"))
    return ops
