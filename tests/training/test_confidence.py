"""The words about trust are those of the check, per device and software style."""

import tfsim
from tfsim.training.confidence import checked_devices


def test_factors_are_quoted_where_runs_were_compared() -> None:
    model = tfsim.load_model("llama-3.2-1b")

    def said(system: str, software: str) -> str:
        machine = tfsim.load_system(system)
        return tfsim.train(model, machine, seq_len=512, global_batch=64, software=software).confidence

    h100 = checked_devices()["h100-sxm-80gb"]
    assert f"{h100['rows']} published runs" in said("dgx-h100", "fused")
    assert f"took {h100['fused']:.2f} times" in said("dgx-h100", "fused")
    assert f"took {h100['eager']:.2f} times" in said("dgx-h100", "eager")
    assert "no published run" in said("mi300x-8x", "fused")
    assert "no published run" in said("dgx-h100", "graph")


def test_models_of_another_kind_are_told_that_no_run_was_theirs() -> None:
    machine = tfsim.load_system("dgx-h100")
    for name, like in (("llama-3.2-1b", True), ("mamba-130m", False), ("bert-base", False), ("t5-small", False)):
        run = tfsim.train(tfsim.load_model(name), machine, seq_len=512, global_batch=64)
        assert ("none of them of a model of this kind" in run.confidence) is not like
