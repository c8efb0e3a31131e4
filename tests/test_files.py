"""Files: whatever is in them, the answer is a mapping or one clear line."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from tfsim.errors import InputError
from tfsim.files import data_dir, read_json, read_yaml, validate, write_bytes, write_text

ALIAS_BOMB = "a: &a [x, x]\n" + "\n".join(
    f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)

BAD_YAML = {
    "empty": ("", "the file is empty"),
    "blank": (" \n\n", "the file is empty"),
    "only a comment": ("# nothing\n", "holds nothing"),
    "a list": ("- 1\n", "holds a list"),
    "a scalar": ("42\n", "holds only 42"),
    "malformed": ("a: [1,\n", "line 2: not valid YAML"),
    "a tab": ("a:\n\t- 1\n", "line 2: not valid YAML"),
    "a control character": ("a: \x00", "not valid YAML"),
    "duplicate key": ("a: 1\nb: 2\na: 3\n", "line 3: field 'a': duplicate key 'a'"),
    "duplicate key below": ("a:\n  - b: 1\n    b: 2\n", "line 3: field 'a.0.b': duplicate key 'b'"),
    "alias bomb": (ALIAS_BOMB, "line 1: field 'a': anchors and aliases"),
    "merge key": ("a: {b: 1}\nc:\n  <<: *a\n", "anchors and aliases"),
    "nan": ("a: .nan", "field 'a': .nan is not a finite number"),
    "plain nan": ("a: {b: [1, NaN]}", "field 'a.b.1': NaN is not a finite number"),
    "infinity": ("a: -.inf", "field 'a': -.inf is not a finite number"),
    "1e400": ("a: 1e400", "field 'a': '1e400' is too large"),
    "long integer": ("a: " + "1" * 10_000, "field 'a': an integer of 10000 digits"),
    "python tag": ("a: !!python/object/apply:os.system [ls]", "tags ("),
    "binary tag": ("a: !!binary aGk=", "tags ("),
    "two documents": ("a: 1\n---\nb: 2\n", "line 2: a second document"),
    "key is a list": ("? [a]\n: 1\n", "cannot be a key"),
    "deep": ("a: " + "[" * 500 + "]" * 500, "nested more than 100 levels"),
    "very deep": ("[" * 100_000, "nest"),
}

BAD_JSON = {
    "empty": ("", "the file is empty"),
    "a list": ("[1]", "holds a list"),
    "null": ("null", "holds nothing"),
    "malformed": ('{"a":\n 1,}', "line 2: not valid JSON"),
    "duplicate key": ('{"a": {"b": 1, "c": 0, "b": 2}}', "field 'a.b': duplicate key"),
    "nan": ('{"a": [0, NaN]}', "field 'a.1': not a finite number"),
    "infinity": ('{"a": -Infinity}', "field 'a': not a finite number"),
    "1e400": ('{"a": {"b": 1e400}}', "field 'a.b': not a finite number"),
    "long integer": ('{"a": ' + "1" * 10_000 + "}", "field 'a': not a finite number"),
    "deep": ('{"a":' * 500 + "1" + "}" * 500, "nested more than 100 levels"),
    "very deep": ("[" * 1_000_000, "nested more than 100 levels"),
    "half a surrogate pair": (r'{"a": "\ud800"}', "field 'a': holds half a surrogate"),
}


def message_of(call: Any, *args: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*args)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) <= 800
    return message


@pytest.mark.parametrize("case", BAD_YAML)
def test_bad_yaml(case: str, tmp_path: Path) -> None:
    text, expected = BAD_YAML[case]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message = message_of(read_yaml, path)
    assert message.startswith(f"{path}: ")
    assert expected in message


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_json(case: str, tmp_path: Path) -> None:
    text, expected = BAD_JSON[case]
    path = tmp_path / "bad.json"
    path.write_text(text)
    message = message_of(read_json, path)
    assert message.startswith(f"{path}: ")
    assert expected in message


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_bad_paths(read: Any, tmp_path: Path) -> None:
    assert message_of(read, tmp_path).endswith("is a directory, not a file")
    assert message_of(read, tmp_path / "none").endswith("no such file")
    assert "null byte" in message_of(read, "a\0b")
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    assert "not a text file" in message_of(read, binary)
    assert "larger than" in message_of(read, "/dev/zero")


def test_yaml_scalars_are_what_they_look_like(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(
        "\ufeffschema: 1\nf: 1e12\ng: -2.5E-3\nh: .5\ni: 1_000\nno: no\non: on\nyes: 'true'\n"
        "t: true\nu: False\nd: 2024-01-31\nv: 1.2.3\nn: null\ne:\nsix: 12:30:45\nq: '1'\n"
        "l: |\n  text\nbig: 15000000000000000000000\n8: key\nhex: 0x10\nempty: {}\n"
    )
    assert read_yaml(path) == {
        "schema": 1,
        "f": 1e12,
        "g": -2.5e-3,
        "h": 0.5,
        "i": 1000,
        "no": "no",
        "on": "on",
        "yes": "true",
        "t": True,
        "u": False,
        "d": "2024-01-31",
        "v": "1.2.3",
        "n": None,
        "e": None,
        "six": "12:30:45",
        "q": "1",
        "l": "text\n",
        "big": 15 * 10**21,
        "8": "key",
        "hex": "0x10",
        "empty": {},
    }


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]))
TREES = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    ),
)
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@FUZZ
@given(tree=TREES)
def test_json_round_trip(tree: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(tree))
    assert read_json(path) == tree


@FUZZ
@given(tree=TREES)
def test_yaml_reads_json_as_json(tree: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tree.yaml"  # JSON is YAML: numbers, quoted text and nesting must agree
    path.write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")
    assert read_yaml(path) == tree


@FUZZ
@given(data=st.binary() | st.text().map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_a_mapping_or_an_input_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_bytes(data)
    for read in (read_yaml, read_json):
        try:
            assert isinstance(read(path), dict)
        except InputError as error:
            assert str(error).isprintable()


@FUZZ
@given(text=st.text(alphabet="ab:-[]{}&*!|>'\"%@?,#~.e0123456789 \n\t", max_size=60))
def test_any_yaml_like_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(text)
    try:
        assert isinstance(read_yaml(path), dict)
    except InputError as error:
        assert str(error).isprintable()


class Attention(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["attention"]
    n_heads: int = Field(gt=0)


class Mamba(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["mamba"]
    d_state: int


class Block(BaseModel):
    model_config = ConfigDict(extra="forbid")
    mixer: Annotated[Attention | Mamba, Field(discriminator="kind")]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    blocks: dict[str, Block]
    layers: list[Block] = []


@pytest.mark.parametrize(
    ("mixer", "expected"),
    [
        ({"kind": "attention", "n_heads": -3}, ".n_heads': value -3: must be greater than 0"),
        ({"kind": "attention", "n_head": 3}, ".n_head': unknown key: did you mean n_heads?"),
        ({"kind": "mamba", "n_heads": 3}, ".n_heads': unknown key: valid keys are kind, d_state"),
        ({"kind": "mamba"}, ".d_state': missing, and required"),
        ({"kind": "mamba", "d_state": [1]}, ".d_state': got a list: must be a valid integer"),
        ({"kind": "lstm"}, "': unknown kind 'lstm': choose from 'attention', 'mamba'"),
        ({"kind": "mamba", "d_state": "x\n" * 99}, ".d_state': value 'x\\nx\\n"),
    ],
)
def test_validate_names_field_value_and_rule(mixer: dict[str, Any], expected: str) -> None:
    block = {"mixer": mixer}
    by_name = {"name": "m", "blocks": {"decoder": block}}
    in_list = {"name": "m", "blocks": {}, "layers": [block]}
    for data, path in ((by_name, "blocks.decoder.mixer"), (in_list, "layers.0.mixer")):
        message = message_of(validate, Model, data, "m.yaml")
        assert message.startswith(f"m.yaml: field '{path}{expected}")


def test_validate_prefers_the_misspelt_key_to_the_missing_one() -> None:
    message = message_of(validate, Model, {"nam": "m", "blocks": {}}, "m.yaml")
    assert message == "m.yaml: field 'nam': unknown key: did you mean name?"


def test_write_is_atomic_and_keeps_links_and_modes(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    link = tmp_path / "link.txt"
    write_text(target, "one")
    target.chmod(0o640)
    link.symlink_to(target)
    write_bytes(link, b"two")
    assert link.is_symlink()
    assert target.read_text() == "two"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.txt", "out.txt"]
    write_text("/dev/null", "gone")


def test_write_errors(tmp_path: Path) -> None:
    assert message_of(write_text, tmp_path, "x").endswith("is a directory")
    assert "folder does not exist" in message_of(write_text, tmp_path / "no" / "x", "x")
    assert "null byte" in message_of(write_text, "a\0b", "x")
    (tmp_path / "file").write_text("")
    assert "cannot write" in message_of(write_text, tmp_path / "file" / "x", "x")


def test_data_dir_of_the_source_tree() -> None:
    assert data_dir("hardware") == Path(__file__).parents[1] / "hardware"
    assert (data_dir("measured") / "runs.csv").is_file()
    with pytest.raises(ValueError, match="no data of kind"):
        data_dir("secrets")
