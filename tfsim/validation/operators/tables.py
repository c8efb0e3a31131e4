"""The operator tables that validation reads, by name."""

from __future__ import annotations

from tfsim.validation.operators.attention import ATTENTION, MIXED, MLA
from tfsim.validation.operators.gemm import GEMM
from tfsim.validation.operators.table import Table

TABLES: dict[str, Table] = {table.name: table for table in (GEMM, ATTENTION, MLA, MIXED)}
