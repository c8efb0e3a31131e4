"""A small sample of published GEMM times, for tests.

NVIDIA AI Configurator (ai-dynamo/aiconfigurator, aic-core/src/aiconfigurator_core/systems/data at 095f58a5, 2026-08-21,
Apache-2.0): TensorRT-LLM Linear, bf16, under a captured graph.
"""

from __future__ import annotations

from io import StringIO

import pandas as pd

GEMM_TEXT = """\
source,device,timing,name,dtype,groups,m,n,k,layout,out_dtype,time_s
aiconfigurator,h100-sxm-80gb,graph,,bfloat16,1,5,2560,1536,,,5.9669e-06
aiconfigurator,h100-sxm-80gb,graph,,bfloat16,1,3,16384,2560,,,3.3088e-05
aiconfigurator,h100-sxm-80gb,graph,,bfloat16,1,3584,32,4096,,,8.3883e-06
aiconfigurator,h100-sxm-80gb,graph,,bfloat16,1,8192,3072,64,,,2.3642e-05
aiconfigurator,h100-sxm-80gb,graph,,bfloat16,1,2048,1536,6144,,,5.0773e-05
aiconfigurator,h100-sxm-80gb,graph,,bfloat16,1,16384,10240,512,,,0.00026675
aiconfigurator,h100-sxm-80gb,graph,,bfloat16,1,16384,1536,65536,,,0.0040583
aiconfigurator,a100-sxm-80gb,graph,,bfloat16,1,48,128,64,,,3.9595e-06
aiconfigurator,a100-sxm-80gb,graph,,bfloat16,1,1024,1024,2048,,,3.0174e-05
aiconfigurator,a100-sxm-80gb,graph,,bfloat16,1,2048,8192,12288,,,0.0015483
"""


def gemm() -> pd.DataFrame:
    """The rows as a table."""
    return pd.read_csv(StringIO(GEMM_TEXT))


def lines(*changes: tuple[str, str]) -> str:
    """The text of the sample with replacements, each of which must apply."""
    text = GEMM_TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text
