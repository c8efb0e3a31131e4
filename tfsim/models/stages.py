"""How layers fall on pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.models.decoder import FIRST, LAST
from tfsim.models.spec import ENCODER, VISION, ModelSpec


@dataclass(frozen=True)
class Stage:
    """Segments of one pipeline stage: ``counts`` of each segment name; ``index`` from 0; ``alike``: stages like it."""

    counts: dict[str, int]
    index: int
    alike: int


def stages(model: ModelSpec, pp: int) -> list[Stage]:
    """Contiguous, even stages; each distinct kind once, represented by its earliest stage (which keeps the most
    micro-batches in flight). Left-over layers go to the stages after the first, sparing the ends while they can. An
    image tower is on the first stage, besides its even share of the other layers."""
    tower = stages(model.vision, 1)[0].counts if model.vision else {}
    layers = model.all_layers
    inner = len(layers) - model.n_layers
    base, extra = divmod(len(layers), pp)
    sizes = [base] * pp
    order = [*range(1, pp - 1), 0, pp - 1] if pp > 1 else [0]
    for stage in order[:extra]:
        sizes[stage] += 1
    found: dict[tuple[tuple[str, int], ...], Stage] = {}
    start = 0
    for index, size in enumerate(sizes):
        names = list(layers[start : start + size])
        end = start + size
        if inner and index == 0:
            names.append(f"{ENCODER}{FIRST}")
        if inner and start < inner <= end:
            names.append(f"{ENCODER}{LAST}")
        if start <= inner < end:  # where the decoder's first layer is
            names.append(FIRST)
        if index == pp - 1:
            names.append(LAST)
        start = end
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        if index == 0:
            counts |= {f"{VISION}{name}": repeat for name, repeat in tower.items()}
        key = tuple(sorted(counts.items()))
        seen = found.get(key)
        found[key] = Stage(counts, seen.index if seen else index, (seen.alike if seen else 0) + 1)
    return list(found.values())
