"""The collectives table on a few published rows (aiconfigurator, Apache-2.0; vidur, MIT; vTrain, MIT)."""

from __future__ import annotations

import io

import pandas as pd

from tfsim.validation.operators.collectives import COLLECTIVES
from tfsim.validation.operators.run import predict, table_of

ROWS = """source,device,timing,op,library,dtype,num_devices,devices_per_node,bytes,node,time_s
aiconfigurator,a100-sxm-80gb,host,all_gather,nccl/2.27.3,half,8,8,8192,,1.458e-05
aiconfigurator,a100-sxm-80gb,host,all_gather,nccl/2.27.3,half,8,8,67108864,,0.0003516
aiconfigurator,h100-sxm-80gb,host,all_reduce,nccl/2.27.3,half,8,8,67108864,,0.00032293
aiconfigurator,h100-sxm-80gb,host,all_reduce,nccl/2.27.3,int8,8,8,8192,,1.6375e-05
aiconfigurator,b200-sxm,host,alltoall,nccl/2.29.2,half,4,4,8192,,1.033e-05
aiconfigurator,b200-sxm,host,alltoall,nccl/2.29.2,half,4,4,67108864,,0.00012479
aiconfigurator,gb200,host,all_reduce,nccl/2.29.2,half,4,4,67108864,,0.00018238
aiconfigurator,l40s,host,reduce_scatter,nccl/2.27.3,half,2,2,1048576,,4.748e-05
aiconfigurator,h100-sxm-80gb,graph,all_reduce,TRTLLM 1.3.0rc10 TRTLLM,bf16,8,8,67108864,,0.00032346
aiconfigurator,b200-sxm,graph,all_reduce,vLLM 0.24.0 vLLM_custom_graph,bf16,8,8,8192,,7.8237e-06
vidur,a100-pcie-80gb,kernel,all_reduce,nccl,fp16,4,4,536373250,a100_pairwise_nvlink,0.033902
vidur,a100-sxm-80gb,kernel,send_recv,nccl,fp16,2,2,67108864,a100_dgx,0.000294
vidur,h100-sxm-80gb,kernel,send_recv,nccl,fp16,2,1,67108864,h100_dgx,0.001871
vtrain,v100-sxm-32gb,host,all_reduce,nccl,fp32,6,6,1073741824,,0.039121
"""
FAULTY = """vidur,a100-sxm-80gb,kernel,all_reduce,nccl,fp16,16,8,67108864,a100_dgx,0.007193
vidur,a40,kernel,send_recv,nccl,fp16,2,2,66977792,a40_pairwise_nvlink,0.016629
aiconfigurator,l40s,graph,all_reduce,SGLang 0.5.12 SGLang_CustomAllReduce_graph,bf16,8,8,1073741824,,0.090218
aiconfigurator,h100-sxm-80gb,host,all_reduce,nccl/2.27.3,half,8,8,1048576,,0
"""


def table(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text))


def test_the_columns_name_the_table() -> None:
    assert table_of(table(ROWS)) is COLLECTIVES


def test_published_rows_are_met() -> None:
    rows = predict(COLLECTIVES, table(ROWS))
    assert (rows["skipped"] == "").all()
    error = rows["predicted"] / rows["time_s"] - 1
    assert error.abs().max() < 0.3 and error.abs().median() < 0.1
    assert (rows["baseline"] < rows["predicted"]).all()


def test_each_row_finds_its_constants() -> None:
    rows = predict(COLLECTIVES, table(ROWS))
    found = list(zip(rows["part"], rows["variant"], strict=True))
    assert found[2] == ("reduce", "nccl")  # eight on a switch that adds
    assert found[3] == ("collective", "nccl")  # which cannot add integers
    assert found[7] == ("bridge", "nccl")
    assert found[8:10] == [("engine", "flags"), ("engine", "barrier")]
    assert rows["constants"][10] == "borrowed from a100-sxm-80gb (ampere)"
    assert predict(COLLECTIVES, table(ROWS), without_own=True)["constants"][2].startswith("borrowed from h200")


def test_times_and_sources_are_not_seen() -> None:
    rows = table(ROWS)
    changed = rows.assign(time_s=1.0, source="x", node="y")
    pd.testing.assert_series_equal(predict(COLLECTIVES, rows)["predicted"], predict(COLLECTIVES, changed)["predicted"])


def test_named_faults_are_left_out() -> None:
    rows = predict(COLLECTIVES, table(ROWS.splitlines()[0] + "\n" + FAULTY))
    assert list(rows["skipped"]) == [
        "vidur inter-node: an unpublished, much slower network",
        "vidur A40 send_recv: no working NVLink",
        "engine run on another host than this device's other rows",
        "time_s: not a positive number",
    ]


def test_rows_no_system_or_formula_describes_say_so() -> None:
    head = ROWS.splitlines()[0] + "\n"
    rows = predict(
        COLLECTIVES,
        table(
            head
            + "x,a100-sxm-80gb,host,broadcast,nccl,half,8,8,8192,,1e-5\n"
            + "x,t4,host,all_reduce,nccl,half,64,4,8192,,1e-5\n"
            + "x,nothing,host,all_reduce,nccl,half,2,2,8192,,1e-5\n"
        ),
    )
    assert list(rows["skipped"][:2]) == ["no formula for this kind of row", "a size the formula needs is missing"]
    assert rows["skipped"][2].startswith("device: ")


def test_rows_of_no_group_are_skipped() -> None:
    good = table(ROWS).iloc[:3]
    for wrong in ({"num_devices": 0}, {"num_devices": float("nan")}, {"devices_per_node": -1}, {"op": "scan"}):
        rows = predict(COLLECTIVES, pd.concat([good, good.assign(**wrong)], ignore_index=True))
        assert list(rows["skipped"] != "") == [False] * 3 + [True] * 3
