"""S4 beside a plain torch layer of it: parameters, matrix FLOPs, bytes kept for the backward pass."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tfsim.models import load_model
from tfsim.models.counts import count
from tfsim.models.spec import DenseFFN, ModelSpec
from tfsim.models.spec.ssm import S4

VOCAB, WIDTH, INNER, STATES, BATCH = 64, 32, 128, 16, 2
# torch 2.13 (CPU), the layers below: (layers, length) -> parameters, matrix FLOPs, kept bytes
RUNS = {
    (1, 32): (13_792, 1_589_248, 292_996),
    (1, 64): (13_792, 3_178_496, 573_828),
    (2, 32): (25_472, 2_916_352, 552_196),
    (2, 64): (25_472, 5_832_704, 1_080_068),
}


def small(layers: int) -> ModelSpec:
    held = load_model("s4-wikitext103")
    block = held.blocks["layer"]
    assert isinstance(block.mixer, S4) and isinstance(block.ffn, DenseFFN)
    sizes = {
        "mixer": block.mixer.model_copy(update={"d_inner": WIDTH, "d_state": STATES}),
        "ffn": block.ffn.model_copy(update={"d_ff": INNER}),
    }
    changes = {"d_model": WIDTH, "vocab_size": VOCAB, "layers": f"layer*{layers}"}
    return held.model_copy(update={**changes, "blocks": {"layer": block.model_copy(update=sizes)}})


@pytest.mark.parametrize(("layers", "length"), RUNS)
def test_counts_equal_torch(layers: int, length: int) -> None:
    got = count(small(layers), batch=BATCH, seq_len=length, dtype="fp32")
    parameters, flops, kept = RUNS[layers, length]
    assert got.parameters.total == parameters and got.saved_bytes == kept
    # torch counts the kernel's sum over states as a (complex) matrix product; here it is vector work
    assert got.flops + layers * 2 * WIDTH * STATES // 2 * length == flops


@pytest.mark.parametrize(("layers", "length"), RUNS)
def test_torch_still_says_so(layers: int, length: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert torch_run(layers, length) == RUNS[layers, length]


def torch_run(layers: int, length: int) -> tuple[int, int, int]:
    """S4D (Gu et al. 2022, arXiv 2206.11893), its kernel convolved by FFT, GELU and a gated output, in a language model
    of pre-norm layers."""
    import torch
    from torch.nn import functional
    from torch.utils.flop_counter import FlopCounterMode

    weights: dict[str, Any] = {}

    def weight(name: str, *shape: int) -> Any:
        return weights.setdefault(name, torch.rand(*shape, requires_grad=True))

    def norm(name: str, x: Any) -> Any:
        return functional.layer_norm(x, (WIDTH,), weight(f"{name}.w", WIDTH), weight(f"{name}.b", WIDTH))

    def linear(name: str, x: Any, n: int, k: int) -> Any:
        return functional.linear(x, weight(f"{name}.w", n, k), weight(f"{name}.b", n))

    def s4(name: str, u: Any) -> Any:
        pairs = STATES // 2
        dt = weight(f"{name}.log_dt", WIDTH).exp()
        a = -weight(f"{name}.log_a_real", WIDTH, pairs).exp() + 1j * weight(f"{name}.a_imag", WIDTH, pairs)
        c = torch.view_as_complex(weight(f"{name}.c", WIDTH, pairs, 2))
        step = a * dt[:, None]
        c = c * (torch.exp(step) - 1.0) / a
        powers = torch.exp(step[..., None] * torch.arange(length))
        kernel = 2 * torch.einsum("hn,hnl->hl", c, powers).real
        x = u.transpose(1, 2)
        wide = 2 * length
        y = torch.fft.irfft(torch.fft.rfft(x, n=wide) * torch.fft.rfft(kernel, n=wide), n=wide)[..., :length]
        y = functional.gelu(y + x * weight(f"{name}.d", WIDTH)[:, None]).transpose(1, 2)
        return functional.glu(linear(f"{name}.out", y, 2 * WIDTH, WIDTH), dim=-1)

    ids = torch.randint(0, VOCAB, (BATCH, length))
    table = weight("table", VOCAB, WIDTH)
    kept: dict[int, Any] = {}

    def keep(t: Any) -> Any:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage()  # held, so that no address comes twice
        return t

    with FlopCounterMode(display=False) as flops, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        x = functional.embedding(ids, table)
        for i in range(layers):
            x = x + s4(f"{i}.s4", norm(f"{i}.norm", x))
            inner = functional.gelu(linear(f"{i}.up", norm(f"{i}.norm2", x), INNER, WIDTH))
            x = x + linear(f"{i}.down", inner, WIDTH, INNER)
        logits = functional.linear(norm("last", x), table).float().view(-1, VOCAB)
        labels = functional.pad(ids, (0, 1), value=-100)[:, 1:].contiguous().view(-1)
        functional.cross_entropy(logits, labels, ignore_index=-100)
    given = {t.untyped_storage().data_ptr() for t in (ids, *weights.values())}
    made = sum(storage.nbytes() for address, storage in kept.items() if address not in given)
    return sum(math.prod(w.shape) for w in weights.values()), flops.get_total_flops(), made
