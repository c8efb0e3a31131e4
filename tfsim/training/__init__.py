"""Training: plans, step time, memory, plan search."""

from tfsim.training.estimate import TrainingEstimate, search_plans, train

__all__ = ["TrainingEstimate", "search_plans", "train"]
