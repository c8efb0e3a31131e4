"""Whatever a user types or a file holds: one line on stderr, exit code 2, nothing on stdout, no traceback."""

from pathlib import Path

import pytest

from tfsim.cli.main import main
from tfsim.files import data_dir
from tfsim.models.load import ZOO

TRAIN = ["train", "llama-3.1-8b", "--on", "dgx-h100"]
SERVE = ["serve", "llama-3.1-8b", "--on", "dgx-h100"]
JOB = ["--global-batch", "8"]


def message(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["model", "show", "llama-3.1-70"], "did you mean llama-3.1-70b"),
        (["model", "show", ""], "a name or a path"),
        (["model", "show", "no/such.yaml"], "no such file"),
        (["model", "show", "llama-3.1-70b", "--dtype", "bf17"], "did you mean bf16?"),
        (["model", "show", "llama-3.1-70b", "--seq-len", "0"], "--seq-len: 0 is below 1"),
        (["model", "show", "llama-3.1-70b", "--seq-len", "1.5"], "not a whole number"),
        (["model", "show", "llama-3.1-70b", "--yaml", "--json"], "not both"),
        (["model", "show", "llama-3.1-70b", "--ignore-field", "x"], "config.json only"),
        (["model", "list", "--family", "lama"], "did you mean llama"),
        (["hardware", "list", "device"], "did you mean devices?"),
        (["hardware", "show", "h10"], "did you mean h100"),
        (["hardware", "show", "dgx-h10"], "did you mean dgx-h100"),
        (["hardware", "show", "h100", "--set", "memory.bandwith=1 TB/s"], "did you mean memory.bandwidth"),
        (["hardware", "show", "h100", "--set", "tdp"], "is not FIELD=VALUE"),
        (["hardware", "show", "h100", "--set", "tdp=-1 W"], "is negative"),
        (["hardware", "show", "h100", "--set", "tdp=1 W", "--set", "tdp=2 W"], "given twice"),
        (["hardware", "compare", "h100"], "two devices or systems"),
        (["hardware", "compare", "h100", "h20x"], "unknown device or system 'h20x'"),
        (TRAIN, "missing option '--global-batch'"),
        ([*TRAIN, *JOB, "--seqlen", "8"], "--seq-len"),
        (["train", "llama-3.1-8b", "--on", "h100", *JOB], "'h100' is a device, not a system: use dgx-h100"),
        (["train", "llama-3.1-8b", "--on", "dgx-h10", *JOB], "did you mean dgx-h100"),
        *(([*TRAIN, "--global-batch", x], "--global-batch: ") for x in ("0", "-1", "1.5", "nan", "1e400", "x")),
        ([*TRAIN, *JOB, "--devices", "inf"], "--devices: 'inf': is not a quantity"),
        ([*TRAIN, *JOB, "--tokens", "15 Tb"], "unknown unit 'Tb'"),
        ([*TRAIN, *JOB, "--price", "2 EUR/h"], "--price: "),
        ([*TRAIN, *JOB, "--power", "700 V"], "--power"),
        ([*TRAIN, *JOB, "--pue", "0.9"], "--pue: '0.9': must be at least 1"),
        ([*TRAIN, *JOB, "--carbon", "350 kWh"], "--carbon"),
        ([*TRAIN, *JOB, "--precision", "bf17"], "did you mean bf16?"),
        ([*TRAIN, *JOB, "--software", "fast"], "unknown software 'fast'"),
        ([*TRAIN, *JOB, "--tp", "3"], "impossible plan"),
        ([*TRAIN, *JOB, "--tp", "0"], "'--tp'"),
        ([*TRAIN, *JOB, "--zero-stage", "4"], "'--zero-stage'"),
        ([*TRAIN, *JOB, "--recompute", "all"], "--recompute: 'all': must be 'none', 'selective' or 'full'"),
        ([*TRAIN, *JOB, "--tp", "16", "--auto"], "no plan with tp 16 divides"),
        ([*SERVE, "--batch", "0"], "--batch: '0': must be at least 1"),
        ([*SERVE, "--input-len", "-5"], "--input-len: '-5': is negative"),
        ([*SERVE, "--memory-utilization", "2"], "--memory-utilization"),
        ([*SERVE, "--memory-utilization", "nan"], "--memory-utilization"),
        ([*SERVE, "--dtype", "bf8"], "unknown dtype 'bf8'"),
        ([*SERVE, "--weights-dtype", "fp9"], "did you mean fp8"),
        ([*SERVE, "--tp", "3"], "impossible plan"),
        ([*SERVE, "--devices", "1e20"], "implausibly large"),
        (["run", "llama-3.1-70b-on-h10"], "did you mean llama-3.1-70b-on-h100"),
        (["run", "scenarios/"], ""),
        (["run", ""], "a name or a path"),
        (["run", "llama-3.1-70b-on-h100", "--price", "free"], "--price"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_options(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in message(args, capsys)


GOOD = {
    "model": (ZOO / "llama-3.1-8b.yaml", ["model", "show"], "d_model"),
    "device": (data_dir("hardware") / "devices" / "l4.yaml", ["hardware", "show"], "vendor"),
    "system": (data_dir("hardware") / "systems" / "l4-1x.yaml", ["hardware", "show"], "devices_per_node"),
    "scenario": (data_dir("scenarios") / "gpt-oss-120b-on-one-h100.yaml", ["run"], "title"),
}
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("wrong type", "{field}"),
        ("unknown key", "unknown key"),
        ("duplicate key", "duplicate key"),
        ("missing key", "missing, and required"),
        ("negative", ""),
        ("nan", "not a finite number"),
        ("infinite", "too large for a number"),
        ("empty", "the file is empty"),
        ("binary", "not a text file"),
        ("list", "not 'key: value' pairs"),
        ("bomb", "anchors and aliases"),
        ("tag", "tags"),
        ("wrong schema", "schema"),
        ("directory", "is a directory"),
        ("missing file", "no such file"),
    ],
)
def test_bad_files(kind: str, fault: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, command, field = GOOD[kind]
    text = good.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{field}:"))

    def with_field(value: str) -> str:
        return "".join([*lines[:at], f"{field}: {value}\n", *lines[at + 1 :]])

    contents = {
        "wrong type": with_field("{a: [1]}"),
        "unknown key": text + "sorce: 3\n",
        "duplicate key": text + f"{field}: 3\n",
        "missing key": "".join([*lines[:at], *lines[at + 1 :]]),
        "negative": with_field("-8"),
        "nan": with_field(".nan"),
        "infinite": with_field("1e400"),
        "empty": "",
        "binary": "\x00",
        "list": "- a\n- b\n",
        "bomb": BOMB,
        "tag": with_field("!!python/object/apply:os.system [ls]"),
        "wrong schema": text.replace("schema: 1", "schema: 2"),
    }
    path = tmp_path / "file.yaml"
    if fault == "directory":
        path.mkdir()
    elif fault == "binary":
        path.write_bytes(b"\xff\xfe\x00\x01")
    elif fault != "missing file":
        path.write_text(contents[fault], encoding="utf-8")
    found = message([*command, str(path)], capsys)
    assert str(path) in found
    assert expected.format(field=field) in found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe", "not a text file"),
        (b"[1]", "not 'key: value' pairs"),
        (b'{"model_type": "llama", "model_type": "llama"}', "duplicate key"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "hidden_size"),
        (b'{"model_type": "llama", "hidden_size": 1e400}', "hidden_size"),
        (b'{"model_type": "llamo"}', "model_type"),
        (b"{}", "model_type"),
        (b'{"model_type": "llama", "hidden_size": -1}', "hidden_size"),
    ],
)
def test_bad_config_json(content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert expected in message(["model", "show", str(path)], capsys)
