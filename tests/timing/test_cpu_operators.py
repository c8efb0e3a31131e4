"""Operators on a measured CPU: which formula they take, on the profile that ships."""

from __future__ import annotations

import pytest

from tfsim.files import data_dir
from tfsim.hardware import load_system
from tfsim.measure.models import spec
from tfsim.models.counts import count
from tfsim.software import software
from tfsim.timing import Groups, operator_time


@pytest.mark.parametrize(("batch", "cached"), [(16, 479), (4, 2047)])
def test_the_heads_of_a_group_each_read_its_keys(batch: int, cached: int) -> None:
    """One query per head is a row that meets its keys and values, at the profile's speed of such products."""
    system = load_system(str(data_dir("measured") / "machine.yaml"))
    counts = count(spec("llama"), batch=batch, seq_len=1, past_len=cached, phase="decode", dtype="fp32")
    (op,) = {op.name: op for _, _, op in counts.operators if op.kind == "attention"}.values()
    time = operator_time(op, system, software("eager"), Groups(), recorded=False)
    speed = system.device.profile.calibration["cpu_matmul"]["fp32"].constants["warm_vector"]
    six_heads = batch * 6 * (cached + 1) * (32 + 32) * 4 / speed
    assert float(time.seconds - time.launch) == pytest.approx(six_heads, rel=1e-6)
