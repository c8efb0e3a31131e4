"""tfsim calibrate: fit the constants of the timing formulas to measurements."""

from pathlib import Path
from typing import Annotated

import typer

from tfsim.cli.options import Json
from tfsim.cli.shell import new_app

app = new_app("Fit the constants of the timing formulas to measurements.")


@app.callback()
def root() -> None:
    """Fit the constants of the timing formulas to measurements."""


@app.command()
def operators(
    data: Annotated[Path, typer.Option("--data", help="A CSV file of operator measurements, or a folder of them.")],
    device: Annotated[str, typer.Option(help="The device whose rows to fit.", metavar="NAME")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default the profiles' calibration folder.", metavar="FILE")
    ] = None,
    json: Json = False,
) -> None:
    """Fit a device's constants per operator class, and write them with the error they leave.

    Classes that the data have no rows for stay as they are in the file.
    """
    from tfsim.files import write_text
    from tfsim.hardware import load_device
    from tfsim.validation.operators.calibrate import calibrate, calibration_file, calibration_text

    path = calibration_file(load_device(device).name) if out is None else out
    found = calibrate(data, device)
    write_text(path, calibration_text(found, path))
    if json:
        from tfsim.cli.output import print_json

        print_json(found)
        return
    from tfsim.cli.output import table

    rows = [
        [kind, variant, one["fitted_on"]["rows"], f"{one['error']['median_ape']:.1%}", f"{one['error']['p90_ape']:.1%}"]
        for kind, variants in found["operators"].items()
        for variant, one in variants.items()
    ]
    table(["class", "variant", "rows", "median", "p90"], rows, title=f"{found['device']}: written to {path}")
