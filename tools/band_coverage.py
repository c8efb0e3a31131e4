"""Does the band cover? ``python tools/band_coverage.py [STUDIES [RUNS [DRAWS]]]`` (300 studies take minutes).

Each study makes up runs of a known law with noise, as many and as wide as the points of the default law, fits and
draws; the table says how often the truth lies inside the 80 % band.
"""

from __future__ import annotations

import sys

import numpy as np

from tfsim.scaling import Law, band, fit, optimal, read_runs

TRUTH = Law("truth", "surface", {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37})
BUDGETS = np.array([1e20, 1e21, 5.76e23, 3.8e25])
NOISE = 0.006  # of ln L: the residuals of the default law


def study(seed: int, runs: int, draws: int) -> Law:
    """A law fitted on made-up runs of C from 1e18 to 1e22 and D/N from 2 to 200, with its draws."""
    random = np.random.default_rng(seed)
    c, ratio = 10 ** random.uniform(18, 22, runs), 20 * 10 ** random.uniform(-1, 1, runs)
    n = np.sqrt(c / 6 / ratio)
    k = TRUTH.coefficients
    loss = k["E"] + k["A"] * n ** -k["alpha"] + k["B"] * (n * ratio) ** -k["beta"]
    found = fit(read_runs({"N": n, "D": n * ratio, "loss": loss * np.exp(NOISE * random.standard_normal(runs))}))
    values = {name: getattr(found, name) for name in ("E", "A", "B", "alpha", "beta")}
    boot = found.bootstrap(draws, seed=seed)
    return Law("study", "surface", values, draws={name: boot.draws[name] for name in values})


def covered(studies: int, runs: int, draws: int) -> dict[str, np.ndarray]:
    """Share of studies whose 80 % band holds the truth, per quantity at each of BUDGETS."""
    truth = optimal(TRUTH, compute=BUDGETS)
    inside: dict[str, list[np.ndarray]] = {"parameters": [], "tokens_per_parameter": [], "loss": []}
    for seed in range(studies):
        found = band(study(seed, runs, draws), compute=BUDGETS)
        for name, hits in inside.items():
            between = getattr(found, name)
            hits.append((between.low <= getattr(truth, name)) & (getattr(truth, name) <= between.high))
    return {name: np.mean(hits, axis=0) for name, hits in inside.items()}


def main() -> None:
    """Print the shares."""
    studies, runs, draws = (int(x) for x in [*sys.argv[1:], *("300", "240", "300")[len(sys.argv) - 1 :]])
    print(f"share of {studies} studies of {runs} runs whose 80 % band of {draws} draws holds the truth")
    print(f"{'':22s}" + "".join(f"{c:>10.3g}" for c in BUDGETS) + "  FLOPs")
    for name, shares in covered(studies, runs, draws).items():
        print(f"{name:22s}" + "".join(f"{share:10.1%}" for share in shares))


if __name__ == "__main__":
    main()
