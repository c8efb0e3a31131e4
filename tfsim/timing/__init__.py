"""How long an operator takes: operators in, seconds out."""

from tfsim.timing.collectives import Groups, collective_seconds
from tfsim.timing.kernels import basis
from tfsim.timing.operator import OperatorTime, exposed_dispatch, operator_time

__all__ = ["Groups", "OperatorTime", "basis", "collective_seconds", "exposed_dispatch", "operator_time"]
