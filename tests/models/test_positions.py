"""How positions are told apart, in words."""

import pytest

import tfsim
from tfsim.models.positions import describe_positions


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2", "learned table, ends at 1,024 rows"),
        ("llama-3.1-8b", "RoPE, base 500,000, llama3 x 8 from 8,192 trained tokens"),
        ("deepseek-v3", "RoPE, base 10,000, yarn x 40 from 4,096 trained tokens"),
        ("pythia-1b", "RoPE of 64 dimensions, base 10,000"),
        ("bloom-560m", "ALiBi (Press et al. 2022): a slope per head, computed"),
        ("t5-base", "relative bias, 32 distances (farther ones share the last)"),
        ("transformer-2017-base", "sinusoidal (Vaswani et al. 2017), computed"),
        ("gemma-3-4b", "RoPE, base 10,000; RoPE, base 1,000,000, linear x 8"),
        ("mamba-370m", "none: order comes from a recurrence, the mask or the input"),
        ("jamba-v0.1", "none: order comes from a recurrence, the mask or the input"),
    ],
)
def test_schemes(name: str, words: str) -> None:
    assert describe_positions(tfsim.load_model(name)) == words


def test_the_model_list_has_one_for_all() -> None:
    for name in ("vit-b16", "whisper-tiny", "deberta-v3-base", "dit-s-2", "alphafold2-evoformer", "gnmt-v2-4layer"):
        assert describe_positions(tfsim.load_model(name))
