"""Low-rank adapters: what they add, what freezing saves; equality with torch is in tests/measure/test_models.py."""

from __future__ import annotations

import pytest

import tfsim
from tfsim.errors import InputError
from tfsim.models import load_model
from tfsim.models.counts import count, parameters
from tfsim.models.spec import Adapters, ModelSpec

RANK = 16


def tuned(*targets: str) -> ModelSpec:
    return load_model("llama-3.2-1b").model_copy(update={"adapters": Adapters(rank=RANK, targets=targets)})


def test_parameters_that_are_added() -> None:
    """A [rank, k] and B [n, rank] per layer and target (Hu et al. 2021, section 4.1)."""
    base, found = load_model("llama-3.2-1b"), tuned("q_proj", "v_proj")
    added = 16 * RANK * ((2048 + 2048) + (2048 + 512))
    assert parameters(found).total == parameters(base).total + added


def test_frozen_matrices_have_no_gradient_and_keep_no_input() -> None:
    tokens = 512
    base = count(load_model("llama-3.2-1b"), seq_len=tokens, phase="forward_backward")
    found = count(tuned("q_proj"), seq_len=tokens, phase="forward_backward")
    groups = base.parameters.by_group
    frozen, added = groups["attn"] + groups["ffn_dense"], 16 * RANK * (2048 + 2048)
    assert found.flops == base.flops - 2 * tokens * frozen + 6 * tokens * added
    assert found.saved_bytes < base.saved_bytes


def test_gradients_and_optimizer_states_of_what_is_learned_only() -> None:
    system = tfsim.load_system("dgx-h100")

    def memory(model: ModelSpec) -> dict[str, float]:
        plan = {"micro_batch": 1}
        held = tfsim.train(model, system, devices=1, seq_len=512, global_batch=1, plan=plan, precision="fp32").memory
        return {name: float(value) for name, value in held.items()}

    base, found = memory(load_model("llama-3.2-1b")), memory(tuned("q_proj"))
    embedding_and_norms = 128_256 * 2048 + 33 * 2048
    learned = embedding_and_norms + 16 * RANK * (2048 + 2048)
    assert found["gradients"] == 4 * learned and found["optimizer"] == 8 * learned
    assert found["weights"] - base["weights"] == 4 * 16 * RANK * (2048 + 2048)
    assert found["optimizer"] < base["optimizer"] / 4


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(InputError, match=r"adapters.targets.*'queries'"):
        count(tuned("queries"), seq_len=8)
