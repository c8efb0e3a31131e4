"""Write reports/exactness.md: tfsim's counts beside every oracle row of tests/data/oracle.

Run from the repository: python tools/exactness_report.py
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import oracle  # noqa: E402
from tfsim.files import write_text  # noqa: E402

TABLES = {
    "params": ("parameters", oracle.parameter_rows),
    "flops": ("FLOPs, totals and components", oracle.flops_rows),
    "kv_cache": ("KV cache bytes", oracle.kv_rows),
}


def exact_tables() -> list[str]:
    """Rows and values compared for equality, by family."""
    lines = []
    for title, comparisons in TABLES.values():
        by_family: dict[str, list[oracle.Comparison]] = defaultdict(list)
        for c in comparisons():
            by_family[c.family].append(c)
        lines += [f"## {title}", "", "| family | models | values | equal |", "|---|---|---|---|"]
        for family, found in sorted(by_family.items()):
            equal = sum(c.got == c.expected for c in found)
            lines.append(f"| {family} | {len({c.name for c in found})} | {len(found)} | {equal} |")
        every = [c for found in by_family.values() for c in found]
        lines += [
            f"| all | {len({c.name for c in every})} | {len(every)} | {sum(c.got == c.expected for c in every)} |"
        ]
        lines.append("")
    return lines


def saved_table(comparisons: Iterable[oracle.Comparison]) -> list[str]:
    """Saved-for-backward bytes: rows, exact ones and the largest error per variant, exclusions by reason."""
    lines = [
        "## Bytes kept for the backward pass",
        "",
        "| variant | rows | exact | largest error | per-layer slope, largest error | excluded (reason) |",
        "|---|---|---|---|---|---|",
    ]
    by_name: dict[str, list[oracle.Comparison]] = defaultdict(list)
    for c in comparisons:
        by_name[c.name].append(c)
    for name, found in by_name.items():
        whole = [c for c in found if c.quantity == "saved_act_bytes"]
        slopes = [c for c in found if c.quantity == "saved_act_bytes_per_layer" and not c.excluded]
        deep = [c for c in slopes if c.row["layers"] == max(s.row["layers"] for s in slopes)]
        used = [c for c in whole if not c.excluded]
        error = max(abs(c.got / c.expected - 1) for c in used)
        slope = max(abs(c.got / c.expected - 1) for c in deep)
        left = [c for c in whole if c.excluded]
        reason = f"{len(left)} ({left[0].excluded})" if left else "0"
        exact = sum(c.got == c.expected for c in used)
        lines.append(f"| {name} | {len(used)} | {exact} | {error:.2%} | {slope:.2%} | {reason} |")
    return [*lines, ""]


def main() -> None:
    """Compare and write."""
    quirks: dict[str, int] = defaultdict(int)
    for c in oracle.kv_rows():
        quirks[c.row["quirk"] or "as it is"] += 1
    text = [
        "# Exactness",
        "",
        "tfsim's counts beside real implementations (torch 2.13.0, transformers 5.24.0), decoder-only families. Made",
        "by `python tools/exactness_report.py`; the same comparisons are tests (`tests/models/test_oracle.py`).",
        "",
        *exact_tables(),
        "KV rows by convention: " + ", ".join(f"{k} {v}" for k, v in quirks.items()) + ".",
        "",
        *saved_table(oracle.activation_rows()),
        "Rows: fp32 and bf16, dropout 0, with and without per-layer checkpointing. The slope is compared at the",
        "larger depth. Checkpointed GPT-2 eager rows keep the causal mask once, which tfsim does not count (to 6 %).",
        "s-grok1 is the oracle's own code: it caps no scores, keeps one more copy of the routed tokens, and repeats",
        "keys and values for the fused kernel.",
    ]
    write_text(ROOT / "reports" / "exactness.md", "\n".join(text) + "\n")
    print(ROOT / "reports" / "exactness.md")


if __name__ == "__main__":
    main()
