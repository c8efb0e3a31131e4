"""Measured rows -> one self-contained YAML: a system of this machine, its device and its constants."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pandas as pd
import yaml

from tfsim.errors import InputError
from tfsim.files import validate
from tfsim.hardware import Device, System
from tfsim.hardware.profile import DeviceProfile
from tfsim.measure.backend import Facts, architecture, memory_type
from tfsim.measure.fits import calibration, network
from tfsim.measure.hardware import BEYOND
from tfsim.timing.machine import machine


def profile(rows: pd.DataFrame, about: Facts, *, name: str = "my-machine", kind: str = "cpu") -> dict[str, Any]:
    """The content of a system file: peaks and bandwidth measured, sizes as the operating system states them, and on a
    CPU the constants fitted to ``rows`` with the error they leave (``device.calibration``); a GPU's architecture says
    whose constants it borrows. Rows of an all-reduce between processes become the network that joins so many devices.

    Raises InputError where ``rows`` lack what a profile needs.
    """
    device = _device(rows, about, name, kind)
    if kind == "cpu":
        loaded = Device(validate(DeviceProfile, device, "measured device"))
        device["calibration"] = calibration(rows, machine(loaded))
    reduced = rows[rows["kind"] == "all_reduce"]
    ranks = int(reduced["ranks"].iloc[0]) if len(reduced) else 1
    return {
        "schema": 1,
        "name": name,
        "description": f"This machine, measured: {about.words()}",
        "device": device,
        "devices_per_node": ranks,
        "levels": [network(reduced, "gloo" if kind == "cpu" else "nccl")] if len(reduced) else [],
        "max_devices": ranks,
        "host": {},
        "node_power": {"value": None, "reason": "not measured: give --power, or --set node_power=VALUE"},
        "sources": {"measured": device["sources"]["measured"]} if len(reduced) else {},
    }


def profile_text(content: dict[str, Any]) -> str:
    """The YAML text of a profile, after checking that it reads back as a system.

    Raises InputError where it would not.
    """
    from tfsim.hardware.library import parse_system

    _: System = parse_system(content, "measured system")
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """YAML without anchors, which tfsim's own reader refuses: each figure is written out where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _device(rows: pd.DataFrame, about: Facts, name: str, kind: str) -> dict[str, Any]:
    rates = _peaks(rows)
    bandwidth = _bandwidth(rows, about)
    unknown = {"value": None, "reason": "not measured"}
    figure = {"source": "measured"}

    def stated(value: float | None, unit: str = "") -> dict[str, Any]:
        if value is None:
            return {"value": None, "reason": "the operating system does not say"}
        return {"value": f"{value:.0f} {unit}".strip() if unit else value, "source": "system"}

    caches = {key: stated(size, "B") for key, size in (("l2", about.l2_bytes), ("llc", about.llc_bytes)) if size}
    ranks = rows["ranks"].max() if "ranks" in rows else 1  # processes of a CPU share its memory; a GPU has its own
    memory = stated(about.memory_bytes / (ranks if kind == "cpu" and ranks > 1 else 1), "B")
    generation = architecture(about.capability) if about.capability else None
    lacking = {"value": None, "reason": "not measured here: tfsim measure hardware --dtype bf16 does"}
    return {
        "schema": 1,
        "name": name,
        "vendor": about.vendor,
        "architecture": generation or re.sub(r"[^a-z0-9]+", "-", about.model.lower()).strip("-") or kind,
        "kind": kind,
        "release_date": unknown,
        "matrix_peak": {
            dtype: {"value": f"{rate:.6g} FLOP/s", **figure, "note": "fastest product or fused attention measured"}
            for dtype, rate in rates.items()
        }
        | ({} if {"bf16", "fp16"} & set(rates) else {"bf16": lacking}),
        # fp32 products of a GPU run on its vector units; a CPU's formulas take none
        "vector_peak": {
            "fp32": {"value": f"{rates['fp32']:.6g} FLOP/s", **figure, "note": "fastest fp32 product measured"}
        } if kind == "gpu" and "fp32" in rates else {},
        "memory": {
            "type": memory_type(about.capability) if about.capability else "measured",
            "label": memory,
            "capacity": memory,
            "bandwidth": {"value": f"{bandwidth:.6g} B/s", **figure, "note": "fastest copy or triad beyond the caches"},
        },
        "caches": caches,
        "cores": stated(about.cores),
        "clock": stated(about.clock_hz),
        "tdp": {"value": None, "reason": "not measured: give --set device.tdp=VALUE"},
        "scale_up": {
            "name": "none", "topology": "none", "domain": {"value": 1, "source": "system"},
            "bandwidth": {"value": None, "reason": "no links of its own"}, "in_network_reduction": False,
        },
        "pcie": unknown,
        "nic": unknown,
        "efficiency": {
            "matmul": {"bf16": {"value": 1.0, **figure, "note": "of the fastest product measured"}},
            "memory": {"value": 1.0, **figure, "note": "of the bandwidth measured"},
            "scale_up": {"value": 1.0, **figure, "note": "unused: no links of its own"},
            "scale_out": {"value": 1.0, **figure, "note": "unused: no links of its own"},
        },
        "runtime_reserve": {"value": "0.3 GB", "source": "assumed", "note": "Python with torch"},
        "prices": [],
        "no_price_reason": "a machine of your own: give --price",
        "sources": {
            "measured": {"title": f"tfsim measure hardware: {about.words()}", "date": date.today().isoformat()},
            "system": {"title": "what the operating system states"},
            "assumed": {"title": "an assumption: the note says of what"},
        },
    }  # fmt: skip


def _peaks(rows: pd.DataFrame) -> dict[str, float]:
    """Fastest rate of a product per format [FLOP/s], forward or backward, whose flops are two products'; or of fused
    attention forward, which on a CPU that lacks a format widens it and so outruns products."""
    fused = (rows["name"] == "fused") & (rows["phase"] != "backward")
    products = rows[(rows["kind"].isin(["matmul", "batched_matmul"]) | fused) & (rows["flops"] > 0)]
    if products.empty:
        raise InputError("rows: no matrix product among them, so no peak rate")
    work = products["flops"] * products["phase"].map({"backward": 2}).fillna(1)
    return {str(d): float(rate) for d, rate in (work / products["time_s"]).groupby(products["dtype"]).max().items()}


def _bandwidth(rows: pd.DataFrame, about: Facts) -> float:
    """Fastest stream beyond the caches [bytes/s]."""
    beyond = BEYOND * about.last_cache
    streams = rows[(rows["kind"] == "stream") & (rows["bytes"] > beyond) & (rows["name"] != "fresh")]
    if streams.empty:
        raise InputError("rows: no stream larger than the caches among them, so no memory bandwidth")
    return float((streams["bytes"] / streams["time_s"]).max())
