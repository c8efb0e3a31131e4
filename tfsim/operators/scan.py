"""Recurrences over a state of constant size: Mamba's selective scan, Mamba-2's state space dual, RWKV's WKV.

``eager`` is the step-by-step or chunked torch code of transformers, which materialises and keeps every step's state;
``fused`` the authors' kernels, which hold the state in on-chip memory and compute it again in the backward pass.
"""

from __future__ import annotations

from tfsim.operators.core import Operator, Style, Tensor, Weight, activation
from tfsim.units import Number, ceil_div, log2

# tokens between two states that Mamba's kernel writes out for its backward pass (selective_scan_fwd_kernel.cuh)
_KERNEL_CHUNK = 2048


def selective_scan(
    u: Tensor,
    gate: Tensor,
    parameters: Tensor,
    *,
    batch: Number,
    seq_len: Number,
    channels: Number,
    d_state: Number,
    stepwise: bool,
    style: Style,
    fmt: str,
) -> Operator:
    """h_t = exp(dt A) h_{t-1} + dt B u_t, y_t = C h_t + D u_t, gated by silu(z) (Gu and Dao 2023, equation 2).

    ``u``: [batch, seq_len, channels]; ``gate``: storage that holds z; ``parameters``: storage of B and C.
    ``stepwise``: a decode step, which reads and writes the fp32 state. FLOPs: C h only, the one matrix product.
    """
    tokens = batch * seq_len
    wide, states, state = tokens * channels, tokens * channels * d_state, batch * channels * d_state
    out = activation("ssm.out", wide, style)
    matrix = channels * d_state
    if style.eager:
        saves = [u, gate, parameters]
        saves += [activation(f"ssm.{name}", wide, style) for name in ("dt_raw", "dt", "gate")]
        saves += [Tensor(f"ssm.{name}", matrix, 4) for name in ("A", "minus_A")]
        saves += [Tensor(f"ssm.{name}", states, 4) for name in ("discrete_A", "discrete_B")]
        # states before each step and after the last, in the pass's dtype; what a step multiplies is fp32
        saves += [activation("ssm.states", states + state, style), Tensor("ssm.unscaled", wide, 4)]
        if style.low_precision:
            saves += [
                Tensor("ssm.states.fp32", states - state, 4),
                Tensor("ssm.u.fp32", wide, 4),
                Tensor("ssm.B.fp32", tokens * d_state, 4),
            ]
        # a product, an addition and a read-out a step; of every channel and state an exponential, a softplus each
        passes: Number = 8 + 3 * seq_len
        moved = 8 * states * 4
        evaluated = states + 2 * wide
    else:
        pieces = ceil_div(seq_len, _KERNEL_CHUNK)
        saves = [gate, parameters, out, Tensor("ssm.pieces", 2 * pieces * state, 4)]
        passes, moved = seq_len if stepwise else 1, 0
        evaluated = states + wide
    carried = state * 4 * seq_len if stepwise else 0
    return Operator(
        "selective_scan",
        "scan" if style.eager else "state_step" if stepwise else "selective_scan",
        "ssm",
        out,
        dims={
            "elements": wide,
            "passes": passes,
            "batch": batch,
            "length": seq_len,
            "channels": channels,
            "d_state": d_state,
            "exp": evaluated,
        },
        flops=2 * states,
        vector_flops=9 * states + 12 * wide,
        read=3 * wide * style.act + parameters.bytes + moved / 2 + carried,
        write=out.bytes + moved / 2 + carried,
        weights=(Weight("A_log", "ssm", channels, d_state, fmt=fmt), Weight("D", "ssm", channels, fmt=fmt)),
        saves=tuple(saves),
        rate=style.dtype,
    )


def state_space_dual(
    xbc: Tensor,
    projected: Tensor,
    *,
    batch: Number,
    seq_len: Number,
    heads: Number,
    groups: Number,
    d_head: Number,
    d_state: Number,
    chunk: Number,
    stepwise: bool,
    halved: bool,
    style: Style,
    fmt: str,
) -> Operator:
    """Mamba-2's chunked form (Dao and Gu 2024, section 6): inside a chunk attention-like products with a decay mask,
    between chunks one state per head.

    ``xbc``: x, B and C after the convolution; ``projected``: storage that holds the step sizes. Torch pads to whole
    chunks, multiplies B and C per head and carries states by a matrix product of chunks x chunks; the kernel multiplies
    them per group, skips padding (``halved``: masked pairs too) and carries states elementwise.
    """
    tokens, width, state = batch * seq_len, heads * d_head, batch * heads * d_head * d_state
    chunks = ceil_div(seq_len, chunk)
    out = Tensor("ssm.out", tokens * width, 4 if style.eager else style.act)
    saves: tuple[Tensor, ...] = (projected, out)
    pairs: Number = 0
    moved: Number = 0
    sizes: dict[str, Number] = {}
    if stepwise:
        flops, passes = 2 * tokens * width * d_state, 12 * seq_len if style.eager else seq_len
    elif style.eager:
        padded = batch * chunks * chunk
        pairs = padded * chunk
        out = Tensor("ssm.out", padded * width, 4)
        flops = 2 * (pairs * heads * (d_state + d_head) + 2 * padded * width * d_state + (chunks + 1) ** 2 * state)
        # in low precision x, B and C are cast to fp32 before anything keeps them
        saves = (projected, *(() if style.low_precision else (xbc,)))
        saves += _dual_saves(batch, seq_len, heads, d_head, d_state, chunk, style)
        passes = 40
        moved = 8 * pairs * heads * 4 + 6 * padded * heads * (d_head + d_state) * 4 + 4 * (chunks + 1) * state * 4
    else:
        whole = seq_len // chunk
        rest = seq_len - whole * chunk
        square = whole * chunk * chunk + rest * rest
        pairs = batch * square
        # a query counts half of its own key where masked pairs are skipped
        inside = pairs * (groups * d_state + width) * (1 if halved else 2)
        flops, passes, moved = inside + 4 * tokens * width * d_state, 5, 4 * chunks * state * 4
        sizes = {
            "on_chip": 1, "batch": batch, "length": seq_len, "heads": heads, "groups": groups, "d_head": d_head,
            "d_state": d_state, "chunk": chunk,
        }  # fmt: skip
    carried = state * 4 * seq_len if stepwise else 0
    return Operator(
        "state_space_dual",
        "state_space_dual" if not stepwise else "scan" if style.eager else "state_step",
        "ssm",
        out,
        dims={"elements": out.elements, "passes": passes, **sizes},
        flops=flops,
        vector_flops=5 * pairs * heads + 8 * tokens * width + (4 * tokens * width * d_state if stepwise else 0),
        read=xbc.bytes + tokens * heads * style.act + moved / 2 + carried,
        write=out.bytes + moved / 2 + carried,
        weights=tuple(Weight(name, "ssm", heads, fmt=fmt) for name in ("A_log", "D", "dt_bias")),
        saves=saves,
        rate=style.dtype,
    )


def _dual_saves(
    batch: Number, seq_len: Number, heads: Number, d_head: Number, d_state: Number, chunk: Number, style: Style
) -> tuple[Tensor, ...]:
    """What the torch form keeps, in fp32 and padded to whole chunks."""
    tokens, chunks = batch * seq_len, ceil_div(seq_len, chunk)
    padded, state = batch * chunks * chunk, batch * heads * d_head * d_state
    sizes = {
        "A": 2 * heads,
        "dt": tokens * heads * (2 if style.low_precision else 1),
        "x": padded * heads * d_head * 4,
        "BC": padded * heads * d_state * 5,
        "decay": padded * heads * 2,
        "scores": padded * chunk * heads * 3,
        "states": state * (2 * chunks + 1),
        "chunk_decay": batch * heads * (chunks + 1) ** 2,
    }
    kept = [Tensor(f"ssm.{name}", elements, 4) for name, elements in sizes.items()]
    kept.append(activation("ssm.dt_raw", 2 * tokens * heads, style))
    kept.append(Tensor("ssm.masks", 2 * (chunk * chunk + (chunks + 1) ** 2), 1))
    if style.low_precision:
        kept.append(Tensor("ssm.x.fp32", tokens * heads * d_head, 4))
    return tuple(kept)


def wkv(
    key: Tensor,
    value: Tensor,
    *,
    batch: Number,
    seq_len: Number,
    channels: Number,
    stepwise: bool,
    style: Style,
    fmt: str,
) -> Operator:
    """RWKV-4's weighted sum (Peng et al. 2023, equations 14 to 18), in fp32 with a running maximum: no matrix product.

    Torch keeps eleven vectors of each step; the CUDA kernel keys, values and its output.
    """
    wide, state = batch * seq_len * channels, 3 * batch * channels
    out = activation("wkv.out", wide, style)
    if style.eager:
        steps = Tensor("wkv.steps", wide * (12 if style.low_precision else 11), 4)
        saves = (value, steps, activation("wkv.decay", channels, style)) + (() if style.low_precision else (key,))
        passes: Number = 22 * seq_len
    else:
        saves, passes = (key, value, out), 1
    carried = state * 4 * (seq_len if stepwise or style.eager else 0)
    return Operator(
        "wkv",
        "scan",
        "attn_core",
        out,
        dims={"elements": wide, "passes": passes},
        vector_flops=24 * wide,
        read=2 * wide * style.act + carried,
        write=wide * style.act + carried,
        weights=tuple(Weight(name, "attn", channels, fmt=fmt) for name in ("time_decay", "time_first")),
        saves=saves,
        rate=style.dtype,
    )


def fft_convolution(
    u: Tensor, *, batch: Number, seq_len: Number, channels: Number, pairs: int, style: Style, fmt: str
) -> Operator:
    """S4D's convolution with a kernel as long as the sequence: the kernel from its ``pairs`` of states per channel (a
    Vandermonde product), then the product of real FFTs of twice the length (Gu et al. 2022, section 2.4), in fp32.

    No matrix units take part: all work is vector work, 2.5 n log2 n a transform of length n.
    """
    wide, n = batch * channels * seq_len, 2 * seq_len
    half = channels * (seq_len + 1)
    out = activation("s4.out", wide, style)
    powers = channels * pairs * seq_len
    saves = [u, Tensor("s4.kernel_f", half, 8), Tensor("s4.u_f", batch * half, 8)]
    if style.eager:
        # step sizes, A and C in their steps to the kernel; what the transforms pad to twice the length
        states = Tensor("s4.states", channels * (1 + 11 * pairs), 4)
        padded = (Tensor("s4.kernel_padded", channels * n, 4), Tensor("s4.u_padded", batch * channels * n, 4))
        saves += [states, Tensor("s4.times", seq_len, 8), Tensor("s4.powers", powers, 8), *padded]
    transforms = (2 * batch + 1) * channels
    return Operator(
        "s4_convolution",
        "fourier_convolution",
        "ssm",
        out,
        dims={
            "elements": wide,
            "passes": 25 if style.eager else 4,
            "transforms": transforms,
            "length": seq_len,
            "cexp": powers,
        },
        vector_flops=transforms * 2.5 * n * log2(n) + 6 * batch * half + 14 * powers,
        read=u.bytes + 8 * (powers if style.eager else 0) + 8 * (2 * batch + 1) * half,
        write=out.bytes + 8 * (powers if style.eager else 0) + 8 * (2 * batch + 1) * half,
        weights=_s4_weights(channels, pairs, fmt),
        saves=tuple(saves),
        rate="fp32",
    )


def s4_step(
    u: Tensor, *, batch: Number, steps: Number, channels: Number, pairs: int, style: Style, fmt: str
) -> Operator:
    """S4D's recurrence: x = A x + B u, y = 2 Re(C x) + D u, over a complex state."""
    state = batch * channels * pairs
    out = activation("s4.out", batch * steps * channels, style)
    return Operator(
        "s4_step",
        "state_step",
        "ssm",
        out,
        dims={"elements": state, "passes": steps * (19 if style.eager else 1), "cexp": 2 * channels * pairs * steps},
        vector_flops=16 * state * steps,
        read=u.bytes + 8 * state * steps,
        write=out.bytes + 8 * state * steps,
        weights=_s4_weights(channels, pairs, fmt),
        saves=(u,),
        rate="fp32",
    )


def _s4_weights(channels: Number, pairs: int, fmt: str) -> tuple[Weight, ...]:
    """Step sizes and skips of the channels; A (real, imaginary) and C (complex) of each pair."""
    vectors = tuple(Weight(f"s4.{name}", "ssm", channels, fmt=fmt) for name in ("log_dt", "D"))
    return (
        *vectors,
        Weight("s4.log_A_real", "ssm", channels, pairs, fmt=fmt),
        Weight("s4.A_imag", "ssm", channels, pairs, fmt=fmt),
        Weight("s4.C", "ssm", channels, 2 * pairs, fmt=fmt),
    )
