"""Memory-bound operators: norms, activations, rotary embedding, residuals, embeddings, loss.

Each has two forms. ``eager``: every torch operation is a kernel that reads and writes memory and keeps its own inputs;
``fused``: one kernel, keeping the least its backward pass needs.
"""

from __future__ import annotations

from dataclasses import replace

from tfsim.operators.core import Operator, Style, Tensor, Weight, activation, upcast
from tfsim.units import Number


def norm(
    name: str,
    x: Tensor,
    *,
    rows: Number,
    width: Number,
    style: Style,
    rms: bool,
    weight: bool = True,
    bias: bool = False,
    unit_offset: bool = False,
    upcasts: bool = True,
    late_cast: bool = False,
    one_kernel: bool = False,
    two_inputs: bool = False,
    power: bool = False,
    weight_copies: Number = 1,
    fmt: str = "bf16",
) -> Operator:
    """RMSNorm (Zhang and Sennrich 2019) or LayerNorm (Ba et al. 2016) over the last dimension of [rows, width].

    ``one_kernel``: torch has a fused kernel (LayerNorm), which keeps its input and two statistics a row. Otherwise
    eager torch keeps the fp32 input, the reciprocal norm and the normalised values, and LayerNorm its centred values;
    ``two_inputs`` the input as it came too (T5), ``power`` the mean square (Gemma-4). Norms of one tensor cast it each
    for itself.
    """
    elements = rows * width
    out = activation(f"{name}.out", elements, style)
    copied = upcasts and style.low_precision
    wide = replace(upcast(x, style), name=f"{name}.in") if copied else x
    statistic = 4 if upcasts else style.act
    scaled_wide = unit_offset or late_cast
    if style.eager and not one_kernel:
        normed = Tensor(f"{name}.normed", elements, 4 if scaled_wide else style.act)
        saves = [wide, Tensor(f"{name}.rstd", rows, statistic)]
        if not rms:
            # the variance and the scaling subtract the mean separately, and keep both results
            saves[:1] = [Tensor(f"{name}.{use}", elements, statistic) for use in ("centred", "recentred")]
        if two_inputs:
            saves.append(x)
        if power:
            saves.append(Tensor(f"{name}.mean_square", rows, statistic))
        if weight:
            saves.append(normed)
        if weight and (unit_offset or (scaled_wide and not rms and style.low_precision)):
            saves.append(Tensor(f"{name}.scale", width * weight_copies, 4))
        passes = 6
    else:
        # a LayerNorm called on an fp32 copy keeps that copy; a fused RMSNorm kernel casts inside
        kept = wide if (one_kernel and style.eager) else x
        saves = [kept, Tensor(f"{name}.rstd", rows, statistic if style.eager else 4)]
        if not rms:
            saves.append(Tensor(f"{name}.mean", rows, statistic if style.eager else 4))
        passes = 1
    weights: tuple[Weight, ...] = ()
    if weight:
        weights += (Weight(f"{name}.weight", "norm", width, copies=weight_copies, fmt=fmt),)
    if bias:
        weights += (Weight(f"{name}.bias", "norm", width, copies=weight_copies, fmt=fmt),)
    return pointwise(
        name, "norm", out, saves=tuple(saves), weights=weights, vector_flops=6 * elements, passes=passes, style=style,
        evaluates="norm" if passes == 1 else None,
    )  # fmt: skip


def pointwise(
    name: str,
    kind: str,
    out: Tensor,
    *,
    style: Style,
    saves: tuple[Tensor, ...] = (),
    weights: tuple[Weight, ...] = (),
    vector_flops: Number,
    passes: Number = 1,
    inputs: Number = 1,
    component: str = "other",
    evaluates: str | None = None,
) -> Operator:
    """An elementwise operator writing ``out``; ``passes`` kernels each read ``inputs`` tensors of its size and write
    one. ``evaluates``: a function (exp, tanh, erf, norm) evaluated once per element, counted under its name."""
    moved = out.elements * style.act * passes
    return Operator(
        name,
        kind,
        component,
        out,
        dims={"elements": out.elements, "passes": passes} | ({evaluates: out.elements} if evaluates else {}),
        vector_flops=vector_flops,
        read=moved * inputs,
        write=moved,
        weights=weights,
        saves=saves,
        rate=style.dtype,
    )


# What eager torch keeps for an activation function besides its input: further tensors of the same size. The unfused
# tanh formula of GPT-2 keeps tanh, 0.5 x and 1 + tanh; x * sigmoid(1.702 x) keeps the sigmoid.
_EXTRA_KEPT = {"gelu_new": 3, "quick_gelu": 1}
_EAGER_PASSES = {"gelu_new": 8, "quick_gelu": 3}
# The function of an activation that takes more than a few instructions: counted in dims, once per element.
_EVALUATES = {"gelu": "erf", "gelu_tanh": "tanh", "gelu_new": "tanh", "silu": "exp", "quick_gelu": "exp"}


def activate(name: str, function: str, x: Tensor, *, elements: Number, style: Style) -> Operator:
    """An elementwise activation function over ``elements`` values; x may be a slice of a larger storage."""
    out = activation(f"{name}.out", elements, style)
    if function == "relu":
        saves: tuple[Tensor, ...] = (out,)
    elif function == "relu2":
        saves = (activation(f"{name}.relu", elements, style),) if style.eager else (x,)
    else:
        extra = _EXTRA_KEPT.get(function, 0) if style.eager else 0
        saves = (x, *(activation(f"{name}.part{i}", elements, style) for i in range(extra)))
    passes = _EAGER_PASSES.get(function, 1) if style.eager else 1
    return pointwise(
        name, "pointwise", out, saves=saves, vector_flops=8 * elements, passes=passes, style=style,
        evaluates=_EVALUATES.get(function),
    )  # fmt: skip


def gate(name: str, gate_out: Tensor, up: Tensor, function: str, *, elements: Number, style: Style) -> list[Operator]:
    """act(gate) * up (Shazeer 2020). Eager keeps the activated gate as well; a fused kernel computes it again.

    ``limited_silu`` (DeepSeek-V4): both are clamped first, and kept so.
    ``clamped_swiglu`` (gpt-oss): clamp both, gate sigmoid(1.702 gate) (up + 1); eager keeps four more tensors.
    """
    out = activation(f"{name}.out", elements, style)
    if style.eager and function == "clamped_swiglu":
        parts = tuple(activation(f"{name}.{part}", elements, style) for part in ("clamp", "sigmoid", "up1", "glu"))
        kept = (gate_out, up, *parts)
        return [pointwise(name, "pointwise", out, saves=kept, vector_flops=14 * elements, passes=7, style=style)]
    if style.eager and function == "limited_silu":
        parts = tuple(activation(f"{name}.{part}", elements, style) for part in ("limited", "limited_up", "act"))
        kept = (gate_out, up, *parts)
        return [pointwise(name, "pointwise", out, saves=kept, vector_flops=11 * elements, passes=4, style=style)]
    if style.eager:
        act = activate(f"{name}.act", function, gate_out, elements=elements, style=style)
        product = pointwise(
            name, "pointwise", out, saves=(act.output, up), vector_flops=elements, inputs=2, style=style
        )
        return [act, product]
    return [pointwise(name, "pointwise", out, saves=(gate_out, up), vector_flops=9 * elements, inputs=2, style=style)]


def sigmoid_gate(name: str, gates: Tensor, y: Tensor, *, opened: Number, style: Style) -> Operator:
    """y * sigmoid(gates), ``opened`` gates in all; eager keeps the sigmoid, a fused kernel its input."""
    kept = activation(name, opened, style) if style.eager else gates
    out = activation(f"{name}d", y.elements, style)
    passes = 2 if style.eager else 1
    work = 5 * y.elements
    return pointwise(
        name, "pointwise", out, saves=(kept, y), vector_flops=work, inputs=2, passes=passes, style=style,
        evaluates="exp",
    )  # fmt: skip


def softmax(name: str, x: Tensor, out: Tensor, *, rows: Number, width: Number, style: Style) -> Operator:
    """Softmax over the last dimension of [rows, width] in fp32 (a router's scores); keeps its result."""
    read = rows * width * x.bytes_per_element
    return Operator(
        name,
        "softmax",
        "other",
        out,
        dims={"elements": rows * width, "passes": 1, "exp": rows * width},
        vector_flops=8 * rows * width,
        read=read,
        write=rows * width * 4,
        saves=(out,),
        rate=style.dtype,
    )


def rotary(name: str, x: Tensor, *, elements: Number, tables: tuple[Tensor, ...], style: Style) -> Operator:
    """x cos + rotate_half(x) sin; keeps only the tables, one copy for all layers."""
    out = activation(f"{name}.out", elements, style)
    passes = 5 if style.eager else 1
    return pointwise(name, "rotary", out, saves=tables, vector_flops=4 * elements, passes=passes, style=style)


def residual(name: str, elements: Number, style: Style, site: bool = False) -> Operator:
    """The addition to the residual stream; with dropout (``site``) the mask is kept, one byte an element."""
    out = activation(name, elements, style)
    saves = (Tensor(f"{name}.dropout_mask", elements, style.mask),) if site and style.dropout else ()
    return pointwise(name, "pointwise", out, saves=saves, vector_flops=elements, inputs=2, style=style)


def embedding(name: str, weight: Weight, *, tokens: Number, width: Number, style: Style, ids: Number = 0) -> Operator:
    """Gather of ``tokens`` rows; ``ids``: index elements the caller made itself (positions), kept as int64."""
    out = activation(f"{name}.out", tokens * width, style)
    saves = (Tensor(f"{name}.ids", ids, 8),)
    return Operator(
        name,
        "embedding",
        "other",
        out,
        dims={"elements": tokens * width, "passes": 1, "table": weight.elements},
        read=tokens * width * style.act,
        write=tokens * width * style.act,
        weights=(weight,),
        weights_read=0,
        saves=saves,
        rate=style.dtype,
    )


def cross_entropy(
    logits: Tensor, *, tokens: Number, vocab: Number, style: Style, own_labels: bool = True, fp32: bool = True
) -> Operator:
    """Mean negative log-likelihood: keeps log-probabilities, the divisor and labels the model made itself.

    A decoder shifts its input into labels (``own_labels``) and computes in ``fp32``; most other models are given
    labels and compute in the logits' dtype.
    """
    wide = 4 if fp32 else style.act
    probabilities = Tensor("loss.log_probabilities", tokens * vocab, wide)
    labels = (Tensor("loss.labels", tokens, 8),) if own_labels else ()
    passes = 3 if style.eager else 1
    return Operator(
        "loss",
        "cross_entropy",
        "other",
        Tensor("loss", 1, 4),
        dims={"elements": tokens * vocab, "passes": passes},
        vector_flops=5 * tokens * vocab,
        read=tokens * vocab * (style.act + 4 * (passes - 1)),
        write=tokens * vocab * 4 * passes,
        saves=(probabilities, *labels, Tensor("loss.divisor", 1, wide)),
        rate="fp32",
    )
