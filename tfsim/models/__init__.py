"""Architectures as operators: specifications, the zoo, Hugging Face import, exact counts."""

from tfsim.models.counts import Counts, Parameters, count
from tfsim.models.load import list_models, load_model
from tfsim.models.spec import ModelSpec

__all__ = ["Counts", "ModelSpec", "Parameters", "count", "list_models", "load_model"]
