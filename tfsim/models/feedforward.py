"""Feed-forward networks: dense, gated, and sparse mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from tfsim.models.parts import BlockContext, as_stream, to_stream
from tfsim.models.spec import DenseFFN, MoE
from tfsim.operators.collectives import collective
from tfsim.operators.core import Operator, Style, Tensor, activation
from tfsim.operators.elementwise import activate, gate, pointwise
from tfsim.operators.matmul import grouped_linear, linear
from tfsim.units import Number, ceil_div, maximum, where


def feed_forward(context: BlockContext, x: Tensor) -> list[Operator]:
    """The FFN of a block applied to the (normalised) stream ``x``."""
    ffn = context.block.ffn
    if isinstance(ffn, MoE):
        return experts(context, ffn, x)
    x, gathered = as_stream("ffn.gather", x, context.spec.d_model, context.shape)
    ops = gathered + mlp(context, ffn, x, prefix="", group="ffn_dense", component="ffn")
    return [*ops, to_stream("ffn.reduce", ops[-1].output, context.spec.d_model, context.shape)]


def mlp(context: BlockContext, ffn: DenseFFN, x: Tensor, *, prefix: str, group: str, component: str) -> list[Operator]:
    """Two matrices around an activation, or three with a gate; widths are cut by tensor parallelism."""
    shape, d_model = context.shape, context.spec.d_model
    style, tokens = shape.style, shape.tokens
    width = ceil_div(ffn.d_ff, shape.shards.tp)

    def matrix(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        label = f"{prefix}{name}"
        return linear(
            label,
            of,
            tokens=tokens,
            n=n,
            k=k,
            style=style,
            group=group,
            component=component,
            fmt=context.fmt(label, group),
            bias=ffn.bias,
        )

    ops: list[Operator] = []
    if not ffn.gated:
        ops.append(matrix("up_proj", x, width, d_model))
        ops.append(activate(f"{prefix}act", ffn.activation, ops[0].output, elements=tokens * width, style=style))
    else:
        if ffn.fused_gate_up:
            ops.append(matrix("gate_up_proj", x, 2 * width, d_model))
        else:
            ops += [matrix("gate_proj", x, width, d_model), matrix("up_proj", x, width, d_model)]
        ops += gate(
            f"{prefix}gate", ops[0].output, ops[-1].output, ffn.activation, elements=tokens * width, style=style
        )
    ops.append(matrix("down_proj", ops[-1].output, d_model, width))
    return ops


def routed_rows(context: BlockContext, moe: MoE) -> Number:
    """Token copies one device's experts process when routing is even: tokens x top_k, over the devices that share them.

    The ranks of one tensor-parallel group hold the same tokens, so experts cut ``etp`` ways see tokens top_k etp / tp.
    """
    shards = context.shape.shards
    visits = moe.n_experts if context.shape.experts == "all" else moe.top_k
    return ceil_div(context.shape.tokens * visits * shards.expert_tp, shards.tp)


def experts_touched(rows: Number, experts: Number, top_k: Number, total_rows: Number, n_experts: Number) -> Number:
    """Expected number of a device's ``experts`` that receive at least one token under uniform routing:
    E (1 - (1 - k/E)^tokens), tokens = total_rows / top_k. All of them once tokens are many."""
    miss = (1 - top_k / n_experts) ** (total_rows / top_k)
    return experts * (1 - miss)


def experts(context: BlockContext, moe: MoE, x: Tensor) -> list[Operator]:
    """Router, dispatch, grouped matmuls, weighted combine, shared expert (Shazeer 2017; Dai 2024)."""
    shape, d_model, shards = context.shape, context.spec.d_model, context.shape.shards
    style = shape.style
    rows = routed_rows(context, moe)
    local = ceil_div(moe.n_experts, shards.ep)
    touched = experts_touched(
        rows,
        local,
        moe.top_k,
        shape.tokens * moe.top_k * maximum(1, shards.ep * shards.expert_tp / shards.tp),
        moe.n_experts,
    )
    width = ceil_div(moe.d_ff, shards.expert_tp)
    x, ops = as_stream("ffn.gather", x, d_model, shape)
    # with spread experts tokens travel by all-to-all instead of being gathered
    ops = [replace(op, comm=replace(op.comm, bytes=where(shards.ep > 1, 0, op.comm.bytes))) for op in ops if op.comm]
    ops += router(context, moe, x)
    ops.append(_exchange("moe.dispatch", context, moe, x))
    gathered = activation("moe.dispatched", rows * d_model, style)
    # (expert slot, token) of every row
    index = Tensor("moe.index", 2 * rows, 8)
    kept: tuple[Tensor, ...] = (index,)
    if moe.weigh_input:
        kept += (activation("moe.unscaled", rows * d_model, style), _row_weights(moe, rows, style))
    ops.append(pointwise("moe.permute", "pointwise", gathered, saves=kept, vector_flops=0, style=style))

    def grouped(name: str, of: Tensor, n: Number, k: Number) -> Operator:
        fmt = context.fmt(name, "moe_routed")
        return grouped_linear(
            name, of, rows=rows, n=n, k=k, experts=local, experts_read=touched, style=style, fmt=fmt, bias=moe.bias
        )

    up = grouped("experts_up", gathered, width * (2 if moe.gated else 1), d_model)
    ops.append(up)
    if moe.gated:
        ops += gate("experts_gate", up.output, up.output, moe.activation, elements=rows * width, style=style)
    else:
        ops.append(activate("experts_act", moe.activation, up.output, elements=rows * width, style=style))
    ops.append(grouped("experts_down", ops[-1].output, d_model, width))
    ops.append(_combine(context, moe, ops[-1].output, rows))
    ops.append(_exchange("moe.combine_exchange", context, moe, ops[-1].output))
    if moe.shared:
        shared = DenseFFN(d_ff=moe.shared.d_ff, activation=moe.activation, gated=moe.gated)
        ops += mlp(context, shared, x, prefix="shared_", group="moe_shared", component="moe_shared")
        if moe.shared.gate:
            ops += _shared_gate(context, x, ops[-1].output)
    reduce = to_stream("ffn.reduce", ops[-1].output, d_model, shape)
    return [*ops, reduce]


def router(context: BlockContext, moe: MoE, x: Tensor) -> list[Operator]:
    """Scores of every expert and the choice of top_k; routing weights are fp32 unless the scores are not."""
    shape, style = context.shape, context.shape.style
    tokens, n, k = shape.stream_tokens, moe.n_experts, moe.top_k
    scored = Tensor(f"{x.name}.fp32", x.elements, 4) if moe.router_fp32 and style.low_precision else x
    scores = linear(
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
    )
    chosen = Tensor("router.index", tokens * k, 8)
    kept: list[Tensor] = [chosen]
    if moe.router == "topk_softmax":
        kept.append(activation("router.weights", tokens * k, style))
    else:
        kept.append(Tensor("router.scores", tokens * n, 4))
        if moe.normalize_top_k:
            kept += [Tensor("router.weight_sum", tokens, 4), Tensor("router.weights", tokens * k, 4)]
    if moe.n_groups > 1:
        kept.append(Tensor("router.group_index", tokens * 2 * moe.n_groups, 8))
    out = Tensor("router.weights", tokens * k, 4)
    choose = pointwise("router.choose", "softmax", out, saves=tuple(kept), vector_flops=8 * tokens * n, style=style)
    return [scores, replace(choose, dims={"elements": tokens * n, "passes": 1}, read=tokens * n * 4)]


def _row_weights(moe: MoE, rows: Number, style: Style) -> Tensor:
    """One routing weight per routed row: fp32 when it was normalised in fp32."""
    wide = moe.router != "topk_softmax" and moe.normalize_top_k
    return Tensor("moe.row_weights", rows, 4 if wide else style.act)


def _combine(context: BlockContext, moe: MoE, x: Tensor, rows: Number) -> Operator:
    """Sum of the experts' outputs, by routing weight unless that scaled the input; keeps outputs and weights."""
    shape, style = context.shape, context.shape.style
    kept: tuple[Tensor, ...] = () if moe.weigh_input else (x, _row_weights(moe, rows, style))
    if style.eager and not moe.weigh_input:  # experts run one by one and add their outputs in place, kept too
        kept += (activation("moe.scattered", rows * context.spec.d_model, style),)
    out = activation("moe.out", shape.tokens * context.spec.d_model, style)
    op = pointwise("moe.combine", "pointwise", out, saves=kept, vector_flops=2 * x.elements, style=style)
    return replace(op, read=x.elements * style.act)


def _shared_gate(context: BlockContext, x: Tensor, y: Tensor) -> list[Operator]:
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
    return [
        score,
        pointwise("shared_gate.mul", "pointwise", out, saves=(opened, y), vector_flops=out.elements, style=style),
    ]


def _exchange(name: str, context: BlockContext, moe: MoE, x: Tensor) -> Operator:
    """All-to-all of routed tokens between the devices that share the experts.

    Experts spread only inside the tensor-parallel group see tokens all its ranks hold already, so nothing moves.
    """
    shape, shards = context.shape, context.shape.shards
    sent = ceil_div(shape.tokens * moe.top_k, shards.tp) * context.spec.d_model * shape.style.act
    spans = where(shards.ep * shards.expert_tp > shards.tp, shards.ep, 1)
    if shards.sequence_parallel:
        spans = shards.ep
    return collective(name, "all_to_all", "ep", x, devices=spans, bytes=sent)
