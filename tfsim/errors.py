"""The one error that means "the input is wrong", and how a wrong name is reported."""

import difflib
import os
from collections.abc import Iterable

_MESSAGE_LIMIT = 800
_VALUE_LIMIT = 80

# Where to look up every valid name, for the kinds that have a list command.
_LISTED_BY = {
    "model": "tfsim model list",
    "device": "tfsim hardware list",
    "device or system": "tfsim hardware list",
    "system": "tfsim hardware list",
}


def one_line(text: str, limit: int = _MESSAGE_LIMIT) -> str:
    """`text` as one printable line of at most `limit` characters.

    Newlines, control characters and lone surrogates are written as escapes, so that a hostile file
    name or value can neither break the line nor drive the terminal.
    """
    head = text[: limit + 1]
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in head)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def quote(value: object, limit: int = _VALUE_LIMIT) -> str:
    """A user's value as it may stand in a message: quoted, escaped and shortened."""
    if isinstance(value, str):
        return "'" + one_line(value, limit) + "'"
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of {value.bit_length()} bits"
    try:
        return one_line(repr(value), limit)
    except ValueError:  # Python refuses to print an integer of more than 4300 digits
        return f"a {type(value).__name__}"


class InputError(ValueError):
    """Bad input from the user: the message is one line that says what to do; the CLI exits 2."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def nearest(name: str, choices: Iterable[str], n: int = 3) -> list[str]:
    """Up to `n` of `choices` that `name` may have meant, best first; empty when none is near."""
    wanted = _bare(name[:100])
    if not wanted:
        return []
    scored: list[tuple[float, int, str]] = []
    for choice in choices:
        bare = _bare(choice)
        score = difflib.SequenceMatcher(None, wanted, bare).ratio()
        if len(wanted) > 1 and wanted in bare:  # an abbreviation: "h10" for "h100-sxm-80gb"
            score = max(score, 0.9 if bare.startswith(wanted) else 0.7)
        if score >= 0.6:
            scored.append((-score, len(choice), choice))
    return [choice for _, _, choice in sorted(scored)[:n]]


def unknown(kind: str, name: str, choices: Iterable[str]) -> InputError:
    """The error for a `name` that is not among `choices`, with the nearest valid names.

    >>> str(unknown("device", "h10", ["h100-sxm-80gb", "a100-sxm-80gb"]))
    "unknown device 'h10': did you mean h100-sxm-80gb? (tfsim hardware list shows all)"
    """
    names = list(choices)
    message = f"unknown {kind} {quote(name)}"
    near = nearest(name, names)
    if near:
        message += f": did you mean {' or '.join(near)}?"
    if kind in _LISTED_BY:
        message += f" ({_LISTED_BY[kind]} shows all)"
    elif not near and names:
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        message += f": choose from {', '.join(names[:20])}{more}"
    return InputError(message)


def name_or_path(kind: str, value: object) -> str:
    """`value` as text, when it is a name or a path.

    Raises: InputError for anything else.
    """
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and text.strip():
            return text
    raise InputError(f"{kind}: {quote(value)} is not a name or a path")


def choice(field: str, value: object, allowed: Iterable[str]) -> str:
    """`value`, when it is one of the words `allowed`.

    Raises: InputError naming the field and the nearest valid word.
    """
    names = list(allowed)
    if isinstance(value, str) and value in names:
        return value
    if isinstance(value, str):
        raise unknown(field, value, names)
    raise InputError(f"{field}: {quote(value)} is not a word: choose from {', '.join(names[:20])}")


def _bare(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
