"""Models by name and path: the zoo, YAML files, config.json files, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.oracle import configurations
from tfsim.errors import InputError
from tfsim.models.counts import count
from tfsim.models.huggingface import spec_from_config
from tfsim.models.load import ZOO, dump_model, list_models, load_model
from tfsim.models.spec import ModelSpec, Rope

NAMES = sorted(path.stem for path in ZOO.glob("*.yaml"))
TINY = """
schema: 1
name: tiny
d_model: 64
vocab_size: 256
blocks:
  layer:
    mixer: {kind: attention, n_heads: 4, n_kv_heads: 2, d_head: 16, rope: {}}
    ffn: {kind: dense, d_ff: 160}
layers: layer*2
"""
# oracle names that differ from the zoo's: the text part of a multimodal model
RENAMED = {
    "llama-4-scout-text": "llama-4-scout",
    **{f"gemma-3-{s}-text": f"gemma-3-{s}" for s in ("1b", "4b", "12b", "27b")},
}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# The zoo.


def test_the_zoo_is_large_enough_and_listed() -> None:
    models = list_models()
    assert len(models) >= 60 and [model.name for model in models] == NAMES
    assert all(model.source and model.family for model in models)


@pytest.mark.parametrize("name", NAMES)
def test_zoo_model(name: str, tmp_path: Path) -> None:
    spec = load_model(name)
    assert spec.name == name and spec.source
    assert load_model(write(tmp_path / "again.yaml", dump_model(spec))) == spec
    assert (ZOO / f"{name}.yaml").read_text(encoding="utf-8") == dump_model(spec), "not in the form dump_model writes"
    assert count(spec, batch=1, seq_len=4).parameters.total > 0


@pytest.mark.parametrize("name", sorted(configurations()["full"]))
def test_zoo_agrees_with_the_import(name: str) -> None:
    """The YAML of a model and the import of its config.json describe the same architecture."""
    zoo = RENAMED.get(name, name)
    spec = spec_from_config(configurations()["full"][name]["config"], name=zoo)

    def architecture(of: ModelSpec) -> str:
        """Without what a hand-written config of the oracle may leave out: formats, MTP, rotary scaling, length."""
        blocks = {
            key: block.model_copy(
                update={"formats": {}, "mixer": block.mixer.model_copy(update={"rope": block.mixer.rope and Rope()})}
            )
            for key, block in of.blocks.items()
        }
        texts = dict.fromkeys(("source", "note", "family"), "")
        facts = {"dtype": "bf16", "kv_format": None, "n_mtp_modules": 0, "max_seq_len": None, "blocks": blocks}
        facts |= {"vision": None}  # the oracle has the text part alone
        return dump_model(of.model_copy(update={**texts, **facts}))

    assert architecture(load_model(zoo)) == architecture(spec)


def test_names_do_not_mind_case() -> None:
    assert load_model("Llama-3.1-70B") == load_model("llama-3.1-70b")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.1-71b", r"unknown model 'llama-3.1-71b': did you mean llama-3.1-70b"),
        ("zzz", r"unknown model 'zzz' \(tfsim model list shows all\)"),
        ("", "not a name or a path"),
        ("nul\x00l", "unknown model"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(name)


# Paths.


def test_yaml_file(tmp_path: Path) -> None:
    spec = load_model(write(tmp_path / "tiny.YAML", TINY))
    assert (spec.name, spec.n_layers, spec.d_model) == ("tiny", 2, 64)
    with pytest.raises(InputError, match="Hugging Face config"):
        load_model(tmp_path / "tiny.YAML", ignore_fields=["x"])


def test_config_json_by_file_and_by_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    write(folder / "config.json", json.dumps({"model_type": "llama", "vocab_size": 32064}))
    by_folder, by_file = load_model(folder), load_model(str(folder / "config.json"))
    assert by_folder == by_file and by_file.name == "my-model" and by_file.source.endswith("config.json")
    write(
        folder / "hf_quant_config.json",
        json.dumps({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}),
    )
    assert load_model(folder).blocks["layer"].formats == {"attn": "fp8", "ffn_dense": "fp8"}
    other = write(tmp_path / "oracle.json", json.dumps({"name": "x", "config": {"model_type": "gpt2"}}))
    assert load_model(other).family == "gpt2" and load_model(other).name == "oracle"
    write(folder / "config.json", json.dumps({"model_type": "llama", "shiny": 1}))
    assert load_model(folder, ignore_fields=["shiny"]).n_layers == 32


def test_dump_quotes_what_yaml_would_misread(tmp_path: Path) -> None:
    base = load_model("gpt2")
    for name in ("1e5", "true", "0x1f", "null", "a: b", "# c", "-", "~", "é", "'", '"', "2024-01-01", "a\nb", " x "):
        spec = ModelSpec.model_validate({**base.model_dump(by_alias=True), "name": name, "note": name, "source": name})
        assert load_model(write(tmp_path / "x.yaml", dump_model(spec))) == spec


# What is wrong with a file: one line that names it.

ALIASES = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
ATTENTION = "{kind: attention, n_heads: 4, n_kv_heads: 2, d_head: 16, rope: {}}"
DEBERTA = "{kind: disentangled, n_heads: 4, d_head: 16}"
FFN = "ffn: {kind: dense, d_ff: 160}"
PER_LAYER = "per_layer_input: {vocab_size: 256, width: 8}\n"
BAD_YAML = {
    "wrong_type": (TINY.replace("d_model: 64", "d_model: wide"), "d_model"),
    "float_size": (TINY.replace("d_model: 64", "d_model: 64.5"), "d_model"),
    "boolean_size": (TINY.replace("d_model: 64", "d_model: true"), "d_model"),
    "unknown_key": (TINY + "d_modle: 3\n", "d_modle.*unknown key: did you mean d_model"),
    "unknown_inner_key": (TINY.replace("d_head: 16", "d_head: 16, heads: 3"), "heads.*unknown key"),
    "duplicate_key": (TINY + "name: other\n", "duplicate key 'name'"),
    "negative": (TINY.replace("d_ff: 160", "d_ff: -160"), "d_ff.*greater than 0"),
    "zero": (TINY.replace("n_heads: 4", "n_heads: 0"), "n_heads"),
    "nan": (TINY.replace("rope: {}", "rope: {theta: .nan}"), "not a finite number"),
    "too_large": (TINY.replace("rope: {}", "rope: {theta: 1e400}"), "too large"),
    "absurd_size": (TINY.replace("d_model: 64", f"d_model: {10**15}"), "d_model"),
    "absurd_layers": (TINY.replace("layer*2", "layer*999999"), "more than 10000 layers"),
    "no_such_block": (TINY.replace("layer*2", "layre*2"), "layre"),
    "open_bracket": (TINY.replace("layer*2", "(layer*2"), "without"),
    "missing_field": (TINY.replace("vocab_size: 256\n", ""), "vocab_size.*missing"),
    "unknown_kind": (TINY.replace("kind: attention", "kind: atention"), "unknown kind 'atention'"),
    "heads_do_not_divide": (TINY.replace("n_kv_heads: 2", "n_kv_heads: 3"), "n_kv_heads"),
    "unknown_format": (TINY + "dtype: fp7\n", "unknown number format 'fp7'"),
    "wrong_schema": (TINY.replace("schema: 1", "schema: 2"), "schema"),
    "post_with_one_branch": (TINY.replace("layers:", "    residual: post\nlayers:").replace(FFN, "ffn: null"), "both"),
    "hyper_with_one_branch": (TINY.replace(FFN, "ffn: null") + "hyper_streams: 4\n", "hyper_streams"),
    "inputs_of_a_post_layer": (TINY.replace("layers:", "    residual: post\nlayers:") + PER_LAYER, "per_layer_input"),
    "distances_nobody_reads": (TINY + "relative_positions: {kind: disentangled, n_buckets: 8}\n", "disentangled"),
    "disentangled_without_distances": (TINY.replace(ATTENTION, DEBERTA), "relative_positions"),
    "empty": ("", "empty"),
    "only_comment": ("# nothing\n", "nothing"),
    "a_list": ("- 1\n- 2\n", "not 'key: value' pairs"),
    "not_yaml": ("a: [1, 2\n", "not valid YAML"),
    "alias_bomb": (ALIASES, "anchors and aliases"),
    "two_documents": (TINY + "---\n" + TINY, "second document"),
}
LLAMA = '{"model_type": "llama", "hidden_size": %s}'
BAD_JSON = {
    "wrong_type": (LLAMA % '"wide"', "'hidden_size'"),
    "negative": (LLAMA % "-4096", "'hidden_size'"),
    "nan": (LLAMA % "NaN", "'hidden_size'"),
    "too_large": (LLAMA % "1e400", "'hidden_size'"),
    "absurd": (LLAMA % ("1" + "0" * 400), "'hidden_size'"),
    "unknown_key": ('{"model_type": "llama", "hiden_size": 3}', "'hiden_size'.*did you mean hidden_size"),
    "duplicate_key": ('{"model_type": "llama", "vocab_size": 3, "vocab_size": 4}', "duplicate key"),
    "no_type": ('{"hidden_size": 3}', "'model_type': missing"),
    "unknown_type": ('{"model_type": "llamma"}', "did you mean llama"),
    "empty": ("", "empty"),
    "a_list": ("[1]", "not 'key: value' pairs"),
    "not_json": ("{", "not valid JSON"),
    "deep": ("[" * 100_000, "nested|not valid JSON"),
}


@pytest.mark.parametrize("case", BAD_YAML)
def test_bad_yaml(case: str, tmp_path: Path) -> None:
    text, message = BAD_YAML[case]
    refused(write(tmp_path / "bad.yaml", text), message)


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_json(case: str, tmp_path: Path) -> None:
    text, message = BAD_JSON[case]
    refused(write(tmp_path / "config.json", text), message)


@pytest.mark.parametrize("name", ["model.yaml", "config.json"])
def test_bad_paths(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    refused(path, "no such file")
    path.write_bytes(b"\x00\xff\xfe\x80binary")
    refused(path, "not a text file")
    path.unlink()
    path.mkdir()
    refused(path, "no such file" if name == "config.json" else "is a directory")
    refused(tmp_path, r"config\.json: is a directory" if name == "config.json" else "no such file")


def test_bad_quantisation_file_beside_a_config(tmp_path: Path) -> None:
    write(tmp_path / "config.json", '{"model_type": "llama"}')
    for text, message in (
        ("{}", "hf_quant_config.quantization"),
        ('{"quantization": {"quant_algo": "FP9"}}', "quant_algo.*FP9"),
        ('{"quantization": {"quant_algo": "FP8", "exclude_modules": ["model.layers.0.self_attn.q_prj"]}}', "q_prj"),
        ('{"quantization": {"quant_algo": "NVFP4", "group_size": 32}}', "group_size.*must be 16"),
        ("[]", "not 'key: value' pairs"),
    ):
        write(tmp_path / "hf_quant_config.json", text)
        refused(tmp_path, message)


def refused(path: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load_model(path)
    assert "\n" not in str(error.value) and path.name.split(".")[0] in str(error.value)
