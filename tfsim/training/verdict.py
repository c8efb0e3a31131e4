"""Whether a plan fits, in words: what it needs, what takes the room, and the nearest plan that does fit."""

from __future__ import annotations

import numpy as np

from tfsim.operators.core import total
from tfsim.training.job import Job
from tfsim.training.plan import NUMERIC, RECOMPUTE, Grid
from tfsim.training.search import candidates
from tfsim.training.step import Evaluated, evaluate
from tfsim.units import format_bytes, format_percent, format_time


def verdict(job: Job, grid: Grid, result: Evaluated) -> str:
    """One sentence about the only plan of ``grid``."""
    usable, capacity = job.usable, job.capacity
    need = float(np.asarray(total(result.memory.values()), float)[0])
    where = f"stage {int(result.stage[0])}" if grid.pp[0] > 1 else "every device"
    if need <= usable:
        return f"fits: {format_bytes(need)} of {format_bytes(capacity)} ({format_percent(need / capacity)}) on {where}"
    largest = sorted(result.memory.items(), key=lambda part: -float(part[1][0]))[:3]
    parts = ", ".join(f"{name} {format_bytes(float(values[0]))}" for name, values in largest)
    have = f"{format_bytes(usable)} usable ({format_bytes(capacity)} less allocator fragments)"
    start = f"does not fit: needs {format_bytes(need)} of {have} on {where}, largest parts {parts}"
    return f"{start}; {_nearest(job, grid)}"


def describe(grid: Grid, i: int) -> str:
    """A plan in the words a user types; expert degrees only where experts are spread."""
    names = [name for name in NUMERIC if name not in ("ep", "etp") or grid.ep[i] > 1]
    words = [f"{name} {getattr(grid, name)[i]:.0f}" for name in names]
    return " ".join([*words, f"recompute {RECOMPUTE[int(grid.recompute[i])]}"])


def _nearest(job: Job, grid: Grid) -> str:
    """The fitting plan that changes the fewest fields, then by the least factor, then the fastest."""
    sizes = {name: int(getattr(grid, name)[0]) for name in job.sizes}
    options = candidates(job.model, job.system, job.style, **sizes, fixed={})
    if not len(options):
        return f"no other plan divides {sizes['devices']} devices"
    found = evaluate(job.model, job.system, options, job.policy, job.style)
    need = np.asarray(total(found.memory.values()), float)
    fitting = np.nonzero(need <= job.usable)[0]
    if not fitting.size:
        least = int(np.argmin(need))
        where = f"{sizes['devices']:,} device{'' if sizes['devices'] == 1 else 's'}"
        return (
            f"no plan fits on {where}: the leanest ({describe(options, least)}) needs"
            f" {format_bytes(float(need[least]))}; use more devices, a shorter seq_len or a smaller precision"
        )
    changed = np.zeros(fitting.size)
    factor = np.zeros(fitting.size)
    for name in ("tp", "pp", "ep", "micro_batch", "zero_stage", "recompute"):
        mine, theirs = getattr(grid, name)[0], getattr(options, name)[fitting]
        changed += mine != theirs
        factor += np.abs(np.log2((theirs + 1) / (mine + 1)))
    i = int(fitting[np.lexsort((found.step_s[fitting], factor, changed))[0]])
    size, step = format_bytes(float(need[i])), format_time(found.step_s[i])
    return f"nearest plan that fits: {describe(options, i)} ({size}, step {step})"
