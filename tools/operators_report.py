"""Write reports/operators.md and its plots: predicted against measured operator times.

Run: python tools/operators_report.py --data PATH/TO/ops   (files with the columns of the operator tables; minutes on
two cores). The constants are those of hardware/calibration; only the table of held-out rows fits its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfsim.errors import InputError  # noqa: E402
from tfsim.files import data_dir, read_yaml, write_bytes, write_text  # noqa: E402
from tfsim.hardware import load_device  # noqa: E402
from tfsim.palette import COLOURS  # noqa: E402
from tfsim.validation.operators.calibrate import held_out  # noqa: E402
from tfsim.validation.operators.collectives import ENGINES  # noqa: E402
from tfsim.validation.operators.run import OperatorReport, statistics, validate_operators  # noqa: E402

OWN = "aiconfigurator"  # whose rows the constants are fitted on
LARGE = 1e11  # FLOPs
NARROW = ("fp8", "fp8_block", "int8_wo", "int4_wo", "sq", "nvfp4")
Rows = pd.DataFrame


@dataclass(frozen=True)
class Target:
    """A class of rows: what it is called, the file, which of its rows, what they are grouped by, and the limits of
    the median and 90th percentile of the error (None: reported only)."""

    title: str
    table: str
    chosen: Callable[[Rows], Any]
    by: tuple[str, ...]
    median: float | None
    p90: float | None


def bf16(*devices: str, large: bool = False) -> Callable[[Rows], Any]:
    """bf16 products of these devices, all or those above 1e11 FLOPs."""
    return lambda r: (
        own(r) & (r["dtype"] == "bfloat16") & r["device"].isin(devices) & ((gemm_flops(r) > LARGE) | (not large))
    )


def own(r: Rows) -> Any:
    """Rows of the measurer that constants are fitted on."""
    return r["source"] == OWN


def others(r: Rows) -> Any:
    """Rows of the other measurers, of GPUs."""
    return (r["source"] != OWN) & (r["device"] != "tpu-v6e")


def gemm_flops(r: Rows) -> Any:
    """FLOPs of products."""
    return 2.0 * r["groups"] * r["m"] * r["n"] * r["k"]


def is_engine(r: Rows) -> Any:
    """All-reduces by an engine's own kernels."""
    return r["library"].str.startswith(ENGINES, na=False)


def in_a_node(r: Rows) -> Any:
    """Collectives that stay within a node."""
    return r["devices_per_node"] >= r["num_devices"]


TARGETS = (
    Target("bf16 GEMM", "gemm", bf16("h100-sxm-80gb", "b200-sxm"), ("device",), 0.07, 0.22),
    Target("bf16 GEMM over 1e11 FLOPs", "gemm", bf16("h100-sxm-80gb", "b200-sxm", large=True), ("device",), 0.04, 0.10),
    Target("bf16 GEMM", "gemm", bf16("a100-sxm-80gb", "gb200"), ("device",), 0.08, 0.25),
    Target("bf16 GEMM over 1e11 FLOPs", "gemm", bf16("a100-sxm-80gb", "gb200", large=True), ("device",), 0.05, 0.12),
    Target("bf16 GEMM, large caches", "gemm", bf16("l40s", "rtx-pro-6000"), ("device",), 0.10, 0.35),
    Target(
        "narrow and weight-only GEMM", "gemm",
        lambda r: own(r) & r["dtype"].isin(NARROW) & (r["device"] != "arc-pro-b60"), ("device", "dtype"), 0.12, 0.35,
    ),
    Target("attention", "attention", own, ("device", "phase"), 0.10, 0.30),
    Target("latent attention", "mla", own, ("device", "phase"), 0.10, 0.30),
    Target("experts", "moe", own, ("device",), 0.15, 0.40),
    Target("Mamba-2, gated delta", "scans", own, ("device", "kind"), 0.15, 0.40),
    Target(
        "collectives in one node, NCCL", "collectives",
        lambda r: own(r) & (r["timing"] == "host") & ~is_engine(r) & in_a_node(r) & (r["device"] != "arc-pro-b60"),
        ("device",), 0.10, 0.30,
    ),
    Target(
        "engine all-reduce under a graph", "collectives", lambda r: is_engine(r) & (r["timing"] == "graph"),
        ("device",), 0.15, 0.60,
    ),
    Target(
        "engine all-reduce, eager (host launch)", "collectives", lambda r: is_engine(r) & (r["timing"] == "host"),
        ("device",), None, None,
    ),
    Target(
        "TPU v6e attention, not fitted on", "attention", lambda r: r["variant"] == "tpu-odd", ("phase",), 0.15, 0.40
    ),
    Target(
        "TPU v6e layers, odd token counts", "layers",
        lambda r: (r["device"] == "tpu-v6e") & (r["tokens"] % 2 == 1), ("device",), 0.15, 0.40,
    ),
    *(
        Target(f"other measurers: {table}", table, others, ("source", "device"), 0.15, 0.40)
        for table in ("gemm", "attention", "mla", "moe", "layers")
    ),
    Target("mixed attention", "attention_mixed", lambda r: r["device"] != "", ("device",), 0.25, None),
    Target("pointwise", "pointwise", lambda r: r["device"] != "", ("source", "device"), 0.25, None),
    Target("expert all-to-all", "expert_alltoall", own, ("device", "kind"), 0.25, None),
    Target("Arc Pro B60, GEMM", "gemm", lambda r: r["device"] == "arc-pro-b60", ("dtype",), 0.25, None),
    Target(
        "Arc Pro B60, collectives", "collectives", lambda r: (r["device"] == "arc-pro-b60") & ~is_engine(r),
        ("device",), 0.25, None,
    ),
    Target(
        "other collectives", "collectives", lambda r: ~own(r) | ~in_a_node(r) & ~is_engine(r),
        ("source", "device"), 0.25, None,
    ),
)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Read the data, write the report and its plots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, type=Path, help="a folder of operator measurements")
    parser.add_argument("--out", type=Path, default=ROOT / "reports", help="where operators.md goes")
    options = parser.parse_args(arguments)
    report = validate_operators(options.data)
    without = validate_operators(options.data, leave_out=True)
    tables = {name.split(".")[0]: rows for name, rows in report.rows.items()}
    folder = options.out / "operators"
    folder.mkdir(parents=True, exist_ok=True)
    plots = []
    for name, title, picture in pictures(tables):
        write_bytes(folder / f"{name}.png", picture)
        plots += [f"### {title}", "", f"![{title}](operators/{name}.png)", ""]
    text = [
        *introduction(report),
        *target_table(tables),
        *held_out_table(options.data),
        *left_out_table(report, without),
        *coverage_table(report),
        *exclusion_table(report),
        *constants_table(),
        "## Residuals",
        "",
        "Predicted over measured time. Each dot is a sampled row, the line the median of the rows of like size, the",
        "band their middle 80 % (where a panel has one line). Grey lines are 20 % off.",
        "",
        *plots,
    ]
    write_text(options.out / "operators.md", "\n".join(text).rstrip() + "\n")


def introduction(report: OperatorReport) -> list[str]:
    """What this is, and the error over everything."""
    every = report.overall
    return [
        "# Operator times: predicted against measured",
        "",
        "Written by `python tools/operators_report.py --data DIR` from published measurements and the constants in",
        "`hardware/calibration`; how a time is made is told in [docs/timing.md](../docs/timing.md). The error of a row",
        "is |predicted / measured - 1|; p90 is its 90th percentile, bias the median with its sign. No prediction sees",
        "the measured time, its source or the name of a model or framework. Constants are fitted on the rows of one",
        f"measurer ({OWN}), for the TPU on half of the rows there are; those of others are a test.",
        "",
        f"{every['rows']:,} rows, {every['used']:,} used: median {percent(every['median_ape'])}, "
        f"p90 {percent(every['p90_ape'])}, bias {percent(every['bias'])}.",
        "The pure roofline, the longer of FLOPs over the peak and bytes over the bandwidth, is",
        f"{percent(every['baseline_median_ape'])} off on the same rows (median).",
        "",
    ]


def target_table(tables: dict[str, Rows]) -> list[str]:
    """Each class against its limits."""
    lines = [
        "## Against the targets",
        "",
        "| class | of | rows | used | median | p90 | bias | roofline | limit | met |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for target in TARGETS:
        if target.table not in tables:
            continue
        rows = tables[target.table]
        rows = rows[np.asarray(target.chosen(rows), bool)]
        for key, group in rows.groupby(list(target.by)):
            found = statistics(group)
            of = ", ".join(str(part) for part in key)
            cells = [
                target.title,
                of,
                f"{found['rows']:,}",
                f"{found['used']:,}",
                *figures(found),
                *verdict(target, found),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    held = (
        "H200 products, attention and experts, one measurer and three rows in ten of the others are held back from us."
    )
    return [*lines, "", held, ""]


def held_out_table(data: Path) -> list[str]:
    """Products fitted anew on seven rows in ten, and how far off the other three are."""
    lines = [
        "## Rows held out of a fit",
        "",
        "The constants of bf16 products, fitted anew on a random 70 % of the rows and tested on the other 30 %: a",
        "few constants do not learn thousands of rows by heart.",
        "",
        "| device | rows tested | median | p90 | over 1e11 FLOPs | median | p90 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for device in ("h100-sxm-80gb", "b200-sxm"):
        try:
            rows = held_out(data, device, "matmul", "bfloat16").assign(skipped="", baseline=np.nan)
        except InputError:
            continue  # data without its products
        cells = [device]
        for group in (rows, rows[gemm_flops(rows) > LARGE]):
            found = statistics(group)
            cells += [f"{found['used']:,}", percent(found["median_ape"]), percent(found["p90_ape"])]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def verdict(target: Target, found: dict[str, Any]) -> tuple[str, str]:
    """The limits in words, and whether they are met."""
    if target.median is None:
        return "-", "-"
    limit = f"median {target.median:.0%}" + ("" if target.p90 is None else f", p90 {target.p90:.0%}")
    if found["median_ape"] is None:
        return limit, "no rows"
    met = found["median_ape"] <= target.median and (target.p90 is None or found["p90_ape"] <= target.p90)
    return limit, "yes" if met else "**no**"


def left_out_table(report: OperatorReport, without: OperatorReport) -> list[str]:
    """Each measured device as if it had not been: what users of unmeasured chips get."""
    lines = [
        "## Leave one device out",
        "",
        "The rows that were fitted on, predicted from the constants of the device's relatives and its own datasheet,",
        "as if it had not been measured: what users of unmeasured chips get. Where another chip of its generation",
        "is measured, the aim is at most twice the calibrated error; elsewhere another generation lends, in italics.",
        "Classes that nobody near it was measured for are missing here.",
        "",
        "| file | constants | device | lent by | rows | own median | p90 | left out median | p90 | ratio |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for file, rows in report.rows.items():
        other = without.rows[file]
        both = (rows["skipped"] == "") & (other["skipped"] == "") & own(rows)
        both &= rows["constants"].str.startswith("measured on")
        by = [rows["part"], rows["device"], other["constants"].str.removeprefix("borrowed from ")]
        for (part, device, lender), calibrated in rows[both].groupby([column[both] for column in by]):
            mine, left = statistics(calibrated), statistics(other.loc[calibrated.index])
            ratio = left["median_ape"] / mine["median_ape"]
            shown = f"{ratio:.1f}"
            if not same_die(device, lender):
                lender = f"*{lender}*"
            elif ratio > 2:
                shown = f"**{shown}**"
            errors = [percent(found[key]) for found in (mine, left) for key in ("median_ape", "p90_ape")]
            cells = [file.split(".")[0], part.replace("_", " "), device, lender, f"{mine['used']:,}", *errors, shown]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def same_die(device: str, lender: str) -> bool:
    """Whether ``lender`` (devices and their architecture, as calibrations word it) is of the architecture of
    ``device`` and of its kind of memory: two dies bear one architecture's name."""
    ours, first = load_device(device), load_device(lender.split(",")[0].split(" (")[0])
    kinds = {d.profile.memory.type.startswith("HBM") for d in (ours, first)}
    return ours.architecture == first.architecture and len(kinds) == 1


def coverage_table(report: OperatorReport) -> list[str]:
    """Rows used of each file."""
    lines = [
        "## Coverage",
        "",
        "| file | rows | used | share | median | p90 | bias | roofline |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for file, rows in report.rows.items():
        found = statistics(rows)
        share = percent(found["used"] / found["rows"])
        lines.append(f"| {file} | {found['rows']:,} | {found['used']:,} | {share} | {' | '.join(figures(found))} |")
    return [*lines, ""]


def exclusion_table(report: OperatorReport) -> list[str]:
    """Rows not used, by file and rule."""
    lines = ["## Rows not used", "", "| file | because | rows | of the file |", "|---|---|---:|---:|"]
    for file, rows in report.rows.items():
        for reason, count in rows.loc[rows["skipped"] != "", "skipped"].value_counts().items():
            lines.append(f"| {file} | {reason} | {count:,} | {percent(count / len(rows))} |")
    return [*lines, ""]


def constants_table() -> list[str]:
    """What each class of constants was fitted on, from the calibration files."""
    lines = [
        "## What the constants were fitted on",
        "",
        "Robust least squares on log errors within the bounds of each constant, over at most 3,000 rows of a class",
        "(`tfsim calibrate operators`).",
        "",
        "| constants | how many | variant | devices: rows, error left (median) |",
        "|---|---:|---|---|",
    ]
    found: dict[tuple[str, str], list[str]] = {}
    many: dict[str, int] = {}
    for path in sorted((data_dir("hardware") / "calibration").glob("*.yaml")):
        for kind, variants in read_yaml(path)["operators"].items():
            for variant, table in variants.items():
                many[kind] = len(table["constants"])
                rows, error = table["fitted_on"]["rows"], table["error"]["median_ape"]
                found.setdefault((kind, variant), []).append(f"{path.stem}: {rows:,}, {percent(error)}")
    for (kind, variant), devices in sorted(found.items()):
        lines.append(f"| {kind.replace('_', ' ')} | {many[kind]} | {variant} | {'; '.join(devices)} |")
    return [*lines, ""]


def figures(found: dict[str, Any]) -> list[str]:
    """Median, p90, bias and the roofline's median, as cells."""
    return [percent(found[key]) for key in ("median_ape", "p90_ape", "bias", "baseline_median_ape")]


def percent(share: float | None) -> str:
    """A share as text."""
    return "-" if share is None else f"{100 * share:.1f} %"


# Plots: one picture per class, one panel per device.


@dataclass(frozen=True)
class Picture:
    """``size``: of each row, what the horizontal axis (``axis``) shows; ``panel``: column whose values are panels;
    ``line``: column whose values are the lines of a panel."""

    name: str
    title: str
    table: str
    chosen: Callable[[Rows], Any]
    size: Callable[[Rows], Any]
    axis: str
    panel: str = "device"
    line: str | None = None


def pairs(r: Rows) -> Any:
    """FLOPs of attention over new tokens, full or causal."""
    q, kv = r["q_len"], r["kv_len"].fillna(r["q_len"])
    seen = np.where(r["causal"] == 1, q * (kv - q) + q * q / 2, q * kv)
    return 4 * r["batch"].fillna(1) * r["n_heads"] * r["head_dim"] * np.maximum(seen, q)


def cache_bytes(r: Rows) -> Any:
    """Keys and values that a decode step reads."""
    width = np.where(r["kv_dtype"] == "fp8", 1, 2)
    keys = np.where(r["window"] > 0, np.minimum(r["window"], r["kv_len"]), r["kv_len"])
    return 2 * r["batch"] * r["n_kv_heads"] * r["head_dim"] * keys * width


def expert_flops(r: Rows) -> Any:
    """FLOPs of a rank's experts under an even load."""
    return 2.0 * r["tokens"] * r["topk"] * r["hidden"] * r["inter"] * (2 + r["gated"]) / (r["moe_tp"] * r["moe_ep"])


PICTURES = (
    Picture("gemm-bf16", "bf16 products", "gemm", lambda r: own(r) & (r["dtype"] == "bfloat16"), gemm_flops, "FLOPs"),
    Picture(
        "gemm-narrow", "Narrow and weight-only products", "gemm", lambda r: own(r) & r["dtype"].isin(NARROW),
        gemm_flops, "FLOPs", line="dtype",
    ),
    Picture(
        "prefill", "Prefill and encoder attention", "attention", lambda r: own(r) & (r["phase"] != "decode"), pairs,
        "FLOPs", line="phase",
    ),
    Picture(
        "decode", "Decode attention", "attention", lambda r: own(r) & (r["phase"] == "decode"), cache_bytes,
        "bytes of keys and values",
    ),
    Picture(
        "mla", "Latent attention", "mla", own, lambda r: r["batch"].fillna(1) * r["kv_len"].fillna(r["q_len"]),
        "keys in all", line="phase",
    ),
    Picture("moe", "Layers of experts", "moe", own, expert_flops, "FLOPs under an even load"),
    Picture(
        "collectives", "NCCL collectives within a node", "collectives",
        lambda r: own(r) & (r["timing"] == "host") & ~is_engine(r) & in_a_node(r), lambda r: r["bytes"], "bytes",
        line="op",
    ),
    Picture(
        "scans", "Mamba-2 and gated delta", "scans", own, lambda r: r["baseline"], "roofline time [s]", line="kind"
    ),
    Picture(
        "others", "Products, other measurers", "gemm", others, gemm_flops, "FLOPs", panel="source",
        line="device",
    ),
    Picture(
        "pointwise", "Pointwise work (published figures, nothing fitted)", "pointwise", lambda r: r["source"] != OWN,
        lambda r: 4.0 * r["rows"] * r["cols"], "bytes in and out", line="op",
    ),
)  # fmt: skip


def pictures(tables: dict[str, Rows]) -> Iterator[tuple[str, str, bytes]]:
    """Name, title and PNG of each picture that the data have rows for."""
    from tfsim.plots.style import house_style, image

    for picture in PICTURES:
        rows = tables.get(picture.table, pd.DataFrame())
        if len(rows):
            rows = rows[np.asarray(picture.chosen(rows), bool) & (rows["skipped"] == "")]
        if len(rows):
            with house_style():
                yield picture.name, picture.title, image(draw(picture, rows), "png", dpi=80)


def draw(picture: Picture, rows: Rows) -> Any:
    """A row of panels of predicted over measured, three abreast."""
    from matplotlib.figure import Figure

    panels = list(rows.groupby(picture.panel))
    names = [] if picture.line is None else sorted(rows[picture.line].astype(str).unique())
    wide = min(3, len(panels))
    deep = -(-len(panels) // wide)
    figure = Figure(figsize=(1 + 3.6 * wide, 0.9 + 2.5 * deep), layout="constrained")
    axes = figure.subplots(deep, wide, sharex=True, sharey=True, squeeze=False)
    for axis, (name, group) in zip(axes.flat, panels, strict=False):
        axis.set_title(f"{name} ({len(group):,})", fontsize=10)
        for level in (0.8, 1.25):
            axis.axhline(level, color="#BBBBBB", linewidth=0.8)
        axis.axhline(1, color="#777777", linewidth=0.8)
        lines = [("", group)] if picture.line is None else list(group.groupby(group[picture.line].astype(str)))
        for line, part in lines:
            colour = COLOURS[names.index(line) % len(COLOURS) if names else 0]
            residuals(axis, np.asarray(picture.size(part), float), part, colour, alone=len(lines) == 1)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(0.4, 2.5)
        axis.set_yticks([0.5, 0.8, 1, 1.25, 2], ["0.5", "0.8", "1", "1.25", "2"])
        axis.minorticks_off()
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    for axis in axes.flat[max(0, len(panels) - wide) : len(panels)]:
        axis.tick_params(labelbottom=True)
        axis.set_xlabel(picture.axis)
    for axis in axes[:, 0]:
        axis.set_ylabel("predicted / measured")
    if len(names) > 1:
        from matplotlib.lines import Line2D

        keys = [Line2D([], [], color=COLOURS[i % len(COLOURS)], label=name) for i, name in enumerate(names)]
        figure.legend(handles=keys, loc="outside lower center", ncols=min(len(names), 2 * wide), fontsize=9)
    return figure


_DOTS, _BINS, _FEWEST = 200, 14, 6


def residuals(axis: Any, size: Any, rows: Rows, colour: str, *, alone: bool) -> None:
    """Dots of a sample, the running median, and where one line is alone in its panel the middle 80 %."""
    ratio = (rows["predicted"] / rows["time_s"]).to_numpy(float)
    keep = np.isfinite(size) & (size > 0)
    size, ratio = size[keep], ratio[keep]
    if not len(size):
        return
    some = np.random.default_rng(0).permutation(len(size))[:_DOTS]
    axis.plot(size[some], np.clip(ratio[some], 0.41, 2.45), ".", color=colour, alpha=0.25, markersize=2.5)
    bins = int(np.clip(len(size) // 15, 1, _BINS))
    edges = np.geomspace(size.min(), size.max() * 1.001, bins + 1)
    middle, spread = [], []
    for low, high in pairwise(edges):
        inside = ratio[(size >= low) & (size < high)]
        if len(inside) >= _FEWEST:
            middle.append(np.sqrt(low * high))
            spread.append(np.quantile(inside, (0.1, 0.5, 0.9)))
    if middle:
        low, centre, high = np.array(spread).T
        if alone:
            axis.fill_between(middle, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.plot(middle, centre, color=colour, linewidth=1.6)


if __name__ == "__main__":
    main()
