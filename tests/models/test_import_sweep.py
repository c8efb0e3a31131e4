"""Every imported type, one field changed at a time: the live class and tfsim agree on the parameters, or tfsim refuses.

A field that tfsim calls harmless and that changes a count, or one that it reads otherwise than the class, shows here.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any
from zlib import crc32

import pytest

from tests.models.test_huggingface import LIVE_CLASS, LIVE_FIELDS, NO_LIVE_CLASS
from tfsim.errors import InputError
from tfsim.models.counts import parameters
from tfsim.models.huggingface import FAMILIES, spec_from_config
from tfsim.models.huggingface.harmless import words

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

FIELDS = 10
"""Fields changed for each type: a fixed choice of them, which spreads over all fields of all types."""

LAYERS = words("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers")
# made anew from the number of layers, and facts of the file
LEFT_OUT = words(
    "layer_types mlp_layer_types layers_block_type no_rope_layers moe_layers indexer_types per_layer_config",
    "model_type id2label label2id architectures dtype encoder_sparse_step decoder_sparse_step",
)

# Where the published checkpoints are right and the class of transformers 5.24 is not.
KNOWN = {
    ("q_lora_rank", 0),  # 0 means no query latent in DeepSeek's own files
    ("tie_word_embeddings", False),  # the class ties every T5 and mT5; v1.1 is published untied
}


def small(model_type: str) -> dict[str, Any]:
    """The default configuration of a class with few layers."""
    config = transformers.CONFIG_MAPPING[model_type](**LIVE_FIELDS.get(model_type, {})).to_dict()
    config = {name: value for name, value in config.items() if name not in LEFT_OUT and value is not None}
    config |= {name: 4 for name in LAYERS if isinstance(config.get(name), int)}
    return {**config, "model_type": model_type}


def live(config: dict[str, Any]) -> int:
    """Parameters of the class that transformers builds."""
    model_type = config["model_type"]
    given = {name: value for name, value in copy.deepcopy(config).items() if name != "model_type"}
    auto = getattr(transformers, LIVE_CLASS.get(model_type, "AutoModelForCausalLM"))
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = auto.from_config(transformers.CONFIG_MAPPING[model_type].from_dict(given))
    return sum(weight.numel() for weight in model.parameters())


def changes(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """One other value for some of the fields."""
    found: list[tuple[str, Any]] = []
    for name, value in config.items():
        if isinstance(value, bool):
            found.append((name, not value))
        elif isinstance(value, int) and value >= 0:
            choices = (2 * value, max(value // 2, 1), 0, 3 * value)
            found.append((name, choices[crc32(f"{config['model_type']} {name}".encode()) % len(choices)]))
    return sorted(found, key=lambda change: crc32(f"{change[0]} {config['model_type']}".encode()))[:FIELDS]


SWEPT = sorted(set(FAMILIES) - NO_LIVE_CLASS)


@pytest.mark.parametrize("model_type", SWEPT)
def test_each_field_changes_what_it_changes_in_the_class(model_type: str) -> None:
    base = small(model_type)
    compared = 0
    for name, value in [("model_type", model_type), *changes(base)]:
        config = {**copy.deepcopy(base), name: value}
        if (name, value) in KNOWN:
            continue
        try:
            ours = parameters(spec_from_config(config)).total
        except InputError:
            continue
        try:
            expected = live(config)
        except Exception:  # the class refuses it in its own words
            continue
        assert ours == expected, f"{name} = {value}"
        compared += 1
    assert compared > 2
