"""--set FIELD=VALUE: a profile with some of its figures replaced."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from tfsim.errors import InputError, quote, unknown
from tfsim.files import validate
from tfsim.hardware.figures import OVERRIDE, Strict, figures_in

P = TypeVar("P", bound=Strict)


def settable(profile: Strict, short_names: Collection[str], optional: Collection[str]) -> list[str]:
    """Every field that --set takes: dotted figure names, optional figures, short names."""
    return sorted({*figures_in(profile), *short_names, *optional})


def overridden(
    profile: P,
    values: Mapping[str, str | int | float],
    short_names: Mapping[str, str],
    optional: Collection[str],
) -> P:
    """`profile` with the figures at the dotted paths of `values` replaced.

    `optional` are paths of figures that the profile may leave out.

    Raises: InputError for an unknown field (with the nearest valid one) or a bad value.
    """
    if not values:
        return profile
    known = settable(profile, short_names, optional)
    data = profile.model_dump(by_alias=True)
    data["sources"][OVERRIDE] = {"title": "set by the user"}
    for field, value in values.items():
        name = field.strip()
        if name not in known:
            raise unknown("field to set", field, known)
        _put(data, short_names.get(name, name).split("."), {"value": value, "source": OVERRIDE})
    return validate(type(profile), data, "--set")


def read_overrides(values: object) -> dict[str, str | int | float]:
    """`values` as fields and what they become.

    Raises: InputError when it is no mapping of names to values.
    """
    if not isinstance(values, Mapping) or not all(isinstance(field, str) for field in values):
        raise InputError(f"overrides: {quote(values)} is not a mapping of field names to values")
    return dict(values)


def _put(tree: Any, steps: list[str], figure: dict[str, Any]) -> None:
    """Replace the node at `steps`; a step into a list is the `name` of an item."""
    for step in steps[:-1]:
        is_list = isinstance(tree, tuple | list)
        tree = next(item for item in tree if item["name"] == step) if is_list else tree[step]
    tree[steps[-1]] = figure
