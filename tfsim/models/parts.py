"""What every block shares: its context, its norms, and the moves between the residual stream and the matmuls."""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.models.shape import Shape
from tfsim.models.spec import Block, ModelSpec, Norm, Rope
from tfsim.operators.collectives import collective
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import norm, pointwise
from tfsim.operators.formats import element_bytes
from tfsim.operators.matmul import linear
from tfsim.units import Number, ceil_div

MATRIX_GROUPS = ("attn", "ffn_dense", "moe_routed", "moe_shared", "ssm", "rnn")
"""Parameter groups of the blocks' matrices: what is put into a format as a whole. Routers and norms are not."""


@dataclass(frozen=True, slots=True)
class BlockContext:
    """A block, the model it belongs to, and the pass it runs in."""

    spec: ModelSpec
    block: Block
    shape: Shape

    def fmt(self, name: str, group: str) -> str:
        """Weight format of operator ``name`` in parameter group ``group``: the narrowest setting wins."""
        formats = self.block.formats
        return formats.get(name) or formats.get(group) or self.spec.formats.get(group) or self.spec.dtype


def weight_format(spec: ModelSpec, group: str) -> str:
    """Number format of a parameter group outside the blocks."""
    return spec.formats.get(group, spec.dtype)


def token_table(spec: ModelSpec, shape: Shape) -> Weight:
    """The token embedding, cut over the vocabulary by tensor parallelism; the head shares it when tied."""
    rows = ceil_div(spec.vocab_size, shape.shards.tp)
    width = spec.d_embed or spec.d_model
    return Weight("embed_token.weight", "embed_token", rows, width, fmt=weight_format(spec, "embed_token"), shared=True)


def apply_norm(
    name: str, x: Tensor, spec: Norm, *, rows: Number, width: Number, shape: Shape, fmt: str, copies: Number = 1
) -> Operator:
    """A norm operator from its specification."""
    return norm(
        name,
        x,
        rows=rows,
        width=width,
        style=shape.style,
        rms=spec.kind == "rmsnorm",
        weight=spec.weight,
        bias=spec.bias,
        unit_offset=spec.unit_offset,
        upcasts=spec.upcast,
        late_cast=spec.late_cast,
        one_kernel=spec.fused,
        two_inputs=spec.two_inputs,
        power=spec.power,
        weight_copies=copies,
        fmt=fmt,
    )


def stream_tensor(name: str, spec: ModelSpec, shape: Shape) -> Tensor:
    """A state of the residual stream, in fp32 where the model keeps it so."""
    elements = shape.stream_tokens * spec.d_model * spec.hyper_streams
    return Tensor(name, elements, 4 if spec.residual_fp32 else shape.style.act)


def model_norm(name: str, x: Tensor, spec: ModelSpec, shape: Shape) -> Operator:
    """The model's norm over the residual stream."""
    return apply_norm(name, x, spec.norm, rows=shape.stream_tokens, width=spec.d_model, shape=shape, fmt=spec.dtype)


def layer_scale(name: str, x: Tensor, spec: ModelSpec, shape: Shape) -> Operator:
    """diag(lambda) x (Touvron et al. 2021, CaiT, equation 4): torch keeps ``x``, for the gradient of lambda."""
    elements, weight = (
        shape.stream_tokens * spec.d_model,
        Weight(f"{name}.weight", "norm", spec.d_model, fmt=spec.dtype),
    )
    out = activation(f"{name}.out", elements, shape.style)
    return pointwise(name, "pointwise", out, saves=(x,), weights=(weight,), vector_flops=elements, style=shape.style)


def project(
    context: BlockContext, name: str, x: Tensor, n: Number, k: Number, bias: bool = False, tokens: Number | None = None
) -> Operator:
    return linear(
        name,
        x,
        tokens=context.shape.tokens if tokens is None else tokens,
        n=n,
        k=k,
        style=context.shape.style,
        group="attn",
        component="attn_proj",
        fmt=context.fmt(name, "attn"),
        bias=bias,
        bias_fmt=context.spec.dtype,
    )


def rope_tables(rope: Rope, width: int, context: BlockContext) -> tuple[Tensor, ...]:
    """Cosines and sines of one pass: shared by all layers of the same rotary base; interleaved pairs need half."""
    shape = context.shape
    rotated = width if rope.whole_head else rope.rotary_dim or width
    elements = shape.seq_len * (rotated // 2 if rope.interleaved else rotated)
    return tuple(
        Tensor(f"rope.{rope.theta:g}.{rotated}.{part}", elements, shape.style.act, scope="model")
        for part in ("cos", "sin")
    )


def cached_element_bytes(context: BlockContext) -> Number:
    """Bytes of one cached element: of the model's cache format where it fixes one, else of an activation."""
    return element_bytes(context.spec.kv_format) if context.spec.kv_format else context.shape.style.act


def as_stream(name: str, x: Tensor, width: Number, shape: Shape) -> tuple[Tensor, list[Operator]]:
    """Bring a sequence-parallel activation to all tokens before column-parallel matmuls.

    The gathered copy is not kept: Megatron keeps the shard and gathers again in the backward pass. Without sequence
    parallelism nothing moves forward, and the gradient is all-reduced (Shoeybi et al. 2019, operator f).
    """
    tp = shape.shards.tp
    whole = shape.tokens * width * shape.style.act
    if shape.shards.sequence_parallel:
        return x, [collective(name, "all_gather", "tp", x, devices=tp, bytes=whole)]
    return x, [collective(name, "none", "tp", x, devices=tp, bytes=whole, backward="all_reduce")]


def to_stream(
    name: str, x: Tensor, width: Number, shape: Shape, group: str = "tp", devices: Number | None = None
) -> Operator:
    """Sum the partial results of row-parallel matmuls back into the residual stream (operator g)."""
    whole = shape.tokens * width * shape.style.act
    size = shape.shards.tp if devices is None else devices
    if shape.shards.sequence_parallel:
        return collective(name, "reduce_scatter", group, x, devices=size, bytes=whole)
    return collective(name, "all_reduce", group, x, devices=size, bytes=whole, backward="none")
