"""Grok-1's kept bytes: a plain torch layer after the public code, and what the shared oracle's own code does otherwise.

No library has a class of Grok-1, so the oracle's rows come from code of its own. The layer below, with the differences
that ``Code`` lists, keeps the oracle's bytes; written as the public code is (github xai-org/grok-1, model.py: scores
capped at 30, the router in fp32), it keeps what tfsim says. Which line of the oracle's code keeps the routed tokens
once more is not known: gathering them twice is one that does.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.oracle import DATA
from tfsim.models.counts import count
from tfsim.models.huggingface import spec_from_config

torch = pytest.importorskip("torch", reason="torch is not installed")

HIDDEN, HEADS, KV_HEADS, WIDTH, EXPERTS, CHOSEN, FFN = 64, 4, 2, 16, 4, 2, 160


@dataclass(frozen=True)
class Code:
    """What tells the two codes apart."""

    capped: bool
    mask_kept: bool  # a boolean mask is filled in, and kept by each layer, where the public code uses a constant
    repeated: bool  # keys and values are repeated for the fused kernel
    router_fp32: bool
    copied: bool  # an expert's tokens are gathered twice, for its gate and for its other matrix


PUBLIC = Code(capped=True, mask_kept=False, repeated=False, router_fp32=True, copied=False)
ORACLE = Code(capped=False, mask_kept=True, repeated=True, router_fp32=False, copied=True)


def norm(x: Any, scale: Any) -> Any:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return (scale * normed).to(x.dtype)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def attention(x: Any, w: dict[str, Any], tables: Any, code: Code, fused: bool) -> Any:
    batch, length, _ = x.shape
    q, k, v = (
        (x @ w[name].T).view(batch, length, heads, WIDTH).transpose(1, 2)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    )
    q, k = turned(q, *tables), turned(k, *tables)
    if fused:
        if code.repeated:
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not code.repeated)
    else:
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        scores = (q @ k.transpose(2, 3)) * WIDTH**-0.5
        if code.capped:
            scores = 30.0 * torch.tanh(scores / 30.0)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -1e30) if code.mask_kept else scores + hidden.to(scores.dtype) * -1e30
        y = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
    return y.transpose(1, 2).reshape(batch, length, HEADS * WIDTH) @ w["o"].T


def experts(x: Any, w: dict[str, Any], code: Code) -> Any:
    rows = x.reshape(-1, HIDDEN)
    scored = rows.float() if code.router_fp32 else rows
    weight = w["router"].to(scored.dtype)
    shares, index = torch.softmax((scored @ weight.T).float(), -1).topk(CHOSEN, -1)
    shares = shares.to(x.dtype) if code.router_fp32 else shares
    out = torch.zeros_like(rows)
    for expert in range(EXPERTS):
        token, choice = torch.where(index == expert)
        given = rows[token]
        if code.copied:
            halves = w["up"][expert].chunk(2)
            gate, up = given @ halves[0].T, rows[token] @ halves[1].T
        else:
            gate, up = (given @ w["up"][expert].T).chunk(2, -1)
        made = (torch.nn.functional.gelu(gate, approximate="tanh") * up) @ w["down"][expert].T
        out.index_add_(0, token, (made * shares[token, choice, None]).to(x.dtype))
    return out.view_as(x)


def layer(x: Any, w: dict[str, Any], tables: Any, code: Code, fused: bool) -> Any:
    x = x + norm(attention(norm(x, w["n0"]), w, tables, code, fused), w["n1"])
    return x + norm(experts(norm(x, w["n2"]), w, code), w["n3"])


def weights(dtype: Any, code: Code) -> dict[str, Any]:
    sizes = {
        "q": (HEADS * WIDTH, HIDDEN), "k": (KV_HEADS * WIDTH, HIDDEN), "v": (KV_HEADS * WIDTH, HIDDEN),
        "o": (HIDDEN, HEADS * WIDTH), "router": (EXPERTS, HIDDEN), "up": (EXPERTS, 2 * FFN, HIDDEN),
        "down": (EXPERTS, HIDDEN, FFN), **{f"n{i}": (HIDDEN,) for i in range(4)},
    }  # fmt: skip
    made = {name: torch.randn(size, dtype=dtype).mul(0.1) for name, size in sizes.items()}
    made["router"] = made["router"].float() if code.router_fp32 else made["router"]  # kept so: no cast to count
    return {name: weight.requires_grad_() for name, weight in made.items()}


def kept(n_layers: int, length: int, dtype: Any, code: Code, fused: bool) -> dict[int, int]:
    """Storages that the graph of ``n_layers`` holds, less the weights: address -> bytes."""
    torch.manual_seed(0)
    stacks = [weights(dtype, code) for _ in range(n_layers)]
    own = {t.untyped_storage().data_ptr() for stack in stacks for t in stack.values()}
    angles = torch.arange(length)[:, None] * torch.ones(WIDTH)
    tables = (angles.cos().to(dtype), angles.sin().to(dtype))
    held: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        x = torch.randn(2, length, HIDDEN, dtype=dtype, requires_grad=True)
        for stack in stacks:
            x = layer(x, stack, tables, code, fused)
    storages = (t.untyped_storage() for t in held)
    return {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in own}


def per_layer(length: int, dtype: Any, code: Code, fused: bool) -> int:
    return sum(kept(3, length, dtype, code, fused).values()) - sum(kept(2, length, dtype, code, fused).values())


with (DATA / "activations.csv").open(newline="") as file:
    SLOPES = sorted(
        {
            (row["precision"], row["attn_impl"], int(row["seq"]), int(row["saved_act_bytes_per_layer"]))
            for row in csv.DictReader(file)
            if row["variant"] == "s-grok1" and row["checkpoint"] == "none"
        }
    )
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize(("precision", "attn_impl", "seq", "expected"), SLOPES)
def test_the_oracle_s_code_and_the_public_one(precision: str, attn_impl: str, seq: int, expected: int) -> None:
    fused = attn_impl == "sdpa"
    assert len(SLOPES) == 6
    assert per_layer(seq, TORCH[precision], ORACLE, fused) == expected
    config = json.loads((DATA / "configs.json").read_text())["small"]["s-grok1"]
    asked: dict[str, Any] = {
        "batch": 2, "seq_len": seq, "dtype": precision, "attention": "fused" if fused else "eager",
    }  # fmt: skip
    two, three = (count(spec_from_config(config[depth]), **asked).saved_bytes for depth in ("2", "3"))
    assert per_layer(seq, TORCH[precision], PUBLIC, fused) == three - two
