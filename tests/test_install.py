"""Installed as a wheel, from an sdist or editable, tfsim finds its data from any folder."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Isolated (-I -S), so that neither the tests' own environment nor the current folder helps out.
PRINT_DATA = """
import site, sys
site.addsitedir(sys.argv[1])
from tfsim.files import data_dir
for kind in ("hardware", "scenarios"):
    folder = data_dir(kind)
    print(folder, len(list(folder.rglob("*.yaml"))))
"""
BUILD_EDITABLE = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"


def run(*command: str | Path, cwd: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, into: Path) -> Path:
    """Build with the hatchling that is installed: an isolated build would need the network."""
    run(
        sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", into, source,
        cwd=into,
    )  # fmt: skip
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_of_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sdist = build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel_of_sdist"))


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("editable")
    run(sys.executable, "-c", BUILD_EDITABLE, into, cwd=ROOT)
    (made,) = into.iterdir()
    return made


def yaml_files(kind: str) -> int:
    return len(list((ROOT / kind).rglob("*.yaml")))


def test_the_wheel_holds_the_data(wheel: Path, wheel_of_sdist: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for kind in ("hardware", "scenarios"):
        packed = [n for n in names if n.startswith(f"tfsim/_data/{kind}/") and n.endswith(".yaml")]
        assert len(packed) == yaml_files(kind) > 0
    measured = {n.removeprefix("tfsim/_data/measured/") for n in names if n.startswith("tfsim/_data/measured/")}
    assert measured == {"runs.csv", "machine.yaml"}
    assert "tfsim/py.typed" in names
    assert all(name.startswith(("tfsim/", "tfsim-")) for name in names)
    assert sorted(names) == sorted(zipfile.ZipFile(wheel_of_sdist).namelist())


@pytest.mark.parametrize("package", ["wheel", "wheel_of_sdist", "editable"])
def test_installed_tfsim_finds_its_data(package: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
        "--target", site, request.getfixturevalue(package), cwd=elsewhere,
    )  # fmt: skip
    # Somebody else's project next to the packages must not pass for tfsim's source tree.
    (site / "pyproject.toml").write_text('[project]\nname = "other"\n')
    data = ROOT if package == "editable" else site / "tfsim" / "_data"
    assert run(sys.executable, "-I", "-S", "-c", PRINT_DATA, site, cwd=elsewhere).splitlines() == [
        f"{data / kind} {yaml_files(kind)}" for kind in ("hardware", "scenarios")
    ]
