"""Read and write files: strict, safe, and with one-line errors that name file, line and field."""

import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfsim.errors import InputError, nearest, quote

if TYPE_CHECKING:
    from pydantic import BaseModel

_M = TypeVar("_M", bound="BaseModel")

_DATA = {"hardware": "hardware", "scenarios": "scenarios", "measured": "reports/measured"}
"""Where the data that ships lies in a source tree; pyproject.toml packs the same folders (of "measured", what
``tfsim validate measured`` reads)."""

_JSON_LIMIT = 64_000_000  # bytes
_YAML_LIMIT = 2_000_000  # bytes; YAML is parsed about 20 times slower than JSON
_DEPTH_LIMIT = 100
_DIGITS_LIMIT = 300  # a longer integer does not fit a float, which every later step may need

_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)\Z", re.IGNORECASE)
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Scalars follow the YAML 1.2 core schema, not PyYAML's 1.1: only true/false are booleans (not
    yes/no/on/off), 1e12 is a float, dates are strings. Keys are always strings. Refused:
    duplicate keys, anchors and aliases, tags, several documents, NaN and infinities.

    Raises: InputError, one line naming the file and, where known, the line and field.
    """
    return _mapping(_yaml_tree(read_text(path, _YAML_LIMIT), os.fspath(path)), path)


def read_json(path: str | os.PathLike[str], *, infinity_as_text: bool = False) -> dict[str, Any]:
    """The object that a JSON file holds; duplicate keys, NaN and infinities are refused.

    ``infinity_as_text``: the bare word Infinity, which transformers writes for limits that are open, is read as text.
    Raises: InputError, one line naming the file and, where known, the line and field.
    """
    where = os.fspath(path)
    text = read_text(path, _JSON_LIMIT)
    try:
        tree = json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_constant=lambda word: word if infinity_as_text and word == "Infinity" else float(word),
            parse_int=lambda digits: math.inf if len(digits) > _DIGITS_LIMIT else int(digits),
        )
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: line {error.lineno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{where}: nested more than {_DEPTH_LIMIT} levels deep") from None
    _check_tree(tree, where)
    return _mapping(tree, path)


def validate(cls: type[_M], data: Mapping[str, Any], where: str) -> _M:
    """`data` as a checked `cls`; `where` (usually the file) starts the message of the error.

    Raises: InputError for the first fault, naming the field, the value and the rule, or for an
    unknown key the nearest valid one.
    """
    from pydantic import ValidationError

    try:
        return cls.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # A misspelt required key shows up as "missing" too: the unknown key says more.
        fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
        message = _fault_message(cls, data, dict(fault))
        raise InputError(f"{where}: {message}") from None


def not_a_flag(value: Any) -> Any:
    """For fields whose only value is 1: refuses `true`, which Python holds equal to 1. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError("must be 1")
    return value


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file or nothing: an interrupted run never leaves half a file behind.

    Raises: InputError when the folder is missing or the file cannot be written.
    """
    where = os.fspath(path)
    try:
        target = Path(os.path.realpath(path))  # write through a symlink, do not replace it
        if target.exists() and not target.is_file() and not target.is_dir():
            with open(target, "wb") as device:  # such as /dev/stdout: nothing to replace
                device.write(data)
            return
        if target.is_dir():
            raise InputError(f"{where}: cannot write: it is a directory")
        _replace(target, data)
    except FileNotFoundError:
        raise InputError(f"{where}: cannot write: the folder does not exist") from None
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: cannot write: {_reason(error)}") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 with `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


@cache
def data_dir(kind: str) -> Path:
    """The folder of the data that ships with tfsim: kind is "hardware", "scenarios" or "measured".

    In a source tree (also an editable install) that is the tree's own folder (``_DATA``), so that
    edits count at once; in an installed wheel the copy packed as `tfsim/_data/<kind>`.
    """
    if kind not in _DATA:
        raise ValueError(f"no data of kind {kind!r}")
    package = Path(__file__).resolve().parent
    project = package.parent / "pyproject.toml"
    # A wheel may be unpacked next to somebody else's pyproject.toml, hence the look inside.
    if project.is_file() and 'name = "tfsim"' in project.read_text(encoding="utf-8"):
        return package.parent / _DATA[kind]
    return package / "_data" / kind


def read_text(path: str | os.PathLike[str], limit: int) -> str:
    """The text of a UTF-8 file of at most `limit` bytes.

    Raises: InputError, one line naming the file, also for an empty one.
    """
    where = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)  # not stat(): also right for pipes and devices
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{where}: is a directory, not a file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: cannot read: {_reason(error)}") from None
    if len(data) > limit:
        raise InputError(f"{where}: larger than {limit // 1_000_000} MB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{where}: not a text file (not valid UTF-8)") from None
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    return text


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _mapping(tree: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise InputError(f"{os.fspath(path)}: holds {_kind(tree)}, not 'key: value' pairs")
    return tree


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"only {quote(value)}"


def _dotted(path: Iterable[object]) -> str:
    return quote(".".join(str(part) for part in path), 200)


# YAML: built from parser events, because a dict says nothing about duplicate keys or lines.


class _Open:
    """A mapping or list whose end has not been read yet."""

    def __init__(self, node: dict[str, Any] | list[Any]) -> None:
        self.node = node
        self.key: str | None = None  # of a mapping: the key that waits for its value

    def step(self) -> object:
        return len(self.node) if isinstance(self.node, list) else self.key

    def put(self, value: Any) -> None:
        if isinstance(self.node, list):
            self.node.append(value)
        else:
            assert self.key is not None
            self.node[self.key] = value
            self.key = None


def _yaml_tree(text: str, where: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    root: list[Any] = []
    stack = [_Open(root)]

    def refuse(event: Any, problem: str) -> InputError:
        field = _dotted(level.step() for level in stack[1:] if level.step() is not None)
        at = f"field {field}: " if field != "''" else ""
        return InputError(f"{where}: line {event.start_mark.line + 1}: {at}{problem}")

    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.DocumentStartEvent) and root:
                raise refuse(event, "a second document (---); one file holds one")
            if not isinstance(event, yaml.NodeEvent):
                if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                    closed = stack.pop().node
                    stack[-1].put(closed)
                continue
            if event.anchor is not None:
                raise refuse(event, "anchors and aliases (&, *) are not supported: write it out")
            tag = getattr(event, "tag", None)  # an alias has none
            if tag is not None:
                raise refuse(event, f"tags ({quote(tag)}) are not supported")
            top = stack[-1]
            if isinstance(top.node, dict) and top.key is None:
                if not isinstance(event, yaml.ScalarEvent):
                    raise refuse(event, "a mapping or list cannot be a key")
                top.key = event.value
                if event.value in top.node:
                    raise refuse(event, f"duplicate key {quote(event.value)}")
            elif isinstance(event, yaml.ScalarEvent):
                plain = event.implicit[0]  # neither quoted nor a block
                try:
                    top.put(_scalar(event.value) if plain else event.value)
                except ValueError as error:
                    raise refuse(event, str(error)) from None
            elif len(stack) > _DEPTH_LIMIT:
                raise InputError(f"{where}: nested more than {_DEPTH_LIMIT} levels deep")
            else:
                stack.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else []))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise InputError(f"{where}: {line}not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InputError(f"{where}: not valid YAML: {reason}") from None
    return root[0] if root else None


def _scalar(text: str) -> Any:
    """The value of an unquoted YAML scalar; ValueError for a number that is not finite."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.match(text):
        if len(text) > _DIGITS_LIMIT:
            raise ValueError(f"an integer of {len(text)} digits is too large")
        return int(text)
    if _FLOAT.match(text):
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"{quote(text)} is too large for a number")
        return value
    if _NOT_FINITE.match(text):
        raise ValueError(f"{text} is not a finite number")
    return text


# JSON: the standard parser hides where it is, so faults are marked in the tree and found after.


class _Duplicate(dict[str, Any]):
    key = ""


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    marked = _Duplicate(result)
    marked.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return marked


def _check_tree(tree: Any, where: str) -> None:
    todo: list[tuple[tuple[object, ...], Any]] = [((), tree)]
    while todo:
        path, value = todo.pop()
        if len(path) > _DEPTH_LIMIT:
            raise InputError(f"{where}: nested more than {_DEPTH_LIMIT} levels deep")
        if isinstance(value, _Duplicate):
            raise InputError(f"{where}: field {_dotted((*path, value.key))}: duplicate key")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where}: field {_dotted(path)}: not a finite number, or too large")
        if isinstance(value, str) and not value.isascii():
            _check_text(value, f"{where}: field {_dotted(path)}")
        if isinstance(value, dict):
            for key, child in value.items():
                _check_text(key, f"{where}: field {_dotted((*path, key))}")
                todo.append(((*path, key), child))
        elif isinstance(value, list):
            todo.extend(((*path, index), child) for index, child in enumerate(value))


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{where}: holds half a surrogate pair, which is no text") from None


# Pydantic: from its first error to a sentence.


def _fault_message(cls: type["BaseModel"], data: Mapping[str, Any], fault: dict[str, Any]) -> str:
    field = _dotted(_data_path(data, fault["loc"], fault["type"]))
    at = f"field {field}: " if field != "''" else ""
    if fault["type"] == "missing":
        return f"{at}missing, and required"
    if fault["type"] == "extra_forbidden":
        return f"{at}unknown key{_hint(cls, fault['loc'])}"
    if fault["type"] == "union_tag_invalid":
        tags = fault["ctx"]
        kind = tags["discriminator"].strip("'")
        what = f"unknown {kind} {quote(tags['tag'])}"
        return f"{at}{what}: choose from {tags['expected_tags']}"
    rule = str(fault["msg"]).removeprefix("Value error, ").replace("Input should ", "must ", 1)
    value = fault["input"]
    if isinstance(value, Mapping | list | tuple):
        shown = "" if fault["type"] == "value_error" else f"got {_kind(value)}: "
    else:
        shown = f"value {quote(value)}: "
    return f"{at}{shown}{rule}"


def _data_path(data: Any, loc: tuple[object, ...], kind: str) -> list[object]:
    """The part of a pydantic location that is in the file: without union tags and class names."""
    path: list[object] = []
    here: Any = data
    for index, step in enumerate(loc):
        if isinstance(here, Mapping):
            inside = step in here
        else:
            inside = isinstance(here, list | tuple) and step in range(len(here))
        if inside:
            here = here[step]
        elif kind != "missing" or index < len(loc) - 1:
            continue
        path.append(step)
    return path


def _hint(cls: type["BaseModel"], loc: tuple[object, ...]) -> str:
    models = [cls]
    for step in loc[:-1]:
        having = [m for m in models if step in m.model_fields]
        if having:
            models = [n for m in having for n in _models_in(m.model_fields[str(step)].annotation)]
        else:  # a list index, a dict key, or the tag of a union's member
            models = [m for m in models if _tagged(m, step)] or models
    names = list(dict.fromkeys(name for m in models for name in m.model_fields))
    near = nearest(str(loc[-1]), names, 1)
    if near:
        return f": did you mean {near[0]}?"
    return f": valid keys are {', '.join(names[:30])}" if names else ""


def _models_in(annotation: Any) -> list[type["BaseModel"]]:
    from typing import get_args

    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _tagged(model: type["BaseModel"], tag: object) -> bool:
    from typing import get_args

    return tag == model.__name__ or any(tag in get_args(field.annotation) for field in model.model_fields.values())


def _replace(target: Path, data: bytes) -> None:
    temporary = target.parent / f".tfsim-{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.write(data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
