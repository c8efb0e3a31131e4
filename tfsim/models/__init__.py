"""Architectures as operators: specifications, the zoo, Hugging Face import, exact counts."""

from tfsim.models.counts import Counts, Parameters, count
from tfsim.models.spec import ModelSpec

__all__ = ["Counts", "ModelSpec", "Parameters", "count"]
