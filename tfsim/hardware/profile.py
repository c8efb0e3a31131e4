"""The parts of a device profile as the YAML file holds them (docs/hardware.md explains each)."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tfsim.errors import unknown
from tfsim.files import not_a_flag
from tfsim.hardware.dtypes import DTYPES
from tfsim.hardware.figures import (
    Achieved,
    Bytes,
    BytesPerSecond,
    Count,
    FlopPerSecond,
    Hertz,
    Source,
    Strict,
    Text,
    Watts,
    figures_in,
)
from tfsim.hardware.prices import Price

# cube_mesh: DGX-1's hybrid cube mesh; host_bridge: PCIe cards that cannot reach each other's memory
Topology = Literal["switch", "mesh", "cube_mesh", "ring", "torus2d", "torus3d", "host_bridge", "none"]
Kind = Literal["gpu", "tpu", "npu", "cpu", "soc"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,79}$")]
Date = Annotated[str, Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")]


class ReleaseDate(Strict):
    """The day of release or announcement, or null with the reason."""

    value: Date | None
    source: Text | None = None
    reason: Text | None = None
    note: Text | None = None

    @model_validator(mode="after")
    def _explained(self) -> Self:
        if not (self.reason if self.value is None else self.source):
            raise ValueError("a date needs a 'source', a null value a 'reason'")
        return self


class Memory(Strict):
    """The main memory of the device."""

    type: Text
    label: Bytes  # what the datasheet prints, read literally: "80 GB" is 80e9 bytes
    capacity: Bytes  # what a program can really address
    bandwidth: BytesPerSecond  # peak


class Caches(Strict):
    """On-chip memories; the keys that a device does not have are left out."""

    l2: Bytes | None = None
    llc: Bytes | None = None  # a last-level cache behind the L2: Infinity Cache, SLC, CPU L3
    per_core: Bytes | None = None  # shared memory / LDS of one SM or compute unit
    scratchpad: Bytes | None = None  # software-managed, whole device: VMEM, SBUF, SRAM


class ScaleUp(Strict):
    """The fast links between devices of one node or rack."""

    name: Text
    topology: Topology
    domain: Count  # devices that the links join at most
    bandwidth: BytesPerSecond  # all links of one device together, one direction
    link_bandwidth: BytesPerSecond | None = None  # to one neighbour; needed unless a switch
    in_network_reduction: bool  # the switches can add (NVLink SHARP)

    @model_validator(mode="after")
    def _neighbours(self) -> Self:
        if self.topology not in ("switch", "host_bridge", "none") and self.link_bandwidth is None:
            raise ValueError(f"a {self.topology} needs 'link_bandwidth', the rate to one neighbour")
        return self


class EfficiencyFigures(Strict):
    """Achieved fractions of the peaks, for large shapes."""

    matmul: dict[Literal["bf16", "fp8", "fp4"], Achieved]
    memory: Achieved
    scale_up: Achieved  # bus bandwidth of large ring collectives / link bandwidth
    scale_out: Achieved

    @model_validator(mode="after")
    def _has_base(self) -> Self:
        if "bf16" not in self.matmul:
            raise ValueError("'matmul' needs 'bf16', the class of all 16-bit and wider formats")
        return self


Amount = Annotated[float, Field(ge=0, strict=True)]


class FittedOn(Strict):
    """The measurements behind constants."""

    rows: Annotated[int, Field(ge=1, strict=True)]
    file: Text | None = None
    sources: tuple[Text, ...] = ()


class FitError(Strict):
    """What a fit left, as shares of the measured time."""

    median_ape: Amount
    p90_ape: Amount


class CalibrationTable(Strict):
    """Fitted constants of one class of operators: as in a file of hardware/calibration."""

    constants: dict[Text, Amount]
    fitted_on: FittedOn
    error: FitError


class DeviceProfile(Strict):
    """One file of hardware/devices/: every number with its source."""

    schema_version: Annotated[Literal[1], BeforeValidator(not_a_flag)] = Field(alias="schema")
    name: Name
    aliases: tuple[Name, ...] = ()
    vendor: Text
    architecture: Text
    kind: Kind
    release_date: ReleaseDate
    matrix_peak: dict[str, FlopPerSecond]
    vector_peak: dict[str, FlopPerSecond]
    memory: Memory
    caches: Caches
    cores: Count  # SMs, compute units, TensorCores or CPU cores
    clock: Hertz  # the clock of the matrix peak
    tdp: Watts
    scale_up: ScaleUp
    pcie: BytesPerSecond
    nic: BytesPerSecond  # scale-out bandwidth per device in the vendor's own node
    efficiency: EfficiencyFigures
    runtime_reserve: Bytes
    prices: tuple[Price, ...] = ()
    no_price_reason: Text | None = None
    notes: tuple[Text, ...] = ()
    sources: dict[str, Source]
    # a machine measured on the spot brings its constants, by class and variant; others have a file of their own
    calibration: dict[Text, dict[Text, CalibrationTable]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for dtype in [*self.matrix_peak, *self.vector_peak]:
            if dtype not in DTYPES:
                raise unknown("dtype", dtype, DTYPES)
        if not any(p.term != "purchase" for p in self.prices) and not self.no_price_reason:
            raise ValueError("without an hourly price, 'no_price_reason' must say why")
        check_sources(self, self.sources)
        return self


def check_sources(profile: Strict, sources: dict[str, Source]) -> None:
    """Every source that a figure, price or date names must be listed in `sources`.

    Raises: ValueError naming the figure and the key.
    """
    used = {path: figure.source for path, figure in figures_in(profile).items()}
    for index, price in enumerate(getattr(profile, "prices", ())):
        used[f"prices.{index}"] = price.source
    released = getattr(profile, "release_date", None)
    if released is not None:
        used["release_date"] = released.source
    for path, key in used.items():
        if key is not None and key not in sources:
            raise ValueError(f"{path}: the source '{key}' is not listed under 'sources'")
