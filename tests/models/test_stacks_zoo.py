"""The zoo's encoders, encoder-decoders and image models: equal to the import, and to published sizes."""

from __future__ import annotations

import pytest

from tests.oracle_more import rows
from tests.oracle_stacks import TIMM, spec
from tfsim.models.counts import parameters
from tfsim.models.load import load_model

FAMILIES = ("bert", "roberta", "deberta", "vit", "clip", "t5", "bart", "switch", "whisper", "transformer2017")
NAMES = sorted({row["name"] for family in FAMILIES for row in rows("params", family)} - set(TIMM))


def test_every_oracle_model_is_in_the_zoo() -> None:
    assert len(NAMES) == 39


@pytest.mark.parametrize("name", NAMES)
def test_zoo_agrees_with_the_import(name: str) -> None:
    zoo, imported = load_model(name), spec(name)
    assert parameters(zoo) == parameters(imported)
    same = {"source": "", "note": "", "family": "", "dtype": "bf16", "encoder": None}
    assert zoo.model_copy(update=same) == imported.model_copy(update=same)


@pytest.mark.parametrize(
    ("name", "millions", "within"),
    [
        ("mt5-small", 300, 0.01),  # Xue et al. 2021, section 3.2: 300M, 580M, 1.2B, 3.7B, 13B
        ("mt5-base", 580, 0.01),
        ("mt5-large", 1200, 0.03),
        ("mt5-xl", 3700, 0.02),
        ("mt5-xxl", 13000, 0.01),
        ("t5-small", 60, 0.01),  # Raffel et al. 2020, section 3.7: 60M
        ("roberta-large-mlm", 355, 0.002),  # fairseq's RoBERTa README: 355M
        ("electra-base", 110, 0.01),  # Clark et al. 2020, table 2 and appendix: 110M
        ("electra-large", 335, 0.001),  # the same: 335M
        ("whisper-small", 244, 0.01),  # Radford et al. 2022, table 1: 244M
        ("switch-base-8", 620, 0.002),  # T5X model list: Switch-Base-8, 620M
    ],
)
def test_published_parameters(name: str, millions: float, within: float) -> None:
    assert parameters(load_model(name)).total == pytest.approx(millions * 1e6, rel=within)
