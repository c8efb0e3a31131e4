"""How fast runs are fitted: ``python tools/scaling_benchmark.py [RUNS.csv [EXCLUDE_COLUMN]]`` (processor time).

RUNS.csv has columns N, D and loss; without it, 240 runs of a noisy Chinchilla law are made up. The points digitised by
Besiroglu et al. (arXiv:2404.10102) have no licence and are not part of tfsim: name your copy.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from tfsim.scaling import fit, read_runs
from tfsim.scaling.fit_runs import Runs

RUNS, DRAWS = 7, 4000


def made_up() -> Runs:
    """240 runs of L = 1.8 + 480/N^0.35 + 2100/D^0.37 with 0.6 % noise, C from 1e18 to 1e22."""
    random = np.random.default_rng(0)
    c, ratio = 10 ** random.uniform(18, 22, 240), 20 * 10 ** random.uniform(-1, 1, 240)
    n = np.sqrt(c / 6 / ratio)
    loss = (1.8 + 480 / n**0.35 + 2100 / (n * ratio) ** 0.37) * np.exp(0.006 * random.standard_normal(240))
    return read_runs({"N": n, "D": n * ratio, "loss": loss})


def main() -> None:
    """Print the fit, its time and its bootstrap's."""
    arguments = sys.argv[1:]
    runs = read_runs(arguments[0], exclude=arguments[1] if arguments[1:] else None) if arguments else made_up()
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        law = fit(runs)
        times.append(time.process_time() - start)
    print(
        f"{law.n} runs: A {law.A:.2f}, B {law.B:.1f}, E {law.E:.4f}, alpha {law.alpha:.5f}, beta {law.beta:.5f}, "
        f"a {law.a:.4f}; objective {law.objective:.10f}; {law.check.agreeing} of {law.check.starts} starts agree"
    )
    print(f"fit: {1e3 * statistics.median(times):.1f} ms ({1e3 * min(times):.1f} to {1e3 * max(times):.1f})")
    start = time.process_time()
    boot = law.bootstrap(DRAWS)
    spent = time.process_time() - start
    low, middle, high = boot.quantiles("a")
    print(
        f"{DRAWS} bootstraps: {spent:.2f} s; a {middle:.4f} ({low:.4f} to {high:.4f}); {boot.unconverged} unconverged"
    )
    print(", ".join(f"sd {name} {boot.sd(name):.4g}" for name in boot.draws))


if __name__ == "__main__":
    main()
