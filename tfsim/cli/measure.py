"""tfsim measure: run torch on this machine, and keep what the clock says."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfsim.cli.ladder import ladder
from tfsim.cli.measure_models import models
from tfsim.cli.measuring import Device, Threads, progress_bar
from tfsim.cli.options import Json, writable
from tfsim.cli.shell import new_app

if TYPE_CHECKING:
    from tfsim.measure.backend import Facts

app = new_app("Run torch on this machine: what its operations cost (needs tfsim[measure]).")


@app.callback()
def root() -> None:
    """Run torch on this machine: what its operations cost."""


app.command()(models)
app.command()(ladder)


@app.command()
def hardware(
    out: Annotated[Path, typer.Option(help="The profile to write.", metavar="FILE")] = Path("my-machine.yaml"),
    rows: Annotated[Path | None, typer.Option(help="Keep the measured rows too (CSV).", metavar="FILE")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the cases, under a minute.")] = False,
    device: Device = None,
    threads: Threads = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="bf16 or fp16 beside fp32; may be repeated. Default: fp32; CUDA: bf16 too.")
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(help="Processes, a share of the CPUs or a GPU each: their network.", metavar="N"),
    ] = 1,
    json: Json = False,
) -> None:
    """Measure this machine's operations and write a profile that --on takes.

    The profile holds peaks, bandwidth and the constants of the timing formulas, with the error that their fit leaves.
    """
    from tfsim.files import write_text
    from tfsim.measure.backend import backend, cpus, facts
    from tfsim.measure.collectives import check_ranks
    from tfsim.measure.hardware import measure_operations
    from tfsim.measure.profile import profile, profile_text

    writable(out, "out")
    if rows is not None:
        writable(rows, "rows")
    where = backend(device, threads if threads or ranks < 2 else max(1, cpus() // ranks))
    further = dtype or (["bf16"] if where.device == "cuda" else [])
    dtypes = tuple(dict.fromkeys(["fp32", *further]))  # element by element kernels are those of fp32
    for name in dtypes:
        where.dtype(name)  # refuses one it does not know
    if ranks != 1:
        check_ranks(where, ranks)
    about = facts(where)
    with progress_bar("measuring") as progress:
        found = measure_operations(where, dtypes=dtypes, quick=quick, ranks=ranks, progress=progress)
    if rows is not None:
        write_text(rows, found.to_csv(index=False))
    content = profile(found, about, name=_name(out), kind="cpu" if where.device == "cpu" else "gpu")
    write_text(out, profile_text(content))
    if json:
        from tfsim.cli.output import print_json

        print_json({"out": str(out), "rows": len(found), "machine": about.words(), "profile": content})
        return
    _print(content, about, out)


def _name(path: Path) -> str:
    """A profile's name from its file's."""
    import re

    return re.sub(r"[^a-z0-9.-]+", "-", path.stem.lower()).strip("-.") or "my-machine"


def _print(content: dict[str, Any], about: "Facts", out: Path) -> None:
    from tfsim.cli.output import facts, table
    from tfsim.units import format_bandwidth, format_flop_rate, parse_quantity

    device = content["device"]
    peaks = [
        (f"peak {dtype}", format_flop_rate(parse_quantity(figure["value"], "flop_rate", dtype)))
        for dtype, figure in device["matrix_peak"].items()
        if figure["value"] is not None  # a format that was not measured
    ]
    bandwidth = parse_quantity(device["memory"]["bandwidth"]["value"], "bandwidth", "bandwidth")
    facts(
        [("machine", about.words()), *peaks, ("memory bandwidth", format_bandwidth(bandwidth)), ("written to", out)],
        title="Measured",
    )
    fitted = [
        [kind.removeprefix("cpu_"), variant, one["fitted_on"]["rows"], *_errors(one["error"])]
        for kind, variants in device.get("calibration", {}).items()
        for variant, one in variants.items()
    ]
    if fitted:
        table(["operations", "variant", "rows", "median error", "90 % within"], fitted, title="What the fits leave")


def _errors(error: dict[str, float]) -> list[str]:
    return [f"{error[name]:.1%}" for name in ("median_ape", "p90_ape")]
