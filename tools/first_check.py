"""How far the first, uncalibrated training times are from published runs: reports/first_check.md,
and the factor per device that estimates quote.

Run: python tools/first_check.py PATH/TO/training.csv.gz   (columns as in the published-runs table). Both software
styles are shown, because the table does not say which one a row ran.
Nothing is tuned: a row's own layout and the default software style, or the row is skipped and its reason counted.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfsim.errors import InputError  # noqa: E402
from tfsim.files import write_text  # noqa: E402
from tfsim.hardware import load_system  # noqa: E402
from tfsim.models.spec import ModelSpec  # noqa: E402
from tfsim.training import train  # noqa: E402
from tfsim.training.confidence import CHECK  # noqa: E402

SYSTEMS = {
    "h100-sxm-80gb": "dgx-h100",
    "h200-sxm-141gb": "dgx-h200",
    "a100-sxm-80gb": "dgx-a100",
    "a100-sxm-40gb": "dgx-a100-40gb",
    "b200-sxm": "dgx-b200",
    "v100-sxm-32gb": "dgx-1-v100",
}

STYLES = ("fused", "eager")
FEWEST = 10  # rows of a device below which its factor is not quoted
SIZES = ["layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "num_experts", "top_k"]
LAYOUT = ["num_devices", "tp", "pp", "cp", "ep", "micro_batch", "zero_stage", "seq_len", "global_batch", "step_time_s"]


class Skip(Exception):
    """A row that cannot be predicted, with the reason."""


def model_of(row: dict[str, Any]) -> ModelSpec:
    """The model from the dimensions of a row."""
    if any(pd.isna(row[c]) for c in ("layers", "hidden", "heads", "vocab", "ffn_hidden")):
        raise Skip("a dimension is not stated")
    heads, hidden = int(row["heads"]), int(row["hidden"])
    gated = str(row["gated_ffn"]) in ("1", "1.0", "True")
    ffn: dict[str, Any] = {"kind": "dense", "d_ff": int(row["ffn_hidden"]), "gated": gated}
    if not pd.isna(row["num_experts"]) and row["num_experts"] > 1:
        sizes = {"n_experts": int(row["num_experts"]), "top_k": int(row["top_k"]), "d_ff": int(row["ffn_hidden"])}
        ffn = {"kind": "moe", **sizes}
    mixer = {
        "kind": "attention",
        "n_heads": heads,
        "n_kv_heads": heads if pd.isna(row["kv_heads"]) else int(row["kv_heads"]),
        "d_head": hidden // heads if pd.isna(row["head_dim"]) else int(row["head_dim"]),
        "rope": {},
    }
    layers = f"layer*{int(row['layers'])}"
    sizes = {"d_model": hidden, "vocab_size": int(row["vocab"])}
    blocks = {"layer": {"mixer": mixer, "ffn": ffn}}
    return ModelSpec.model_validate({"name": "row", "blocks": blocks, "layers": layers, **sizes})


def predicted_over_measured(row: dict[str, Any], software: str) -> float:
    """Step time predicted / measured of one row. Raises Skip with the reason when it cannot be predicted."""
    if row["outcome"] not in ("ok",) or pd.isna(row["step_time_s"]):
        raise Skip("no step time")
    if row["device"] not in SYSTEMS:
        raise Skip("another device")
    if row["recompute"] not in ("none", "selective", "full"):
        raise Skip("recomputation is not stated")
    if not pd.isna(row["cp"]) and row["cp"] > 1:
        raise Skip("context parallelism: not modelled yet")
    if any(pd.isna(row[c]) for c in ("seq_len", "global_batch", "num_devices")):
        raise Skip("batch, length or devices are not stated")
    names = {"tp": "tp", "pp": "pp", "ep": "ep", "micro_batch": "micro_batch", "zero_stage": "zero_stage"}
    plan = {field: int(row[column]) for field, column in names.items() if not pd.isna(row[column])}
    try:
        estimate = train(
            model_of(row),
            load_system(SYSTEMS[row["device"]]),
            devices=int(row["num_devices"]),
            seq_len=int(row["seq_len"]),
            global_batch=int(row["global_batch"]),
            plan={**plan, "recompute": row["recompute"]},
            software=software,
            precision="fp8" if "fp8" in str(row["compute_dtype"]).lower() else "bf16",
        )
    except InputError as error:
        raise Skip("not a possible plan: " + str(error).removeprefix("impossible plan: ").split(" ")[0]) from None
    return float(estimate.step_time_s / row["step_time_s"])


def device_factors(ratios: dict[tuple[str, str], list[tuple[float, ...]]]) -> str:
    """The YAML that tfsim.training.confidence reads: measured / predicted, median per device with enough rows."""
    by_device: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for (_, device), found in ratios.items():
        by_device[device] += found
    lines = [
        "# measured / predicted step time, medians; written by tools/first_check.py from published runs",
        "schema: 1",
    ]
    lines.append("devices:")
    for device, found in sorted(by_device.items()):
        if len(found) >= FEWEST:
            factors = ", ".join(f"{s}: {1 / median(r[i] for r in found):.2f}" for i, s in enumerate(STYLES))
            lines.append(f"  {device}: {{rows: {len(found)}, {factors}}}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare every row and write the report."""
    table = pd.read_csv(sys.argv[1], low_memory=False)
    for column in SIZES + LAYOUT:
        table[column] = pd.to_numeric(table[column], errors="coerce")
    skipped: Counter[str] = Counter()
    ratios: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for row in table.to_dict("records"):
        try:
            ratio = tuple(predicted_over_measured(row, style) for style in STYLES)
            ratios[str(row["source"])[:60], str(row["device"])].append(ratio)
        except Skip as reason:
            skipped[str(reason)] += 1
    groups = [*sorted(ratios.items()), (("all", "all"), [r for found in ratios.values() for r in found])]
    lines = [
        "# First check of training times",
        "",
        "Step time predicted / measured on published runs; written by `tools/first_check.py`. Kernels are calibrated",
        "(reports/operators.md), whole steps are not.",
        "Each cell: median ratio (median absolute error), for the two software styles.",
        "",
        f"{len(table)} rows, {len(groups[-1][1])} predicted, {sum(skipped.values())} skipped.",
        "",
        "| source | device | rows | " + " | ".join(STYLES) + " |",
        "|---|---|---|" + "---|" * len(STYLES),
    ]
    for (source, device), found in groups:
        cells = []
        for i in range(len(STYLES)):
            error = median(abs(r[i] - 1) for r in found)
            cells.append(f"{median(r[i] for r in found):.2f} ({error:.0%})")
        lines.append(f"| {source} | {device} | {len(found)} | {' | '.join(cells)} |")
    lines += ["", "| skipped because | rows |", "|---|---|", *(f"| {k} | {n} |" for k, n in skipped.most_common())]
    write_text(ROOT / "reports" / "first_check.md", "\n".join(lines) + "\n")
    write_text(CHECK, device_factors(ratios))
    print("\n".join(lines[6:]))


if __name__ == "__main__":
    main()
