"""A device: what one accelerator (or CPU) can do, in SI units."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tfsim.errors import InputError, unknown
from tfsim.hardware.dtypes import (
    DTYPES,
    MatmulRate,
    canonical_dtype,
    efficiency_class,
    matmul_rate,
)
from tfsim.hardware.figures import Figure, figures_in
from tfsim.hardware.overrides import overridden, read_overrides, settable
from tfsim.hardware.prices import TERMS, Price, Term, default_price, provider_price
from tfsim.hardware.profile import DeviceProfile, Kind, Topology

# The attributes of a Device that stand for a figure, and the figure's place in the profile.
SHORT_NAMES = {
    "capacity_bytes": "memory.capacity",
    "capacity_label": "memory.label",
    "capacity": "memory.capacity",
    "bandwidth": "memory.bandwidth",
    "l2_bytes": "caches.l2",
    "llc_bytes": "caches.llc",
    "smem_bytes_per_sm": "caches.per_core",
    "scratchpad_bytes": "caches.scratchpad",
    "sm_count": "cores",
    "clock_hz": "clock",
    "tdp_w": "tdp",
    "pcie_bandwidth": "pcie",
    "nic_bandwidth": "nic",
    "runtime_reserve_bytes": "runtime_reserve",
    "scale_up_bandwidth": "scale_up.bandwidth",
}

# Figures that a profile may leave out, and a user may add.
OPTIONAL = (
    *(f"{table}.{dtype}" for table in ("matrix_peak", "vector_peak") for dtype in DTYPES),
    *(f"efficiency.matmul.{name}" for name in ("bf16", "fp8", "fp4")),
    *(f"caches.{name}" for name in ("l2", "llc", "per_core", "scratchpad")),
    "scale_up.link_bandwidth",
)


@dataclass(frozen=True)
class Link:
    """The scale-up links of a device. Bandwidths are per device and per direction [bytes/s]."""

    name: str
    topology: Topology
    domain: int | None
    """Devices that the links join at most; None when nobody published it."""
    bandwidth: float | None
    """All links of the device together."""
    link_bandwidth: float | None
    """To one other device: all of it through a switch, one link of a mesh, ring or torus."""
    in_network_reduction: bool


@dataclass(frozen=True)
class Efficiency:
    """Achieved fractions of the peaks, as the first-version roofline uses them."""

    matmul: Mapping[str, float]
    """Per class "bf16" (16 bits and wider), "fp8" (8 and 6 bits), "fp4" (4 bits)."""
    memory: float
    scale_up: float
    scale_out: float


@dataclass(frozen=True)
class Device:
    """One device. Attributes are SI numbers; None stands for a figure nobody published.

    `require(name)` gives the number or an InputError that says what to --set, `figure(name)` the
    number with its source.
    """

    profile: DeviceProfile

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.profile.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names that load_device takes."""
        return self.profile.aliases

    @property
    def vendor(self) -> str:
        """Who makes it."""
        return self.profile.vendor

    @property
    def architecture(self) -> str:
        """Generation, such as "hopper"."""
        return self.profile.architecture

    @property
    def kind(self) -> Kind:
        """gpu, tpu, npu, cpu or soc."""
        return self.profile.kind

    @property
    def release_date(self) -> str | None:
        """ISO date, possibly only year and month."""
        return self.profile.release_date.value

    @cached_property
    def memo(self) -> dict[str, object]:
        """What other rooms derive from the figures once and keep with the device."""
        return {}

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Every figure by its dotted name, such as "memory.bandwidth"."""
        return figures_in(self.profile)

    @cached_property
    def matrix_peak(self) -> dict[str, float]:
        """Dense peak of the matrix units per format [FLOP/s]; unpublished formats left out."""
        return _known(self.profile.matrix_peak)

    @cached_property
    def vector_peak(self) -> dict[str, float]:
        """Peak of the vector units per format [FLOP/s]; unpublished formats left out."""
        return _known(self.profile.vector_peak)

    @property
    def capacity_bytes(self) -> int | None:
        """Memory that a program can address [bytes]."""
        value = self.profile.memory.capacity.value
        return None if value is None else int(value)

    @property
    def capacity_label(self) -> int | None:
        """Memory as the datasheet prints it [bytes]."""
        value = self.profile.memory.label.value
        return None if value is None else int(value)

    @property
    def bandwidth(self) -> float | None:
        """Peak memory bandwidth [bytes/s]."""
        return self.profile.memory.bandwidth.value

    @property
    def l2_bytes(self) -> float | None:
        """L2 cache [bytes]."""
        return _value(self.profile.caches.l2)

    @property
    def llc_bytes(self) -> float | None:
        """Cache behind the L2 [bytes]."""
        return _value(self.profile.caches.llc)

    @property
    def smem_bytes_per_sm(self) -> float | None:
        """Shared memory (LDS) of one SM or compute unit [bytes]."""
        return _value(self.profile.caches.per_core)

    @property
    def scratchpad_bytes(self) -> float | None:
        """Software-managed memory of the whole device: VMEM, SBUF [bytes]."""
        return _value(self.profile.caches.scratchpad)

    @property
    def sm_count(self) -> int | None:
        """SMs, compute units, TensorCores or CPU cores."""
        value = self.profile.cores.value
        return None if value is None else int(value)

    @property
    def clock_hz(self) -> float | None:
        """The clock that the matrix peak is computed from [Hz]."""
        return self.profile.clock.value

    @property
    def tdp_w(self) -> float | None:
        """Board or module power limit [W]."""
        return self.profile.tdp.value

    @property
    def pcie_bandwidth(self) -> float | None:
        """Payload bandwidth to the host, per direction [bytes/s]."""
        return self.profile.pcie.value

    @property
    def nic_bandwidth(self) -> float | None:
        """Scale-out bandwidth per device and direction in the vendor's own node [bytes/s]."""
        return self.profile.nic.value

    @property
    def runtime_reserve_bytes(self) -> int | None:
        """Memory that driver, context and communication buffers take [bytes]."""
        value = self.profile.runtime_reserve.value
        return None if value is None else int(value)

    @property
    def prices(self) -> tuple[Price, ...]:
        """All dated quotes."""
        return self.profile.prices

    @cached_property
    def scale_up(self) -> Link:
        """The fast links between devices."""
        link = self.profile.scale_up
        domain = link.domain.value
        return Link(
            name=link.name,
            topology=link.topology,
            domain=None if domain is None else int(domain),
            bandwidth=link.bandwidth.value,
            link_bandwidth=_value(link.link_bandwidth) or link.bandwidth.value,
            in_network_reduction=link.in_network_reduction,
        )

    @cached_property
    def efficiency(self) -> Efficiency:
        """Achieved fractions of the peaks.

        Raises: InputError when the profile leaves one of them null.
        """
        return Efficiency(
            matmul={dtype: self.require(f"efficiency.matmul.{dtype}") for dtype in self.profile.efficiency.matmul},
            memory=self.require("efficiency.memory"),
            scale_up=self.require("efficiency.scale_up"),
            scale_out=self.require("efficiency.scale_out"),
        )

    def figure(self, name: str) -> Figure:
        """A figure with its source, by dotted name or attribute ("tdp_w").

        Raises: InputError for an unknown name.
        """
        path = SHORT_NAMES.get(name, name)
        if path not in self.figures:
            raise unknown(f"figure of {self.name}", name, [*self.figures, *SHORT_NAMES])
        return self.figures[path]

    def require(self, name: str) -> float:
        """The value of a figure in SI units, by dotted name or attribute ("tdp_w").

        Raises: InputError that says what to --set when nobody published the figure.
        """
        figure = self.figure(name)
        if figure.value is None:
            path = SHORT_NAMES.get(name, name)
            raise InputError(f"{self.name} has no published '{path}' ({figure.reason}): give --set {path}=VALUE")
        return figure.value

    def matmul_peak(self, dtype: str) -> MatmulRate:
        """Peak rate [FLOP/s] for matrices of `dtype`, with the format that really executes.

        A format the device lacks falls back as docs/hardware.md says; `reason` then tells why.

        Raises: InputError for an unknown format, or when no rate can stand for it.
        """
        wanted = canonical_dtype(dtype)
        rate = matmul_rate(self.matrix_peak, self.vector_peak, self.kind, wanted)
        if rate is None:
            nulls = {**self.profile.matrix_peak, **self.profile.vector_peak}
            why = next((f.reason for f in nulls.values() if f.reason), "none given")
            raise InputError(
                f"{self.name} has no published rate for {wanted} matrices ({why}):"
                f" give --set matrix_peak.{wanted}=VALUE"
            )
        return rate

    def matmul_efficiency(self, dtype: str) -> float:
        """Achieved fraction of `matmul_peak(dtype)` for large shapes.

        The class is that of the format which executes; a class without a measurement of its own
        uses the next wider one.

        Raises: InputError for an unknown format.
        """
        known = self.efficiency.matmul
        executes = efficiency_class(self.matmul_peak(dtype).dtype)
        if executes == "fp4" and "fp4" not in known:
            executes = "fp8"
        return known.get(executes, known["bf16"])

    def price(self, provider: str | None = None, term: Term = "on-demand") -> tuple[float, str]:
        """USD per device-hour (per device for term "purchase"), and where the figure comes from.

        Without a provider: the median of the newest quote of each provider within 18 months of
        the newest of all; market figures stand in when no provider quotes on demand.

        Raises: InputError for an unknown provider or term, or when there is no price (--price).
        """
        if term not in TERMS:
            raise unknown("price term", term, TERMS)
        if provider is not None:
            return provider_price(self.prices, provider, term, self.name)
        found = default_price(self.prices, term)
        if found is None:
            why = self.profile.no_price_reason or f"no {term} quote"
            raise InputError(f"{self.name} has no known {term} price ({why}): give --price")
        return found

    def with_overrides(self, values: Mapping[str, str | int | float]) -> "Device":
        """A copy with figures replaced, as --set FIELD=VALUE does.

        Fields are dotted names or attributes ("tdp_w"); values carry units or are SI numbers.

        Raises: InputError for an unknown field (with the nearest valid one) or a bad value.
        """
        return Device(overridden(self.profile, read_overrides(values), SHORT_NAMES, OPTIONAL))

    def settable(self) -> list[str]:
        """Every field that with_overrides takes."""
        return settable(self.profile, SHORT_NAMES, OPTIONAL)


def _value(figure: Figure | None) -> float | None:
    return None if figure is None else figure.value


def _known(figures: Mapping[str, Figure]) -> dict[str, float]:
    return {name: figure.value for name, figure in figures.items() if figure.value is not None}
