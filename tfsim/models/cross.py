"""Cross-attention: queries from a decoder, keys and values from its encoder's output (Vaswani et al. 2017, 3.2.3)."""

from __future__ import annotations

from dataclasses import replace

from tfsim.models.additive import additive_attention
from tfsim.models.mixers import attend
from tfsim.models.parts import BlockContext, as_stream, project, to_stream
from tfsim.models.shape import Shape
from tfsim.models.spec import Additive, Attention, ModelSpec
from tfsim.operators.core import Operator, Tensor, prefixed
from tfsim.units import Number, ceil_div, maximum


def source_len(spec: ModelSpec, shape: Shape) -> Number:
    """Positions of the encoder: as given, else what its frontend makes, else as many as the decoder's."""
    assert spec.encoder is not None
    if shape.encoder_len is not None:
        return shape.encoder_len
    return spec.encoder.frontend.seq_len if spec.encoder.frontend else shape.seq_len


def encoder_shape(spec: ModelSpec, shape: Shape) -> Shape:
    """The encoder's own pass: all positions at once, nothing cached."""
    return replace(shape, seq_len=source_len(spec, shape), past_len=0, encoder_len=None, logits="all")


def memory(spec: ModelSpec, shape: Shape) -> Tensor:
    """The encoder's output, one storage for all decoder layers."""
    assert spec.encoder is not None
    elements = encoder_shape(spec, shape).stream_tokens * spec.encoder.d_model
    return Tensor("encoder.out", elements, shape.style.act, scope="model")


def cross_attention(context: BlockContext, mixer: Attention | Additive, x: Tensor) -> list[Operator]:
    """Attention to the encoder's output: additive, or softmax(q k^T) v with its keys and values.

    A decode step reads those from a cache made in the prefill.
    """
    spec, shape, d_model = context.spec, context.shape, context.spec.d_model
    assert spec.encoder is not None
    if isinstance(mixer, Additive):
        memory_ = memory(spec, shape)
        return additive_attention(context, mixer, x, memory_, spec.encoder.d_model, source_len(spec, shape))
    heads = ceil_div(mixer.n_heads, shape.shards.tp)
    kv_heads = maximum(1, ceil_div(mixer.n_kv_heads, shape.shards.tp))
    source, length = memory(spec, shape), source_len(spec, shape)
    tokens = shape.batch * length
    x, ops = as_stream("attention.gather", x, d_model, shape)
    ops.append(project(context, "q_proj", x, heads * mixer.d_head, d_model, mixer.qkv_bias))
    q = ops[-1].output
    made = [
        project(context, f"{name}_proj", source, kv_heads * mixer.d_head, spec.encoder.d_model, bias, tokens)
        for name, bias in (("k", mixer.qkv_bias and mixer.key_bias), ("v", mixer.qkv_bias))
    ]
    if shape.phase != "decode":
        _, gathered = as_stream("attention.gather_source", source, spec.encoder.d_model, encoder_shape(spec, shape))
        ops += gathered + made
    k, v = made[0].output, made[1].output
    ops.append(attend(context, mixer, q, k, v, heads, kv_heads, length, 2 * shape.seq_len * length))
    ops.append(project(context, "o_proj", ops[-1].output, d_model, heads * mixer.d_head, mixer.out_bias))
    ops.append(to_stream("attention.reduce", ops[-1].output, d_model, shape))
    return prefixed("cross.", ops, keep=(x.name, source.name))
