"""How many matmuls a core times per second: ``python tools/matmul_benchmark.py`` (processor time; median of seven)."""

from __future__ import annotations

import statistics
import time

import numpy as np

from tfsim.hardware import load_device
from tfsim.timing.constants import constants
from tfsim.timing.machine import machine
from tfsim.timing.matmul import MatmulConstants, matmul_seconds

ROWS, RUNS = 200_000, 7


def main() -> None:
    """Print the rate."""
    device = load_device("h100-sxm-80gb")
    facts, c = machine(device), constants("matmul", MatmulConstants, device, "bfloat16").values
    draw = np.random.default_rng(0)
    m, n, k = (2.0 ** draw.uniform(low, 14, ROWS) // 1 for low in (0, 7, 7))
    rates = []
    for _ in range(RUNS):
        start = time.process_time()
        matmul_seconds(m, n, k, facts, c, dtype="bf16", weight_bytes=2, input_bytes=2)
        rates.append(ROWS / (time.process_time() - start))
    middle, least, most = statistics.median(rates), min(rates), max(rates)
    print(f"{middle:,.0f} matmul times per second of one core ({least:,.0f} to {most:,.0f})")


if __name__ == "__main__":
    main()
