"""Linear attention: products inside chunks, a state between them (Katharopoulos et al. 2020; Qin et al. 2024)."""

from __future__ import annotations

from tfsim.operators.attention import chunk_area
from tfsim.operators.core import Operator, Style, Tensor, activation
from tfsim.units import Number, ceil_div, minimum, where


def linear_attention(
    qkv: Tensor, *, batch: Number, heads: Number, seq_len: Number, d_head: int, chunk: int, style: Style
) -> Operator:
    """(q k^T * decay) v inside each chunk of ``chunk`` tokens, plus q S of the state before it; S + k^T v after it.

    4 (c^2 + c d) d FLOPs for a chunk of c tokens in each head, so O(n); each chunk waits for the one before.

    ``eager`` is torch code that keeps what each chunk multiplies; ``fused`` the kernel of Lightning Attention-2 (Qin et
    al. 2024, Algorithms 1 and 2), which holds the state on chip and builds it again in its backward pass.
    """
    rows = batch * heads
    chunks = ceil_div(seq_len, chunk)
    first, last = minimum(seq_len, chunk), seq_len - (chunks - 1) * chunk
    inside, state = rows * chunk_area(seq_len, chunk), d_head * d_head
    wide = rows * seq_len * d_head
    out = activation("linear_attention.out", wide, style)
    saves: tuple[Tensor, ...] = (qkv,)
    moved: Number = 0
    sizes: dict[str, Number] = {}
    if not style.eager:
        sizes = {"on_chip": 1, "batch": batch, "length": seq_len, "heads": heads, "chunk": chunk}
    else:
        # queries, keys and (for both products) values are slices of one storage that a batched product has to copy,
        # unless there is one sequence; nothing needs the first chunk's decayed queries (its state is a constant) or
        # what only the unused last state needs
        used_last = rows * last * d_head
        copies = (
            Tensor("linear_attention.copies", where(batch > 1, 4 * wide - used_last, 3 * wide), style.act),
            activation("linear_attention.queries", wide - rows * first * d_head, style),
            activation("linear_attention.keys", wide - used_last, style),
            activation("linear_attention.scores", inside, style),
            activation("linear_attention.states", rows * chunks * state, style),
        )
        saves = copies
        moved = sum((t.bytes for t in copies), 0 * wide) + inside * style.act
    return Operator(
        "linear_attention",
        "linear_attention",
        "attn_core",
        out,
        dims={
            "rows": rows,
            "first": first,
            "last": last,
            "d_head": d_head,
            "passes": 12 * chunks if style.eager else 1,
            **sizes,
        },
        flops=4 * inside * d_head + 4 * rows * seq_len * state,
        vector_flops=inside + 4 * wide + rows * chunks * state,
        read=3 * wide * style.act + moved,
        write=out.bytes + moved,
        saves=saves,
        rate=style.dtype,
    )


def linear_step(qkv: Tensor, *, batch: Number, heads: Number, steps: Number, d_head: int, style: Style) -> Operator:
    """``steps`` recurrent steps: k^T v added to the fp32 state, which q multiplies."""
    state = batch * heads * d_head * d_head
    out = activation("linear_attention.out", batch * steps * heads * d_head, style)
    return Operator(
        "linear_step",
        "state_step",
        "attn_core",
        out,
        dims={"passes": steps},
        flops=4 * state * steps,
        vector_flops=2 * state * steps,
        read=qkv.elements * style.act + state * 4 * steps,
        write=out.bytes + state * 4 * steps,
        saves=(qkv,),
        rate=style.dtype,
    )


def linear_attention_backward_flops(op: Operator) -> Number:
    """Twice the forward's products, less the gradients of the zero first state and of the unused last one."""
    d = op.dims
    state = d["d_head"] * d["d_head"]
    return 2 * op.flops - d["rows"] * (2 * d["first"] + 4 * d["last"]) * state
