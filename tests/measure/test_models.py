"""The measured models: what torch counts of a small one of each family equals what tfsim counts."""

from __future__ import annotations

from typing import Any

import pytest

from tfsim.errors import InputError
from tfsim.measure.models import FAMILIES, PHASES, SETS, Case, Phase, Set, build, cases, spec, specification
from tfsim.models import load_model
from tfsim.models.spec import ModelSpec
from tfsim.validation.measured.predict import Case as Run
from tfsim.validation.measured.predict import counted

LENGTHS = {"development": {"vit": 65, "dit": 64}, "held_out": {"vit": 101, "dit": 100}}


def counts(case: Case, model: ModelSpec) -> dict[str, Any]:
    how = FAMILIES[case.model]
    run = Run(
        case.phase, case.batch, case.seq_len, case.past_len, case.encoder_len, "eager", how.attention, how.recompute
    )
    return counted(model, run)


def small_cases(name: str, which: Set) -> list[Case]:
    """A pass, a training step and decode steps, of two sequences and of one; past a window's length too. In the
    held-out sizes one training step and one decode step say as much."""
    length = LENGTHS[which].get(name, 11)
    source = 9 if FAMILIES[name].development.encoder else 0
    phases: list[Phase] = ["forward", "train"] if which == "development" else ["train"]
    batches = (1, 2) if which == "development" else (3,)
    found = [Case(name, p, b, length, encoder_len=source, set=which) for p in phases for b in batches]
    decode = FAMILIES[name].development.decode
    steps = [Case(name, "decode", 2, 1, past, source, which) for past in ((13, 100) if decode else ())]
    return [*found, *(steps if which == "development" else steps[1:])]


@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("name", FAMILIES)
def test_torch_counts_what_tfsim_counts(name: str, which: Set) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: no real model to count")
    from tfsim.measure.counting import n_parameters
    from tfsim.measure.runs import STEPS

    torch.manual_seed(0)
    model = build(name, spec(name, which))
    for case in small_cases(name, which):
        step = STEPS[case.phase](model, case)
        torchs = {"parameters": n_parameters(model), **step.counted()}
        ours = counts(case, model.spec)
        assert torchs == {quantity: ours[quantity] for quantity in torchs}, case


@pytest.mark.parametrize("name", ["llama", "lstm", "evoformer"])
def test_another_size_is_equal_too(name: str) -> None:
    """The module takes its sizes from the specification, so that the two cannot drift apart."""
    pytest.importorskip("torch", reason="torch is not installed: no real model to count")
    from tfsim.measure.counting import n_parameters

    deeper = spec(name)
    deeper = deeper.model_copy(update={"layers": f"{deeper.layer_blocks[0]}*5"})
    model = build(name, deeper)
    assert (
        n_parameters(model)
        == counts(Case(name, "forward", 1, 8, encoder_len=4 if name == "evoformer" else 0), deeper)["parameters"]
    )
    assert n_parameters(model) > n_parameters(build(name))


def test_a_training_step_frees_what_it_made() -> None:
    """The peak of followed tensors: above the states of AdamW, and not growing from step to step."""
    pytest.importorskip("torch", reason="torch is not installed: nothing to follow")
    from tfsim.measure.backend import backend
    from tfsim.measure.memory import peak_bytes
    from tfsim.measure.runs import STEPS

    model = build("gpt2")
    step = STEPS["train"](model, Case("gpt2", "train", 2, 32))
    first, second = (peak_bytes(step, backend("cpu")) for _ in range(2))
    states = 16 * sum(p.numel() for p in model.parameters())
    assert first == second > states


def test_what_cannot_be_compiled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line in the row, whether torch.compile refuses at once or when it first runs; nothing is timed."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compile")
    from tfsim.measure.backend import backend
    from tfsim.measure.runs import measure_models

    def refuse(*_: Any) -> Any:
        raise RuntimeError("no working C++ compiler\nand more")

    case = Case("gpt2", "forward", 1, 4)
    for broken in (refuse, lambda _: refuse):
        monkeypatch.setattr(torch, "compile", broken)
        (row,) = measure_models([case], backend("cpu"), mode="compile")
        assert row["error"] == "RuntimeError: no working C++ compiler" and "time_s" not in row
        assert (row["mode"], row["set"]) == ("compile", "development")


def test_sixteen_families_with_at_least_six_cases_each() -> None:
    assert len(FAMILIES) >= 16
    for name in FAMILIES:
        found = cases(name)
        assert len(found) >= 6 and len(set(found)) == len(found), name
        assert {case.phase for case in found} >= set(PHASES[:2])
        assert set(cases(name, quick=True)) < set(found)


def test_held_out_cases_are_of_other_sizes() -> None:
    """No width or depth, batch or length of them was among those that the formulas were refined on."""
    for name in FAMILIES:
        seen, held = cases(name), cases(name, "held_out")
        assert len(held) >= 4 and {case.set for case in held} == {"held_out"}, name
        assert not {(c.batch, c.seq_len, c.past_len) for c in seen} & {(c.batch, c.seq_len, c.past_len) for c in held}
        ours, other = spec(name), spec(name, "held_out")
        assert ours.d_model != other.d_model, name
    with pytest.raises(InputError, match="unknown set 'heldout': did you mean held_out"):
        cases("gpt2", "heldout")  # type: ignore[arg-type]


def test_each_specification_is_found_by_name_and_says_where_its_module_is() -> None:
    for name, family in FAMILIES.items():
        for which in SETS:
            assert spec(name, which).source == f"tfsim.measure.models.{family.module}"
        assert specification(name) == spec(name)
    assert specification("gpt2-xl") == load_model("gpt2-xl")
    with pytest.raises(InputError, match="unknown measured model 'lama': did you mean llama"):
        spec("lama")
