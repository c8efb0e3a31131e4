"""A system: devices, their node, the networks between them, and the site they stand in."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tfsim.errors import InputError, quote, unknown
from tfsim.files import not_a_flag
from tfsim.hardware.device import Device
from tfsim.hardware.figures import (
    Achieved,
    Bytes,
    BytesPerSecond,
    Count,
    Figure,
    KgPerKwh,
    Overhead,
    Seconds,
    Source,
    Strict,
    Text,
    UsdPerKwh,
    Watts,
    figures_in,
)
from tfsim.hardware.overrides import overridden, read_overrides
from tfsim.hardware.prices import Price, Term
from tfsim.hardware.profile import Name, Topology, check_sources

# Where the bandwidth of a level is read: from the device's profile, unless the level gives its own.
LinkKind = Literal["scale_up", "pcie", "nic"]

SHORT_NAMES = {
    "pue": "site.pue",
    "carbon_kg_per_kwh": "site.carbon",
    "electricity_usd_per_kwh": "site.electricity",
    "node_power_w": "node_power",
}


class LevelProfile(Strict):
    """One network level, from inside (NVLink) out (InfiniBand, data-centre network)."""

    name: Name
    link: LinkKind
    size: Annotated[int, Field(ge=1, strict=True)] | None  # devices inside one such domain; null: no limit
    topology: Topology
    bandwidth: BytesPerSecond | None = None  # left out: that of the device's `link`
    link_bandwidth: BytesPerSecond | None = None
    efficiency: Achieved | None = None  # achieved fraction of large rings; left out: that of the device
    in_network_reduction: bool = False
    latency: Seconds  # one hop
    call_latency: Seconds  # what a collective call costs before its first hop


class Host(Strict):
    """The host of one node, as far as published."""

    cpu: Text | None = None
    cpu_count: Count | None = None
    memory: Bytes | None = None


class Site(Strict):
    """The data centre: defaults of hardware/site.yaml unless the system names its own."""

    pue: Overhead
    carbon: KgPerKwh
    electricity: UsdPerKwh


class SystemProfile(Strict):
    """One file of hardware/systems/."""

    schema_version: Annotated[Literal[1], BeforeValidator(not_a_flag)] = Field(alias="schema")
    name: Name
    aliases: tuple[Name, ...] = ()
    description: Text
    device: Name
    devices_per_node: Annotated[int, Field(ge=1, strict=True)]
    levels: tuple[LevelProfile, ...]
    max_devices: Annotated[int, Field(ge=1, strict=True)] | None  # pod size; null: no limit
    host: Host
    node_power: Watts  # maximum of a whole node, devices included
    site: Site
    prices: tuple[Price, ...] = ()  # when the system has its own; else the device's count
    notes: tuple[Text, ...] = ()
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise ValueError("two levels have the same name")
        sizes = [level.size for level in self.levels]
        for inner, outer in pairwise(sizes):
            if inner is None or (outer is not None and outer <= inner):
                raise ValueError("levels go from inside out: each size above the one before")
        check_sources(self, self.sources)
        return self


@dataclass(frozen=True)
class Level:
    """A network level of a system. Bandwidths are per device and per direction [bytes/s]."""

    system: "System"
    profile: LevelProfile

    def __repr__(self) -> str:
        return f"Level({self.name!r}, size={self.size})"

    @property
    def name(self) -> str:
        """Such as "nvlink" or "infiniband"."""
        return self.profile.name

    @property
    def size(self) -> int | None:
        """Devices inside one domain of this level; None: no limit."""
        return self.profile.size

    @property
    def topology(self) -> Topology:
        """switch, mesh, ring, torus2d, torus3d or none."""
        return self.profile.topology

    @property
    def bandwidth(self) -> float:
        """All links of one device at this level together.

        Raises: InputError when nobody published it.
        """
        if self.profile.bandwidth is not None:
            return self._own(self.profile.bandwidth, "bandwidth")
        link = self.profile.link
        return self.system.device.require("scale_up.bandwidth" if link == "scale_up" else link)

    @property
    def link_bandwidth(self) -> float:
        """To one other device: all of it through a switch, one link of a mesh, ring or torus.

        Raises: InputError when nobody published it.
        """
        if self.profile.link_bandwidth is not None:
            return self._own(self.profile.link_bandwidth, "link_bandwidth")
        if self.profile.link == "scale_up" and self.topology not in ("switch", "none"):
            return self.system.device.require("scale_up.link_bandwidth")
        return self.bandwidth

    @property
    def latency_s(self) -> float:
        """One hop [s]."""
        return self._own(self.profile.latency, "latency")

    @property
    def call_latency_s(self) -> float:
        """What a collective call costs before its first hop [s]."""
        return self._own(self.profile.call_latency, "call_latency")

    @property
    def in_network_reduction(self) -> bool:
        """Whether the switches of this level can add (NVLink SHARP)."""
        return self.profile.in_network_reduction

    @property
    def efficiency(self) -> float:
        """Achieved fraction of `bandwidth` in large ring collectives."""
        if self.profile.efficiency is not None:
            return self._own(self.profile.efficiency, "efficiency")
        found = self.system.device.efficiency
        return found.scale_out if self.profile.link == "nic" else found.scale_up

    def _own(self, figure: Figure, field: str) -> float:
        if figure.value is None:
            raise InputError(
                f"{self.system.name}: level {self.name} has no published {field} ({figure.reason}):"
                f" give --set levels.{self.name}.{field}=VALUE"
            )
        return figure.value


@dataclass(frozen=True)
class System:
    """Devices and what joins, hosts, powers and prices them."""

    profile: SystemProfile
    device: Device

    def __repr__(self) -> str:
        return f"System({self.name!r}, device={self.device.name!r})"

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.profile.name

    @property
    def description(self) -> str:
        """One line."""
        return self.profile.description

    @property
    def devices_per_node(self) -> int:
        """Devices that share a host."""
        return self.profile.devices_per_node

    @property
    def max_devices(self) -> int | None:
        """The most devices that can be joined; None: no limit."""
        return self.profile.max_devices

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Network levels from inside out."""
        return tuple(Level(self, level) for level in self.profile.levels)

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Every figure of the system by its dotted name; those of the device start "device."."""
        own = figures_in(self.profile)
        return own | {f"device.{name}": f for name, f in self.device.figures.items()}

    def levels_for(self, n: int) -> tuple[Level, ...]:
        """The levels that `n` neighbouring devices span, from inside out; none for one device.

        Raises: InputError when the system cannot hold n devices, or when a level that n devices
        need has no published bandwidth.
        """
        if n <= 1:
            return ()
        self.check_devices(n)
        spanned: list[Level] = []
        for level in self.levels:
            spanned.append(level)
            if level.size is None or level.size >= n:
                break
        for level in spanned:
            _ = level.bandwidth  # raises here, where the number of devices is known
        return tuple(spanned)

    @property
    def most_devices(self) -> int | None:
        """The most devices it can join: max_devices, or one node where no network is described; None: no limit."""
        if self.max_devices is None and not self.levels:
            return self.devices_per_node
        return self.max_devices

    def check_devices(self, n: int) -> None:
        """Raises InputError when the system cannot hold `n` devices."""
        limit = self.most_devices
        if limit is not None and n > limit:
            raise InputError(f"{self.name} joins at most {limit:,} devices, not {n:,}")

    @property
    def pue(self) -> float:
        """Power of the whole site / power of its computers."""
        return self._site(self.profile.site.pue, "pue")

    @property
    def carbon_kg_per_kwh(self) -> float:
        """Carbon intensity of the electricity [kg CO2e/kWh]."""
        return self._site(self.profile.site.carbon, "carbon")

    @property
    def electricity_usd_per_kwh(self) -> float:
        """Electricity price [USD/kWh]."""
        return self._site(self.profile.site.electricity, "electricity")

    def power_per_device(self) -> tuple[float, str]:
        """Maximum power per device [W], before PUE, and what it contains.

        The node's published maximum shared among its devices; else the device's own limit, which
        leaves out host, network and fans.

        Raises: InputError when neither is published (--set device.tdp=VALUE).
        """
        node = self.profile.node_power.value
        if node is not None:
            return node / self.devices_per_node, f"node maximum / {self.devices_per_node} devices"
        if self.device.tdp_w is None:
            reason = self.device.figure("tdp").reason
            raise InputError(
                f"{self.name}: neither node nor device power is published ({reason}): give --power,"
                " --set node_power=VALUE or --set device.tdp=VALUE"
            )
        return self.device.tdp_w, "device power limit alone, without host and network"

    def price(self, provider: str | None = None, term: Term = "on-demand") -> tuple[float, str]:
        """USD per device-hour and its source: Device.price, unless the system has prices."""
        if not self.profile.prices:
            return self.device.price(provider, term)
        own = self.device.profile.model_copy(update={"prices": self.profile.prices})
        return Device(own).price(provider, term)

    def with_overrides(self, values: Mapping[str, str | int | float]) -> "System":
        """A copy with figures replaced, as --set FIELD=VALUE does.

        Fields are dotted names of the system ("levels.nvlink.bandwidth", "pue") or of its device
        ("memory.bandwidth", "tdp_w"; the prefix "device." is optional).

        Raises: InputError for an unknown field (with the nearest valid one) or a bad value.
        """
        own: dict[str, str | int | float] = {}
        of_device: dict[str, str | int | float] = {}
        fields = set(figures_in(self.profile)) | set(SHORT_NAMES) | self._optional_fields()
        settable_of_device = self.device.settable()
        for field, value in read_overrides(values).items():
            name = field.strip()
            bare = name.removeprefix("device.")
            if bare == name and name in fields:
                own[name] = value
            elif bare in settable_of_device:
                of_device[bare] = value
            else:
                raise unknown("field to set", field, sorted(fields.union(settable_of_device)))
        return System(
            overridden(self.profile, own, SHORT_NAMES, self._optional_fields()),
            self.device.with_overrides(of_device),
        )

    def _optional_fields(self) -> set[str]:
        return {
            f"levels.{level.name}.{field}"
            for level in self.profile.levels
            for field in ("bandwidth", "link_bandwidth", "efficiency")
        } | {"host.memory"}

    def _site(self, figure: Figure, field: str) -> float:
        if figure.value is None:
            raise InputError(f"{self.name} has no '{field}' ({figure.reason}): give --set site.{field}=VALUE")
        return figure.value


def require_system(value: object) -> System:
    """`value`, when it is a loaded system. Raises InputError otherwise (a name, say)."""
    if not isinstance(value, System):
        raise InputError(f"system: {quote(value)} is not a system: use tfsim.load_system")
    return value
