"""Find a model by name or path, list the zoo, and write a specification as YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tfsim.errors import InputError, name_or_path, quote, unknown
from tfsim.files import read_json, read_yaml, validate
from tfsim.models.spec import ModelSpec

ZOO = Path(__file__).resolve().parent / "zoo"


@dataclass(frozen=True)
class ZooModel:
    """One line of ``tfsim model list``."""

    name: str
    family: str
    source: str

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return dict(self.__dict__)


def load_model(name: str | os.PathLike[str], ignore_fields: Sequence[str] = ()) -> ModelSpec:
    """The model of this name in the zoo, or in this file.

    A path (it holds a separator, ends in .yaml, .yml or .json, or is a folder) is a tfsim YAML, a Hugging Face
    config.json, a folder that holds a config.json, or a JSON file whose ``config`` holds one. An
    hf_quant_config.json beside a config.json sets the number formats. Names do not mind case.
    ``ignore_fields``: fields of a config.json to leave out.

    Raises: InputError, one line naming the file and field, or the nearest name in the zoo.
    """
    path = _found(name)
    if _is_yaml(path):
        if ignore_fields:
            raise InputError(f"{name}: fields can be ignored in a Hugging Face config.json only")
        return validate(ModelSpec, read_yaml(path), path)
    return _from_hugging_face(Path(path), ignore_fields)


def load_models(names: Sequence[str], ignore_fields: Sequence[str] = ()) -> list[ModelSpec]:
    """Several models as ``load_model`` finds them. Each of ``ignore_fields`` is left out of every config.json that has
    it.

    Raises: InputError as ``load_model`` does, and when no config.json has a field.
    """
    from tfsim.models.huggingface import holds

    paths = [_found(name) for name in names]
    configs = {path: _config(Path(path))[1] for path in paths if not _is_yaml(path)} if ignore_fields else {}
    absent = [field for field in ignore_fields if not any(holds(config, field) for config in configs.values())]
    if absent:
        raise InputError(f"field {quote(absent[0])}: cannot be ignored, no config.json has it")
    had = {path: [field for field in ignore_fields if holds(config, field)] for path, config in configs.items()}
    return [load_model(name, had.get(path, ())) for name, path in zip(names, paths, strict=True)]


def list_models() -> list[ZooModel]:
    """Every model of the zoo, by name; cheap: the files are read, not checked."""
    files = (read_yaml(path) for path in _zoo_files().values())
    return [ZooModel(*(str(data.get(key, "")) for key in ("name", "family", "source"))) for data in files]


def dump_model(spec: ModelSpec) -> str:
    """The specification as YAML text that ``load_model`` reads back to an equal specification."""
    import yaml

    text: str = yaml.dump(
        _plain(spec), Dumper=_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True, width=120
    )
    return text


@cache
def _zoo_files() -> Mapping[str, Path]:
    return {path.stem: path for path in sorted(ZOO.glob("*.yaml"), key=lambda path: path.stem)}


def _found(name: str | os.PathLike[str]) -> str:
    """The path of a model by name or path."""
    text = name_or_path("model", name)
    file = _zoo_files().get(text.lower())
    if file is None and not _is_path(text):
        raise unknown("model", text, _zoo_files())
    return text if file is None else str(file)


def _is_yaml(path: str) -> bool:
    return path.lower().endswith((".yaml", ".yml"))


def _is_path(text: str) -> bool:
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    ends = text.lower().endswith((".yaml", ".yml", ".json"))
    return ends or any(separator in text for separator in separators) or _is_folder(text)


def _is_folder(text: str) -> bool:
    try:
        return os.path.isdir(text)
    except ValueError:  # a null byte in the name
        return False


def _config(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """The file of a path or folder, and the config in it."""
    folder = _is_folder(str(path))
    file = path / "config.json" if folder else path
    config = read_json(file, infinity_as_text=True)
    inner = config.get("config")
    if isinstance(inner, dict) and "model_type" in inner:
        config = inner  # a named config: name, source, config, config_resolved
    return file, config


def _from_hugging_face(path: Path, ignore_fields: Sequence[str]) -> ModelSpec:
    from tfsim.models.huggingface import spec_from_config

    file, config = _config(path)
    beside = file.parent / "hf_quant_config.json"
    quant = read_json(beside) if file.name == "config.json" and beside.exists() else None
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return spec_from_config(
        config,
        name=name[:120] or "model",
        source=str(file),
        ignore_fields=ignore_fields,
        quant_config=quant,
    )


def _plain(model: BaseModel) -> dict[str, Any]:
    """Fields that differ from their default, and every ``kind``, in the order of the class."""
    return dict(_items(model))


def _items(model: BaseModel) -> Iterator[tuple[str, Any]]:
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        required_here = name in ("kind", "schema_version")
        if required_here or info.is_required() or value != info.get_default(call_default_factory=True):
            yield info.alias or name, _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value)
    if isinstance(value, Mapping):
        return {key: _value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(inner) for inner in value]
    return value


_PLAIN_TEXT = re.compile(r"[A-Za-z(][\w./()*+ -]*\Z", re.ASCII)
_WORDS = frozenset(("true", "false", "null", "nan", "inf", "infinity", "yes", "no", "on", "off", "y", "n"))


@cache
def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes every text that a YAML reader might take for something else."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        plain = _PLAIN_TEXT.match(value) and value.lower() not in _WORDS and value == value.strip()
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return Dumper
