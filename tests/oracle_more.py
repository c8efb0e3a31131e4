"""Oracle rows of the families beside decoders (tests/data/oracle_more), compared as tests/oracle.py does."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

from tfsim.models.counts import Counts
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import ModelSpec

DATA = Path(__file__).parent / "data" / "oracle_more"
PHASES = {"forward": "forward", "forward+backward": "forward_backward", "decode": "decode"}


@cache
def all_rows(table: str) -> tuple[dict[str, str], ...]:
    """All rows of ``table``."""
    with (DATA / f"{table}.csv").open(newline="") as file:
        return tuple(csv.DictReader(file))


def rows(table: str, family: str) -> list[dict[str, str]]:
    """All rows of ``table`` of one family."""
    return [row for row in all_rows(table) if row["family"] == family]


def config(name: str, layers: str = "") -> dict[str, Any]:
    """The configuration of the full-size model ``name``, or of the small variant at a depth."""
    configs = json.loads((DATA / "configs.json").read_text())
    found: dict[str, Any] = (
        configs["small"][name][layers] if name in configs["small"] else configs["full"][name]["config"]
    )
    return found


@cache
def spec(name: str, layers: str = "") -> ModelSpec:
    """The full-size model ``name``, or the small variant at a depth."""
    return spec_from_config(config(name, layers), name=name)


def number(text: str) -> int:
    """An integer cell; an empty one is 0."""
    return int(float(text or "0"))


def unequal_parameters(row: dict[str, str], parameters: Any) -> dict[str, tuple[int, int]]:
    """Every given quantity and group of a params row that differs: (expected, got)."""
    got = {
        "params_total": parameters.total,
        "params_tied": parameters.tied,
        "params_untied": parameters.untied,
        "active_total": parameters.active,
        "active_less_input_embedding": parameters.active_less_input_embedding,
        "active_non_embedding": parameters.active_non_embedding,
        "non_embedding": parameters.non_embedding,
        **parameters.by_group,
    }
    return {key: (number(row[key]), value) for key, value in got.items() if row.get(key) and number(row[key]) != value}


def unequal_flops(row: dict[str, str], counts: Counts) -> dict[str, tuple[int, Any]]:
    """The total, and every given component, of a FLOPs row that differs: (expected, got)."""
    got = {"flops_total": counts.flops, **{f"c_{name}": value for name, value in counts.flops_by_component.items()}}
    return {key: (number(row[key]), value) for key, value in got.items() if row.get(key) and number(row[key]) != value}
