"""Plan search: every sensible plan as one array, evaluated at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from tfsim.hardware import System
from tfsim.models.cuts import expert_count, head_count
from tfsim.models.spec import ModelSpec
from tfsim.software import Software
from tfsim.training.plan import NUMERIC, RECOMPUTE, Grid, impossible, plan_fields


def divisors(n: int, most: int) -> list[int]:
    """Divisors of ``n`` up to ``most``."""
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def candidates(
    model: ModelSpec,
    system: System,
    style: Software,
    *,
    devices: int,
    seq_len: int,
    global_batch: int,
    images: int,
    fixed: Mapping[str, Any],
) -> Grid:
    """All possible plans of one job that agree with the ``fixed`` fields.

    ``fixed`` fields take one value or several. tp: divisors of the heads up to the innermost network domain; pp:
    divisors of the devices up to the layers; ep: divisors of the expert count; micro_batch: powers of two up to 16;
    every ZeRO stage (3 without pipelines only: gathering weights for every micro-batch of a pipeline is never chosen
    in practice) and recompute mode (selective where attention is eager).
    """
    given = plan_fields(fixed)
    heads, experts = head_count(model), expert_count(model)
    innermost = system.levels[0].size if system.levels else None
    domain = max(1, min(devices, innermost or devices, 64))
    # fused attention keeps no scores: there is nothing for selective recomputation to drop
    modes = [mode for mode in RECOMPUTE if mode != "selective" or style.attention == "eager"]
    options: dict[str, list[float]] = {
        "tp": [float(d) for d in divisors(heads, domain)],
        "pp": [float(d) for d in divisors(devices, len(model.all_layers))],
        "ep": [float(d) for d in divisors(experts, devices)] if experts else [1.0],
        "micro_batch": [float(2**i) for i in range(5)],
        "zero_stage": [0.0, 1.0, 2.0, 3.0],
        "recompute": [float(RECOMPUTE.index(mode)) for mode in modes],
    }
    for key, value in given.items():
        options[key] = [float(v) for v in np.ravel(value)]
    dps = options.pop("dp", None)
    rows = np.array(list(product(*options.values())), float).reshape(-1, len(options))
    columns = dict(zip(options, rows.T, strict=True))
    # cut to the plans that use every device before anything is divided by dp
    whole = devices % (columns["tp"] * columns["pp"]) == 0
    columns = {name: values[whole] for name, values in columns.items()}
    tp, pp, ep = columns["tp"], columns["pp"], columns["ep"]
    columns["dp"] = devices / (tp * pp)
    columns.setdefault("etp", np.where(ep > 1, 1.0, tp))
    size = len(tp)
    grid = Grid(
        devices=np.full(size, float(devices)),
        seq_len=np.full(size, float(seq_len)),
        global_batch=np.full(size, float(global_batch)),
        images=np.full(size, float(images)),
        **{name: columns[name] for name in (*NUMERIC, "recompute")},
    )
    sensible = (grid.dp > 1) | (grid.zero_stage <= 1)
    if "zero_stage" not in given:
        sensible &= (grid.zero_stage < 3) | (grid.pp == 1)
    if dps is not None:
        sensible &= np.isin(grid.dp, dps)
    grid = grid.select(np.nonzero(sensible)[0])
    return grid.select(np.nonzero(impossible(model, grid, system) == "")[0])
