"""Every command's happy path: readable text, and JSON that is nothing but JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfsim.cli.main import main

TRAIN = ["train", "llama-3.1-8b", "--on", "dgx-h100", "--global-batch", "64", "--seq-len", "4096"]
SERVE = ["serve", "llama-3.1-8b", "--on", "dgx-h100"]


def text_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    return out


def json_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(text_of([*args, "--json"], capsys), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["model", "list"], ["llama-3.1-70b", "deepseek-v3"]),
        (["model", "list", "--family", "LLAMA"], ["llama-2-7b"]),
        (
            ["model", "show", "llama-3.1-70b"],
            ["70,553,706,496", "69,503,033,344", "141.1 GB (131.4 GiB)", "(320 KiB)", "palm", "449.2 GFLOP", "6nd"],
        ),
        (["model", "show", "gpt-oss-120b", "--dtype", "fp8", "--seq-len", "4k"], ["mxfp4", "4,000 tokens", "window"]),
        (["hardware", "list"], ["h100-sxm-80gb", "dgx-h100", "hgx-h100"]),
        (["hardware", "list", "systems"], ["gb200-nvl72"]),
        (["hardware", "show", "h100"], ["989.4 TFLOP/s", "3.35 TB/s", "Lambda", "Glenn Lockwood", "memory.bandwidth"]),
        (["hardware", "show", "h100"], ["Kernel times", "matmul", "measured on h100-sxm-80gb", "median error"]),
        (["hardware", "show", "h200"], ["borrowed from h100-sxm-80gb (hopper)", "mla decode"]),
        (["hardware", "show", "mi300x"], ["kernel times", "a roofline: no device of its architecture"]),
        (["hardware", "show", "dgx-h100"], ["10.2 kW", "NCCL", "pue"]),
        (["hardware", "show", "h100", "--set", "memory.bandwidth=4 TB/s"], ["4 TB/s", "set by the user"]),
        (["hardware", "compare", "h100", "h200"], ["4.8 TB/s (1.43x)", "h200-sxm-141gb"]),
        (["hardware", "compare", "dgx-h100", "gb200-nvl72"], ["innermost domain", "72 devices (9.00x)"]),
        (TRAIN, ["MFU", "exact", "palm", "fits", "memory", "bound by", "Confidence"]),
        ([*TRAIN, "--tp", "2", "--price", "$2/h", "--tokens", "1T"], ["as given", "$2.00/h", "(given)", "days"]),
        ([*TRAIN, "--tp", "2", "--auto"], ["tp 2", "fastest of"]),
        ([*TRAIN, "--top", "3"], ["step time", "recompute"]),
        ([*TRAIN, "--zero-stage", "0", "--dp", "8"], ["does not fit", "nearest plan that fits"]),
        (SERVE, ["TTFT", "TPOT", "concurrency", "per million output tokens", "prefill", "decode"]),
        (["serve", "llama-3.1-70b", "--on", "l4-1x"], ["does not fit", "┃"]),
        (["model", "show", "gnmt-v2-8layer"], ["33.55 MB (32 MiB) per sequence", "32.77 kB (32 KiB)"]),
        (["model", "formats"], ["nvfp4", "4.25", "q4_k_m", "activations' format"]),
        (["model", "show", "llama-4-scout"], ["144, part of the sequence", "871,932,416, projector", "1.016 TFLOP"]),
        (["model", "show", "rt-2-pali-x-55b"], ["8 tokens of 256 bins per control step"]),
        (["serve", "openvla-7b", "--on", "dgx-h100"], ["288 tokens in, 1 image of them, 7 out", "control rate", "Hz"]),
        (
            ["train", "qwen3-vl-2b", "--on", "dgx-h100", "--global-batch", "8", "--seq-len", "2k", "--images", "2"],
            ["2 images each", "image tower"],
        ),
        ([*SERVE, "--tp", "2", "--devices", "4", "--kv-dtype", "fp8"], ["2 replicas of 2 devices", "fp8 KV cache"]),
    ],
    ids=" ".join,
)
def test_text(args: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = text_of(args, capsys)
    for words in expected:
        assert words in out


def test_model_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(["model", "show", "llama-3.1-70b", "--seq-len", "2048"], capsys)
    assert found["parameters"]["total"] == 70_553_706_496
    assert found["weight_bytes"] == 141_107_412_992
    assert found["kv_bytes_per_sequence"] == 2048 * 327_680
    names = [model["name"] for model in json_of(["model", "list"], capsys)]
    assert len(names) >= 60
    assert names == sorted(names)


def test_model_yaml_loads_again(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "copy.yaml"
    path.write_text(text_of(["model", "show", "gemma-2-9b", "--yaml"], capsys), encoding="utf-8")
    first, second = (json_of(["model", "show", name], capsys) for name in ("gemma-2-9b", str(path)))
    assert first == second


def test_hardware_json(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json_of(["hardware", "list"], capsys)
    assert {"devices", "systems"} == set(listed)
    shown = json_of(["hardware", "show", "h100", "--set", "tdp=500 W"], capsys)
    assert shown["tdp"]["value"] == 500
    compared = json_of(["hardware", "compare", "h100", "h200"], capsys)
    assert compared["names"] == ["h100-sxm-80gb", "h200-sxm-141gb"]
    memory = next(row for row in compared["rows"] if row["quantity"] == "memory bandwidth")
    assert memory["ratios"] == [1.0, pytest.approx(4.8 / 3.35)]


def test_train_json_is_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    import tfsim

    found = json_of([*TRAIN, "--tokens", "1T", "--power", "700W", "--carbon", "100 g/kWh", "--pue", "1.2"], capsys)
    model, system = tfsim.load_model("llama-3.1-8b"), tfsim.load_system("dgx-h100")
    direct = tfsim.train(
        model, system, global_batch=64, seq_len=4096, tokens=1e12, power=700, carbon=0.1, pue=1.2, plan=found["plan"]
    )
    assert found["step_time_s"] == direct.step_time_s
    assert found["energy_kwh"] == direct.energy_kwh
    assert found["carbon_kg"] == pytest.approx(found["energy_kwh"] * 0.1)
    assert [plan["step_time_s"] for plan in found["plans"]] == sorted(plan["step_time_s"] for plan in found["plans"])
    best = json_of([*TRAIN, "--top", "2"], capsys)
    assert best[0]["step_time_s"] == found["step_time_s"]
    assert len(best) == 2


def test_serve_json_is_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    import tfsim

    found = json_of([*SERVE, "--devices", "2", "--set", "memory.bandwidth=4 TB/s", "--batch", "16"], capsys)
    model = tfsim.load_model("llama-3.1-8b")
    faster = tfsim.load_system("dgx-h100").with_overrides({"memory.bandwidth": "4 TB/s"})
    assert found["tpot_ms"] == tfsim.serve(model, faster, devices=2, batch=16).tpot_ms


def test_a_dollar_price_changes_only_money(capsys: pytest.CaptureFixture[str]) -> None:
    dear, cheap = (json_of([*SERVE, "--price", price], capsys) for price in ("$4/h", "$2/h"))
    assert dear["usd_per_million_output_tokens"] == pytest.approx(2 * cheap["usd_per_million_output_tokens"])
    assert dear["tpot_ms"] == cheap["tpot_ms"]


def test_model_show_needs_neither_numpy_nor_rich() -> None:
    """What keeps it quick to start."""
    heavy = ["numpy", "pandas", "rich", "matplotlib", "tfsim.hardware"]
    code = (
        "import sys; from tfsim.cli.main import main; main(['model', 'show', 'llama-3.1-70b']);"
        f"sys.exit(','.join(m for m in {heavy} if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_compare_prints_a_table_per_case_and_the_crossings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "gpt2", "mamba-130m", "--on", "dgx-a100", "--seq-lens", "256,65536"]) == 0
    text = capsys.readouterr().out
    for words in ("gpt2 (standard attention): 124M", "mamba-130m: 129M", "65,536", "more than the device has",
                  "mamba-130m passes gpt2 between 256 and 65,536 tokens", "kernels: "):  # fmt: skip
        assert words in text


def test_compare_json_has_every_row_and_crossing(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["compare", "gpt2", "mamba-130m", "--on", "dgx-a100", "--seq-lens", "256,65536", "--json"]
    assert main(args) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [(row["model"], row["seq_len"]) for row in found["rows"]] == [
        (model, n) for model in ("gpt2", "gpt2 (standard attention)", "mamba-130m") for n in (256, 65_536)
    ]
    assert {"quantity": "decode_s", "winner": "mamba-130m", "loser": "gpt2", "after": 256, "by": 65_536} in (
        found["crossings"]
    )


def test_compare_ignores_a_field_in_the_files_that_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / f"{name}.json") for name in ("plain", "odd")]
    small = {"model_type": "llama", "num_hidden_layers": 2}
    for path, more in zip(paths, ({}, {"shiny": 1}), strict=True):
        Path(path).write_text(json.dumps({**small, **more}), encoding="utf-8")
    args = ["compare", *paths, "gpt2", "--on", "dgx-a100", "--seq-lens", "256"]
    assert main(args) == 2 and "--ignore-field shiny" in capsys.readouterr().err
    assert main([*args, "--ignore-field", "shiny"]) == 0
    assert main([*args, "--ignore-field", "dull"]) == 2 and "'dull': cannot be ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["gpt2", "gpt3x", "--on", "dgx-a100"], "unknown model 'gpt3x'"),
        (["gpt2", "gpt2", "--on", "dgx-a100"], "given twice"),
        (["gpt2", "--on", "dgx-a10"], "dgx-a100"),
        (["gpt2", "--on", "dgx-a100", "--seq-lens", "128,x"], "--seq-lens"),
        (["gpt2", "--on", "dgx-a100", "--seq-lens", ""], "--seq-lens"),
        (["gpt2", "--on", "dgx-a100", "--batch", "0"], "--batch"),
        (["gpt2", "--on", "dgx-a100", "--dtype", "bf17"], "bf16"),
    ],
)
def test_compare_refuses_in_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_model_routing_shows_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "routing", "mixtral-8x7b", "--tokens", "4k", "--capacity-factor", "1.25"]) == 0
    text = capsys.readouterr().out
    for words in ("4,000 tokens, top 2 of 8", "1,000.0 token copies", "8.0 of 8", "dropped", "1,250"):
        assert words in text
    assert main(["model", "routing", "deepseek-v3", "--tokens", "1", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["touched"] == pytest.approx(8)
    assert main(["model", "routing", "gpt2"]) == 2
    assert "no experts" in capsys.readouterr().err
    assert main(["model", "routing", "mixtral-8x7b", "--skew", "-1"]) == 2
    assert "skew" in capsys.readouterr().err
