"""The Evoformer block as operators (Jumper et al. 2021, supplement 1.6, Algorithms 6 to 15).

Two streams of activations: the alignment m [sequences, residues, c_m] and the pairs z [residues, residues, c_z]. With N
residues and S sequences the triangle terms cost N^3, attention over the alignment S N^2 and S^2 N.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tfsim.models.feedforward import mlp
from tfsim.models.parts import BlockContext, apply_norm
from tfsim.models.shape import Shape
from tfsim.models.spec import DenseFFN, ModelSpec
from tfsim.models.spec.evoformer import AlignmentFrontend, Evoformer, SingleHead
from tfsim.operators.attention import attention
from tfsim.operators.core import Operator, Tensor, activation, prefixed
from tfsim.operators.elementwise import pointwise, residual
from tfsim.operators.matmul import linear
from tfsim.operators.products import batched_product
from tfsim.units import Number, where


def evoformer(context: BlockContext, mixer: Evoformer, x: Tensor) -> list[Operator]:
    """Algorithm 6. The alignment's state after a block is the one the next block reads, and its name says so."""
    shape, d_msa = context.shape, context.spec.d_model
    n, rows = shape.seq_len, alignment_rows(context.spec, shape)
    msa = Stream(context, "msa", shape.batch * rows * n, d_msa)
    pair = Stream(context, "pair", shape.batch * n * n, mixer.d_pair)
    msa_heads = (mixer.n_msa_heads, mixer.d_msa_head)
    pair_heads = (mixer.n_pair_heads, mixer.d_pair_head)
    m, z = msa.state("out"), pair.state("in")
    ops = [
        *gated_attention("row", msa, m, msa_heads, batch=shape.batch * rows, length=n, bias_from=(pair, z)),
        *gated_attention("column", msa, msa.state("1"), msa_heads, batch=shape.batch * n, length=rows),
        *transition("msa_transition", msa, msa.state("2"), mixer.transition),
        *outer_product_mean(msa, msa.state("out"), pair, mixer.d_outer, batch=shape.batch, rows=rows, n=n),
    ]
    for step, name in enumerate(("outgoing", "incoming"), start=1):
        ops += triangle_multiplication(name, pair, pair.state(str(step)), mixer.d_triangle, batch=shape.batch, n=n)
    for step, name in enumerate(("starting", "ending"), start=3):
        z = pair.state(str(step))
        ops += gated_attention(name, pair, z, pair_heads, batch=shape.batch * n, length=n, bias_from=(pair, None))
    return [*ops, *transition("pair_transition", pair, pair.state("5"), mixer.transition)]


def alignment_rows(spec: ModelSpec, shape: Shape) -> Number:
    """Sequences in the alignment: as given, else the usual number."""
    if shape.encoder_len is not None:
        return shape.encoder_len
    assert isinstance(spec.frontend, AlignmentFrontend)
    return spec.frontend.n_sequences


def both_streams(spec: ModelSpec, mixer: Evoformer, shape: Shape) -> Tensor:
    """What a block is given: the alignment and the pairs."""
    msa = shape.tokens * alignment_rows(spec, shape) * spec.d_model
    return activation("streams.in", msa + shape.tokens * shape.seq_len * mixer.d_pair, shape.style)


def given_bytes(first: Iterable[Operator], stream: Tensor, recompute: str) -> Number:
    """What the first block keeps of its input, which is data and no activation: with ``full`` recomputation all of the
    ``stream``; else the pairs (the alignment's name stands for its later state), unless a norm keeps its own copy."""
    if recompute == "full":
        return stream.bytes
    return next((t.bytes for op in first for t in op.saves if t.name == "pair.in"), 0)


@dataclass(frozen=True, slots=True)
class Stream:
    """One of the two streams: ``positions`` vectors of ``width``, and what acts on them."""

    context: BlockContext
    name: str
    positions: Number
    width: int

    def state(self, label: str) -> Tensor:
        """The stream at a point of the block."""
        return activation(f"{self.name}.{label}", self.positions * self.width, self.context.shape.style)

    def norm(self, name: str, x: Tensor, width: int | None = None) -> Operator:
        """LayerNorm of each vector."""
        spec, size = self.context.spec, self.width if width is None else width
        shape = self.context.shape
        return apply_norm(name, x, spec.norm, rows=self.positions, width=size, shape=shape, fmt=spec.dtype)

    def linear(self, name: str, x: Tensor, n: int, k: int, group: str, *, bias: bool = True) -> Operator:
        """A linear layer on each vector."""
        context = self.context
        return linear(
            name,
            x,
            tokens=self.positions,
            n=n,
            k=k,
            style=context.shape.style,
            group=group,
            component="attn_proj" if group == "attn" else group,
            fmt=context.fmt(name, group),
            bias=bias,
            bias_fmt=context.spec.dtype,
        )

    def gate(self, name: str, logits: Tensor, y: Tensor, width: int) -> list[Operator]:
        """sigmoid(logits) * y. Eager torch keeps the sigmoid, a fused kernel its input."""
        style, elements = self.context.shape.style, self.positions * width
        out = activation(f"{name}.out", elements, style)
        opened = activation(f"{name}.sigmoid", elements, style)
        kept = opened if style.eager else logits
        product = pointwise(name, "pointwise", out, saves=(kept, y), vector_flops=elements, inputs=2, style=style)
        if not style.eager:
            return [replace(product, vector_flops=9 * elements)]
        sigmoid = pointwise(
            f"{name}.sigmoid", "pointwise", opened, saves=(opened,), vector_flops=8 * elements, style=style
        )
        return [sigmoid, product]

    def add(self, name: str) -> Operator:
        """The addition to the stream."""
        return residual(f"{name}.add", self.positions * self.width, self.context.shape.style)

    def copied(self, name: str, elements: Number, tensors: int) -> list[Operator]:
        """Eager torch brings ``tensors`` of ``elements`` into the order of a batched product, or out of it; kernels of
        their own would read them as they lie."""
        style = self.context.shape.style
        out = activation(f"{name}.copy", elements, style)
        copy = pointwise(f"{name}.copy", "pointwise", out, vector_flops=0, passes=tensors, style=style)
        return [copy] if style.eager else []

    def own(self, name: str, operators: list[Operator]) -> list[Operator]:
        """``operators`` under names of their own; the streams' states keep theirs."""
        states = {f"{stream}.{label}" for stream in ("msa", "pair") for label in ("in", "out", *"12345")}
        return prefixed(f"{name}.", [*operators, self.add(name)], keep=states)


def gated_attention(
    name: str,
    stream: Stream,
    x: Tensor,
    heads: tuple[int, int],
    *,
    batch: Number,
    length: Number,
    bias_from: tuple[Stream, Tensor | None] | None = None,
) -> list[Operator]:
    """Algorithms 7, 8, 13 and 14: attention along one axis with an output gate and, for ``bias_from``, a bias a pair
    and head, taken from that stream's state (None: from what is normalised here)."""
    n_heads, d_head = heads
    # the scores stay in memory: torch's fused kernels take no bias that needs a gradient
    style = replace(stream.context.shape.style, attention="eager")
    width = n_heads * d_head
    ops = [stream.norm("norm", x)]
    normed = ops[0].output
    bias: list[Operator] = []
    if bias_from is not None:
        pair, z = bias_from
        source = normed
        if z is not None:
            ops.append(pair.norm("pair_norm", z))
            source = ops[-1].output
        bias = [pair.linear("pair_bias", source, n_heads, pair.width, "attn", bias=False)]
    projected = [stream.linear(label, normed, width, stream.width, "attn", bias=False) for label in ("q", "k", "v")]
    core = attention(
        *(op.output for op in projected),
        batch=batch,
        heads=n_heads,
        kv_heads=n_heads,
        q_len=length,
        kv_len=length,
        d_qk=d_head,
        d_v=d_head,
        pairs2=2 * length * length,
        style=style,
        kv_bytes=style.act,
    )
    if bias:
        core = replace(core, read=core.read + bias[0].output.bytes)
    gate = stream.linear("gate", normed, width, stream.width, "attn")
    gated = stream.gate("gated", gate.output, core.output, width)
    out = stream.linear("o", gated[-1].output, stream.width, width, "attn")
    copies = stream.copied("heads", stream.positions * width, 4)  # queries, keys, values, and the result
    return stream.own(name, [*ops, *bias, *projected, *copies, core, gate, *gated, out])


def transition(name: str, stream: Stream, x: Tensor, widening: int) -> list[Operator]:
    """Algorithms 9 and 15: two layers with a ReLU between them on each vector."""
    inner = stream.context
    shape = replace(inner.shape, batch=stream.positions, seq_len=1)
    context = BlockContext(inner.spec.model_copy(update={"d_model": stream.width}), inner.block, shape)
    ffn = DenseFFN(d_ff=widening * stream.width, activation="relu", gated=False, bias=True)
    norm = stream.norm("norm", x)
    layers = mlp(context, ffn, norm.output, prefix="", group="ffn_dense", component="ffn")
    return stream.own(name, [norm, *layers])


def outer_product_mean(
    msa: Stream, m: Tensor, pair: Stream, width: int, *, batch: Number, rows: Number, n: Number
) -> list[Operator]:
    """Algorithm 10: for each pair of residues the mean over sequences of a_i b_j^T, flattened and projected."""
    norm = msa.norm("norm", m)
    a, b = (msa.linear(label, norm.output, width, msa.width, "pair") for label in ("a", "b"))
    style = msa.context.shape.style
    outer = batched_product(
        "outer", a.output, b.output, copies=batch, m=n * width, n=n * width, k=rows, component="pair", style=style
    )
    out = pair.linear("out", outer.output, pair.width, width * width, "pair")
    pairs = pair.copied("outer", pair.positions * width * width, 2)  # put in order, and divided by the sequences
    return pair.own("outer_product", [norm, a, b, outer, *pairs, out])


def triangle_multiplication(
    name: str, pair: Stream, z: Tensor, width: int, *, batch: Number, n: Number
) -> list[Operator]:
    """Algorithms 11 and 12: z_ij from sum_k a_ik b_jk (outgoing edges) or a_ki b_kj (incoming): N^3 a channel."""
    norm = pair.norm("norm", z)
    ops = [norm]
    factors = []
    for label in ("a", "b"):
        value = pair.linear(f"{label}_value", norm.output, width, pair.width, "pair")
        gate = pair.linear(f"{label}_gate", norm.output, width, pair.width, "pair")
        ops += [value, gate, *pair.gate(label, gate.output, value.output, width)]
        factors.append(ops[-1].output)
    style = pair.context.shape.style
    product = batched_product("triangle", *factors, copies=batch * width, m=n, n=n, k=n, component="pair", style=style)
    inner = pair.norm("product_norm", product.output, width)
    out = pair.linear("out", inner.output, pair.width, width, "pair")
    gate = pair.linear("gate", norm.output, pair.width, pair.width, "pair")
    copies = pair.copied("edges", pair.positions * width, 3)  # both factors, and the product
    return pair.own(
        name, [*ops, *copies, product, inner, out, gate, *pair.gate("gated", gate.output, out.output, pair.width)]
    )


def single_head(spec: ModelSpec, head: SingleHead, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    """The single representation; the loss stands for what reads it and the pairs, in fp32."""
    style, tokens = shape.style, shape.tokens
    # torch keeps the row as a copy; of a single alignment it is the alignment's own storage
    first_row = activation("msa.first_row", where(shape.batch > 1, tokens * spec.d_model, 0), style)
    ops = [
        linear(
            "single",
            first_row,
            tokens=tokens,
            n=head.d_out,
            k=spec.d_model,
            style=style,
            group="head",
            component="head",
            fmt=spec.formats.get("head", spec.dtype),
            bias=True,
            bias_fmt=spec.dtype,
        )
    ]
    if loss:
        mixer = spec.blocks[spec.layer_blocks[-1]].mixer
        width = mixer.d_pair if isinstance(mixer, Evoformer) else 0
        read = (
            Tensor("loss.single", tokens * head.d_out, 4),
            Tensor("loss.pair", tokens * shape.seq_len * width, 4),
        )
        elements = read[0].elements + read[1].elements
        out = activation("loss.terms", elements, style)
        ops.append(pointwise("loss", "pointwise", out, saves=read, vector_flops=2 * elements, style=style))
    return ops
