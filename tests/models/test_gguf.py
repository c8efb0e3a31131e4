"""GGUF file types against the sizes that llama.cpp publishes, and its rules tensor by tensor."""

import pytest

from tfsim.errors import InputError
from tfsim.models import gguf
from tfsim.models.counts import count, parameters, stored_weights
from tfsim.models.decoder import segments
from tfsim.models.facts import model_facts
from tfsim.models.gguf import FILE_TYPES, quantised
from tfsim.models.load import dump_model, list_models, load_model
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec
from tfsim.models.weights import WEIGHT_FORMATS, weight_formats, with_weights
from tfsim.operators.formats import FORMATS

LLAMA = load_model("llama-3.1-8b")

# llama.cpp tools/quantize/README.md: bits per weight of meta-llama/Llama-3.1-8B
BITS = {
    "iq1_s": 2.0042, "iq1_m": 2.1460, "iq2_xxs": 2.3824, "iq2_xs": 2.5882, "iq2_s": 2.7403, "iq2_m": 2.9294,
    "iq3_xxs": 3.2548, "iq3_xs": 3.4977, "iq3_s": 3.6606, "iq3_m": 3.7628, "iq4_xs": 4.4597, "iq4_nl": 4.6818,
    "q2_k_s": 2.9697, "q2_k": 3.1593, "q3_k_s": 3.6429, "q3_k_l": 4.2979, "q4_k_s": 4.6672, "q4_k_m": 4.8944,
    "q5_k_s": 5.5704, "q5_k_m": 5.7036, "q6_k": 6.5633, "q8_0": 8.5008,
}  # fmt: skip


def stored(spec: ModelSpec) -> int:
    return int(count(spec, batch=1, seq_len=4).weight_bytes)


@pytest.mark.parametrize("name", BITS)
def test_bits_per_weight_are_llama_cpps(name: str) -> None:
    assert round(stored(quantised(LLAMA, name)) * 8 / parameters(LLAMA).total, 4) == BITS[name]


@pytest.mark.parametrize(
    ("model", "name", "gigabytes"),
    # file sizes on the Hugging Face hub (bartowski's and TheBloke's quantisations), tokeniser and header included
    [
        ("llama-3.1-8b", "q4_0", 4.66),
        ("llama-3.1-8b", "q2_k", 3.18),
        ("llama-3.1-8b", "q3_k_m", 4.02),
        ("llama-3.1-8b", "q4_k_m", 4.92),
        ("llama-3.1-8b", "q5_k_m", 5.73),
        ("llama-3.1-8b", "q6_k", 6.60),
        ("llama-3.1-8b", "q8_0", 8.54),
        ("llama-3.1-70b", "q4_k_m", 42.52),
        ("llama-2-7b", "q4_k_m", 4.08),
        ("gemma-2-9b", "q4_k_m", 5.76),
        ("qwen2.5-7b", "q4_k_m", 4.68),
        ("qwen3-30b-a3b", "q4_k_m", 18.56),
    ],
)
def test_file_sizes(model: str, name: str, gigabytes: float) -> None:
    assert stored(quantised(load_model(model), name)) == pytest.approx(gigabytes * 1e9, rel=0.005)


def test_q4_k_m_tensor_by_tensor() -> None:
    """Q6_K for values and down projections of the first and last four layers and every third between."""
    spec = quantised(LLAMA, "q4_k_m")
    wide = [spec.blocks[name].formats["down_proj"] == "q6_k" for name in spec.layer_blocks]
    assert wide == [i < 4 or i >= 28 or (i - 4) % 3 == 2 for i in range(32)]
    for block in spec.blocks.values():
        assert block.formats["v_proj"] == block.formats["down_proj"]
        assert {block.formats[name] for name in ("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj")} == {"q4_k"}
    assert spec.formats == {"embed_token": "q4_k", "head": "q6_k"}
    assert {w.fmt for w, _ in stored_weights(spec) if w.group == "norm"} == {"fp32"}


def test_exceptions_of_the_rules() -> None:
    mixtral = next(iter(quantised(load_model("mixtral-8x7b"), "q4_k_m").blocks.values())).formats
    assert (mixtral["v_proj"], mixtral["k_proj"], mixtral["o_proj"]) == ("q8_0", "q8_0", "q5_k")
    assert "router" not in mixtral
    wide = {block.formats["v_proj"] for block in quantised(load_model("llama-3.1-70b"), "q4_k_m").blocks.values()}
    assert wide == {"q5_k", "q6_k"}
    tied = quantised(load_model("gemma-2-9b"), "q4_k_m")  # the table is the output matrix too
    assert tied.formats["embed_token"] == "q6_k"
    narrow = next(iter(quantised(load_model("qwen2-0.5b"), "q4_k_m").blocks.values())).formats
    assert narrow["q_proj"] == "q5_0"  # 896 columns are no multiple of 256


def test_every_matrix_of_every_decoder_is_stored_in_a_ggml_type() -> None:
    kept = {"fp32", "fp16"}
    for listed in list_models():
        spec = load_model(listed.name).model_copy(update={"vision": None})  # a tower is a file of its own
        recurrent = any(block.mixer and block.mixer.kind == "recurrent" for block in spec.blocks.values())
        if not spec.decodes or spec.encoder is not None or recurrent:
            continue
        small = quantised(spec, "q4_k_m")
        assert small.n_layers == spec.n_layers and stored(small) < stored(with_weights(spec, "bf16", "bf16")) / 2
        assert parameters(small) == parameters(spec)
        for part in segments(small, Shape(1, 1)):
            for op in part.operators:
                for weight in op.weights:
                    if part.layer and op.name in small.blocks[part.name].formats and not weight.bias:
                        assert FORMATS[weight.fmt].ggml or weight.fmt in kept, (listed.name, op.name)
                        assert weight.fmt == small.blocks[part.name].formats[op.name], (listed.name, op.name)


def test_facts_and_yaml_in_a_file_type() -> None:
    found = model_facts(LLAMA, weights_dtype="Q4_K_M")
    assert found.weight_bytes == stored(quantised(LLAMA, "q4_k_m"))
    assert found.formats == ("q4_k", "q6_k", "fp32") and found.parameters == parameters(LLAMA)
    assert "q6_k" in dump_model(quantised(LLAMA, "q4_k_m"))
    with pytest.raises(InputError, match="did you mean q4_k_m"):
        model_facts(LLAMA, weights_dtype="q4km")
    with pytest.raises(InputError, match="t5-small has an encoder"):
        with_weights(load_model("t5-small"), "q4_0", "bf16")


def test_the_list_of_formats() -> None:
    found = {f.name: f for f in weight_formats()}
    assert tuple(sorted(found)) == tuple(sorted(WEIGHT_FORMATS)) and set(FILE_TYPES) == set(gguf.FILE_TYPES)
    assert (found["nvfp4"].bits_per_weight, found["nvfp4"].matmul_rate) == (4.5, "nvfp4")
    assert (found["mxfp4"].bits_per_weight, found["int4_g128"].bits_per_weight) == (4.25, 4.125)
    assert (found["q4_k_m"].bits_per_weight, found["q4_k_m"].matmul_rate) == (4.5, "activations' format")
    assert "output q6_k" in found["q4_k_m"].note
