"""Bytes kept with dropout 0.1: the oracle's rows of unfused torch, with and without checkpointing."""

from __future__ import annotations

from typing import Any

from tests import oracle, oracle_stacks
from tests.oracle_more import all_rows, number
from tfsim.models import load_model
from tfsim.models.counts import count

# Not among the rows: families with more sites of dropout than tfsim knows (T5's and BART's inside the FFN and after the
# last norm, layers of an RNN, AlphaFold's shared masks), and those not equal without dropout.
FAMILIES = "gpt2 gpt_neox bloom llama mistral mixtral qwen2 qwen3_moe gemma gemma3 jamba mamba rwkv bert vit"


def test_saved_bytes_with_dropout_are_equal() -> None:
    found = all_rows("dropout")
    assert len(found) == 144 and {row["family"] for row in found} == set(FAMILIES.split())
    for row in found:
        held = oracle.configurations()["small"]
        model = (oracle if row["variant"] in held else oracle_stacks).spec(row["variant"], row["layers"])
        got = count(
            model,
            batch=number(row["batch"]),
            seq_len=number(row["seq"] or row["seq_enc"]),
            dtype=row["precision"],
            attention="eager",
            dropout=0.1,
            recompute="full" if row["checkpoint"] == "per_layer" else "none",
        )
        assert got.saved_bytes == number(row["saved_act_bytes"]), row


def test_a_fused_mask_is_a_byte_an_element() -> None:
    """GPT-2: masks on the embeddings and on two additions a layer."""
    model, how = load_model("gpt2"), {"batch": 2, "seq_len": 64, "attention": "fused"}
    run: Any = [count(model, style="fused", dropout=rate, **how).saved_bytes for rate in (0.0, 0.1)]  # type: ignore[arg-type]
    assert run[1] - run[0] == (1 + 2 * 12) * 2 * 64 * 768
