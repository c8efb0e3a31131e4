"""From tokens, image patches or audio to the residual stream: embeddings, positions, convolutions."""

from __future__ import annotations

from dataclasses import replace

from tfsim.models.dit import condition_operators
from tfsim.models.parts import apply_norm, token_table, weight_format
from tfsim.models.shape import Shape
from tfsim.models.spec import AlignmentFrontend, AudioFrontend, ModelSpec, PatchFrontend, RelativePositions
from tfsim.operators.collectives import collective
from tfsim.operators.convolution import convolution
from tfsim.operators.core import CollectiveKind, Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import activate, embedding, pointwise, residual
from tfsim.operators.matmul import linear
from tfsim.units import Number


def frontend_operators(spec: ModelSpec, shape: Shape) -> list[Operator]:
    """The frontend, positions and what else is added to it, with the norms and projections some models have here."""
    if isinstance(spec.frontend, AlignmentFrontend):
        return []
    width = spec.d_embed or spec.d_model
    if isinstance(spec.frontend, PatchFrontend):
        ops = _patches(spec, spec.frontend, shape)
    elif isinstance(spec.frontend, AudioFrontend):
        ops = _audio(spec, spec.frontend, shape)
    else:
        ops = _tokens(spec, shape, width)
        if width != spec.d_model and not spec.projected_sum:
            ops.append(_project(spec, shape, ops[-1].output, bias=False))
    if spec.condition:
        ops += condition_operators(spec, shape)
    summed = width if spec.projected_sum else spec.d_model
    ops += _added(spec, shape, summed)
    if spec.embedding_norm:
        rows = shape.stream_tokens
        stream = Tensor("embed.out", rows * summed, shape.style.act)
        ops.append(
            apply_norm("embedding_norm", stream, spec.norm, rows=rows, width=summed, shape=shape, fmt=spec.dtype)
        )
    if width != spec.d_model and spec.projected_sum:
        ops.append(_project(spec, shape, ops[-1].output, bias=True))
    if spec.relative_positions:
        ops += _relative(spec, shape)
    if "embedding" in spec.dropout_sites and shape.style.dropout:
        ops.append(residual("embed.dropout", shape.stream_tokens * spec.d_model, shape.style, site=True))
    return ops


def _tokens(spec: ModelSpec, shape: Shape, width: int) -> list[Operator]:
    style, tokens = shape.style, shape.tokens
    gathered = embedding("embed_token", token_table(spec, shape), tokens=tokens, width=width, style=style)
    whole = tokens * width * style.act
    kind: CollectiveKind = "reduce_scatter" if shape.shards.sequence_parallel else "all_reduce"
    summed = collective("embed_token.reduce", kind, "tp", gathered.output, devices=shape.shards.tp, bytes=whole)
    return [gathered, summed]


def _project(spec: ModelSpec, shape: Shape, x: Tensor, *, bias: bool) -> Operator:
    return linear(
        "project_in",
        x,
        tokens=shape.tokens,
        n=spec.d_model,
        k=spec.d_embed or spec.d_model,
        style=shape.style,
        group="embed_other",
        component="embed_frontend",
        fmt=weight_format(spec, "embed_other"),
        bias=bias,
        bias_fmt=spec.dtype,
    )


def _added(spec: ModelSpec, shape: Shape, width: int) -> list[Operator]:
    """Positions and token types, each a table whose rows are added; computed positions have no table."""
    style, length = shape.style, shape.seq_len
    ops: list[Operator] = []
    if spec.positions:
        table = Weight("embed_pos.weight", "embed_pos", spec.positions.n_positions, width, fmt=spec.dtype)
        # the rows of a frontend's table are taken in order: there are no indices to keep
        made = {"batch": length, "sequence": shape.tokens, "stored": 0}
        ids = 0 if spec.frontend else made[spec.positions.indices]
        ops.append(embedding("embed_pos", table, tokens=length, width=width, style=style, ids=ids))
    if spec.token_types:
        table = Weight("embed_type.weight", "embed_other", spec.token_types, width, fmt=spec.dtype)
        ops.append(embedding("embed_type", table, tokens=shape.tokens, width=width, style=style))
    if spec.sinusoidal:
        elements = shape.stream_tokens * width
        out = activation("embed_pos.out", elements, style)
        ops.append(pointwise("embed_pos", "pointwise", out, vector_flops=2 * elements, style=style))
    return ops


def _patches(spec: ModelSpec, front: PatchFrontend, shape: Shape) -> list[Operator]:
    """x_p E and the class token (Dosovitskiy et al. 2021, equation 1)."""
    patches = shape.batch * (shape.seq_len - front.class_tokens)
    op = convolution(
        "patch_embed",
        None,
        positions=patches,
        n=spec.d_model,
        k=front.patch_values,
        style=shape.style,
        bias=front.bias,
        read=patches * front.patch_values,
        fmt=weight_format(spec, "embed_other"),
    )
    if not front.class_tokens:
        return [op]
    token = Weight("class_token", "embed_pos", front.class_tokens, spec.d_model, fmt=spec.dtype)
    stream = activation("patch_embed.tokens", shape.tokens * spec.d_model, shape.style)
    return [
        op,
        pointwise("class_token", "pointwise", stream, weights=(token,), vector_flops=0, style=shape.style),
    ]


def _audio(spec: ModelSpec, front: AudioFrontend, shape: Shape) -> list[Operator]:
    """Two convolutions with GELU; the second halves the frames (Radford et al. 2022, section 2.2)."""
    style, d = shape.style, spec.d_model
    ops: list[Operator] = []
    x: Tensor | None = None
    read: Number = 2 * shape.tokens * front.n_mels
    for name, positions, inputs in (("conv1", 2 * shape.tokens, front.n_mels), ("conv2", shape.tokens, d)):
        k = inputs * front.kernel
        fmt = weight_format(spec, "embed_other")
        ops.append(convolution(name, x, positions=positions, n=d, k=k, style=style, bias=True, read=read, fmt=fmt))
        ops.append(activate(f"{name}.act", "gelu", ops[-1].output, elements=positions * d, style=style))
        x, read = ops[-1].output, positions * d
    return ops


def relative_positions(spec: ModelSpec, what: RelativePositions, shape: Shape) -> Tensor:
    """What the layers are given: a bias per head and pair of positions, or the normalised vectors of all distances."""
    if what.kind == "bias":
        return position_biases(spec, shape, shape.past_len + shape.seq_len, "relative_positions")
    return Tensor("relative_positions", what.n_buckets * spec.d_model, shape.style.act, scope="model")


def position_biases(spec: ModelSpec, shape: Shape, keys: Number, name: str) -> Tensor:
    """A bias per head, query and key, one storage for all layers and sequences."""
    return Tensor(name, _bias_heads(spec) * shape.seq_len * keys, shape.style.act, scope="model")


def _bias_heads(spec: ModelSpec) -> int:
    return max(block.mixer.n_parts for block in spec.blocks.values() if block.mixer is not None)


def _relative(spec: ModelSpec, shape: Shape) -> list[Operator]:
    """The table of relative positions, read once for all layers of the stack."""
    assert spec.relative_positions is not None
    buckets, style = spec.relative_positions.n_buckets, shape.style
    if spec.relative_positions.kind == "bias":
        heads = _bias_heads(spec)
        table = Weight("relative_bias.weight", "embed_pos", buckets, heads, fmt=spec.dtype)
        pairs = shape.seq_len * (shape.past_len + shape.seq_len)
        return [embedding("relative_bias", table, tokens=pairs, width=heads, style=style, ids=pairs)]
    table = Weight("relative_table.weight", "embed_pos", buckets, spec.d_model, fmt=spec.dtype)
    source = activation("relative_table", buckets * spec.d_model, style)
    op = apply_norm("relative_norm", source, spec.norm, rows=buckets, width=spec.d_model, shape=shape, fmt=spec.dtype)
    return [replace(op, weights=(table, *op.weights), saves=tuple(t for t in op.saves if t.name != source.name))]
