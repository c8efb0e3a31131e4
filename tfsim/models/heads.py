"""From the residual stream to what the model is asked for: logits, classes, a projection, and the loss on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfsim.models.dit import denoise_head
from tfsim.models.evoformer import single_head
from tfsim.models.hyper import hyper_collapse
from tfsim.models.parts import apply_norm, as_stream, stream_tensor, token_table, weight_format
from tfsim.models.shape import Shape
from tfsim.models.spec import (
    Classifier,
    LMHead,
    MaskedLMHead,
    Merger,
    ModelSpec,
    NoHead,
    PatchFrontend,
    Pooler,
    Projection,
)
from tfsim.operators.core import Operator, Tensor, Weight, activation
from tfsim.operators.elementwise import activate, cross_entropy, gate, pointwise
from tfsim.operators.matmul import linear
from tfsim.units import Number, ceil_div


def head_operators(spec: ModelSpec, shape: Shape, *, loss: bool) -> list[Operator]:
    """Final norm, the head and, for training, the loss."""
    ops: list[Operator] = []
    x = stream_tensor("stream.out", spec, shape)
    if spec.hyper_streams > 1:
        ops += hyper_collapse(spec, shape)
        x = ops[-1].output
    if spec.final_norm:
        # torch norms an fp32 stream without casting back before the scale
        norm = spec.norm.model_copy(update={"late_cast": True}) if spec.residual_fp32 else spec.norm
        ops.append(
            apply_norm("final_norm", x, norm, rows=shape.stream_tokens, width=spec.d_model, shape=shape, fmt=spec.dtype)
        )
        x = ops[-1].output
    return ops + HEADS[spec.head.kind](spec, spec.head, x, shape, loss)


def _linear(
    spec: ModelSpec,
    name: str,
    x: Tensor,
    *,
    tokens: Number,
    n: Number,
    shape: Shape,
    k: Number | None = None,
    bias: bool = True,
    weight: Weight | None = None,
) -> Operator:
    return linear(
        name,
        x,
        tokens=tokens,
        n=n,
        k=spec.d_model if k is None else k,
        style=shape.style,
        group="head",
        component="head",
        fmt=weight_format(spec, "head"),
        bias=bias,
        bias_fmt=spec.dtype,
        weight=weight,
    )


def _vocabulary(spec: ModelSpec, x: Tensor, positions: Number, width: int, shape: Shape, loss: bool) -> list[Operator]:
    """The output matrix, cut over the vocabulary, and the loss over it."""
    style = shape.style
    vocab = ceil_div(spec.vocab_size, shape.shards.tp)
    own = Weight("head.weight", "head", vocab, width, fmt=weight_format(spec, "head"))
    matrix = token_table(spec, shape) if spec.tied_embeddings else own
    ops = [
        _linear(spec, "head", x, tokens=positions, n=vocab, k=width, shape=shape, bias=spec.head_bias, weight=matrix)
    ]
    logits = ops[-1].output
    if spec.final_logit_softcap:
        capped = activation("head.softcap", positions * vocab, style)
        ops.append(
            pointwise("head.softcap", "pointwise", capped, saves=(capped,), vector_flops=0, passes=3, style=style)
        )
    if loss:
        # a decoder's labels are its own input, shifted into a tensor of their own
        alone = isinstance(spec.head, LMHead) and spec.encoder is None
        shifted = alone and isinstance(spec.head, LMHead) and spec.head.own_labels
        wide = alone or (isinstance(spec.head, LMHead) and spec.head.loss_fp32)
        ops.append(cross_entropy(logits, tokens=positions, vocab=vocab, style=style, own_labels=shifted, fp32=wide))
    return ops


def _language_model(spec: ModelSpec, head: LMHead, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    positions: Number = shape.batch if shape.logits == "last" else shape.tokens
    x, ops = as_stream("head.gather", x, spec.d_model, shape)
    width = spec.d_model
    if spec.d_embed and spec.d_embed != spec.d_model:
        width = spec.d_embed
        ops.append(_linear(spec, "project_out", x, tokens=positions, n=width, shape=shape, bias=False))
        x = ops[-1].output
    return ops + _vocabulary(spec, x, positions, width, shape, loss)


def _masked_language_model(spec: ModelSpec, head: MaskedLMHead, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    """decoder(norm(act(W h + b))): Devlin et al. 2019, as published with BERT."""
    tokens, style = shape.tokens, shape.style
    width = spec.d_embed or spec.d_model
    x, ops = as_stream("head.gather", x, spec.d_model, shape)
    ops.append(_linear(spec, "transform", x, tokens=tokens, n=width, shape=shape, bias=head.bias))
    ops.append(activate("transform.act", head.activation, ops[-1].output, elements=tokens * width, style=style))
    norm = apply_norm(
        "transform.norm", ops[-1].output, head.norm, rows=tokens, width=width, shape=shape, fmt=spec.dtype
    )
    return [*ops, norm, *_vocabulary(spec, norm.output, tokens, width, shape, loss)]


def _pooled(spec: ModelSpec, name: str, x: Tensor, rows: Number, shape: Shape) -> list[Operator]:
    dense = _linear(spec, name, x, tokens=rows, n=spec.d_model, shape=shape)
    out = activation(f"{name}.tanh", rows * spec.d_model, shape.style)
    return [
        dense,
        pointwise(f"{name}.tanh", "pointwise", out, saves=(out,), vector_flops=8 * out.elements, style=shape.style),
    ]


def _pooler(spec: ModelSpec, head: Pooler, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    return _pooled(spec, "pooler", x, shape.batch, shape)


def _classifier(spec: ModelSpec, head: Classifier, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    rows: Number = shape.batch if head.position == "first" else shape.tokens
    ops: list[Operator] = []
    if head.hidden:
        ops = _pooled(spec, "pooler", x, rows, shape)
        x = ops[-1].output
    ops.append(_linear(spec, "classifier", x, tokens=rows, n=head.n_classes, shape=shape))
    if loss:
        logits = ops[-1].output
        ops.append(
            cross_entropy(logits, tokens=rows, vocab=head.n_classes, style=shape.style, own_labels=False, fp32=False)
        )
    return ops


def _projection(spec: ModelSpec, head: Projection, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    """One position of each sequence, projected; the similarities of every pair in the batch (Radford et al. 2021)."""
    style, batch = shape.style, shape.batch
    position = activation("projection.in", batch * spec.d_model, style)
    ops = [_linear(spec, "projection", position, tokens=batch, n=head.d_out, shape=shape, bias=False)]
    if not head.contrast:
        return ops
    here = activation("projection.normalised", batch * head.d_out, style)
    there = activation("encoder.normalised", batch * head.d_out, style)
    saves = (ops[-1].output, activation("encoder.projection", batch * head.d_out, style))
    normalise = pointwise("normalise", "pointwise", here, saves=saves, vector_flops=4 * here.elements, style=style)
    scores = activation("similarity.out", batch * batch, style)
    ops += [
        normalise,
        Operator(
            "similarity",
            "matmul",
            "other",
            scores,
            dims={"m": batch, "n": batch, "k": head.d_out},
            flops=2 * batch * batch * head.d_out,
            read=2 * batch * head.d_out * style.act,
            write=batch * batch * style.act,
            weights=(Weight("logit_scale", "other", 1, fmt=spec.dtype),),
            saves=(here, there, scores),
            rate=style.dtype,
        ),
    ]
    if loss:
        ops.append(cross_entropy(scores, tokens=batch, vocab=2 * batch, style=style, own_labels=False, fp32=False))
    return ops


def _merger(spec: ModelSpec, head: Merger, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    """Patches to tokens; every tap is another such merger on an earlier layer's output."""
    ops: list[Operator] = []
    for tap in range(1 + head.taps):
        ops += _merged(spec, head, x, shape, f"merger{tap or ''}", over_joined=tap > 0)
    return ops


def _merged(spec: ModelSpec, head: Merger, x: Tensor, shape: Shape, name: str, *, over_joined: bool) -> list[Operator]:
    style = shape.style
    beside = spec.frontend.class_tokens if isinstance(spec.frontend, PatchFrontend) else 0
    patches = shape.batch * (shape.seq_len - beside)  # class tokens and registers make no token
    tokens = patches // head.patches
    ops: list[Operator] = []
    k = head.features * spec.d_model
    if head.joins_encoder:
        assert spec.encoder is not None
        k += spec.encoder.d_model
        x = activation(f"{name}.in", patches * k, style)
    if head.norm is not None:
        joined = over_joined or head.norm_joined
        rows, width = (tokens, head.patches * k) if joined else (tokens if head.mean else patches, k)
        ops.append(apply_norm(f"{name}.norm", x, head.norm, rows=rows, width=width, shape=shape, fmt=spec.dtype))
    merged = () if head.merged is None else (head.merged,)
    widths = (*head.each, *merged, *head.joined)
    first = len(head.each)
    onward = first + len(merged)
    hidden = len(widths) - 2
    for step, n in enumerate(widths):
        rows = patches if step < first else tokens
        if step == first and not head.mean:
            k *= head.patches
        of = ops[-1].output if ops else x
        if step not in (0, first, onward):
            if head.inner_norm is not None and step == onward + 1:
                ops.append(
                    apply_norm(
                        f"{name}.inner_norm", of, head.inner_norm, rows=rows, width=k, shape=shape, fmt=spec.dtype
                    )
                )
                of = ops[-1].output
            if head.gated and step == hidden + 1:
                ops += gate(f"{name}.gate", of, of, "silu", elements=rows * k, style=style)
            else:
                ops.append(activate(f"{name}.act{step}", "gelu", of, elements=rows * k, style=style))
            of = ops[-1].output
        bias = head.merged_bias if merged and step == first else head.bias
        columns = 2 * n if head.gated and step == hidden else n
        ops.append(_linear(spec, f"{name}.linear{step}", of, tokens=rows, n=columns, k=k, shape=shape, bias=bias))
        k = n
    if head.newline and not over_joined:
        token = Weight("newline", "embed_other", widths[-1], fmt=spec.dtype)
        ops.append(
            pointwise("newline", "pointwise", ops[-1].output, weights=(token,), vector_flops=0, passes=0, style=style)
        )
    if head.beside:
        ops = [replace(op, weights=tuple(replace(w, group="other") for w in op.weights)) for op in ops]
    return ops


def _none(spec: ModelSpec, head: NoHead, x: Tensor, shape: Shape, loss: bool) -> list[Operator]:
    return []


HEADS: dict[str, Callable[[ModelSpec, Any, Tensor, Shape, bool], list[Operator]]] = {
    "lm": _language_model,
    "masked_lm": _masked_language_model,
    "pooler": _pooler,
    "classifier": _classifier,
    "projection": _projection,
    "single": single_head,
    "denoise": denoise_head,
    "merger": _merger,
    "none": _none,
}
