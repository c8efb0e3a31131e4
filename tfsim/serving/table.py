"""All plans for one load, best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfsim.errors import InputError
from tfsim.hardware import require_system
from tfsim.models.spec import require_decoder
from tfsim.serving.engine import serve
from tfsim.serving.plans import FIELDS, candidates, possible
from tfsim.serving.search import PIPELINE_MARGIN
from tfsim.serving.workload import whole

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = (
    "tp", "pp", "ep", "replicas", "batch", "max_concurrency", "fits", "ttft_ms", "tpot_ms", "itl_ms",
    "requests_per_s", "output_tokens_per_s", "output_tokens_per_s_per_device", "tokens_per_s_per_user",
    "usd_per_million_output_tokens", "joules_per_output_token", "verdict",
)  # fmt: skip


def search_serving_plans(model: Any, system: Any, *, devices: Any, **options: Any) -> DataFrame:
    """Every possible plan on ``devices`` (one number), a row each, ranked as plan="auto" does (output tokens/s per
    device, a margin asked of pipelines), what does not fit last. Options: those of ``serve`` but ``plan``, as scalars.

    Columns: tp, pp, ep, replicas, batch, max_concurrency, fits, ttft_ms, tpot_ms, itl_ms, requests_per_s,
    output_tokens_per_s(_per_device), tokens_per_s_per_user, usd_per_million_output_tokens, joules_per_output_token,
    memory_bytes (of memory_usable_bytes) and verdict.

    Raises: InputError as ``serve`` does, for an array, or when no plan is possible on so many devices.
    """
    import pandas as pd

    if any(np.ndim(x) for x in (devices, *options.values())):
        raise InputError("search_serving_plans takes one load: give scalars")
    require_decoder(model)
    require_system(system)
    count = whole(devices, "devices")
    plans = candidates(model, system, count)
    keep = possible(model, system, count, plans)
    if not keep.any():
        serve(model, system, devices=devices, plan={}, **options)  # raises the reason
    chosen = {name: np.asarray(getattr(plans, name))[keep] for name in FIELDS}
    found = serve(model, system, devices=devices, plan=chosen, **options)
    size = len(chosen["tp"])
    values = {name: getattr(found, name) for name in COLUMNS}
    values["memory_bytes"] = found.memory.total
    values["memory_usable_bytes"] = found.memory.usable
    table = pd.DataFrame({name: np.full(size, np.nan) if v is None else v for name, v in values.items()})
    whole_columns = ["tp", "pp", "ep", "replicas", "batch", "max_concurrency"]
    table[whole_columns] = table[whole_columns].astype("int64")
    rank = table["output_tokens_per_s_per_device"].where(table["pp"] == 1, lambda speed: speed / PIPELINE_MARGIN)
    order = np.lexsort((table["tpot_ms"], -rank.fillna(-np.inf)))
    return table.iloc[order].reset_index(drop=True)
