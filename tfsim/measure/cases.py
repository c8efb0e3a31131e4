"""What ``tfsim measure hardware`` runs: operations as models write them, and their sizes.

A case is a torch operation with its counts; ``make`` returns what one copy of it calls. Copies have weights of their
own, so that a chain of them reads its weights from memory as a model does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfsim.measure.backend import Backend

Made = tuple[Callable[..., Any], list[Any]]
"""A call and the tensors that it takes."""

PHASES = ("inference", "forward", "backward")


@dataclass(frozen=True)
class Case:
    """One operation at one size.

    ``kind``: the class of formulas that it is fitted with; ``name``: the operation; ``dims``: its sizes; ``phase``:
    "inference" (nothing recorded), "forward" (recorded for a gradient) or "backward". ``flops``: of matrices, forward;
    ``elements``: of the result; ``held``: bytes of its weights.
    """

    kind: str
    name: str
    phase: str
    dtype: str
    dims: Mapping[str, int]
    make: Callable[[Backend], Made] = field(compare=False)
    flops: int = 0
    elements: int = 0
    held: int = 0


def cases(where: Backend, dtypes: tuple[str, ...], *, quick: bool) -> list[Case]:
    """All cases for ``dtypes``, fp32 first; ``quick``: about a third of them."""
    found: list[Case] = []
    for dtype in dtypes:
        if where.device != "cpu":
            found += _large_linears(dtype, quick)
        found += [*_linears(dtype, quick), *_products(dtype, quick), *_attentions(dtype, quick)]
        if dtype == dtypes[0]:
            found += [*_elementwise(dtype, quick), *_lookups(dtype, quick), *_others(dtype, quick)]
    return found


_LINEARS = [(64, 64), (256, 256), (512, 128), (128, 512), (768, 768), (2048, 512), (512, 2048), (8192, 256), (1, 512)]
_ROWS = [1, 8, 64, 256, 1024, 4096]
_MOST_FLOPS = 8e9
# What a GPU needs to reach its peak: the sizes above last a few microseconds there, less than their dispatch. Rows,
# outputs, inputs.
_LARGE = [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 16384), (256, 8192, 8192)]


def _linears(dtype: str, quick: bool) -> Iterator[Case]:
    sizes, rows = (_LINEARS, _ROWS) if dtype == "fp32" else (_LINEARS[1:7:2], _ROWS[::2])
    if quick:
        sizes, rows = sizes[::2], rows[::2]
    for n, k in sizes:
        for m in rows:
            if 2 * m * n * k > _MOST_FLOPS * (1 if dtype == "fp32" else 0.1):
                continue
            for phase in PHASES if m <= 64 else PHASES[1:]:
                yield _linear_case(m, n, k, phase, dtype)


def _large_linears(dtype: str, quick: bool) -> Iterator[Case]:
    for m, n, k in _LARGE[:3] if quick else _LARGE:
        yield _linear_case(m, n, k, "inference", dtype)


def _linear_case(m: int, n: int, k: int, phase: str, dtype: str) -> Case:
    dims = {"m": m, "n": n, "k": k}
    make = _linear(m, n, k, dtype)
    return Case("matmul", "linear", phase, dtype, dims, make, 2 * m * n * k, m * n, 4 * n * k)


def _linear(m: int, n: int, k: int, dtype: str) -> Callable[[Backend], Made]:
    def make(where: Backend) -> Made:
        layer = where.torch.nn.Linear(k, n, device=where.device, dtype=where.dtype(dtype))
        return layer, [where.random(m, k, dtype=dtype)]

    return make


_PRODUCTS = [
    (4, 4, 4),
    (32, 32, 32),
    (64, 64, 64),
    (128, 128, 64),
    (128, 64, 128),
    (512, 512, 64),
    (1, 256, 64),
    (64, 1, 64),
]


def _products(dtype: str, quick: bool) -> Iterator[Case]:
    for m, n, k in _PRODUCTS[:: 2 if quick else 1]:
        for copies in (8, 64):
            for phase in PHASES[1:] if dtype == "fp32" else PHASES[1:2]:
                dims = {"copies": copies, "m": m, "n": n, "k": k}
                yield Case(
                    "batched_matmul", "matmul", phase, dtype, dims, _product(copies, m, n, k, dtype),
                    2 * copies * m * n * k, copies * m * n,
                )  # fmt: skip


def _product(copies: int, m: int, n: int, k: int, dtype: str) -> Callable[[Backend], Made]:
    def make(where: Backend) -> Made:
        inputs = [where.random(copies, m, k, dtype=dtype), where.random(copies, n, k, dtype=dtype)]
        return lambda a, b: where.torch.matmul(a, b.transpose(1, 2)), inputs

    return make


_ATTENTIONS = [  # batch, heads, queries, keys, width of a head
    (1, 2, 8, 8, 32), (8, 4, 64, 64, 32), (4, 8, 128, 128, 64), (2, 8, 256, 256, 64), (1, 8, 1024, 1024, 64),
    (4, 4, 512, 512, 32), (1, 8, 1, 256, 64), (8, 8, 1, 1024, 64),
]  # fmt: skip


def _attentions(dtype: str, quick: bool) -> Iterator[Case]:
    sizes = _ATTENTIONS if dtype == "fp32" else _ATTENTIONS[3:5]
    for sizes_ in sizes[:: 2 if quick else 1]:
        batch, heads, q, kv, width = sizes_
        dims = dict(zip(("batch", "heads", "q_len", "kv_len", "d_head"), sizes_, strict=True))
        pairs = batch * heads * q * kv
        for name in ("fused", "causal", "eager"):
            if name == "causal" and q == 1:
                continue
            for phase in PHASES[:1] if q == 1 else PHASES[1:] if q > 64 else PHASES:
                yield Case(
                    "attention", name, phase, dtype, dims, _attention(sizes_, name, dtype), 4 * pairs * width,
                    batch * heads * q * width,
                )  # fmt: skip


def _attention(sizes: tuple[int, ...], name: str, dtype: str) -> Callable[[Backend], Made]:
    """Heads split off a projection's result, attention, heads merged: with its views, as models have them."""
    batch, heads, q, kv, width = sizes

    def make(where: Backend) -> Made:
        torch = where.torch

        def call(query: Any, key: Any, value: Any) -> Any:
            split = [x.view(batch, -1, heads, width).transpose(1, 2) for x in (query, key, value)]
            if name == "eager":
                scores = split[0] @ split[1].transpose(-2, -1) * width**-0.5
                out = torch.softmax(scores, -1) @ split[2]
            else:
                out = torch.nn.functional.scaled_dot_product_attention(*split, is_causal=name == "causal")
            return out.transpose(1, 2).reshape(batch, q, heads * width)

        return call, [where.random(batch, n, heads * width, dtype=dtype) for n in (q, kv, kv)]

    return make


_POINTWISE = ("add", "mul", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "complex_exp", "copy", "transpose")
_ROWWISE = ("softmax", "layer_norm", "rms_norm", "cross_entropy", "mean")
_ELEMENTS = [(4, 64), (64, 256), (512, 512), (2048, 1024), (8192, 1024)]


def _elementwise(dtype: str, quick: bool) -> Iterator[Case]:
    for rows, columns in _ELEMENTS[:: 2 if quick else 1]:
        for name in (*_POINTWISE, *_ROWWISE):
            kind = "pointwise" if name in _POINTWISE else "rowwise"
            for phase in PHASES if rows <= 4 else PHASES[1:]:
                if phase == "backward" and name in ("copy", "sigmoid", "complex_exp", "transpose"):
                    continue
                yield Case(
                    kind, name, phase, dtype, {"rows": rows, "columns": columns}, _pointwise(name, rows, columns),
                    elements=rows * columns,
                )  # fmt: skip


def _pointwise(name: str, rows: int, columns: int) -> Callable[[Backend], Made]:
    def make(where: Backend) -> Made:
        torch = where.torch
        f = torch.nn.functional
        x = where.random(rows, columns)
        if name in ("add", "mul"):
            return getattr(torch, name), [x, where.random(rows, columns)]
        if name == "layer_norm":
            return torch.nn.LayerNorm(columns, device=where.device), [x]
        if name == "cross_entropy":
            labels = torch.randint(columns, (rows,), device=where.device)
            return lambda logits: f.cross_entropy(logits, labels), [x]
        if name == "rms_norm":  # as models write it: square, mean, add, rsqrt, two products
            weight = torch.nn.Parameter(torch.ones(columns, device=where.device))
            return lambda y, w: y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * w, [x, weight]
        if name == "complex_exp":
            return torch.exp, [torch.complex(x, x)]
        calls: dict[str, Callable[[Any], Any]] = {
            "relu": torch.relu,
            "sigmoid": torch.sigmoid,
            "gelu": f.gelu,
            "gelu_tanh": lambda y: f.gelu(y, approximate="tanh"),
            "silu": f.silu,
            "copy": lambda y: y.clone(),
            "transpose": lambda y: y.t().contiguous(),
            "softmax": lambda y: torch.softmax(y, -1),
            "mean": lambda y: y.mean(-1),
        }
        return calls[name], [x]

    return make


def _lookups(dtype: str, quick: bool) -> Iterator[Case]:
    for rows, columns, table in [(8, 64, 256), (128, 256, 8192), (2048, 256, 8192), (2048, 1024, 8192)]:
        dims = {"rows": rows, "columns": columns, "table": table}
        for phase in PHASES[1:]:
            yield Case(
                "embedding", "embedding", phase, dtype, dims, _embedding(rows, columns, table), elements=rows * columns,
                held=4 * table * columns,
            )  # fmt: skip
        yield Case(
            "embedding", "index_select", "inference", dtype, dims, _index(rows, columns, table),
            elements=rows * columns, held=4 * table * columns,
        )  # fmt: skip


def _embedding(rows: int, columns: int, table: int) -> Callable[[Backend], Made]:
    def make(where: Backend) -> Made:
        layer = where.torch.nn.Embedding(table, columns, device=where.device)
        return layer, [where.torch.randint(table, (rows,), device=where.device)]

    return make


def _index(rows: int, columns: int, table: int) -> Callable[[Backend], Made]:
    def make(where: Backend) -> Made:
        ids = where.torch.randint(table, (rows,), device=where.device)
        return lambda x: x[ids], [where.random(table, columns)]

    return make


def _others(dtype: str, quick: bool) -> Iterator[Case]:
    for batch, channels, length in [(1, 64, 64), (4, 256, 256), (4, 512, 1024)]:
        dims = {"batch": batch, "channels": channels, "length": length}
        for name in ("conv1d", "fft"):
            for phase in PHASES[1:]:
                yield Case(
                    name, name, phase, dtype, dims, _sequence(name, batch, channels, length),
                    elements=batch * channels * length,
                )  # fmt: skip
    for batch, side, width in [(1, 32, 64), (8, 64, 192)]:  # patches of 8 x 8
        dims = {"m": batch * (side // 8) ** 2, "n": width, "k": 3 * 64}
        for phase in PHASES[1:]:
            yield Case(
                "convolution", "patches", phase, dtype, dims, _patches(batch, side, width),
                2 * batch * side * side * 3 * width, batch * (side // 8) ** 2 * width, 4 * width * 192,
            )  # fmt: skip
    for name in ("adamw", "adamw_fused"):
        for tensors, elements in [(64, 256), (16, 65536), (8, 2**20)]:
            dims = {"tensors": tensors, "elements": elements}
            yield Case(
                "optimizer", name, "inference", dtype, dims, _adamw(name, tensors, elements),
                elements=tensors * elements, held=16 * tensors * elements,
            )  # fmt: skip


def _then(where: Backend, layer: Any, last: Callable[[Any], Any]) -> Any:
    """A module that runs ``layer`` and then ``last``."""

    class Then(where.torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return last(self.layer(x))

    return Then()


def _sequence(name: str, batch: int, channels: int, length: int) -> Callable[[Backend], Made]:
    """A depthwise causal convolution of 4 taps (Mamba), or a long one by FFT (S4)."""

    def make(where: Backend) -> Made:
        torch = where.torch
        x = where.random(batch, channels, length)
        if name == "conv1d":
            layer = torch.nn.Conv1d(channels, channels, 4, groups=channels, padding=3, device=where.device)
            return _then(where, layer, lambda y: y[..., :length]), [x]
        kernel = where.random(channels, length)

        def call(y: Any, taps: Any) -> Any:
            n = 2 * length
            return torch.fft.irfft(torch.fft.rfft(y, n) * torch.fft.rfft(taps, n), n)[..., :length]

        return call, [x, kernel]

    return make


def _patches(batch: int, side: int, width: int) -> Callable[[Backend], Made]:
    def make(where: Backend) -> Made:
        layer = where.torch.nn.Conv2d(3, width, 8, 8, device=where.device)
        return _then(where, layer, lambda y: y.flatten(2).transpose(1, 2)), [where.random(batch, 3, side, side)]

    return make


def _adamw(name: str, tensors: int, elements: int) -> Callable[[Backend], Made]:
    def make(where: Backend) -> Made:
        weights = [where.torch.nn.Parameter(where.random(elements)) for _ in range(tensors)]
        for weight in weights:
            weight.grad = where.random(elements)
        # what torch takes by default, and its one-kernel form
        optimizer = where.torch.optim.AdamW(weights, **({"fused": True} if name == "adamw_fused" else {}))
        return optimizer.step, []

    return make
