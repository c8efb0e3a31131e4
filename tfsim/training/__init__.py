"""Training: plans, step time, memory, plan search."""

from tfsim.training.entry import search_plans, train
from tfsim.training.estimate import TrainingEstimate

__all__ = ["TrainingEstimate", "search_plans", "train"]
