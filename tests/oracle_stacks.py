"""Oracle rows of encoders, encoder-decoders and image models beside tfsim's counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.oracle_more import DATA, PHASES, number, rows, unequal_flops, unequal_parameters
from tfsim.models.counts import cache_bytes, count, cross_bytes, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import ModelSpec, NoHead

DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
# timm's models are the same architectures; the oracle holds no configuration of its own for them
TIMM = {
    "timm-vit_tiny_patch16_224": ("vit-ti16", {}),
    "timm-vit_small_patch16_224": ("vit-s16", {}),
    "timm-vit_base_patch16_224": ("vit-b16", {}),
    "timm-vit_base_patch32_224": ("vit-b16", {"patch_size": 32}),
    "timm-vit_large_patch16_224": ("vit-l16", {}),
    "timm-vit_huge_patch14_224": ("vit-h14", {}),
}
SAVED = ("saved_act_bytes", "saved_act_bytes_per_layer", "saved_act_bytes_fixed")


@cache
def _configurations() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DATA / "configs.json").read_text())
    return loaded


@cache
def _classes() -> dict[str, str]:
    families = ("bert", "roberta", "deberta")
    return {row["name"]: row["model_class"] for family in families for row in rows("params", family)}


@cache
def spec(name: str, layers: str = "") -> ModelSpec:
    """The full-size model ``name`` with the head its row was made with, or the small variant at a depth."""
    configs = _configurations()
    if name in configs["small"]:
        return spec_from_config(configs["small"][name][layers], name=name)
    own, changes = TIMM.get(name, (name, {}))
    config = configs["full"][own]["config"] | changes
    if name in _classes():
        config["architectures"] = [_classes()[name]]
    return spec_from_config(config, name=name)


def wrong_parameters(family: str) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """Every row of params.csv of a family, and what differs in it."""
    for row in rows("params", family):
        yield row["name"], unequal_parameters(row, parameters(spec(row["name"])))


def _lengths(row: dict[str, str], model: ModelSpec) -> dict[str, Any]:
    source = number(row["seq_enc"])
    sequence = number(row.get("seq_q") or row.get("seq") or "")
    if model.encoder is None:  # a tower alone: its positions are in the encoder's column, where it reads no tokens
        return {"seq_len": source or sequence}
    return {"seq_len": sequence, "encoder_len": source}


def _tower(row: dict[str, str], model: ModelSpec) -> ModelSpec:
    """Which part of a model a full-size row ran."""
    if row["note"].startswith(("image tower", "encoder only")):
        assert model.encoder is not None
        return model.encoder
    if row["note"].startswith("text tower"):
        return model.model_copy(update={"encoder": None, "head": NoHead()})
    return model


def wrong_flops(family: str) -> Iterator[tuple[str, dict[str, tuple[int, Any]]]]:
    """Every row of flops.csv and flops_fullsize.csv of a family, and what differs in it."""
    for table, key in (("flops", "variant"), ("flops_fullsize", "name")):
        for row in rows(table, family):
            model = _tower(row, spec(row[key], row.get("layers", "")))
            got = count(
                model,
                batch=number(row["batch"]),
                past_len=number(row["past_len"]),
                phase=PHASES[row["mode"]],  # type: ignore[arg-type]
                attention="fused" if row["attn_impl"] == "sdpa" else "eager",
                **_lengths(row, model),
            )
            yield row[key], unequal_flops(row, got)


def caches(family: str) -> Iterator[tuple[tuple[int, int], tuple[Any, Any]]]:
    """(self-attention, cross-attention) bytes of every row of kv_cache.csv: expected, got."""
    for row in rows("kv_cache", family):
        model = spec(row["name"], row["layers"])
        common: dict[str, Any] = {"batch": number(row["batch"]), "dtype": DTYPES[row["dtype"]]}
        kv = cache_bytes(model, tokens=number(row["tokens"]), **common)
        cross = cross_bytes(model, encoder_len=number(row["seq_enc"]), **common)
        yield (number(row["kv_bytes"]), number(row["cross_bytes"])), (kv, cross)


def saved(family: str) -> Iterator[tuple[dict[str, str], tuple[int, ...], tuple[Any, ...]]]:
    """Every row of activations.csv of a family: the row, expected and got (total, per layer, fixed)."""
    for row in rows("activations", family):
        model = spec(row["variant"], row["layers"])
        got = count(
            model,
            batch=number(row["batch"]),
            dtype=row["precision"],
            attention="fused" if row["attn_impl"] == "sdpa" else "eager",
            recompute="full" if row["checkpoint"] == "per_layer" else "none",
            **_lengths(row, model),
        )
        found = (got.saved_bytes, got.saved_bytes_per_layer, got.saved_bytes_fixed)
        yield row, tuple(number(row[name]) for name in SAVED), found
