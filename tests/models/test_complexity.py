"""How work grows with length, one family beside the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfsim.models import load_model
from tfsim.models.counts import Counts, count


def growth(work: Callable[[int], float], n: int = 4096) -> float:
    """Work at 2 n over work at n."""
    return float(work(2 * n) / work(n))


def core(counts: Counts) -> float:
    return float(counts.flops_by_component["attn_core"])


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-8b", "bert-base", "deepseek-v3", "transformer-2017-base"])
def test_twice_the_sequence_is_four_times_the_attention(name: str) -> None:
    assert growth(lambda n: core(count(load_model(name), seq_len=n))) == pytest.approx(4)


@pytest.mark.parametrize("name", ["lstm-370m", "gru-ptb-medium", "mamba-370m", "mamba2-370m", "rwkv-4-169m"])
@pytest.mark.parametrize("phase", ["forward", "forward_backward"])
def test_twice_the_sequence_is_twice_the_recurrence(name: str, phase: str) -> None:
    """As the authors' kernels run: Mamba-2 in plain torch joins its chunks by a matrix of chunks x chunks."""
    work = growth(lambda n: float(count(load_model(name), seq_len=n, phase=phase, style="fused").flops))  # type: ignore[arg-type]
    assert work == pytest.approx(2, rel=1e-3)


def test_twice_the_residues_are_eight_times_the_triangles() -> None:
    model = load_model("alphafold2-evoformer")

    def work(name: str) -> Callable[[int], float]:
        return lambda n: next(
            float(op.flops) for _, _, op in count(model, seq_len=n, encoder_len=128).operators if op.name == name
        )

    for triangle in ("outgoing.triangle", "incoming.triangle", "starting.attention", "ending.attention"):
        assert growth(work(triangle), 256) == pytest.approx(8)
    for pairs in ("row.attention", "outer_product.outer", "pair_transition.up_proj"):
        assert growth(work(pairs), 256) == pytest.approx(4)


@pytest.mark.parametrize(
    ("name", "per_token"), [("llama-3.1-8b", 2.0), ("gpt2", 2.0), ("mamba-370m", 1.0), ("rwkv-4-169m", 1.0)]
)
def test_a_decoded_token_costs_what_lies_before_it_or_a_state(name: str, per_token: float) -> None:
    """O(context) with a KV cache, O(1) with a state; attention's own work, all the work of the others."""
    model = load_model(name)

    def step(n: int) -> float:
        counts = count(model, past_len=n, phase="decode")
        return core(counts) if per_token == 2 else float(counts.flops)

    assert growth(step, 2**16) == pytest.approx(per_token, rel=1e-4)


def test_a_decoded_token_without_a_cache_runs_the_whole_sequence_again() -> None:
    """O(context^2): the forward pass of all tokens, against one token's with a cache."""
    model = load_model("llama-3.1-8b")
    assert growth(lambda n: core(count(model, seq_len=n)), 2**16) == pytest.approx(4)
    again, cached = count(model, seq_len=2**16).flops, count(model, past_len=2**16 - 1, phase="decode").flops
    assert again == 2**16 * cached
