"""Encoder-only models and image models: every oracle row, published figures, what they refuse."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.oracle_more import number
from tests.oracle_stacks import saved, spec, wrong_flops, wrong_parameters
from tfsim.errors import InputError
from tfsim.models import load_model
from tfsim.models.counts import count, parameters
from tfsim.models.huggingface import spec_from_config
from tfsim.models.spec import ModelSpec

CAUSAL: tuple[Literal["full", "halved"], ...] = ("full", "halved")
PARAMETERS = {"bert": 3, "roberta": 2, "deberta": 4, "vit": 12, "clip": 3}
FLOPS = {"bert": 15 + 6, "roberta": 4, "deberta": 7, "vit": 11 + 6, "clip": 15 + 6}


@pytest.mark.parametrize("family", PARAMETERS)
def test_parameters_of_every_model_and_group_are_equal(family: str) -> None:
    found = list(wrong_parameters(family))
    assert len(found) == PARAMETERS[family]
    assert [(name, wrong) for name, wrong in found if wrong] == []


@pytest.mark.parametrize("family", FLOPS)
def test_flops_of_every_row_and_component_are_equal(family: str) -> None:
    found = list(wrong_flops(family))
    assert len(found) == FLOPS[family]
    wrong = [(name, parts) for name, parts in found if parts]
    if family == "clip":
        # full-size image towers ran alone, outside the module that names the projection a head: same FLOPs in "other"
        for _, parts in wrong:
            assert set(parts) == {"c_head", "c_other"} and parts["c_head"] == parts["c_other"][::-1]
        assert len(wrong) == 3
    else:
        assert wrong == []


@pytest.mark.parametrize(("family", "n"), [("bert", 20), ("vit", 16)])
def test_saved_bytes_are_exact(family: str, n: int) -> None:
    found = list(saved(family))
    assert len(found) == n
    assert [(row, expected, got) for row, expected, got in found if expected != got] == []


def test_saved_bytes_of_clip_are_close() -> None:
    found = list(saved("clip"))
    assert len(found) == 20
    for row, (total, slope, fixed), got in found:
        assert got[1] == slope, row
        assert got[0] == pytest.approx(total, rel=0.002), row
        assert got[2] == pytest.approx(fixed, rel=0.005), row


def test_saved_bytes_of_deberta_are_close() -> None:
    found = list(saved("deberta"))
    assert len(found) == 10
    for row, (total, slope, fixed), got in found:
        seq = number(row["seq"])
        assert got[1] == slope, row
        # the embeddings keep a mask of the tokens as well: an element each
        assert total - got[0] == fixed - got[2] == 64 * (4 if row["precision"] == "fp32" else 2) * seq // 32, row


# Published figures.


@pytest.mark.parametrize(
    ("name", "millions", "within"),
    [
        ("bert-base-mlm", 110, 0.01),  # Devlin et al. 2019, section 3: 110M
        ("bert-large-mlm", 340, 0.02),  # the same: 340M
        ("roberta-base-mlm", 125, 0.01),  # Liu et al. 2019, fairseq README: 125M
        ("deberta-v3-base", 184, 0.002),  # He et al. 2023, model card: 86M backbone + 98M embedding
        ("deberta-v3-large", 435, 0.003),  # the same: 304M + 131M
        ("vit-b16", 86, 0.01),  # Dosovitskiy et al. 2021, table 1: 86M
        ("vit-l16", 307, 0.01),  # the same: 307M
        ("vit-h14", 632, 0.001),  # the same: 632M
        ("clip-vit-b-32", 151.3, 0.001),  # open_clip's model profile: 151.28M
    ],
)
def test_published_parameters(name: str, millions: float, within: float) -> None:
    assert parameters(spec(name)).total == pytest.approx(millions * 1e6, rel=within)


def test_published_flops_of_vit() -> None:
    """open_clip's profile of the ViT-B/16 image tower: 35.13 GFLOPs; DeiT (Touvron 2021): 17.6 GMACs of ViT-B."""
    flops = count(spec("vit-b16"), style="eager").flops
    assert flops == pytest.approx(35.13e9, rel=0.001)
    assert flops / 2 == pytest.approx(17.6e9, rel=0.01)


def test_published_flops_of_bert() -> None:
    """Jiao et al. 2020 (TinyBERT), table 1, at 128 tokens: BERT-base 22.5B, TinyBERT with 6 layers 11.3B.

    Theirs count some elementwise work as well, 0.7 %.
    """
    base = spec("bert-base")
    six = base.model_copy(update={"layers": "layer*6"})
    six = ModelSpec.model_validate(six.model_dump(by_alias=True))
    assert count(base, seq_len=128).flops == pytest.approx(22.5e9, rel=0.01)
    assert count(six, seq_len=128).flops == pytest.approx(11.3e9, rel=0.02)
    # BERT-large has 24 x 1024^2 x 12 weights in its layers and a pooler: two FLOPs a weight and token, and the scores
    large, weights = count(load_model("bert-large"), seq_len=128), 24 * 12 * 1024**2
    assert large.flops == 2 * 128 * weights + 24 * 4 * 128**2 * 1024 + 2 * 1024**2


def test_published_parameters_of_electra_and_modernbert() -> None:
    """ELECTRA-small: 14M (Clark et al. 2020, table 1); ModernBERT-base and -large: 149M, 395M (Warner et al. 2024)."""
    assert parameters(spec_from_config({"model_type": "electra"})).total == pytest.approx(14e6, rel=0.04)
    base = spec_from_config({"model_type": "modernbert"})
    assert parameters(base).total == pytest.approx(149e6, rel=0.01)
    sizes = {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16}
    assert parameters(spec_from_config({"model_type": "modernbert", **sizes})).total == pytest.approx(395e6, rel=0.01)


def test_local_attention_to_both_sides_is_a_band() -> None:
    model = spec_from_config({"model_type": "modernbert"})
    assert model.block_counts == {"global": 1, "local": 14, "global_v2": 7} and not model.blocks["global"].input_norm
    full, band = (count(model, seq_len=1024, causal=causal).flops_by_component["attn_core"] for causal in CAUSAL)
    reach = 1024 * 129 - 64 * 65
    assert full == 22 * 4 * 1024 * 1024 * 768 and band == (8 * 1024 * 1024 + 14 * reach) * 4 * 768


def test_any_image_size() -> None:
    vit = spec("vit-b16")
    assert count(vit).operators == count(vit, seq_len=197).operators
    larger = count(vit, image_size=384)
    assert larger.flops == count(vit, seq_len=577).flops
    assert larger.parameters == count(vit).parameters
    # ViT-B/16 at 384 pixels: 55.5 GMACs (timm's results table, vit_base_patch16_384: 55.54)
    assert larger.flops / 2 == pytest.approx(55.5e9, rel=0.01)
    for arguments in ({"image_size": 8}, {"image_size": "224"}, {"image_size": 224, "seq_len": 197}):
        with pytest.raises(InputError, match="image_size"):
            count(vit, **arguments)
    with pytest.raises(InputError, match="reads no images"):
        count(spec("bert-base"), image_size=224)
    towers = spec("clip-vit-b-16")
    assert count(towers, seq_len=77, image_size=336).flops == count(towers, seq_len=77, encoder_len=442).flops


def test_a_doubled_sequence_costs_four_times_the_attention() -> None:
    once, twice = (count(spec("bert-base"), seq_len=n).flops_by_component for n in (256, 512))
    assert twice["attn_core"] == 4 * once["attn_core"] and twice["ffn"] == 2 * once["ffn"]


def test_an_encoder_sees_every_key_whatever_the_convention() -> None:
    flops = [count(spec("bert-base"), seq_len=128, causal=causal).flops for causal in CAUSAL]
    assert flops[0] == flops[1]


def test_an_encoder_does_not_decode() -> None:
    with pytest.raises(InputError, match="no decoder"):
        count(spec("bert-base"), phase="decode", past_len=8)


def test_the_head_is_what_architectures_names() -> None:
    small = {
        "model_type": "bert",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": 99,
    }

    def head(name: str, **fields: object) -> int:
        return parameters(spec_from_config({**small, "architectures": [name], **fields})).by_group["head"]

    assert head("BertModel") == 64 * 64 + 64
    assert head("BertForMaskedLM") == 64 * 64 + 64 + 99
    assert head("BertForTokenClassification", num_labels=5) == 5 * 64 + 5
    assert head("BertForSequenceClassification", id2label={"0": "a", "1": "b"}) == 64 * 64 + 64 + 2 * 64 + 2
    with pytest.raises(InputError, match="'architectures'"):
        head("BertForNextSentencePrediction")
