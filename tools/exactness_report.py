"""Write reports/exactness.md: tfsim's counts beside every oracle row of tests/data/oracle.

Run from the repository: python tools/exactness_report.py
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import oracle, oracle_more, oracle_stacks  # noqa: E402
from tests.models import test_evoformer as evoformer  # noqa: E402
from tests.models import test_own_runs as own_runs  # noqa: E402
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


def other_families() -> list[str]:
    """Rows of the families beside decoders that are equal in every value, and the largest error in kept bytes."""
    lines = [
        "## Other families",
        "",
        "Rows equal in every value / rows. Kept bytes: the total; its largest error without and with checkpointing.",
        "",
        "| family | parameters | FLOPs | cache and state | kept bytes | error | error, checkpointed |",
        "|---|---|---|---|---|---|---|",
    ]
    tables = ("params", "flops", "kv_cache", "activations")
    for family in sorted({row["family"] for table in tables for row in oracle_more.all_rows(table)}):
        kept = list(_saved(family))
        errors = [
            max((abs(got / expected - 1) for way, expected, got in kept if way == checkpoint), default=None)
            for checkpoint in ("none", "per_layer")
        ]
        cells = [
            _share(not wrong for _, wrong in oracle_stacks.wrong_parameters(family)),
            _share(not wrong for wrong in _wrong_flops(family)),
            _share(expected == got for expected, got in oracle_stacks.caches(family)),
            _share(expected == got for _, expected, got in kept),
            *("" if error is None else f"{error:.2%}" for error in errors),
        ]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Rows that are not equal, and why:",
        "",
        "- clip: the oracle files the projections of image towers run alone under other, tfsim under head.",
        "- gnmt: torch files some linears under another component, by layout. The totals are equal.",
        "- mamba, rwkv: the oracle's decode step ran a convolution over an empty cache, or mixed B x B tokens; tfsim",
        "  counts the step itself (tests show both).",
        "- evoformer: torch's math kernel casts bf16 queries, keys and values to fp32. With that added the rows are",
        "  equal per layer (tests show both).",
        "- clip: a few sums of the contrastive loss, the image tower's last norm on one position (0.2 %). deberta: a",
        "  mask of the embeddings' tokens (0.1 %).",
        "",
    ]


def modern_decoders() -> list[str]:
    """Bytes kept by the decoders of today, by variant and attention."""
    lines = [
        "## Bytes kept by modern decoders",
        "",
        "Small variants that we ran in torch (tests/data/own_runs): fp32 and bf16, batch 2, 64 and 96 tokens.",
        "",
        "| variant | attention | rows | exact | largest error |",
        "|---|---|---|---|---|",
    ]
    kept: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, expected, got in own_runs.modern_kept():
        kept[row["variant"], row["attn_impl"]].append(got / expected - 1)
    for (variant, attention), errors in kept.items():
        exact = sum(error == 0 for error in errors)
        lines.append(f"| {variant} | {attention} | {len(errors)} | {exact} | {max(map(abs, errors)):.2%} |")
    return [
        *lines,
        "",
        "Not compared: variants that select few keys (eager torch computes and masks all scores), and torch's fused",
        "attention where it stores a mask (indexed and windowed layers) or ran its math kernel.",
        "",
    ]


def _wrong_flops(family: str) -> Iterator[dict[str, tuple[int, object]]]:
    if family != "evoformer":  # two lengths: sequences and residues
        yield from (wrong for _, wrong in oracle_stacks.wrong_flops(family))
        return
    for row in oracle_more.rows("flops", family):
        yield oracle_more.unequal_flops(row, evoformer.run(row, "seq_q", phase=oracle_more.PHASES[row["mode"]]))


def _saved(family: str) -> Iterator[tuple[str, int, float]]:
    """Checkpointing, expected and got total of every row."""
    if family != "evoformer":
        yield from ((row["checkpoint"], e[0], float(g[0])) for row, e, g in oracle_stacks.saved(family))
        return
    for row in oracle_more.rows("activations", family):
        how = {"recompute": "full" if row["checkpoint"] == "per_layer" else "none", "dtype": row["precision"]}
        got = evoformer.run(row, "seq", **how)
        yield row["checkpoint"], oracle_more.number(row["saved_act_bytes"]), float(got.saved_bytes)


def _share(equal: Iterable[bool]) -> str:
    found = list(equal)
    return f"{sum(found)} / {len(found)}" if found else ""


def main() -> None:
    """Compare and write."""
    quirks: dict[str, int] = defaultdict(int)
    for c in oracle.kv_rows():
        quirks[c.row["quirk"] or "as it is"] += 1
    text = [
        "# Exactness",
        "",
        "tfsim's counts beside real implementations (torch 2.13.0, transformers 5.24.0), decoder-only families first.",
        "Made by `python tools/exactness_report.py`; the same comparisons are tests (`tests/models/`).",
        "",
        *exact_tables(),
        "KV rows by convention: " + ", ".join(f"{k} {v}" for k, v in quirks.items()) + ".",
        "",
        *saved_table(oracle.activation_rows()),
        "Rows: fp32 and bf16, dropout 0, with and without per-layer checkpointing; 144 rows of 18 variants with",
        "dropout 0.1 are equal too (tests/models/test_dropout.py). The slope is compared at the",
        "larger depth. A checkpointed layer keeps what it is called with by position (the stream, masks, biases).",
        "s-grok1 is the oracle's own code: it caps no scores, keeps a mask in each layer and one more copy of the",
        "routed tokens, routes in the model's dtype, and repeats keys and values for the fused kernel. A plain torch",
        "layer with these differences keeps the oracle's bytes, one after the public code keeps tfsim's",
        "(`tests/models/test_grok.py`).",
        "",
        *other_families(),
        *modern_decoders()[:-1],
    ]
    write_text(ROOT / "reports" / "exactness.md", "\n".join(text) + "\n")
    print(ROOT / "reports" / "exactness.md")


if __name__ == "__main__":
    main()
