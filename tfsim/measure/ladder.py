"""The scaling ladder: tiny language models trained on this machine, whose losses a scaling law is fitted to.

The text is generated (``ladder_source``), so its least possible loss is known; the plan (``ladder_plan``) gives isoFLOP
curves, about ten sizes at each of three budgets. docs/measure.md says how the rules of training were chosen.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import pandas as pd

from tfsim.errors import InputError
from tfsim.measure.backend import backend
from tfsim.measure.ladder_plan import LAYERS, Run
from tfsim.measure.ladder_source import make_source

COLUMNS = (
    "group", "width", "layers", "N", "N_non_embedding", "N_torch", "D", "C", "flops", "flops_torch", "loss", "loss_se",
    "steps", "batch_tokens", "learning_rate", "seed", "seconds", "cpu_seconds",
)  # fmt: skip
"""``group`` the isoFLOP budget; ``N`` all parameters, by tfsim.count and by torch; ``D`` tokens, seen once each;
``C`` = 6 N D; ``flops`` the exact matrix products of all steps, by tfsim.count and by torch's counter on one step;
``loss`` on held-out text [nats per token]; ``loss_se`` its standard error from that text alone."""


def ladder(
    runs: Sequence[Run],
    *,
    device: str = "cpu",
    workers: int | None = None,
    progress: Callable[[pd.DataFrame], None] | None = None,
) -> pd.DataFrame:
    """Train all runs and return a row of COLUMNS each, by budget and size.

    On a CPU each of ``workers`` processes (default: torch's threads) trains a run at a time on one thread: models this
    small do not keep two threads busy. On another device the runs follow each other in this process. ``progress`` is
    called with the rows so far.

    Raises: InputError as ``backend``, and for workers below 1.
    """
    where = backend(device)
    workers = where.threads if workers is None else workers
    if workers < 1:
        raise InputError(f"workers: {workers} is below 1")
    rows: list[dict[str, Any]] = []
    for row in _trained(runs, device, workers):
        rows.append(row)
        if progress:
            progress(_table(rows))
    return _table(rows)


def _trained(runs: Sequence[Run], device: str, workers: int) -> Iterator[dict[str, Any]]:
    if device != "cpu":
        yield from (_row(run, device) for run in runs)
        return
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(min(workers, len(runs)), mp_context=context, initializer=_one_thread) as pool:
        waiting = [pool.submit(_row, run, device) for run in runs]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _one_thread() -> None:
    backend("cpu", threads=1)


def _row(run: Run, device: str) -> dict[str, Any]:
    from tfsim.measure.ladder_model import counted, train

    n_torch, step_flops = counted(run.width, run.batch)
    return {
        "group": f"{run.budget:.3g}", "width": run.width, "layers": LAYERS, "N": run.n,
        "N_non_embedding": run.n_non_embedding, "N_torch": n_torch, "D": run.tokens, "C": run.flops_6nd,
        "flops": run.flops, "flops_torch": step_flops * run.steps,
        "steps": run.steps, "batch_tokens": run.batch, "learning_rate": run.learning_rate, "seed": run.seed,
        **train(run, make_source(), device),
    }  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    order = ["C", "N", "learning_rate", "batch_tokens", "seed"]
    found = pd.DataFrame(rows, columns=list(COLUMNS))
    found["budget"] = found["group"].astype(float)
    return found.sort_values(["budget", *order[1:]], ignore_index=True).drop(columns="budget")
