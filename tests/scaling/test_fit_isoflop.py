"""Approaches 1 and 2 against the closed form of the law that the runs were made from."""

from __future__ import annotations

import numpy as np
import pytest

from tfsim.errors import InputError
from tfsim.scaling.fit_isoflop import envelope, isoflop, parabola_bias
from tfsim.scaling.fit_law import fit
from tfsim.scaling.fit_runs import Runs, read_runs

A, B, E, ALPHA, BETA = 480.0, 2100.0, 1.8, 0.35, 0.37
EXPONENT = BETA / (ALPHA + BETA)
SCALE = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))


def best_n(c: float) -> float:
    return float(SCALE * (c / 6) ** EXPONENT)


def grid(budgets: list[float], *, width: float = 1.2, shift: float = 0.0, points: int = 9) -> Runs:
    """Runs around each budget's optimum, exp(+-width) wide; the middle drifts by ``shift`` per factor e of C."""
    n = np.concatenate(
        [best_n(c) * np.exp(np.linspace(-width, width, points) + shift * np.log(c / budgets[0])) for c in budgets]
    )
    c = np.repeat(budgets, points)
    loss = E + A / n**ALPHA + B / (c / 6 / n) ** BETA
    return read_runs({"N": n, "C": c, "loss": loss, "group": [f"{x:g}" for x in c]}, c_means="6nd")


BUDGETS = [1e18, 1e19, 1e20, 1e21, 1e22]


def test_centred_parabolas_find_the_exponent() -> None:
    """On centred grids of one width the bias is the same factor in every group (arXiv:2603.22339)."""
    result = isoflop(grid(BUDGETS))
    assert result.law.exponent == pytest.approx(EXPONENT, abs=1e-9)
    assert [group.C for group in result.groups] == pytest.approx(BUDGETS)
    for group in result.groups:
        assert group.optimum == pytest.approx(best_n(group.C), rel=0.01)
        assert group.off_centre < 0.01
        assert not group.left_out


def test_narrow_parabolas_find_the_optimum_itself() -> None:
    result = isoflop(grid(BUDGETS, width=0.05))
    for group in result.groups:
        n, d = group.optimum, group.C / 6 / group.optimum
        assert n == pytest.approx(best_n(group.C), rel=1e-4)
        assert group.loss == pytest.approx(E + A / n**ALPHA + B / d**BETA, rel=1e-8)
        assert group.curvature == pytest.approx(ALPHA**2 * A / n**ALPHA + BETA**2 * B / d**BETA, rel=1e-3)
    assert result.law(6e23) == pytest.approx(best_n(6e23), rel=1e-3)


def test_parameters_and_tokens_share_the_compute() -> None:
    runs = grid(BUDGETS)
    n, d = isoflop(runs).law, isoflop(runs, of="D").law
    assert n.exponent + d.exponent == pytest.approx(1)
    assert n.coefficient * d.coefficient == pytest.approx(1 / 6)


def test_a_drifting_grid_biases_the_parabola_and_the_bias_is_told() -> None:
    runs = grid(BUDGETS, width=2.0, shift=0.1)
    result = isoflop(runs)
    told = parabola_bias(runs, fit(runs))
    assert abs(told) > 0.001
    assert result.law.exponent - told == pytest.approx(EXPONENT, abs=1e-6)
    assert parabola_bias(grid(BUDGETS), fit(grid(BUDGETS))) == pytest.approx(0, abs=1e-7)


def test_groups_by_column_by_budget_and_by_nearness_are_the_same() -> None:
    runs = grid(BUDGETS)
    bare = Runs(runs.loss, runs.row, N=runs.N, D=runs.D, C=runs.C)
    laws = [isoflop(runs).law, isoflop(bare).law, isoflop(bare, budgets=BUDGETS).law]
    assert [law.exponent for law in laws] == pytest.approx([EXPONENT] * 3, abs=1e-9)
    assert len(isoflop(bare, budgets=BUDGETS[:2]).groups) == 2


def test_a_group_without_an_optimum_is_left_out_and_says_so() -> None:
    runs = grid(BUDGETS)
    n, c = runs.column("N"), runs.column("C")
    keep = ~((c == 1e20) & (n < 1.3 * best_n(1e20))) & ~((c == 1e21) & (n > best_n(1e21) / 2))
    keep[:4] = [True, False, False, False]
    result = isoflop(runs.take(keep))
    told = {group.name: group.left_out for group in result.groups if group.left_out}
    assert told.keys() == {"1e+20", "1e+21"}
    assert any("lies outside" in reason or "distinct" in reason for reason in told.values())


def test_isoflop_refusals() -> None:
    runs = grid(BUDGETS)
    with pytest.raises(InputError, match=r"1 isoFLOP group\(s\) with an optimum"):
        isoflop(grid([1e20]))
    with pytest.raises(InputError, match="unknown of 'M'"):
        isoflop(runs, of="M")
    with pytest.raises(InputError, match=r"budgets: -1\.0 is not a positive"):
        isoflop(runs, budgets=[-1])
    smooth = np.geomspace(1e18, 1e20, 100)
    with pytest.raises(InputError, match="so it is no isoFLOP group"):
        isoflop(read_runs({"N": smooth**0.5, "C": smooth, "loss": 3 - np.arange(100) / 100}))


def test_the_envelope_of_training_curves_finds_the_exponent() -> None:
    n = np.repeat(np.geomspace(3e7, 3e10, 60), 50)
    c = np.tile(np.geomspace(1e17, 1e23, 50), 60)
    loss = E + A / n**ALPHA + B / (c / 6 / n) ** BETA
    result = envelope(read_runs({"N": n, "C": c, "loss": loss}))
    assert result.law.exponent == pytest.approx(EXPONENT, abs=0.002)
    assert result.law(1e20) == pytest.approx(best_n(1e20), rel=0.02)
    assert (result.N > 3e7).all()
    assert (result.N < 3e10).all()
    assert (np.diff(result.loss) < 0).all()


def test_envelope_refusals() -> None:
    with pytest.raises(InputError, match=r"0 size\(s\) with two or more points"):
        envelope(read_runs({"N": [1e8, 2e8], "C": [1e18, 2e18], "loss": [3.0, 2.9]}))
    n, c = np.repeat([1e8, 2e8, 4e8], 2), np.tile([1e18, 1e18], 3)
    with pytest.raises(InputError, match="have the same C"):
        envelope(read_runs({"N": n, "C": c, "loss": 3 + np.arange(6) / 10}))
