"""Counts against torch runs of variants that nobody published: 82 small models of every decoder family."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.oracle import COMPONENTS, number
from tfsim.models.counts import count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import ModelSpec

DATA = Path(__file__).parent.parent / "data" / "own_runs"


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def spec(variant: str) -> ModelSpec:
    return spec_from_config(json.loads((DATA / "configs.json").read_text())[variant], name=variant)


def modern_kept() -> Iterator[tuple[dict[str, str], int, float]]:
    """Every row of modern_activations.csv, its bytes and tfsim's."""
    variants = json.loads((DATA.parent / "modern_runs.json").read_text())["variants"]
    for row in rows("modern_activations.csv"):
        got = count(
            spec_from_config(variants[row["variant"]]["config"]),
            batch=number(row["batch"]),
            seq_len=number(row["seq"]),
            dtype=row["precision"],
            attention="fused" if row["attn_impl"] == "sdpa" else "eager",
        ).saved_bytes
        yield row, number(row["saved_act_bytes"]), float(got)


def test_parameters() -> None:
    found = rows("params.csv")
    assert len(found) == 82
    for row in found:
        p = parameters(spec(row["variant"]))
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
        assert {k: v for k, v in got.items() if row.get(k) and v != number(row[k])} == {}, row["variant"]


def test_flops() -> None:
    found = rows("flops.csv")
    assert len(found) == 328
    phases = {"forward": "forward", "forward+backward": "forward_backward", "decode": "decode"}
    for row in found:
        got = count(
            spec(row["variant"]),
            batch=number(row["batch"]),
            seq_len=number(row["seq_q"]),
            past_len=number(row["past_len"] or "0"),
            phase=phases[row["mode"]],  # type: ignore[arg-type]
            attention="eager",
            latent="expanded",
            experts="all" if "llama4" in row["variant"] else "routed",
        )
        assert got.flops == number(row["flops_total"]), row
        for column, component in COMPONENTS.items():
            if row[column]:
                assert got.flops_by_component[component] == number(row[column]), (row, component)


def test_saved_bytes() -> None:
    """Within 2 % without checkpointing, 0.2 % with; most exactly."""
    found = rows("activations.csv")
    assert len(found) == 328
    error: defaultdict[str, float] = defaultdict(float)
    exact = 0
    for row in found:
        full = row["checkpoint"] == "per_layer"
        got = count(
            spec(row["variant"]),
            batch=number(row["batch"]),
            seq_len=number(row["seq"]),
            dtype=row["precision"],
            attention="eager",
            recompute="full" if full else "none",
            experts="all" if "llama4" in row["variant"] else "routed",
        ).saved_bytes
        expected = number(row["saved_act_bytes"])
        exact += got == expected
        error[row["checkpoint"]] = max(error[row["checkpoint"]], abs(got / expected - 1))
    assert error["none"] < 0.02
    assert error["per_layer"] < 0.003
    assert exact > 200


def test_saved_bytes_of_modern_decoders() -> None:
    """Within 3 % everywhere; exact for GLM-4.5, MiniMax and Gemma-4's mixture."""
    found = list(modern_kept())
    assert len(found) == 100
    for row, expected, got in found:
        assert abs(got / expected - 1) < 0.025, (row, got)
        if row["variant"].startswith(("glm-4.5", "minimax", "gemma-4-moe")):
            assert got == expected, row


def test_parameters_of_every_default_configuration() -> None:
    found = rows("default_params.csv")
    assert len(found) == 29
    for row in found:
        p = parameters(spec_from_config({"model_type": row["model_type"]}))
        got = {"params_total": p.total, **p.by_group}
        assert {k: v for k, v in got.items() if row.get(k) and v != number(row[k])} == {}, row["model_type"]
