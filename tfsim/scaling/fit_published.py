"""How the published laws do on the user's runs: what they miss the losses by, and the size they would choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tfsim.errors import InputError
from tfsim.scaling.allocation import optimal
from tfsim.scaling.fit_runs import Runs
from tfsim.scaling.laws import FORMS, SURFACES, law, list_laws, loss


@dataclass(frozen=True)
class Score:
    """A published law on the runs. Errors are fractions of the loss.

    ``mape`` and ``bias`` (mean of predicted / measured - 1) are of the law as printed; other data and tokenizers shift
    every loss, so ``mape_scaled`` is what is left after one factor on all its losses. ``parameters`` and ``tokens`` are
    its optimum at ``compute``, the runs' largest budget, in 6 N D of its own N.
    """

    law: str
    n_means: str
    mape: float
    bias: float
    mape_scaled: float
    compute: float
    parameters: float
    tokens: float


def published(runs: Runs) -> tuple[tuple[Score, ...], Mapping[str, str]]:
    """Every text law with a loss L(N, D) on these runs, best shape first, and the laws left out with the reason.

    A law whose N counts otherwise than the runs' n_means is left out; where they do not state it none is.
    Raises: InputError when the runs have no N or D.
    """
    n, d = runs.column("N"), runs.column("D")
    top = float((6 * n * d).max())
    scores, left_out = [], {}
    for name in list_laws():
        entry = law(name)
        if entry.form not in (*SURFACES, "repeats") or entry.domain != "text":
            continue
        if entry.instead:
            left_out[name] = f"use {entry.instead}"
            continue
        facts = [fact for fact in FORMS[entry.form].facts if fact != "unique_tokens"]
        if facts:
            left_out[name] = f"needs {', '.join(facts)}"
        elif runs.n_means not in ("not_stated", entry.n):
            left_out[name] = f"counts N as {entry.n}"
        else:
            try:
                predicted = np.asarray(loss(entry, parameters=n, tokens=d))
                best = optimal(entry, compute=top)
            except InputError as error:
                left_out[name] = str(error)
                continue
            off = np.log(predicted / runs.loss)
            scores.append(
                Score(
                    law=name,
                    n_means=entry.n,
                    mape=float(np.mean(np.abs(np.expm1(off)))),
                    bias=float(np.mean(np.expm1(off))),
                    mape_scaled=float(np.mean(np.abs(np.expm1(off - np.median(off))))),
                    compute=top,
                    parameters=float(best.parameters),
                    tokens=float(best.tokens),
                )
            )
    return tuple(sorted(scores, key=lambda score: score.mape_scaled)), left_out
