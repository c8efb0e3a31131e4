"""A sparse mixture of experts: router, dispatch, grouped matmuls, weighted combine, shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfsim.models.feedforward import mlp
from tfsim.models.parts import BlockContext, apply_norm, as_stream, model_norm, to_stream
from tfsim.models.spec import DenseFFN, MoE, SharedExpert
from tfsim.operators.collectives import collective
from tfsim.operators.core import Operator, Routed, Style, Tensor, Weight, activation
from tfsim.operators.elementwise import activate, gate, pointwise, residual, softmax
from tfsim.operators.formats import FORMATS
from tfsim.operators.matmul import grouped_linear, linear
from tfsim.units import Number, ceil_div, maximum, where


def expert_capacity(copies: Number, n_experts: int, factor: Number) -> Number:
    """Token copies that each of ``n_experts`` takes of ``copies``: ceil(factor x copies / n_experts).

    Fedus et al. 2022, equation 3.
    """
    room = ceil_div(factor * copies, n_experts)
    return int(room) if isinstance(room, float) else room


def _padded(context: BlockContext, moe: MoE) -> bool:
    """Whether experts run buffers of their capacity: in passes over sequences of a model trained with one.

    A decode step of few tokens drops none, and experts that every token visits have no buffers.
    """
    shape = context.shape
    return moe.capacity_factor is not None and shape.phase != "decode" and shape.experts == "routed"


def routed_rows(context: BlockContext, moe: MoE, cut: Number = 1) -> Number:
    """Token copies one device sends to experts when routing is even: tokens x top_k over the devices that share them;
    with a capacity, experts x capacity, padding included. As many arrive.

    The ranks of one tensor-parallel group hold the same tokens, so experts ``cut`` etp ways see tokens top_k etp / tp.
    """
    shards = context.shape.shards
    visits = moe.n_experts if context.shape.experts == "all" else moe.top_k
    copies = ceil_div(context.shape.tokens * visits * cut, shards.tp)
    if moe.capacity_factor is None or not _padded(context, moe):
        return copies
    return moe.n_experts * expert_capacity(copies, moe.n_experts, moe.capacity_factor)


def touched(pick: Any, tokens: Any) -> Any:
    """Probability that an expert picked with probability ``pick`` gets any of ``tokens``; they broadcast."""
    return 1 - (1 - pick) ** tokens


def experts_touched(moe: MoE, local: Number, tokens: Number) -> Number:
    """Expected number of a device's ``local`` experts that receive any of ``tokens`` under uniform routing. All of
    them once tokens are many."""
    found: Number = local * touched(moe.top_k / moe.n_experts, tokens)
    return found


def experts(context: BlockContext, moe: MoE, x: Tensor) -> list[Operator]:
    """The mixture applied to the (normalised) stream ``x`` (Shazeer 2017; DeepSeekMoE, Dai 2024)."""
    if moe.branch_norms:
        return _branches(context, moe, x)
    routed = routed_experts(context, moe, x)
    if moe.shared is None:
        before, after = _moves(context, moe, x, routed[-1].output)
        return [*before, *routed, *after]
    shared = _shared_expert(context, moe, moe.shared, x)
    before, after = _moves(context, moe, x, shared[-1].output)
    return [*before, *routed, *shared, *after]


def _shared_expert(context: BlockContext, moe: MoE, shared: SharedExpert, x: Tensor) -> list[Operator]:
    ffn = DenseFFN(d_ff=shared.d_ff, activation=moe.activation, gated=moe.gated)
    ops = mlp(context, ffn, x, prefix="shared_", group="moe_shared", component="moe_shared")
    return ops + _shared_gate(context, x, ops[-1].output) if shared.gate else ops


def _branches(context: BlockContext, moe: MoE, x: Tensor) -> list[Operator]:
    """Gemma-4: a dense FFN on the normalised stream beside experts on the stream itself, a norm around each."""
    spec, shape = context.spec, context.shape
    stream = Tensor("stream.middle", x.elements, x.bytes_per_element)
    summed = residual("ffn.sum", x.elements, shape.style)
    before, after = _moves(context, moe, x, summed.output)
    ops = list(before)
    if moe.shared is not None:
        ops += _shared_expert(context, moe, moe.shared, x)
        ops.append(model_norm("post_shared_norm", ops[-1].output, spec, shape))
    ops.append(model_norm("experts_norm", stream, spec, shape))
    ops += routed_experts(context, moe, ops[-1].output, scored=stream)
    ops.append(model_norm("post_experts_norm", ops[-1].output, spec, shape))
    return [*ops, summed, *after]


def _moves(context: BlockContext, moe: MoE, x: Tensor, y: Tensor) -> tuple[list[Operator], list[Operator]]:
    """The moves between the stream and matmuls cut over tp: before and after the mixture.

    Under sequence parallelism experts spread over devices take their tokens by all-to-all and leave them cut; only a
    shared expert, which is cut over tp, still needs them gathered and summed.
    """
    shape, d_model, shards = context.shape, context.spec.d_model, context.shape.shards
    _, gathered = as_stream("ffn.gather", x, d_model, shape)
    reduced = to_stream("ffn.reduce", y, d_model, shape)
    if not shards.sequence_parallel or moe.shared is not None:
        return gathered, [reduced]
    tp = where(shards.ep > 1, 1, shards.tp)
    whole = shape.tokens * d_model * shape.style.act
    return (
        [collective("ffn.gather", "all_gather", "tp", x, devices=tp, bytes=whole)],
        [collective("ffn.reduce", "reduce_scatter", "tp", y, devices=tp, bytes=whole)],
    )


def routed_experts(context: BlockContext, moe: MoE, x: Tensor, scored: Tensor | None = None) -> list[Operator]:
    """Router (on ``scored`` where that is not ``x``), dispatch, the experts' own matmuls, combine."""
    shape, shards, style = context.shape, context.shape.shards, context.shape.style
    d_model = _routed_width(context, moe)
    rows = routed_rows(context, moe, shards.expert_tp)
    local = ceil_div(moe.n_experts, shards.ep)
    width = ceil_div(moe.d_ff, shards.expert_tp)
    # tokens of every rank whose experts meet here
    seen = shape.tokens * maximum(1, shards.ep * shards.expert_tp / shards.tp)
    touched = local if _padded(context, moe) else experts_touched(moe, local, seen)
    dispatched = activation("moe.dispatched", rows * d_model, style)

    def grouped(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        return grouped_linear(
            name,
            of,
            rows=rows,
            n=n,
            k=k,
            experts=local,
            experts_read=touched,
            style=style,
            fmt=context.fmt(name, "moe_routed"),
            bias=moe.bias,
            bias_fmt=context.spec.dtype,
        )

    ops = router(context, moe, x if scored is None else scored)
    first = len(ops)
    if moe.d_latent:
        ops.append(_latent(context, "latent_in", x, moe.d_latent, context.spec.d_model))
        x = ops[-1].output
    ops += _exchange("moe.dispatch", context, moe, x, rows, into=True)
    ops.append(_permute(context, moe, dispatched, rows))
    ops.append(grouped("experts_up", dispatched, width * (2 if moe.gated else 1), d_model))
    up = ops[-1].output
    if moe.gated:
        activated = gate("experts_gate", up, up, moe.activation, elements=rows * width, style=style)
    else:
        activated = [activate("experts_act", moe.activation, up, elements=rows * width, style=style)]
    ops += [_one_by_one(op, moe, style, each=op.dims["passes"]) for op in activated]  # type: ignore[arg-type]
    ops.append(grouped("experts_down", ops[-1].output, d_model, width))
    ops.append(_combine(context, moe, ops[-1].output, rows))
    if not style.eager:
        ops = [*_fused_routing(context, moe, ops[:first], ops), *_fused_layer(ops[first:])]
    ops += _exchange("moe.collect", context, moe, ops[-1].output, rows, into=False)
    if moe.d_latent:
        ops.append(_latent(context, "latent_out", ops[-1].output, context.spec.d_model, moe.d_latent))
    return ops


def _fused_routing(context: BlockContext, moe: MoE, routing: list[Operator], layer: list[Operator]) -> list[Operator]:
    """The router's choice as the fused layer's own kernels."""
    up = next(op for op in layer if op.name == "experts_up")
    sizes = {"tokens": context.shape.stream_tokens, "experts": moe.n_experts}
    chosen = ("router.score", "router.softmax", "router.choose")
    return [_of_layer(op, up, "experts_route", sizes) if op.name in chosen else op for op in routing]


def _fused_layer(layer: list[Operator]) -> list[Operator]:
    """The kernels between the products of a fused layer, each of the family of the product that it serves: those that
    engines run as one chain and operator tables measure as a whole (TensorRT-LLM, vLLM)."""
    up, down = (next(op for op in layer if op.name == name) for name in ("experts_up", "experts_down"))
    serves = {
        "moe.permute": (up, 1), "experts_gate": (down, 1), "experts_act": (down, 1), "moe.combine": (down, 0)
    }  # fmt: skip
    return [
        _of_layer(op, serves[op.name][0], "experts_move", {"feeds": serves[op.name][1]}) if op.name in serves else op
        for op in layer
    ]


def _of_layer(op: Operator, product: Operator, kind: str, sizes: dict[str, Number]) -> Operator:
    bits = FORMATS[product.weights[0].fmt].bits
    return replace(op, kind=kind, rate=product.rate, dims={**op.dims, **sizes, "weight_bits": bits})


def _routed_width(context: BlockContext, moe: MoE) -> int:
    """Width of the tokens that routed experts read and write."""
    return moe.d_latent or context.spec.d_model


def _latent(context: BlockContext, name: str, x: Tensor, n: int, k: int) -> Operator:
    """A projection into or out of the latent space, shared by all routed experts."""
    return linear(
        name,
        x,
        tokens=context.shape.stream_tokens,
        n=n,
        k=k,
        style=context.shape.style,
        group="moe_shared",
        component="moe_shared",
        fmt=context.fmt(name, "moe_shared"),
    )


def router(context: BlockContext, moe: MoE, x: Tensor) -> list[Operator]:
    """Scores of every expert and the choice of top_k; scores are fp32 unless the softmax comes after the choice."""
    shape, style = context.shape, context.shape.style
    tokens, n = shape.stream_tokens, moe.n_experts
    scored = Tensor(f"{x.name}.fp32", x.elements, 4) if moe.router_fp32 and style.low_precision else x
    logits = linear(
        "router",
        scored,
        tokens=tokens,
        n=n,
        k=context.spec.d_model,
        style=style,
        group="moe_router",
        component="router",
        fmt=context.fmt("router", "moe_router"),
        bias=moe.router_bias,
        bias_fmt=context.spec.dtype,
    )
    if moe.router_noise:
        noise = Tensor("router.noise", x.elements, 4 if moe.router_fp32 else style.act)
        logits = replace(logits, saves=(*logits.saves, noise))
    if moe.router_scales:
        before = _router_scales(context, moe, x)
        return [*before, replace(logits, saves=(before[-1].output,)), *_choose(context, moe, logits)]
    return [logits, *_choose(context, moe, logits)]


def _router_scales(context: BlockContext, moe: MoE, x: Tensor) -> list[Operator]:
    """The router's own unscaled norm and learned vector; the scale of each expert is applied to chosen weights."""
    spec, shape, style = context.spec, context.shape, context.shape.style
    plain = spec.norm.model_copy(update={"weight": False})
    rows, width, fmt = shape.stream_tokens, spec.d_model, spec.dtype
    normed = apply_norm("router_norm", x, plain, rows=rows, width=width, shape=shape, fmt=fmt)
    out = activation("router.scaled", rows * width, style)
    scales = (
        Weight("router.scale", "moe_router", width, fmt=fmt),
        Weight("router.expert_scale", "moe_router", moe.n_experts, fmt=fmt),
    )
    kept = (normed.output, out) if style.eager else (normed.output,)
    scaled = pointwise(
        "router.scale", "pointwise", out, saves=kept, weights=scales, vector_flops=2 * rows * width, style=style
    )
    return [normed, scaled]


def _choose(context: BlockContext, moe: MoE, logits: Operator) -> list[Operator]:
    """From scores to the weights of the chosen experts."""
    shape, style = context.shape, context.shape.style
    tokens, n, k = shape.stream_tokens, moe.n_experts, moe.top_k
    index = Tensor("router.index", tokens * k, 8)
    if moe.router == "topk_softmax":
        weights = activation("router.weights", tokens * k, style)
        chosen = pointwise("router.choose", "pointwise", weights, saves=(index,), vector_flops=tokens * n, style=style)
        return [chosen, softmax("router.softmax", weights, weights, rows=tokens, width=k, style=style)]
    scores = Tensor("router.scores", tokens * n, 4)
    if moe.router == "softmax_topk":
        scoring = softmax("router.softmax", logits.output, scores, rows=tokens, width=n, style=style)
    else:
        work = 4 * tokens * n
        given = () if moe.router == "sigmoid" else (logits.output,)
        scoring = pointwise("router.score", "pointwise", scores, saves=(*given, scores), vector_flops=work, style=style)
    weights = Tensor("router.weights", tokens * k, 4)
    kept: tuple[Tensor, ...] = (index,)
    if moe.normalize_top_k:
        kept += (Tensor("router.weight_sum", tokens, 4), weights)
    if moe.router_scales:
        kept += (activation("router.chosen_scales", tokens * k, style), Tensor("router.unscaled", tokens * k, 4))
    if moe.n_groups > 1:
        kept += (Tensor("router.group_index", tokens * 2 * moe.n_groups, 8),)
    choosing = pointwise("router.choose", "pointwise", weights, saves=kept, vector_flops=tokens * n, style=style)
    return [scoring, choosing]


def _row_weights(moe: MoE, rows: Number, style: Style) -> Tensor:
    """One routing weight per routed row: fp32 when it was normalised in fp32."""
    wide = moe.router != "topk_softmax" and moe.normalize_top_k
    return Tensor("moe.row_weights", rows, 4 if wide else style.act)


def _permute(context: BlockContext, moe: MoE, dispatched: Tensor, rows: Number) -> Operator:
    """Rows sorted by expert; keeps the (expert slot, token) of every row, and what routing weights scale."""
    style = context.shape.style
    kept: tuple[Tensor, ...] = (Tensor("moe.index", 2 * rows, 8),)
    if moe.weigh_input:
        unscaled = activation("moe.unscaled", dispatched.elements, style)
        kept += (unscaled, _row_weights(moe, rows, style))
    made = pointwise("moe.permute", "pointwise", dispatched, saves=kept, vector_flops=0, style=style)
    # eager: a mask of who visits whom, then for each expert the rows that chose it, found and copied
    return _one_by_one(made, moe, style, each=2, before=6)


def _one_by_one(op: Operator, moe: MoE, style: Style, *, each: int, before: int = 0) -> Operator:
    """``op`` as eager torch runs it, in ``each`` kernels an expert (and some ``before``) of an expert's rows."""
    kernels = before + each * moe.n_experts
    return replace(op, dims={**op.dims, "passes": kernels}) if style.eager else op


def _combine(context: BlockContext, moe: MoE, x: Tensor, rows: Number) -> Operator:
    """Sum of the experts' outputs, by routing weight unless that scaled the input; keeps outputs and weights."""
    shape, style = context.shape, context.shape.style
    kept: tuple[Tensor, ...] = () if moe.weigh_input else (x, _row_weights(moe, rows, style))
    if style.eager and not moe.weigh_input:  # experts run one by one and add their outputs in place, kept too
        kept += (activation("moe.scattered", rows * _routed_width(context, moe), style),)
    out = activation("moe.out", shape.stream_tokens * _routed_width(context, moe), style)
    summed = pointwise(
        "moe.combine", "pointwise", out, saves=kept, vector_flops=2 * x.elements, style=style, inputs=moe.top_k
    )
    return _one_by_one(summed, moe, style, each=3, before=1)  # the rows' weights, their product, the addition


def _shared_gate(context: BlockContext, x: Tensor, y: Tensor) -> list[Operator]:
    """The sigmoid gate of a shared expert (Qwen-MoE)."""
    shape, style = context.shape, context.shape.style
    score = linear(
        "shared_gate",
        x,
        tokens=shape.tokens,
        n=1,
        k=context.spec.d_model,
        style=style,
        group="moe_shared",
        component="moe_shared",
        fmt=context.fmt("shared_gate", "moe_shared"),
    )
    opened = activation("shared_gate.sigmoid", shape.tokens, style)
    out = activation("shared_gate.scaled", shape.tokens * context.spec.d_model, style)
    scaled = pointwise("shared_gate.mul", "pointwise", out, saves=(opened, y), vector_flops=out.elements, style=style)
    return [score, scaled]


def _exchange(name: str, context: BlockContext, moe: MoE, x: Tensor, rows: Number, *, into: bool) -> list[Operator]:
    """Routed tokens to the devices that hold their experts, and back: an all-to-all over ep, then a gather over the
    devices that cut each expert (etp).

    Without sequence parallelism every rank of a tensor-parallel group holds all its tokens, so experts spread inside
    the group need no exchange: their partial outputs are summed with the stream.
    """
    shape, shards = context.shape, context.shape.shards
    act = _routed_width(context, moe) * shape.style.act
    sent = routed_rows(context, moe) * act
    # buffers of a fixed capacity are exchanged whole, whatever is in them
    tokens = ceil_div(shape.tokens, shards.tp)
    routed = Routed(tokens, moe.top_k, moe.n_experts, "dispatch" if into else "combine")
    passed = None if _padded(context, moe) else routed
    if not shards.sequence_parallel:
        devices = where(shards.ep * shards.expert_tp > shards.tp, shards.ep, 1)
        return [collective(name, "all_to_all", "ep", x, devices=devices, bytes=sent, routed=passed)]
    across = collective(name, "all_to_all", "ep", x, devices=shards.ep, bytes=sent, routed=passed)
    cut = where(shards.ep > 1, shards.expert_tp, 1)
    if into:
        return [across, collective(f"{name}.gather", "all_gather", "etp", x, devices=cut, bytes=rows * act)]
    return [collective(f"{name}.reduce", "reduce_scatter", "etp", x, devices=cut, bytes=rows * act), across]
