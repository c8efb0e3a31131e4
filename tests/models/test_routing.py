"""Loads of experts against simulation, closed forms and what Switch Transformers say of capacity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfsim
from tfsim.models.experts import experts_touched
from tfsim.models.routing import pick_probabilities, routing
from tfsim.models.spec import MoE


def mixture(n_experts: int, top_k: int) -> MoE:
    return MoE(kind="moe", n_experts=n_experts, top_k=top_k, d_ff=64)


def drawn(n_experts: int, tokens: int, skew: float, rounds: int) -> np.ndarray:
    """Loads of top-1 routing, shape (rounds, n_experts)."""
    pick = pick_probabilities(n_experts, 1, skew)
    return np.random.default_rng(7).multinomial(tokens, pick / pick.sum(), size=rounds)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 300), k=st.integers(1, 300), skew=st.floats(0, 3))
def test_picks_sum_to_top_k(n: int, k: int, skew: float) -> None:
    k = min(n, k)
    pick = pick_probabilities(n, k, skew)
    assert pick.sum() == pytest.approx(k)
    assert pick.max() <= 1 + 1e-12
    assert (np.diff(pick) <= 1e-12).all()


def test_uniform_routing_touches_what_the_closed_form_says() -> None:
    moe = mixture(256, 8)
    for tokens in (1, 4, 64, 4096):
        assert routing(moe, tokens).touched == pytest.approx(float(experts_touched(moe, 256, tokens)))
    assert routing(moe, 1).touched == pytest.approx(8)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("n_experts", "tokens"), [(8, 64), (64, 512), (128, 8192)])
def test_loads_match_simulation(n_experts: int, tokens: int, skew: float) -> None:
    found = routing(mixture(n_experts, 1), tokens, skew=skew, capacity_factor=1.25)
    loads = drawn(n_experts, tokens, skew, rounds=4000)
    assert found.mean == pytest.approx(loads.mean(axis=0), rel=0.1, abs=0.2)
    assert found.worst == pytest.approx(loads.max(axis=1).mean(), rel=0.03)
    assert found.touched == pytest.approx((loads > 0).sum(axis=1).mean(), rel=0.01)
    over = np.maximum(loads - found.capacity, 0).sum(axis=1).mean() / tokens
    assert found.dropped == pytest.approx(over, rel=0.05, abs=2e-4)


def test_top_2_worst_load_matches_simulation() -> None:
    """Mixtral's eight experts, two a token: taking them as independent costs little even here."""
    random = np.random.default_rng(3)
    worst = []
    for _ in range(1500):
        picks = np.argsort(random.random((256, 8)), axis=1)[:, :2]
        worst.append(np.bincount(picks.ravel(), minlength=8).max())
    assert routing(mixture(8, 2), 256).worst == pytest.approx(np.mean(worst), rel=0.02)


def test_switch_drops_little_at_its_capacity_factor() -> None:
    """Fedus et al. 2022, section 2.2: a capacity of ceil(factor tokens / experts); balanced loads drop below 1 %."""
    found = routing(mixture(64, 1), 65_536, capacity_factor=1.25)
    assert found.capacity == math.ceil(1.25 * 65_536 / 64)
    assert found.dropped < 0.01
    tighter = routing(mixture(64, 1), 65_536, capacity_factor=1.0)
    assert found.dropped < tighter.dropped < 0.02


def test_more_skew_and_fewer_tokens_are_less_even() -> None:
    moe = mixture(64, 4)
    imbalances = [routing(moe, 4096, skew=skew).imbalance for skew in (0, 0.3, 0.6, 1.0)]
    assert imbalances == sorted(imbalances)
    assert imbalances[0] > 1
    assert routing(moe, 256).imbalance > routing(moe, 65_536).imbalance
    assert routing(moe, 10**6).imbalance == pytest.approx(1, abs=0.02)


def test_a_real_model() -> None:
    model = tfsim.load_model("mixtral-8x7b")
    (moe,) = {block.ffn for block in model.blocks.values() if isinstance(block.ffn, MoE)}
    assert routing(moe, 4096).mean.tolist() == [1024.0] * 8


@pytest.mark.parametrize(
    "change", [{"tokens": 0}, {"tokens": 1.5}, {"skew": -1}, {"skew": math.nan}, {"capacity_factor": -0.5}]
)
def test_bad_input(change: dict[str, float]) -> None:
    with pytest.raises(tfsim.InputError, match=next(iter(change))):
        routing(mixture(8, 2), **{"tokens": 64, **change})


@pytest.mark.parametrize(("n_experts", "top_k"), [(8, 1), (16, 2), (128, 8)])
def test_a_single_token_fills_an_expert(n_experts: int, top_k: int) -> None:
    found = routing(mixture(n_experts, top_k), 1)
    assert found.worst == pytest.approx(1)
    assert found.imbalance == pytest.approx(n_experts / top_k)
