"""Training of models that are no single decoder: their stages, parameters and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import tfsim
from tests.oracle_stacks import spec
from tfsim.errors import InputError
from tfsim.models.counts import count
from tfsim.models.stages import stages

MODELS = ["bert-large-mlm", "vit-h14", "t5-3b", "bart-large", "whisper-large-v2", "clip-vit-b-32", "switch-base-8"]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_estimated_and_reads_the_whole_model(name: str) -> None:
    model = spec(name)
    length = None if model.max_seq_len else 512
    found = tfsim.train(model, tfsim.load_system("dgx-h100"), devices=8, seq_len=length, global_batch=256)
    assert found.step_time_s > 0 and found.fits
    assert sum(found.time.values()) == pytest.approx(found.step_time_s)


@pytest.mark.parametrize("name", ["t5-3b", "bart-large", "clip-vit-b-32"])
@pytest.mark.parametrize("pp", [1, 2, 3, 8])
def test_stages_hold_every_layer_and_end_once(name: str, pp: int) -> None:
    model = spec(name)
    found: dict[str, int] = {}
    for stage in stages(model, pp):
        for segment, n in stage.counts.items():
            found[segment] = found.get(segment, 0) + n * stage.alike
    assert found == {
        **{block: model.all_layers.count(block) for block in model.all_blocks},
        **dict.fromkeys(("encoder.embedding", "encoder.head", "embedding", "head"), 1),
    }


@pytest.mark.parametrize(("name", "length"), [("dit-xl-2", 256), ("alphafold2-evoformer", 256), ("vit-h14", 257)])
def test_a_frontend_says_how_long_its_sequences_are(name: str, length: int) -> None:
    """Latents of 32 x 32 in patches of 2; AlphaFold's crop; 16 x 16 patches and a class token."""
    model, system = tfsim.load_model(name), tfsim.load_system("dgx-h100")
    given = tfsim.train(model, system, devices=8, global_batch=8, seq_len=length)
    assert tfsim.train(model, system, devices=8, global_batch=8).step_time_s == given.step_time_s


def test_the_encoder_comes_first() -> None:
    first, last = stages(spec("t5-3b"), 2)
    assert set(first.counts) == {"encoder.embedding", "encoder.layer", "encoder.head"}
    assert set(last.counts) == {"embedding", "layer", "head"}


def test_a_shared_table_is_held_once_a_stage() -> None:
    """At one device a T5 holds its token table once, though encoder, decoder and output all use it."""
    model = spec("t5-3b")
    plan = {"tp": 1, "pp": 1, "zero_stage": 0}
    found = tfsim.train(model, tfsim.load_system("dgx-h100"), devices=1, seq_len=64, global_batch=1, plan=plan)
    assert found.memory["weights"] == 2 * count(model, seq_len=1).parameters.total


def test_lengths_broadcast() -> None:
    lengths = np.array([64.0, 128.0, 256.0])
    t5 = spec("t5-base")
    together = count(t5, seq_len=lengths, encoder_len=2 * lengths).flops
    alone = [count(t5, seq_len=int(n), encoder_len=int(2 * n)).flops for n in lengths]
    assert np.asarray(together).tolist() == alone


@pytest.mark.parametrize(("name", "why"), [("bert-base-mlm", "generates no text"), ("t5-base", "has an encoder")])
def test_serving_is_refused_in_one_line(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        tfsim.serve(spec(name), tfsim.load_system("dgx-h100"), devices=1, input_len=8, output_len=8)
    assert "\n" not in str(error.value)
