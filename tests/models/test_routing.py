"""Loads of experts against simulation, closed forms and what Switch Transformers say of capacity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfsim
from tfsim.models.experts import experts_touched
from tfsim.models.routing import pick_probabilities, routing
from tfsim.models.spec import Block, ModelSpec, MoE


def mixture(n_experts: int, top_k: int) -> MoE:
    return MoE(kind="moe", n_experts=n_experts, top_k=top_k, d_ff=64)


def drawn(n_experts: int, tokens: int, skew: float, rounds: int) -> np.ndarray:
    """Loads of top-1 routing, shape (rounds, n_experts)."""
    pick = pick_probabilities(n_experts, 1, skew)
    return np.random.default_rng(7).multinomial(tokens, pick / pick.sum(), size=rounds)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 300), k=st.integers(1, 300), skew=st.floats(0, 3) | st.floats(0, 1e9))
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
    "change",
    [
        {"tokens": 0},
        {"tokens": 1.5},
        {"skew": -1},
        {"skew": math.nan},
        {"capacity_factor": -0.5},
        {"capacity_factor": 0},
    ],
)
def test_bad_input(change: dict[str, float]) -> None:
    with pytest.raises(tfsim.InputError, match=next(iter(change))):
        routing(mixture(8, 2), **{"tokens": 64, **change})


@pytest.mark.parametrize(("n_experts", "top_k"), [(8, 1), (16, 2), (128, 8)])
def test_a_single_token_fills_an_expert(n_experts: int, top_k: int) -> None:
    found = routing(mixture(n_experts, top_k), 1)
    assert found.worst == pytest.approx(1)
    assert found.imbalance == pytest.approx(n_experts / top_k)


# A capacity in counts, memory and time


def with_capacity(name: str, factor: float | None) -> ModelSpec:
    """The model, its experts (an encoder's too) with this capacity factor."""

    def changed(block: Block) -> Block:
        if not isinstance(block.ffn, MoE):
            return block
        return block.model_copy(update={"ffn": block.ffn.model_copy(update={"capacity_factor": factor})})

    def stack(spec: ModelSpec) -> ModelSpec:
        blocks = {key: changed(block) for key, block in spec.blocks.items()}
        return spec.model_copy(update={"blocks": blocks, "encoder": spec.encoder and stack(spec.encoder)})

    return stack(tfsim.load_model(name))


@pytest.mark.parametrize("factor", [1.0, 1.25, 2.0])
def test_experts_run_buffers_of_their_capacity(factor: float) -> None:
    """Switch-Base with 8 experts: 8 x ceil(factor x 1001 / 8) rows where 1001 tokens are routed."""
    counts = [tfsim.count(with_capacity("switch-base-8", f), batch=1, seq_len=1001) for f in (None, factor)]
    experts = [found.flops_by_component["moe_experts"] for found in counts]
    rows = 8 * math.ceil(factor * 1001 / 8)
    assert experts[0] == 12 * 2 * 1001 * 2 * 768 * 3072
    assert experts[1] == 12 * 2 * rows * 2 * 768 * 3072
    assert counts[1].flops - experts[1] == counts[0].flops - experts[0]
    assert counts[0].parameters == counts[1].parameters


def test_a_capacity_costs_memory_traffic_and_time() -> None:
    """Mixtral with a buffer of twice the mean load: twice the experts' rows kept, and a longer step."""
    saved, moved, steps = [], [], []
    for factor in (None, 1.0, 2.0):
        model = with_capacity("mixtral-8x7b", factor)
        found = tfsim.count(model, batch=1, seq_len=4096, phase="forward_backward", style="fused")
        saved.append(found.saved_bytes)
        moved.append(found.bytes_moved)
        plan = {"tp": 2, "pp": 4, "ep": 8}
        system = tfsim.load_system("dgx-h100")
        steps.append(tfsim.train(model, system, devices=64, seq_len=4096, global_batch=256, plan=plan).step_time_s)
    assert saved[1] == saved[0] and steps[1] == pytest.approx(steps[0], rel=1e-3)  # 8192 copies fill 8 buffers evenly
    # dispatched 4096, two 14336-wide branches and their product, 4096 of output, in bf16; two indices, one weight a row
    row = 2 * (2 * 4096 + 3 * 14336) + 2 * 8 + 4
    assert saved[2] - saved[0] == 32 * 8192 * row
    assert moved[2] > moved[1] and steps[2] > 1.3 * steps[1]


def test_decode_steps_have_no_buffers() -> None:
    plain, padded = (
        tfsim.count(with_capacity("mixtral-8x7b", f), batch=3, past_len=100, phase="decode") for f in (None, 2.0)
    )
    assert plain.flops == padded.flops and plain.bytes_moved == padded.bytes_moved


def test_routing_drops_at_the_models_own_capacity() -> None:
    moe = mixture(64, 1)
    own = routing(moe.model_copy(update={"capacity_factor": 1.25}), 2_048)
    given_ = routing(moe, 2_048, capacity_factor=1.25)
    assert (own.capacity, own.dropped) == (given_.capacity, given_.dropped) and own.dropped > 0
