"""The oracle's rows beside tfsim's counts: one comparison for the tests and for tools/exactness_report.py.

Documented library quirks are named conventions here, never special cases in the core: transformers expands MLA
latents again in a decode step (``latent="expanded"``), runs all experts of Llama-4 (``experts="all"``), keeps
window - 1 tokens between steps, and caches Falcon-40B's keys and values broadcast to all query heads.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tfsim.models.counts import Counts, cache_bytes, count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import Attention, ModelSpec

DATA = Path(__file__).parent / "data" / "oracle"
COMPONENTS = {
    "c_attn_proj": "attn_proj",
    "c_attn_core": "attn_core",
    "c_ffn": "ffn",
    "c_moe_experts": "moe_experts",
    "c_moe_shared": "moe_shared",
    "c_router": "router",
    "c_embed_frontend": "embed_frontend",
    "c_head": "head",
    "c_other": "other",
}
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
# sdpa rows of these store a mask or copies of q, k, v, or ran the math kernel (issue 2, point 4)
STORES_MORE = {
    "mistral": "a float mask",
    "dbrx": "a float mask or copied q/k/v",
    "falcon": "copied k/v, or the math kernel",
    "gemma2": "a float mask",
    "gemma3": "a float mask",
    "llama4": "a float mask",
    "phi3": "copied q/k/v",
    "deepseek": "the math kernel",
}


@dataclass(frozen=True)
class Comparison:
    """One row and quantity: ``expected`` by the oracle, ``got`` by tfsim; ``excluded``: why it is not compared."""

    table: str
    name: str
    family: str
    quantity: str
    expected: float
    got: float
    row: dict[str, str]
    excluded: str = ""


def rows(table: str) -> list[dict[str, str]]:
    """All rows of a table of tests/data/oracle."""
    with (DATA / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def configurations() -> dict[str, Any]:
    """The configurations behind the rows."""
    loaded: dict[str, Any] = json.loads((DATA / "configs.json").read_text())
    return loaded


@cache
def spec(name: str, layers: str = "") -> ModelSpec:
    """The full-size model ``name``, or the small variant at a depth."""
    configs = configurations()
    config = configs["small"][name][layers] if name in configs["small"] else configs["full"][name]["config"]
    return spec_from_config(config, name=name)


def number(text: str) -> int:
    """An integer cell."""
    return int(float(text))


def parameter_rows() -> Iterator[Comparison]:
    """params.csv: totals, both active conventions and every group."""
    for row in rows("params"):
        p = parameters(spec(row["name"]))
        got = {
            "params_total": p.total,
            "params_tied": p.tied,
            "params_untied": p.untied,
            "active_total": p.active,
            "active_less_input_embedding": p.active_less_input_embedding,
            "active_non_embedding": p.active_non_embedding,
            "non_embedding": p.non_embedding,
            **p.by_group,
        }
        for quantity, value in got.items():
            if row.get(quantity):
                yield Comparison("params", row["name"], row["family"], quantity, number(row[quantity]), value, row)


def _flops(row: dict[str, str], name: str) -> Counts:
    fused = row["attn_impl"] == "sdpa" and number(row["sdpa"] or "0") > 0
    phases = {"forward": "forward", "forward+backward": "forward_backward", "decode": "decode"}
    return count(
        spec(name, row.get("layers", "")),
        batch=number(row["batch"]),
        seq_len=number(row["seq_q"]),
        past_len=number(row["past_len"] or "0"),
        phase=phases[row["mode"]],  # type: ignore[arg-type]
        attention="fused" if fused else "eager",
        latent="expanded",
        experts="all" if row["family"] == "llama4" else "routed",
    )


def flops_rows() -> Iterator[Comparison]:
    """flops.csv and flops_fullsize.csv: totals, and components of forward and decode rows."""
    for table, key in (("flops", "variant"), ("flops_fullsize", "name")):
        for row in rows(table):
            name = row[key]
            if name == "s-mla-absorbed-layer":  # one attention layer: tests/models/test_counts.py
                continue
            got = _flops(row, name)
            yield Comparison(table, name, row["family"], "flops_total", number(row["flops_total"]), got.flops, row)
            for column, component in COMPONENTS.items():
                if row[column]:
                    value = got.flops_by_component[component]
                    yield Comparison(table, name, row["family"], column, number(row[column]), value, row)


def kv_rows() -> Iterator[Comparison]:
    """kv_cache.csv: bytes of the cache after a prefill, under transformers' conventions where they differ."""
    for row in rows("kv_cache"):
        model = spec(row["name"], row["layers"])
        arguments: dict[str, Any] = {
            "batch": number(row["batch"]),
            "tokens": number(row["tokens"]),
            "dtype": DTYPES[row["dtype"]],
        }
        expected = number(row["kv_bytes"])
        quirk = ""
        got = cache_bytes(model, **arguments)
        if got != expected:
            quirk, as_library = _library_cache(model)
            got = cache_bytes(as_library, **arguments)
        yield Comparison("kv_cache", row["name"], row["family"], "kv_bytes", expected, got, {**row, "quirk": quirk})


def _library_cache(model: ModelSpec) -> tuple[str, ModelSpec]:
    """The same model with transformers' cache: windows one shorter, Falcon-40B with a cache per query head."""
    quirk = "window - 1 tokens kept"
    blocks = {}
    for name, block in model.blocks.items():
        mixer = block.mixer
        assert isinstance(mixer, Attention)
        if model.family == "falcon":
            quirk, change = "keys and values cached per query head", {"n_kv_heads": mixer.n_heads}
        else:
            change = {key: value - 1 for key in ("window", "chunk") if (value := getattr(mixer, key))}
        blocks[name] = block.model_copy(update={"mixer": mixer.model_copy(update=change)})
    return quirk, model.model_copy(update={"blocks": blocks})


def activation_rows() -> Iterator[Comparison]:
    """activations.csv: saved bytes in all, per layer and fixed."""
    for row in rows("activations"):
        fused = row["attn_impl"] == "sdpa"
        excluded = STORES_MORE.get(row["family"], "") if fused else ""
        got = count(
            spec(row["variant"], row["layers"]),
            batch=number(row["batch"]),
            seq_len=number(row["seq"]),
            dtype=row["precision"],
            attention="fused" if fused else "eager",
            recompute="full" if row["checkpoint"] == "per_layer" else "none",
            experts="all" if row["family"] == "llama4" else "routed",
        )
        for quantity, value in (
            ("saved_act_bytes", got.saved_bytes),
            ("saved_act_bytes_per_layer", got.saved_bytes_per_layer),
            ("saved_act_bytes_fixed", got.saved_bytes_fixed),
        ):
            yield Comparison(
                "activations", row["variant"], row["family"], quantity, float(row[quantity]), value, row, excluded
            )
