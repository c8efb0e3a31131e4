"""The gated delta rule (Yang et al. 2025) and the short causal convolution in front of it."""

from __future__ import annotations

from dataclasses import replace

from tfsim.operators.core import Operator, Style, Tensor, Weight, activation
from tfsim.operators.elementwise import activate
from tfsim.units import Number, ceil_div, where


def causal_conv(
    name: str,
    x: Tensor,
    *,
    batch: Number,
    seq_len: Number,
    channels: Number,
    kernel: int,
    stepwise: bool,
    group: str,
    component: str,
    style: Style,
    fmt: str,
    bias: bool = False,
) -> list[Operator]:
    """silu of a depthwise convolution over [batch, seq_len, channels], ``kernel`` taps each; keeps its input.

    ``stepwise``: a decode step. Eager torch pads both ends of the sequence (in a step it convolves the kept window and
    the new token), keeps the padding and applies silu to what it needs; the fused kernel (causal-conv1d) computes each
    token once with its silu, and in a step shifts its window of kernel - 1 inputs.
    """
    elements = batch * seq_len * channels
    positions = seq_len + ((1 if stepwise else kernel - 1) if style.eager else 0)
    out = activation(f"{name}.out", elements, style)
    weights: tuple[Weight, ...] = (Weight(f"{name}.weight", group, channels, kernel, fmt=fmt),)
    if bias:
        weights += (Weight(f"{name}.bias", group, channels, fmt=fmt, bias=True),)
    window = elements * (kernel - 1) if stepwise and not style.eager else 0
    convolved = Operator(
        name,
        "conv",
        component,
        out,
        dims={"elements": elements, "passes": 1},
        flops=2 * batch * positions * channels * kernel,
        vector_flops=2 * elements * kernel,
        read=(elements + window) * style.act,
        write=(elements + window) * style.act,
        weights=weights,
        saves=(x,),
        rate=style.dtype,
    )
    if style.eager:
        padded = activation(f"{name}.padded", batch * positions * channels, style)
        return [convolved, activate(f"{name}.silu", "silu", padded, elements=elements, style=style)]
    sizes: dict[str, Number] = {"on_chip": 1, "batch": batch, "length": seq_len, "channels": channels, "taps": kernel}
    dims = {**convolved.dims, **sizes, "stepwise": int(stepwise)}
    return [replace(convolved, dims=dims, vector_flops=(2 * kernel + 8) * elements)]


def delta_rule(
    qkv: Tensor,
    *,
    batch: Number,
    key_heads: Number,
    heads: Number,
    seq_len: Number,
    d_key: int,
    d_value: int,
    chunk: int,
    style: Style,
) -> Operator:
    """The chunked gated delta rule over [batch, heads, seq_len]: products inside each chunk of ``chunk`` tokens (padded
    to whole chunks), and one state update per chunk, each waiting for the one before.

    Matrix FLOPs per chunk and head: two chunk x chunk x d_key score products, three chunk x d_key x d_value products
    with the state, one chunk x chunk x d_value. The two triangular solves of the UT transform count as vector FLOPs.
    ``key_heads``: heads of q and k, which groups of the ``heads`` states share.
    """
    chunks = ceil_div(seq_len, chunk)
    many = batch * heads * chunks
    padded = many * chunk
    inside, state = chunk * chunk, d_key * d_value
    keys: Number = padded * where(chunks > 1, 8, 6)
    if not style.low_precision:
        # fp32 inputs that need no padding keep the layout they came in: products and loops copy what they read
        keys = where(padded == batch * heads * seq_len, 12 * padded - 2 * batch * heads * chunk, keys)
    out = activation("delta.out", batch * seq_len * heads * d_value, style)
    f32 = {
        # in fp32 and padded: q and k before and after their norms, the UT transform's keys, and both again, decayed,
        # where chunks follow each other; v, the transform's values and what each chunk corrects of them
        "keys": keys * d_key,
        "values": padded * 3 * d_value,
        "scores": many * inside * 5,
        "states": many * state,
        "gates": padded * 6,
    }
    kept = tuple(Tensor(f"delta.{name}", n, 4) for name, n in f32.items()) if style.eager else (qkv,)
    if not style.eager:
        kept += (out, Tensor("delta.states", many * state, 4))
    sizes: dict[str, Number] = {}
    if not style.eager:
        sizes = {"on_chip": 1, "batch": batch, "length": seq_len, "key_heads": key_heads, "heads": heads}
    moved = qkv.elements * style.act + (sum(t.bytes for t in kept) if style.eager else 2 * many * state * 4)
    return Operator(
        "delta_rule",
        "delta_rule",
        "ssm",
        out,
        dims={"rows": batch * heads, "chunks": chunks, "chunk": chunk, "d_key": d_key, "d_value": d_value, **sizes},
        flops=many * (4 * inside * d_key + 2 * inside * d_value + 6 * chunk * state),
        vector_flops=many * (inside * (d_key + d_value) + 8 * inside + 12 * chunk * (d_key + d_value) + 2 * state),
        read=moved,
        write=out.bytes,
        saves=kept,
        rate=style.dtype,
    )


def delta_step(
    qkv: Tensor, *, batch: Number, heads: Number, steps: Number, d_key: int, d_value: int, style: Style
) -> Operator:
    """``steps`` recurrent steps: decay, read, correct and read the fp32 state again, all elementwise."""
    state = batch * heads * d_key * d_value
    out = activation("delta.out", batch * steps * heads * d_value, style)
    return Operator(
        "delta_step",
        "state_step",
        "ssm",
        out,
        dims={"elements": state, "passes": steps},
        vector_flops=8 * state * steps,
        read=qkv.elements * style.act + state * 4 * steps,
        write=out.bytes + state * 4 * steps,
        saves=(qkv,),
        rate="fp32",
    )


def delta_rule_backward_flops(op: Operator) -> Number:
    """Twice the forward's products, less those that reach neither the zero first state nor the unused last one, plus
    the two outer products that the triangular solves' gradients need."""
    d = op.dims
    chunk, state = d["chunk"], d["d_key"] * d["d_value"]
    unused = 8 * chunk * state
    solves = 2 * d["chunks"] * chunk * chunk * (d["d_key"] + d["d_value"])
    return 2 * op.flops + d["rows"] * (solves - unused)
