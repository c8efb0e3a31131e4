"""What the scaling ladder trains: models of ten sizes per budget, and the rules of their training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tfsim.errors import InputError, quote
from tfsim.measure.ladder_source import VOCABULARY
from tfsim.models.counts import count
from tfsim.models.spec import ModelSpec

LENGTH = 16  # tokens of a sequence: the source looks back two, so more would only cost attention
LAYERS = 2
HEADS = 2

WIDTHS = (4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
BUDGETS = (5e9, 2e10, 8e10)  # FLOPs, 6 N D: minutes on two cores
QUICK_WIDTHS = (6, 8, 12, 16, 24)
QUICK_BUDGETS = (4e9, 1.2e10)
RATIOS = (0.7, 700.0)  # tokens per parameter: about a factor of five in N to each side of the best

LEARNING_RATE = 0.3  # times 1 / width
_BATCH = 0.4  # times sqrt(D)
_FEWEST = 8  # sequences of a step; fewer only keep the processor waiting for the next kernel


@dataclass(frozen=True)
class Run:
    """One training run. ``n`` parameters, ``tokens`` seen once each in ``steps`` of ``batch`` tokens; ``budget`` is the
    6 N D asked for, ``flops_6nd`` what whole steps make of it, ``flops`` the exact count of their matrix products."""

    width: int
    n: int
    n_non_embedding: int
    budget: float
    steps: int
    batch: int
    learning_rate: float
    seed: int

    @property
    def tokens(self) -> int:
        """D."""
        return self.steps * self.batch

    @property
    def flops_6nd(self) -> int:
        """6 N D."""
        return 6 * self.n * self.tokens

    @property
    def flops(self) -> int:
        """Matrix products of all steps, forward and backward."""
        return step_flops(self.width, self.batch) * self.steps


@cache
def specification(width: int) -> ModelSpec:
    """The ladder's model in tfsim's words: GPT-2's layout with ReLU, two layers, two heads. ``ladder_model.Model`` is
    the same in torch."""
    return ModelSpec.model_validate(
        {
            "schema": 1,
            "name": f"ladder-{width}",
            "d_model": width,
            "vocab_size": VOCABULARY,
            "max_seq_len": LENGTH,
            "blocks": {
                "layer": {
                    "mixer": {
                        "kind": "attention",
                        "n_heads": HEADS,
                        "n_kv_heads": HEADS,
                        "d_head": width // HEADS,
                        "qkv_bias": True,
                        "out_bias": True,
                        "fused_qkv": True,
                    },
                    "ffn": {"kind": "dense", "d_ff": 4 * width, "activation": "relu", "gated": False, "bias": True},
                }
            },
            "layers": f"layer*{LAYERS}",
            "norm": {"kind": "layernorm", "bias": True, "upcast": False, "fused": True},
            "positions": {"n_positions": LENGTH},
            "tied_embeddings": True,
            "dtype": "fp32",
        }
    )


@cache
def sizes(width: int) -> tuple[int, int]:
    """N of a width: all parameters (the output matrix is the input table), and those outside the tables."""
    parameters = count(specification(width), batch=1, seq_len=LENGTH).parameters
    return parameters.total, parameters.non_embedding


@cache
def step_flops(width: int, batch: int) -> int:
    """Matrix products of one step on ``batch`` tokens."""
    counted = count(
        specification(width), batch=batch // LENGTH, seq_len=LENGTH, phase="forward_backward", attention="eager"
    )
    return int(counted.flops)


def plan(
    widths: Sequence[int] = WIDTHS,
    budgets: Sequence[float] = BUDGETS,
    *,
    learning_rates: Sequence[float] = (LEARNING_RATE,),
    batches: Sequence[int | None] = (None,),
    seeds: Sequence[int] = (0,),
    ratios: tuple[float, float] = RATIOS,
) -> list[Run]:
    """All combinations, at each budget [FLOPs] the widths with tokens per parameter within ``ratios``; longest first.

    ``learning_rates`` are those at width 1: Adam's rate falls as 1 / width. ``batches``: tokens of a step, None for
    ``batch_of``'s.

    Raises: InputError for a width that is odd or out of range, a budget, rate or seed out of range, a batch that holds
    no whole number of sequences, and a budget that no width suits.
    """
    for width in widths:
        if width % HEADS or not 4 <= width <= 1024:
            raise InputError(f"widths: {quote(width)} is not an even number from 4 to 1024")
    for name, numbers in (("budgets", budgets), ("learning_rates", learning_rates)):
        for number in numbers:
            if not 0 < number < 1e18:
                raise InputError(f"{name}: {quote(number)} is not a positive number below 1e18")
    for batch in batches:
        if batch is None:
            continue
        if batch < LENGTH or batch % LENGTH:
            raise InputError(f"batches: {quote(batch)} tokens is no whole number of sequences of {LENGTH}")
    for seed in seeds:
        if not 0 <= seed < 2**32:
            raise InputError(f"seeds: {quote(seed)} is not a whole number from 0 to 2^32 - 1")
    runs = []
    for budget in budgets:
        suited = [w for w in widths if ratios[0] <= budget / (6 * sizes(w)[0] ** 2) <= ratios[1]]
        if not suited:
            limits = f"{ratios[0]:g} to {ratios[1]:g} tokens per parameter"
            raise InputError(f"budgets: {budget:g} FLOPs leaves no width with {limits}")
        for width in suited:
            n, outside = sizes(width)
            tokens = budget / (6 * n)
            for batch in dict.fromkeys(batch_of(tokens) if given is None else given for given in batches):
                steps = max(1, round(tokens / batch))
                runs += [
                    Run(width, n, outside, budget, steps, batch, rate / width, seed)
                    for rate in learning_rates
                    for seed in seeds
                ]
    return sorted(runs, key=lambda run: run.tokens, reverse=True)


def batch_of(tokens: float) -> int:
    """Tokens of a step for a run of so many tokens: 0.4 sqrt(D) in whole sequences, at least eight.

    A critical batch grows as the loss falls (McCandlish et al. 2018, arXiv:1812.06162); sqrt(D) is near what Zhang et
    al. 2024 (arXiv:2410.21676) measure, and the constant is that of sweeps (reports/measured/ladder.md).
    """
    return LENGTH * max(_FEWEST, round(_BATCH * math.sqrt(tokens) / LENGTH))
