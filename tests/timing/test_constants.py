"""Whose constants a device takes: its own, those of its generation and memory, those of a relative; broken files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

import pytest
import yaml

from tfsim.errors import InputError
from tfsim.hardware import load_device
from tfsim.timing import constants as module
from tfsim.timing.constants import Calibration, Fitted, calibrations, constant, constants, forget, has_relatives


@dataclass(frozen=True, slots=True)
class Two:
    """Constants of a made-up class."""

    start: float = constant(1e-6, 1e-7, 1e-5, unit="s")
    speed: float = constant(0.5, 0.1, 1)


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a calibration file of a device into a folder that stands for hardware/."""
    folder = tmp_path / "calibration"
    folder.mkdir()
    monkeypatch.setattr(module, "data_dir", lambda kind: tmp_path)

    def one(device: str, **values: float) -> Path:
        path = folder / f"{device}.yaml"
        table = {"constants": values, "fitted_on": {"rows": 9}, "error": {"median_ape": 0.1, "p90_ape": 0.2}}
        path.write_text(yaml.safe_dump({"schema": 1, "operators": {"made": {"up": table}}}))
        forget()
        return path

    forget()
    yield one
    forget()


def found(device: str, *, without_own: bool = False) -> Fitted[Two]:
    return constants("made", Two, load_device(device), "up", without_own=without_own)


def test_own_constants_come_first(write: Write) -> None:
    write("h100-sxm-80gb", start=2e-6, speed=0.8)
    write("h800-sxm-80gb", start=8e-6, speed=0.2)
    own = found("h100")
    assert own.own and own.values == Two(2e-6, 0.8)
    assert own.source == "measured on h100-sxm-80gb"


def test_without_its_own_a_device_takes_its_generations(write: Write) -> None:
    write("h100-sxm-80gb", start=2e-6, speed=0.8)
    write("h800-sxm-80gb", start=8e-6, speed=0.2)
    write("a100-sxm-80gb", start=1e-5, speed=0.1)
    borrowed = found("h200-sxm-141gb")
    assert not borrowed.own
    assert asdict(borrowed.values) == pytest.approx({"start": 4e-6, "speed": 0.4})  # geometric means
    assert borrowed.source == "borrowed from h100-sxm-80gb, h800-sxm-80gb (hopper)"
    assert found("h100", without_own=True).values == Two(8e-6, 0.2)


def test_the_same_memory_goes_before_the_same_name(write: Write) -> None:
    """Two dies bear one architecture's name: those with HBM and the cards."""
    write("b200-sxm", start=1e-6, speed=0.9)
    write("rtx-pro-6000", start=4e-6, speed=0.3)
    assert found("gb200").source == "borrowed from b200-sxm (blackwell)"
    assert found("rtx-5090").source == "borrowed from rtx-pro-6000 (blackwell)"
    assert found("rtx-pro-6000", without_own=True).source == "borrowed from b200-sxm (blackwell)"


def test_an_unmeasured_generation_takes_the_nearest(write: Write) -> None:
    write("a100-sxm-80gb", start=1e-6, speed=0.4)
    write("b200-sxm", start=4e-6, speed=0.9)
    assert found("h100").source == "borrowed from a100-sxm-80gb (ampere)"
    assert found("v100-sxm-32gb").values == Two(1e-6, 0.4)
    assert found("b300-sxm").source == "borrowed from b200-sxm (blackwell)"


def test_nobody_measured(write: Write) -> None:
    with pytest.raises(InputError, match="no calibration holds made up: run tfsim calibrate operators"):
        found("h100")
    write("h100-sxm-80gb", start=1e-6, speed=0.4)
    with pytest.raises(InputError, match="no calibration holds made up"):
        found("h100", without_own=True)
    with pytest.raises(InputError, match="no calibration holds made down"):
        constants("made", Two, load_device("h100"), "down")


@pytest.mark.parametrize(
    ("values", "wrong"), [({"start": 1e-6}, "speed"), ({"start": 1e-6, "speed": 0.5, "sped": 1}, "sped")]
)
def test_other_constants_than_this_version_has(write: Write, values: dict[str, float], wrong: str) -> None:
    path = write("h100-sxm-80gb", **values)
    with pytest.raises(InputError) as error:
        found("h200-sxm-141gb")
    assert str(error.value) == f"{path}: operators.made.up: {wrong}: not the constants of this version"


@pytest.mark.parametrize("speed", ["fast", None, float("nan"), -1, True, 2])
def test_constants_that_are_no_numbers_within_their_bounds(write: Write, speed: object) -> None:
    path = write("h100-sxm-80gb", start=1e-6, speed=speed)
    with pytest.raises(InputError) as error:
        found("h100")
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "operators: 3",
        "operators: {made: [1]}",
        "operators: {made: {up: 3}}",
        "operators: {made: {up: {error: {}}}}",
        "",
    ],
)
def test_files_of_another_shape(write: Write, text: str) -> None:
    path = write("h100-sxm-80gb", start=1e-6, speed=0.5)
    path.write_text(text)
    forget()
    with pytest.raises(InputError) as error:
        found("h100")
    assert str(path) in str(error.value)


def test_what_stands_behind_a_devices_times(write: Write) -> None:
    write("h100-sxm-80gb", start=1e-6, speed=0.4)
    [own], [borrowed] = (calibrations(load_device(name)) for name in ("h100", "h200"))
    assert own == Calibration("made", "up", True, "measured on h100-sxm-80gb", 9, 0.1, 0.2)
    assert (borrowed.own, borrowed.source, borrowed.rows) == (False, "borrowed from h100-sxm-80gb (hopper)", 9)
    assert calibrations(load_device("tpu-v5p")) == []


@pytest.mark.parametrize("name", ["h200", "tpu-v5e", "tpu-v6e", "v100-sxm-32gb"])
def test_no_kernel_of_a_gpu_is_told_of_a_tpu_nor_the_reverse(name: str) -> None:
    device = load_device(name)
    found = calibrations(device)
    assert ("systolic" in {one.kind for one in found}) == (device.kind == "tpu")
    assert all(("tpu" in one.source) == (device.kind == "tpu") for one in found)


def test_means_are_geometric() -> None:
    both = module._mean([Two(1e-6, 0.1), Two(4e-6, 0.9)])
    assert both.start == pytest.approx(2e-6) and both.speed == pytest.approx(sqrt(0.09))


def test_what_takes_fitted_constants() -> None:
    assert has_relatives(load_device("v100-sxm-32gb")) and has_relatives(load_device("h20-96gb"))
    assert not has_relatives(load_device("tpu-v5p"))
