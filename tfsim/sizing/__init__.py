"""What model, on how much data, for this budget: scaling laws joined with achieved speed and cost.

>>> from tfsim.sizing import size
>>> answer = size("1e21flops")
>>> f"{answer.parameters:.2g} parameters, {answer.tokens:.2g} tokens"
'2.8e+09 parameters, 6e+10 tokens'
"""

from tfsim.sizing.budget import Budget, read_budget
from tfsim.sizing.entry import size
from tfsim.sizing.estimate import BowlSize, OtherLaw, ServingBill, SizingEstimate
from tfsim.sizing.shapes import Architecture, ModelShape, shape_of

__all__ = [
    "Architecture",
    "BowlSize",
    "Budget",
    "ModelShape",
    "OtherLaw",
    "ServingBill",
    "SizingEstimate",
    "read_budget",
    "shape_of",
    "size",
]
