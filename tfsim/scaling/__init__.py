"""Scaling laws: every published one with what it counts, and the model that a budget buys.

>>> from tfsim import scaling
>>> best = scaling.optimal(compute=5.76e23)
>>> f"{best.parameters:.3g} parameters, {best.tokens:.3g} tokens"
'7.32e+10 parameters, 1.31e+12 tokens'
"""

from tfsim.scaling.allocation import (
    Allocation,
    BowlPoint,
    best_bits,
    bowl,
    optimal,
)
from tfsim.scaling.bands import SHARES, Band, Range, Spread, band, spread, spread_over, why_no_band
from tfsim.scaling.compare import Comparison, compare_laws
from tfsim.scaling.conventions import (
    PARAMETER_COUNTS,
    PF_DAY,
    chinchilla_flops_per_token,
    convert_compute,
    convert_parameters,
    deepseek_flops_per_token,
    flops_from_pf_days,
    pf_days_from_flops,
    total_from_non_embedding,
)
from tfsim.scaling.fit_extrapolate import extrapolate
from tfsim.scaling.fit_isoflop import bootstrap_isoflop, envelope, isoflop, parabola_bias
from tfsim.scaling.fit_law import FORMS, fit
from tfsim.scaling.fit_published import published
from tfsim.scaling.fit_runs import read_runs
from tfsim.scaling.fit_study import study
from tfsim.scaling.law_files import law_text, read_law
from tfsim.scaling.laws import (
    DEFAULT,
    Law,
    curve_of,
    law,
    list_laws,
    loss,
)
from tfsim.scaling.quantities import (
    critical_batch,
    downstream_error,
    effective_parameters,
    fewest_steps,
    least_compute,
    quantization_loss,
    recipe,
    routed_loss,
    single_loss,
    steps_loss,
    vocabulary_loss,
)
from tfsim.scaling.surface import Repeats, Sparse, Surface
from tfsim.scaling.trained import Trained, trained_models

__all__ = [
    "DEFAULT",
    "FORMS",
    "PARAMETER_COUNTS",
    "PF_DAY",
    "SHARES",
    "Allocation",
    "Band",
    "BowlPoint",
    "Comparison",
    "Law",
    "Range",
    "Repeats",
    "Sparse",
    "Spread",
    "Surface",
    "Trained",
    "band",
    "best_bits",
    "bootstrap_isoflop",
    "bowl",
    "chinchilla_flops_per_token",
    "compare_laws",
    "convert_compute",
    "convert_parameters",
    "critical_batch",
    "curve_of",
    "deepseek_flops_per_token",
    "downstream_error",
    "effective_parameters",
    "envelope",
    "extrapolate",
    "fewest_steps",
    "fit",
    "flops_from_pf_days",
    "isoflop",
    "law",
    "law_text",
    "least_compute",
    "list_laws",
    "loss",
    "optimal",
    "parabola_bias",
    "pf_days_from_flops",
    "published",
    "quantization_loss",
    "read_law",
    "read_runs",
    "recipe",
    "routed_loss",
    "single_loss",
    "spread",
    "spread_over",
    "steps_loss",
    "study",
    "total_from_non_embedding",
    "trained_models",
    "vocabulary_loss",
    "why_no_band",
]
