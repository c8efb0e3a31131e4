"""Serving: prefill and decode, concurrency, throughput and cost under steady load."""

from tfsim.serving.engine import serve
from tfsim.serving.estimate import Phase, ServingEstimate
from tfsim.serving.memory import Memory
from tfsim.serving.table import search_serving_plans

__all__ = ["Memory", "Phase", "ServingEstimate", "search_serving_plans", "serve"]
