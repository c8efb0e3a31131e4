"""The operator tables that validation reads, by name."""

from __future__ import annotations

from tfsim.validation.operators.attention import ATTENTION, MIXED, MLA
from tfsim.validation.operators.collectives import COLLECTIVES
from tfsim.validation.operators.expert_alltoall import EXPERT_ALLTOALL
from tfsim.validation.operators.gemm import GEMM
from tfsim.validation.operators.layers import LAYERS
from tfsim.validation.operators.moe import MOE
from tfsim.validation.operators.pointwise import POINTWISE
from tfsim.validation.operators.scans import SCANS
from tfsim.validation.operators.table import Table

TABLES: dict[str, Table] = {
    table.name: table
    for table in (GEMM, ATTENTION, MLA, MIXED, MOE, EXPERT_ALLTOALL, COLLECTIVES, LAYERS, POINTWISE, SCANS)
}
