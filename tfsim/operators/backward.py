"""The backward pass, derived: one rule per operator kind, never written again per model.

FLOPs follow torch: a matmul's gradient is two matmuls of its size; eager attention four products for the forward's two;
fused attention five, for it computes the scores again (Dao et al. 2022, Algorithm 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tfsim.operators.attention_io import Traffic, flash_backward, lengths, standard_backward
from tfsim.operators.core import Operator, Style
from tfsim.operators.delta import delta_rule_backward_flops
from tfsim.operators.linear import linear_attention_backward_flops

Rule = Callable[[Operator, Style], list[Operator]]


def _matmul(op: Operator, style: Style) -> list[Operator]:
    m, n, k = op.dims["m"], op.dims["n"], op.dims["k"]
    x, y = m * k * style.act, m * n * style.act
    to_input = replace(
        op, name=f"{op.name}.dgrad", phase="backward", saves=(), read=y, write=x, dims={**op.dims, "n": k, "k": n}
    )
    # the weight gradient reads both activations and writes a tensor of the weight's size
    to_weight = replace(
        op,
        name=f"{op.name}.wgrad",
        phase="backward",
        saves=(),
        read=x + y,
        write=op.weight_bytes if op.weights_read is None else op.weights_read,
        weights=(),
        weights_read=None,
        dims=op.dims if op.kind == "grouped_matmul" else {**op.dims, "m": n, "n": k, "k": m},
    )
    return [to_input, to_weight]


def _attention(op: Operator, style: Style) -> list[Operator]:
    fused = "softmax_bytes" not in op.dims  # some attention has no fused kernel, whatever the style
    factor = 5 if fused else 4
    sizes = lengths(op.dims, style.act)
    if not fused:
        moved = standard_backward(sizes, softmax_bytes=op.dims["softmax_bytes"], dropout=style.dropout > 0)
    elif style.sram is not None:
        moved = flash_backward(sizes, sram=style.sram, version=style.flash)
    else:  # reads q, k, v, out and its gradient, writes three gradients
        moved = Traffic(2 * op.read + op.write, op.read)
    return [
        replace(
            op,
            name=f"{op.name}.backward",
            phase="backward",
            saves=(),
            weights=(),
            flops=op.flops * factor // 2 if isinstance(op.flops, int) else op.flops * factor / 2,
            vector_flops=2 * op.vector_flops,
            read=moved.read,
            write=moved.write,
        )
    ]


def _memory_bound(op: Operator, style: Style) -> list[Operator]:
    return [
        replace(
            op,
            name=f"{op.name}.backward",
            phase="backward",
            saves=(),
            weights=(),
            weights_read=0,
            vector_flops=2 * op.vector_flops,
            read=op.read + op.write,
            write=op.read,
        )
    ]


def _two_gradients(op: Operator, style: Style) -> list[Operator]:
    # two gradients, of the input and of the taps (of queries and of keys): each as many products as the forward
    return [replace(rule, flops=2 * op.flops) for rule in _memory_bound(op, style)]


def _delta_rule(op: Operator, style: Style) -> list[Operator]:
    flops = delta_rule_backward_flops(op)
    return [replace(rule, flops=flops) for rule in _memory_bound(op, style)]


def _linear_attention(op: Operator, style: Style) -> list[Operator]:
    flops = linear_attention_backward_flops(op)
    return [replace(rule, flops=flops) for rule in _memory_bound(op, style)]


def _product(op: Operator, style: Style) -> list[Operator]:
    # each factor's gradient is a product of the output's with the other factor: reads two matrices, writes one
    read, write = op.read / 2 + op.write, op.read / 2
    return [
        replace(op, name=f"{op.name}.{side}grad", phase="backward", saves=(), read=read, write=write) for side in "ab"
    ]


def _recurrent(op: Operator, style: Style) -> list[Operator]:
    # back through time: the first state is given, so its gradient is not computed; the weights' gradient waits for
    # nothing and takes all steps as one product
    m, n, k, steps = (op.dims[name] for name in ("m", "n", "k", "steps"))
    states, gates = m * steps * k * style.act, m * steps * n * style.act
    to_input = replace(
        op,
        name=f"{op.name}.dgrad",
        phase="backward",
        saves=(),
        flops=2 * m * n * k * (steps - 1),
        read=gates,
        write=states,
        dims={**op.dims, "n": k, "k": n},
    )
    to_weight = replace(
        op,
        name=f"{op.name}.wgrad",
        kind="matmul",
        phase="backward",
        saves=(),
        read=states + gates,
        write=op.weight_bytes,
        weights=(),
        weights_read=None,
        dims={"m": n, "n": k, "k": m * steps, "unrolled": steps},  # in how many products a loop in torch takes it
    )
    return [to_input, to_weight]


def _collective(op: Operator, style: Style) -> list[Operator]:
    assert op.comm is not None
    if op.comm.backward == "none":
        return []
    routed = None if op.comm.routed is None else op.comm.routed.gradient
    comm = replace(op.comm, kind=op.comm.backward, backward="none", routed=routed)
    return [replace(op, name=f"{op.name}.backward", phase="backward", comm=comm)]


def _linear(op: Operator, style: Style) -> list[Operator]:
    # an input that is data needs no gradient, a frozen matrix neither
    to_input, to_weight = _matmul(op, style)
    if op.weights and not op.weights[0].trained:
        return [to_input]
    gradients = [to_weight] if op.dims.get("data") else [to_input, to_weight]
    if style.eager and any(w.bias for w in op.weights):
        # a kernel of its own sums the output's gradient over rows; fused ones do so while they multiply
        m, n = op.dims["m"], op.dims["n"]
        gradients.append(
            replace(
                op,
                name=f"{op.name}.bgrad",
                kind="pointwise",
                phase="backward",
                saves=(),
                weights=(),
                weights_read=None,
                flops=0,
                vector_flops=m * n,
                read=m * n * style.act,
                write=n * style.act,
                dims={"elements": m * n, "passes": 1},
            )
        )
    return gradients


RULES: dict[str, Rule] = {
    "matmul": _linear,
    "grouped_matmul": _linear,
    "convolution": _linear,
    "batched_product": _product,
    "recurrent": _recurrent,
    "recurrent_cell": _memory_bound,
    "attention": _attention,
    "additive_scores": _two_gradients,
    "conv": _two_gradients,
    "delta_rule": _delta_rule,
    "linear_attention": _linear_attention,
    "stream_mix": _two_gradients,
    "scan": _two_gradients,
    "selective_scan": _two_gradients,
    "fourier_convolution": _two_gradients,
    "state_space_dual": _two_gradients,
    "norm": _memory_bound,
    "softmax": _memory_bound,
    "pointwise": _memory_bound,
    "experts_move": _memory_bound,
    "experts_route": _memory_bound,
    "rotary": _memory_bound,
    "embedding": _memory_bound,
    "cross_entropy": _memory_bound,
    "collective": _collective,
}


def backward(operators: Iterable[Operator], style: Style) -> list[Operator]:
    """The operators of the backward pass, last first. Raises KeyError for a kind without a rule (a defect)."""
    forward = list(operators)
    return [grad for op in reversed(forward) if op.trained for grad in RULES[op.kind](op, style)]


def recompute(operators: Iterable[Operator], mode: str) -> list[Operator]:
    """The forward operators that run again before the backward pass.

    ``full``: the whole block; ``selective``: core attention only (Korthikanti et al. 2022); ``none``: nothing.
    """
    if mode == "none":
        return []
    chosen = [op for op in operators if mode == "full" or op.kind == "attention"]
    return [replace(op, phase="recompute", saves=()) for op in chosen]
