"""tfsim hardware: list, show and compare devices and systems."""

from typing import TYPE_CHECKING, Annotated

import typer

from tfsim.cli.options import Json, Set, assignments
from tfsim.cli.shell import new_app

if TYPE_CHECKING:
    from tfsim.hardware import Device, System
    from tfsim.timing.constants import Calibration

app = new_app()


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="devices, systems, or all.")] = "all",
    json: Json = False,
) -> None:
    """List the devices and systems that tfsim knows by name."""
    from tfsim.cli.output import print_json, table
    from tfsim.errors import unknown
    from tfsim.hardware import list_devices, list_systems

    lists = {"devices": list_devices, "systems": list_systems}
    if kind not in (*lists, "all"):
        raise unknown("kind of hardware", kind, [*lists, "all"])
    found = {name: read() for name, read in lists.items() if kind in (name, "all")}
    if json:
        print_json({name: [entry._asdict() for entry in entries] for name, entries in found.items()})
        return
    for name, entries in found.items():
        rows = [[e.name, e.facts, ", ".join(e.aliases)] for e in entries]
        table(["name", "what", "also called"], rows, title=name.capitalize())


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A device or system by name, alias or path.")],
    set_: Set = None,
    json: Json = False,
) -> None:
    """Show every figure of a device or system with its unit and its source."""
    from tfsim.cli.output import print_json
    from tfsim.hardware.compare import load_hardware

    hardware = load_hardware(name).with_overrides(assignments(set_))
    if json:
        print_json(hardware.profile.model_dump(mode="json", by_alias=True, exclude_none=True))
        return
    _print(hardware)


@app.command()
def compare(
    names: Annotated[list[str], typer.Argument(help="Two or more devices or systems.", metavar="NAME NAME...")],
    set_: Set = None,
    json: Json = False,
) -> None:
    """Compare devices or systems side by side; ratios are to the first. --set replaces a figure in all of them."""
    from tfsim.cli.output import print_json, table
    from tfsim.hardware.compare import compare as side_by_side
    from tfsim.hardware.compare import load_hardware

    fields = assignments(set_)
    pieces = [load_hardware(name).with_overrides(fields) for name in names]
    rows = side_by_side(pieces)
    if json:
        print_json({"names": [piece.name for piece in pieces], "rows": rows})
        return
    cells = [[row.quantity, *map(_with_ratio, row.words, (None, *row.ratios[1:]))] for row in rows]
    table(["", *(piece.name for piece in pieces)], cells, title="Side by side (ratio to the first)")


def _with_ratio(words: str, ratio: float | None) -> str:
    return words if ratio is None else f"{words} ({ratio:.2f}x)"


def _print(hardware: "Device | System") -> None:
    from tfsim.cli.output import facts, table
    from tfsim.hardware import System
    from tfsim.reports.figures import figure_rows, price_rows

    profile = hardware.profile
    heading: list[tuple[str, object]] = [("also called", ", ".join(profile.aliases) or None)]
    if isinstance(hardware, System):
        heading += [
            ("what", hardware.description),
            ("device", hardware.device.name),
            ("devices per node", f"{hardware.devices_per_node:,}"),
            ("devices at most", f"{hardware.max_devices:,}" if hardware.max_devices else "no limit"),
            *((f"level {level.name}", _level(level.size, level.topology)) for level in hardware.levels),
        ]
    else:
        heading += [
            ("vendor", f"{hardware.vendor}, {hardware.architecture}"),
            ("released", hardware.release_date),
            ("memory type", hardware.profile.memory.type),
        ]
    heading += [("note", note) for note in profile.notes]
    facts(heading, title=hardware.name)
    table(["figure", "value", "source"], figure_rows(hardware))
    if not isinstance(hardware, System):
        _print_kernel_times(hardware)
    elif hardware.device.profile.calibration:  # a machine measured on the spot: its device has no file of its own
        table(["figure", "value", "source"], figure_rows(hardware.device), title=hardware.device.name)
        _print_kernel_times(hardware.device)
    prices = price_rows(hardware)
    if prices:
        table(["price", "term", "provider", "date", "note"], prices, title="Prices (dollars per device)")


# What several devices do together: a system's, and shown only where it was measured on the device.
_TOGETHER = ("bridge", "collective", "engine", "expert_alltoall", "reduce")


def _print_kernel_times(device: "Device") -> None:
    """Whether the times of its kernels rest on measurements of it, and how far off they are, class by class."""
    from tfsim.cli.output import facts, table
    from tfsim.timing.constants import calibrations

    groups: dict[tuple[str, str], list[Calibration]] = {}
    for found in calibrations(device):
        if found.own or found.kind not in _TOGETHER:
            groups.setdefault((found.kind, found.source), []).append(found)
    if not groups:
        nearest = "a roofline: no device of its architecture, or near it, has been measured"
        facts([("kernel times", nearest)])
        return
    rows = [
        [
            kind.replace("_", " "),
            ", ".join(one.variant for one in found),
            source,
            _largest([one.median_ape for one in found]),
            _largest([one.p90_ape for one in found]),
        ]
        for (kind, source), found in groups.items()
    ]
    table(
        ["kernels", "variants", "constants", "median error", "90 % within"],
        rows,
        title="Kernel times (borrowed: the lenders' error; here up to twice that, several times across generations)",
    )


def _largest(shares: list[float]) -> str:
    return f"{max(shares):.0%}"


def _level(size: int | None, topology: str) -> str:
    return f"{topology}, up to {size:,} devices" if size else f"{topology}, no limit"
