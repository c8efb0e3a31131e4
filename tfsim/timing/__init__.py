"""How long an operator takes: operators in, seconds out."""

from tfsim.timing.collectives import Groups, collective_seconds
from tfsim.timing.roofline import OperatorTime, operator_time

__all__ = ["Groups", "OperatorTime", "collective_seconds", "operator_time"]
