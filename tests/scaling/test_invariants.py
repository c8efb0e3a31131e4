"""What holds whatever the coefficients: optimality, budgets, limits, conventions, arrays, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tfsim
from tfsim import scaling
from tfsim.errors import InputError
from tfsim.scaling import Law, optimal

BUDGETS = st.floats(17, 27).map(lambda x: 10**x)
LAWS = st.builds(
    lambda e, a, b, alpha, beta, gamma: Law(
        "any", "surface", {"E": e, "A": a, "B": b, "alpha": alpha, "beta": beta, "gamma": gamma}
    ),
    st.floats(0, 3),
    st.floats(10, 1e4),
    st.floats(10, 1e5),
    st.floats(0.1, 0.7),
    st.floats(0.1, 0.7),
    st.floats(0.3, 1.5),
)
PUBLISHED = st.sampled_from(
    [scaling.law(name) for name in scaling.list_laws() if scaling.law(name).form in ("surface", "gadre", "kaplan_nd")]
)


def slope(law: Law, n: float, compute: float, **facts: Any) -> float:
    """dL / d ln N along C = 6ND, by the loss itself."""
    curve = scaling.curve_of(law, **facts)
    h = 1e-4
    low, high = (float(curve.loss(n * k, compute / (6 * n * k))) for k in (1 - h, 1 + h))
    return (high - low) / (2 * h)


@settings(deadline=None)
@given(law=st.one_of(LAWS, PUBLISHED), compute=BUDGETS)
def test_surface_optimum(law: Law, compute: float) -> None:
    best = optimal(law, compute=compute)
    assume(best.parameters > 10 and best.tokens > 10)
    assert 6 * best.parameters * best.tokens == pytest.approx(compute, rel=1e-9)
    assert abs(slope(law, best.parameters, compute)) < 1e-5 * best.loss
    for factor in (0.5, 2.0):
        assert optimal(law, compute=compute, parameters=factor * best.parameters).loss >= best.loss
    more = optimal(law, compute=2 * compute)
    assert more.loss < best.loss and more.parameters > best.parameters and more.tokens > best.tokens
    assert all(point.extra_compute >= 0 and point.extra_loss >= 0 for point in best.bowl)


@settings(deadline=None)
@given(law=st.one_of(LAWS, PUBLISHED), compute=BUDGETS)
def test_every_way_to_ask_gives_the_same_optimum(law: Law, compute: float) -> None:
    best = optimal(law, compute=compute)
    assume(best.parameters > 10 and best.tokens > 10)
    again = [optimal(law, parameters=best.parameters), optimal(law, tokens=best.tokens)]
    if best.loss > law.coefficients.get("E", 0.0) * (1 + 1e-6):  # else the loss holds too few digits
        again.append(optimal(law, loss=best.loss))
    for other in again:
        assert other.parameters == pytest.approx(best.parameters, rel=1e-6)
        assert other.compute == pytest.approx(compute, rel=1e-6)


@settings(deadline=None)
@given(law=LAWS, compute=BUDGETS)
def test_extra_compute_of_the_bowl_reaches_the_same_loss(law: Law, compute: float) -> None:
    best = optimal(law, compute=compute)
    assume(best.parameters > 10 and best.tokens > 10)
    for point in best.bowl:
        if np.isfinite(point.extra_compute) and point.extra_compute < 1e3:
            paid = optimal(law, compute=compute * (1 + point.extra_compute), parameters=point.parameters)
            assert paid.loss == pytest.approx(best.loss, rel=1e-9)


@pytest.mark.parametrize("compute", [1e19, 1e22, 1e25])
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("ludziejewski-2025", {"experts": 16}),
        ("krajewski-2024-moe", {"granularity": 8}),
        ("kumar-2024", {"bits": 8}),
        ("kumar-2024", {"bits": (4, 8, 16)}),
        ("muennighoff-2023", {"unique_tokens": 1e10}),
    ],
)
def test_optimum_with_facts(name: str, facts: dict[str, Any], compute: float) -> None:
    best = optimal(name, compute=compute, **facts)
    assert 6 * best.parameters * best.tokens == pytest.approx(compute, rel=1e-9)
    assert abs(slope(best.law, best.parameters, compute, **facts)) < 1e-6


@pytest.mark.parametrize("compute", [1e19, 1e22, 1e25])
def test_sparse_optimum(compute: float) -> None:
    best = optimal("abnar-2025", compute=compute, sparsity=0.75)
    assert 6 * 0.25 * best.parameters * best.tokens == pytest.approx(compute, rel=1e-9)
    assert abs(slope(best.law, best.parameters, compute / 0.25, sparsity=0.75)) < 1e-6


def test_without_repeats_muennighoff_is_a_plain_surface() -> None:
    plain = optimal("muennighoff-2023", compute=1e22)
    endless = optimal("muennighoff-2023", compute=1e22, unique_tokens=1e15)
    assert (endless.parameters, endless.loss) == pytest.approx((plain.parameters, plain.loss), rel=1e-7)
    assert plain.epochs is None and endless.epochs == pytest.approx(plain.tokens / 1e15)
    short = optimal("muennighoff-2023", compute=1e22, unique_tokens=1e9)
    assert short.loss > plain.loss and short.epochs > 1


def test_repeats_are_worth_less_the_more_there_are() -> None:
    losses = [
        float(scaling.loss("muennighoff-2023", parameters=1e9, tokens=1e10 * k, unique_tokens=1e10))
        for k in (1, 2, 4, 40, 400)
    ]
    assert losses == sorted(losses, reverse=True)
    fresh = [float(scaling.loss("muennighoff-2023", parameters=1e9, tokens=1e10 * k)) for k in (1, 2, 4, 40, 400)]
    assert losses[0] == fresh[0] and all(a > b for a, b in zip(losses[1:], fresh[1:], strict=True))


@settings(deadline=None)
@given(compute=BUDGETS, served=st.floats(9, 14).map(lambda x: 10**x))
def test_serving(compute: float, served: float) -> None:
    law = scaling.law("besiroglu-2024")
    plain = optimal(law, compute=compute)
    none = optimal(law, compute=compute, served_tokens=0)
    assert none.parameters == pytest.approx(plain.parameters, rel=1e-9)
    at_loss = optimal(law, loss=plain.loss, served_tokens=0)
    assert at_loss.parameters == pytest.approx(plain.parameters, rel=1e-6)
    best = optimal(law, compute=compute, served_tokens=served)
    assert best.compute + best.served_compute == pytest.approx(compute, rel=1e-6)
    assert best.parameters < plain.parameters and best.loss > plain.loss
    by_n, by_d = scaling.curve_of(law).slopes(best.parameters, best.tokens)
    assert by_n / by_d == pytest.approx(1 + served / (3 * best.tokens), rel=1e-6)
    # the smallest bill at the loss reached is the bill we started with
    back = optimal(law, loss=best.loss, served_tokens=served)
    assert back.parameters == pytest.approx(best.parameters, rel=1e-4)


def test_dear_serving_wants_a_smaller_model() -> None:
    cheap, dear = (optimal(loss=2.1, served_tokens=1e12, serving_weight=w).parameters for w in (0.1, 1.0))
    assert dear < cheap < optimal(loss=2.1).parameters


def test_exact_flops_of_6n_are_6nd() -> None:
    plain = optimal(compute=1e22)
    exact = optimal(compute=1e22, c_means="exact", flops_per_token=lambda n: 6 * n)
    assert exact.parameters == pytest.approx(plain.parameters, rel=1e-6)


def test_attention_flops_of_small_models_want_more_parameters() -> None:
    """A fixed cost per layer makes small models dear: the optimum moves up in N."""

    def per_token(n: Any) -> Any:
        return 6 * n + 3e4 * n ** (2 / 3)

    best = optimal(compute=1e19, c_means="exact", flops_per_token=per_token)
    assert per_token(best.parameters) * best.tokens == pytest.approx(1e19, rel=1e-9)
    losses = [
        float(scaling.loss(parameters=best.parameters * k, tokens=1e19 / per_token(best.parameters * k)))
        for k in (0.9, 1.0, 1.1)
    ]
    assert min(losses) == losses[1]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("muennighoff-2023", {"unique_tokens": 1e9}),
        ("abnar-2025", {"sparsity": 0.9}),
        ("refit-240", {"served_tokens": 1e11}),
        ("refit-240", {"c_means": "exact", "flops_per_token": lambda n: 6 * n + 3e4 * n ** (2 / 3)}),
    ],
)
def test_bowl_of_every_budget(name: str, facts: dict[str, Any]) -> None:
    best = optimal(name, compute=1e21, **facts)
    assert [point.factor for point in best.bowl] == [0.5, 0.7, 1.5, 2.0]
    assert all(point.extra_loss > 0 and point.extra_compute > 0 for point in best.bowl)
    # the extra budget is what brings that model to the best loss
    curve_facts = {k: v for k, v in facts.items() if k in ("unique_tokens", "sparsity")}
    curve = scaling.curve_of(best.law, **curve_facts)
    for point in best.bowl:
        needed = curve.tokens_of_loss(point.parameters, best.loss)
        if np.isfinite(needed):
            assert curve.loss(point.parameters, needed) == pytest.approx(best.loss, rel=1e-9)


def test_one_expert_is_the_start_of_both_laws() -> None:
    from tfsim.scaling.laws import effective_experts

    assert effective_experts(1, 2.0732, 290.4521) == pytest.approx(2.0732, rel=1e-12)
    assert effective_experts(1e12, 2.0732, 290.4521) == pytest.approx(290.4521, rel=1e-6)
    assert scaling.effective_parameters(parameters=1e8, experts=1) == pytest.approx(1e8, rel=1e-9)


def test_full_precision_is_the_plain_surface() -> None:
    full = optimal("kumar-2024", compute=1e21, bits=1000)
    k = full.law.coefficients
    plain = optimal(Law("plain", "surface", {x: k[x] for x in ("E", "A", "B", "alpha", "beta")}), compute=1e21)
    assert full.parameters == pytest.approx(plain.parameters)
    assert optimal("kumar-2024", compute=1e21, bits=4).loss > full.loss


def test_arrays_are_scalars_in_a_row() -> None:
    budgets = np.array([1e20, 1e22, 1e24])
    for name, facts in (
        ("refit-240", {}),
        ("llama-3", {}),
        ("muennighoff-2023", {"unique_tokens": 1e10}),
        ("abnar-2025", {"sparsity": 0.5}),
        ("refit-240", {"served_tokens": 1e12}),
    ):
        together = optimal(name, compute=budgets, **facts)  # type: ignore[arg-type]
        apart = [optimal(name, compute=c, **facts) for c in budgets]  # type: ignore[arg-type]
        assert together.parameters == pytest.approx([a.parameters for a in apart], rel=1e-9)
        assert together.tokens == pytest.approx([a.tokens for a in apart], rel=1e-9)
    surface = optimal("ludziejewski-2025", compute=1e22, experts=[1, 8, 32])
    assert np.shape(surface.parameters) == (3,)


def test_laws_state_what_they_count() -> None:
    assert scaling.list_laws()[0] == scaling.DEFAULT
    for name in scaling.list_laws():
        law = scaling.law(name)
        assert law.title and law.source and law.d and law.loss, name
        assert set(law.standard_errors) <= {*law.coefficients, "a"}, name
        assert all(low < high for low, high in law.fitted.values()), name


def test_every_law_can_be_used() -> None:
    """Each form has a function, and each law goes through it."""
    facts: dict[str, Any] = {"granularity": 4, "experts": 8, "sparsity": 0.5, "bits": 8}
    from tfsim.scaling.laws import CURVES, FORMS, TRACKS

    for name in scaling.list_laws():
        law = scaling.law(name)
        own = {fact: facts[fact] for fact in FORMS[law.form].facts if fact in facts}
        if law.form in (*CURVES, *TRACKS):
            best = optimal(law, compute=1e21, **own)
            assert 1e8 < best.parameters < 1e12, name
            assert best.convention == law.convention
        elif law.form == "single":
            assert 0 < scaling.single_loss(law, 1e3) < 100, name
        elif law.form == "recipe":
            given = {k: 1e9 for k in law.coefficients if k not in ("scale", "unit")}
            assert scaling.recipe(law, **given) > 0, name
    assert 2 < scaling.steps_loss(parameters=1e9, steps=1e5) < 3
    assert 1.5 < scaling.routed_loss(parameters=1e9, experts=64) < 3
    assert 0.3 < scaling.downstream_error("gadre-2024-c4", 2.5) < 0.76
    assert 0 < scaling.quantization_loss(parameters=1e9, tokens=1e11, bits=4) < 0.1
    assert np.isfinite(scaling.vocabulary_loss(parameters=1e9, vocabulary_parameters=1e8, characters=1e11))


def test_critical_batch_trades_time_for_compute() -> None:
    critical = scaling.critical_batch(3.0)
    assert critical == pytest.approx(2.1e8 / 3 ** (1 / 0.21))
    assert scaling.fewest_steps(1000, batch=critical, critical=critical) == pytest.approx(500)
    assert scaling.least_compute(1e20, batch=critical, critical=critical) == pytest.approx(0.5e20)


def test_parameters_convert_there_and_back() -> None:
    parts = {"embedding": 1e8, "head": 2e8, "idle": 5e9}
    for have in scaling.PARAMETER_COUNTS:
        for want in scaling.PARAMETER_COUNTS:
            there = scaling.convert_parameters(7e9, have=have, want=want, **parts)  # type: ignore[arg-type]
            assert scaling.convert_parameters(there, have=want, want=have, **parts) == pytest.approx(7e9)  # type: ignore[arg-type]
    assert scaling.convert_parameters(7e9, have="total", want="active_non_embedding", **parts) == 1.7e9  # type: ignore[arg-type]
    assert scaling.convert_parameters(1e9, have="non_embedding", want="with_head", head=3e7) == 1.03e9
    with pytest.raises(InputError, match="embedding: needed to go from total to with_head"):
        scaling.convert_parameters(1e9, have="total", want="with_head")
    with pytest.raises(InputError, match="below 1"):
        scaling.convert_parameters(1e6, have="total", want="non_embedding", embedding=1e7, head=0)


def test_compute_converts() -> None:
    assert scaling.convert_compute(6e21, have_per_token=6e9, want_per_token=7e9) == pytest.approx(7e21)
    assert scaling.flops_from_pf_days(2) == 2 * scaling.PF_DAY
    assert scaling.pf_days_from_flops(scaling.PF_DAY) == 1
    assert scaling.deepseek_flops_per_token(layers=30, width=4096, length=4096) == 72 * 30 * 4096**2 + 12 * 30 * 4096**2
    assert scaling.total_from_non_embedding(1e9) == pytest.approx(1e9 + 47491e3)


def test_queries_far_from_the_data_are_flagged() -> None:
    assert optimal(compute=1e21).warnings == ()
    far = optimal(compute=5.76e23).warnings
    assert any("44.4x above the fitted range" in line for line in far)
    assert any("below" in line for line in optimal(compute=1e16).warnings)
    assert "the fitted range is not known" in optimal("chinchilla-1", compute=1e21).warnings


def test_laws_side_by_side() -> None:
    comparison = scaling.compare_laws(1e21)
    assert comparison.default.law.name == "refit-240"
    names = [answer.law.name for answer in comparison.others]
    assert len(names) == len(set(names)) > 40 and "refit-240" not in names
    assert comparison.left_out["deepseek-2024"] == "counts C as m_times_d"
    assert comparison.left_out["kumar-2024"] == "needs bits"
    assert "DNA" in comparison.left_out["evo-2024-mamba"].upper()
    kaplan = next(answer for answer in comparison.others if answer.law.name == "kaplan")
    assert kaplan.total_parameters > kaplan.parameters
    exact = scaling.compare_laws(1e21, default="transformer-2025-ctx8192", c_means="exact")
    assert {answer.law.c for answer in exact.others} == {"exact"}
    own = Law("mine", "surface", {"E": 1.8, "A": 400, "B": 2000, "alpha": 0.34, "beta": 0.37})
    assert scaling.compare_laws(1e21, default=own).default.law is own


REFUSED: list[tuple[str, Any]] = [
    ("did you mean", lambda: scaling.law("chinchila-3")),
    ("neither a name, nor a path, nor a Law", lambda: optimal(3, compute=1e21)),
    ("give one of compute", lambda: optimal()),
    ("give one of compute", lambda: optimal(compute=1e21, loss=2.0)),
    ("compute: 0 is below 1", lambda: optimal(compute=0)),
    ("not a finite number", lambda: optimal(compute=float("nan"))),
    ("implausibly large", lambda: optimal(compute=1e60)),
    ("convert_parameters", lambda: optimal("kaplan", compute=1e21, n_means="total")),
    ("convert_compute", lambda: optimal("deepseek-2024", compute=1e21, c_means="6nd")),
    ("convert_parameters", lambda: scaling.loss(parameters=1e9, tokens=1e10, n_means="non_embedding")),
    ("no budget of 1 to 1e", lambda: optimal(loss=1e6)),
    ("no budget of 1 to 1e", lambda: optimal(loss=1.8172181)),
    ("takes the whole budget", lambda: optimal(compute=1e15, served_tokens=1e15)),
    ("do not broadcast", lambda: optimal("ludziejewski-2025", compute=[1e20, 1e21], experts=[1, 2, 4])),
    ("do not broadcast", lambda: scaling.loss(parameters=[1e9, 2e9], tokens=[1e9, 1e9, 1e9])),
    ("floor E", lambda: optimal(loss=1.5)),
    ("experts: law refit-240 does not depend", lambda: optimal(compute=1e21, experts=8)),
    ("experts: law ludziejewski-2025 needs it", lambda: optimal("ludziejewski-2025", compute=1e21)),
    ("unique_tokens: law refit-240", lambda: optimal(compute=1e21, unique_tokens=1e10)),
    ("gives no loss", lambda: optimal("llama-3", compute=1e21, served_tokens=1e12)),
    ("gives no loss", lambda: scaling.loss("llama-3", parameters=1e9, tokens=1e10)),
    ("gives no allocation", lambda: optimal("zhai-2022-finetune", compute=1e21)),
    ("not together", lambda: optimal("muennighoff-2023", compute=1e21, unique_tokens=1e9, served_tokens=1e9)),
    ("say c_means", lambda: optimal(compute=1e21, flops_per_token=lambda n: 6 * n)),
    ("above 3.11 bits", lambda: optimal("kumar-2024", compute=1e21, bits=3)),
    ("sparsity: must be below 1", lambda: optimal("abnar-2025", compute=1e21, sparsity=1)),
    ("has form surface, not recipe", lambda: scaling.recipe("refit-240", compute=1e21)),
    ("needs it", lambda: scaling.recipe("steplaw-2025-lr", parameters=1e9)),
    ("coefficient A is missing", lambda: Law("x", "surface", {"E": 1.0})),
    ("coefficients", lambda: Law("x", "surface", {"E": 1, "A": 1, "B": 1, "alpha": 1, "betta": 1})),
    ("does not apply", lambda: scaling.compare_laws(1e21, default="deepseek-2024")),
]


@pytest.mark.parametrize(("words", "call"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refusals_are_one_line(words: str, call: Any) -> None:
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


JUNK: list[Any] = [
    None, True, "refit", "", [], [1, "a"], {}, -1, 0, 1, 1.5, float("nan"), float("inf"), 10**400, 1e300, 1e39, b"x",
    [[1, 2], [3]], np.array([]), np.array([1, np.nan]), object(), 1j, [1, 2, 3], 1e-300,
]  # fmt: skip


@pytest.mark.parametrize("value", JUNK, ids=lambda v: repr(v)[:20])
def test_any_value_is_answered_or_refused(value: Any) -> None:
    own = {"A": value, "B": 2000, "E": 1.8, "alpha": 0.34, "beta": 0.37}
    calls = [
        lambda: scaling.law(value),
        lambda: scaling.list_laws(form=value),
        lambda: optimal(value, compute=1e21),
        *[lambda key=key: optimal(**{key: value}) for key in ("compute", "parameters", "tokens", "loss")],
        *[lambda key=key: optimal(compute=1e21, **{key: value}) for key in ("parameters", "served_tokens", "n_means")],
        lambda: optimal(loss=2.1, served_tokens=1e12, serving_weight=value),
        lambda: optimal("muennighoff-2023", compute=1e21, unique_tokens=value),
        lambda: optimal("ludziejewski-2025", compute=1e21, experts=value),
        lambda: optimal("abnar-2025", compute=1e21, sparsity=value),
        lambda: optimal("kumar-2024", compute=1e21, bits=value),
        lambda: scaling.loss(parameters=value, tokens=1e10),
        lambda: scaling.compare_laws(value),
        lambda: scaling.convert_parameters(value, have="total", want="non_embedding", embedding=1, head=0),
        lambda: scaling.convert_parameters(1e9, have=value, want="total"),
        lambda: scaling.convert_compute(value, have_per_token=1, want_per_token=2),
        lambda: scaling.recipe("deepseek-2024-lr", compute=value),
        lambda: scaling.single_loss("cerebras-gpt", value),
        lambda: scaling.critical_batch(value),
        lambda: scaling.routed_loss(parameters=value, experts=4),
        lambda: optimal(Law("mine", "surface", own), compute=1e21),
    ]
    for call in calls:
        try:
            call()
        except InputError as error:
            assert "\n" not in str(error)


def test_public_face() -> None:
    assert tfsim.scaling is scaling
    assert all(hasattr(scaling, name) for name in scaling.__all__)
