"""The bootstrap draws of the default law: ``python tools/refit_240.py POINTS.csv`` writes refit-240-draws.csv.

POINTS.csv: the 245 points digitised from Fig. 4 of arXiv:2203.15556 by epoch-research/analyzing-chinchilla (columns N,
D, loss, excluded_by_besiroglu). They have no licence and are not part of tfsim; what is written is our own fit's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tfsim.files import write_text
from tfsim.scaling import fit, read_runs

DRAWS, SEED = 1000, 240
COEFFICIENTS = ("E", "A", "B", "alpha", "beta")
TARGET = Path(__file__).parents[1] / "tfsim" / "scaling" / "refit-240-draws.csv"


def main(points: str) -> None:
    """Fit, draw and write."""
    law = fit(read_runs(points, exclude="excluded_by_besiroglu"))
    boot = law.bootstrap(DRAWS, seed=SEED)
    if boot.unconverged:
        raise SystemExit(f"{boot.unconverged} of {DRAWS} refits did not converge: do not use them")
    rows = zip(*(boot.draws[name] for name in COEFFICIENTS), strict=True)
    lines = [",".join(COEFFICIENTS), *(",".join(f"{x:.7g}" for x in row) for row in rows)]
    write_text(TARGET, "\n".join(lines) + "\n")
    print(f"{law.n} points, objective {law.objective:.10f}, a {law.a:.4f}; {DRAWS} draws -> {TARGET.name}")


if __name__ == "__main__":
    main(sys.argv[1])
