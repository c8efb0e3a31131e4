"""How long an operator takes: operators in, seconds out."""

from tfsim.timing.collectives import Groups, collective_seconds
from tfsim.timing.host import exposed_dispatch
from tfsim.timing.kernels import basis
from tfsim.timing.operator import OperatorTime, operator_time

__all__ = ["Groups", "OperatorTime", "basis", "collective_seconds", "exposed_dispatch", "operator_time"]
