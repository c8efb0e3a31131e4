"""Options that several commands share, and how their texts become what the rooms below take."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tfsim.errors import InputError, quote

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tfsim.scenario import Overrides

    M = TypeVar("M", bound=BaseModel)

# how files.validate names a field; what the user typed was an option
_FIELD = re.compile(r"^options: field '(?:plan\.|fixed\.)?(\w+)[^']*': (?:value )?")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Price = Annotated[str | None, typer.Option(help="Price of a device-hour, such as '$2.49/h'.", metavar="$/H")]
Power = Annotated[str | None, typer.Option(help="Power per device before PUE, such as 700W.", metavar="W")]
Pue = Annotated[str | None, typer.Option(help="Power of the site / power of its computers.", metavar="RATIO")]
Carbon = Annotated[str | None, typer.Option(help="Carbon intensity, such as '350 g/kWh'.", metavar="G/KWH")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Replace a figure of the hardware profile; may be repeated.", metavar="FIELD=VALUE"),
]
WeightsDtype = Annotated[
    str | None,
    typer.Option(help="Format of the weights, such as fp8, or a GGUF file type (tfsim model formats)."),
]
IgnoreField = Annotated[
    list[str] | None,
    typer.Option(help="A field of a Hugging Face config.json to leave out; may be repeated.", metavar="FIELD"),
]


def quantity(text: str | None, dimension: str, option: str) -> int | float | None:
    """What was typed for `option` ("15T", "8,192"), in base units. Raises: InputError."""
    from tfsim.units import parse_quantity

    return None if text is None else parse_quantity(text, dimension, option)


def assignments(texts: Sequence[str] | None) -> dict[str, str]:
    """The fields and values of --set FIELD=VALUE. Raises: InputError."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"--set: {quote(text)} is not FIELD=VALUE (tfsim hardware show NAME lists the fields)")
        if name.strip() in found:
            raise InputError(f"--set: {name.strip()} is given twice")
        found[name.strip()] = value.strip()
    return found


def overrides(
    price: str | None, power: str | None, pue: str | None, carbon: str | None, fields: Sequence[str] | None
) -> "Overrides":
    """What the user gives instead of the profile's figures. Raises: InputError."""
    from tfsim.scenario import Overrides

    rates = {"price": price, "power": power, "pue": pue, "carbon": carbon}
    return checked(Overrides, rates | {"set": assignments(fields)})


def checked(cls: "type[M]", options: Mapping[str, Any]) -> "M":
    """The options that were given as a checked `cls`. Raises: InputError naming the option."""
    from tfsim.files import validate

    try:
        return validate(cls, {name: value for name, value in options.items() if value is not None}, "options")
    except InputError as error:
        raise InputError(_FIELD.sub(lambda match: f"--{match[1].replace('_', '-')}: ", str(error))) from None


def whole(number: int | float | None, option: str) -> int | None:
    """`number` if it is a whole one from 1 on. Raises: InputError."""
    from tfsim.units import as_number

    return None if number is None else int(as_number(number, option, at_least=1, whole=True))


def writable(path: Path, option: str) -> None:
    """Refuse a place that cannot be written before minutes are spent. Raises: InputError."""
    folder = path.parent
    if path.is_dir():
        raise InputError(f"--{option}: {path} is a directory, not a file")
    if not folder.is_dir():
        raise InputError(f"--{option}: {folder}: no such directory")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"--{option}: {path}: cannot write there")


def writable_folder(path: Path, option: str) -> None:
    """Refuse a folder that could not be made or written before the work is done. Raises: InputError."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise InputError(f"--{option}: {path}: cannot make this folder: {there} is a file")
    if not os.access(there, os.W_OK):
        raise InputError(f"--{option}: {path}: cannot write there")
