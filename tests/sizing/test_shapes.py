"""Shapes: their own counts are the code's, their size is the one asked for, and they look like published models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tfsim
from tfsim.errors import InputError
from tfsim.models import list_models
from tfsim.models.conventions import training_flops
from tfsim.models.counts import parameters
from tfsim.models.cuts import cut_faults
from tfsim.models.spec import Attention, DenseFFN
from tfsim.scaling import deepseek_flops_per_token
from tfsim.scaling.laws import FLOPS_AS_N
from tfsim.sizing import Architecture, shape_of
from tfsim.sizing.shapes import _ASPECT_GROWTH, _ASPECT_LEVEL, _ASPECT_SCATTER, aspect

DENSE = Architecture(128_256, 4096)
MIXTURE = Architecture(128_256, 4096, experts=64, top_k=8)
SIZES = st.floats(math.log(3e7), math.log(3e12)).map(math.exp)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.sampled_from([DENSE, MIXTURE, Architecture(32_000, 2048), Architecture(50_257, 8192, 8, 2)]))
def test_counts_are_those_of_the_model(size: float, architecture: Architecture) -> None:
    shape = shape_of(size, "active", architecture)
    model = shape.spec("test")
    found = parameters(model)
    assert shape.total == found.total
    assert shape.active == found.active
    assert shape.non_embedding == found.non_embedding
    assert shape.parameters("active_non_embedding") == found.active_non_embedding
    assert shape.parameters("with_head") == found.total - (0 if model.tied_embeddings else shape.table)
    exact = training_flops(model, architecture.seq_len, "exact") / architecture.seq_len
    assert shape.exact_flops_per_token == pytest.approx(exact, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from(["total", "non_embedding", "with_head", "active", *FLOPS_AS_N]))
@example(math.exp(21.453125), "flops_per_token_by_6")
@example(2.29e9, "flops_per_token_by_6")
@example(math.exp(23), "flops_per_token_by_6")
def test_size_is_the_one_asked_for(size: float, count: str) -> None:
    off = 0.02 if size < 1e8 else 0.015
    if count == "flops_per_token_by_6":  # its formula has no d_ff to come close with
        size, off = max(size, 1e9), 0.06
    shape = shape_of(size, count, Architecture(32_000, 4096))
    assert shape.parameters(count) == pytest.approx(size, rel=off)
    scatters = 2.5 if size < 1e8 else 2.0
    assert abs(math.log(shape.d_model / shape.n_layers / aspect(shape.non_embedding))) < scatters * _ASPECT_SCATTER
    assert shape.d_ff / shape.d_model == pytest.approx(8 / 3, rel=0.3)
    assert shape.n_heads % shape.n_kv_heads == 0
    assert shape.n_heads * shape.d_head == shape.d_model
    assert shape.d_ff % 128 == 0


@settings(max_examples=40, deadline=None)
@given(SIZES.filter(lambda n: n > 5e8), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4, 8, 16]))
def test_divides_by_the_plan(size: float, tp: int, pp: int) -> None:
    shape = shape_of(size, "total", Architecture(128_256, 4096, tp=tp, pp=pp))
    assert shape.n_layers % pp == 0
    assert not any(bad for bad, _ in cut_faults(shape.spec("test"), tp=tp, ep=1, etp=tp))


def test_deepseek_count_is_its_formula() -> None:
    shape = shape_of(7e9, "flops_per_token_by_6", DENSE)
    by_formula = deepseek_flops_per_token(layers=shape.n_layers, width=shape.d_model, length=4096)
    assert 6 * shape.parameters("flops_per_token_by_6") == by_formula


def test_aspect_is_the_zoos() -> None:
    """Width over depth against size, refitted on the zoo's decoders of softmax attention and dense FFNs."""
    points = {}
    for entry in list_models():
        model = tfsim.load_model(entry.name)
        blocks = model.blocks.values()
        plain = all(isinstance(b.mixer, Attention) and isinstance(b.ffn, DenseFFN) for b in blocks)
        if not plain or not model.decodes or model.encoder is not None or model.vision is not None:
            continue
        size = parameters(model).non_embedding
        if size > 3e7:
            points[entry.name] = (math.log(size), math.log(model.d_model / model.n_layers))
    x, y = np.array(list(points.values())).T
    growth, level = np.polyfit(x, y, 1)
    assert len(points) > 100
    assert growth == pytest.approx(_ASPECT_GROWTH, abs=0.02)
    assert level + growth * math.log(7e9) == pytest.approx(_ASPECT_LEVEL + _ASPECT_GROWTH * math.log(7e9), abs=0.05)
    assert np.std(y - (level + growth * x)) == pytest.approx(_ASPECT_SCATTER, abs=0.05)


def test_looks_like_llama() -> None:
    """Llama 3.1 8B is 32 x 4,096, 70B is 80 x 8,192."""
    small, large = (shape_of(n, "total", DENSE) for n in (8.03e9, 70.6e9))
    assert (small.d_model, small.n_heads, small.n_kv_heads, small.d_head) == (4096, 32, 8, 128)
    assert 64 <= large.n_layers <= 96
    assert 8192 <= large.d_model <= 10_240


def test_too_small_and_too_large_say_what_there_is() -> None:
    with pytest.raises(InputError, match=r"the smallest with vocabulary 128,256 has 16\.6M"):
        shape_of(1e6, "total", DENSE)
    with pytest.raises(InputError, match="the largest with vocabulary"):
        shape_of(1e20, "total", DENSE)
    with pytest.raises(InputError, match="no shape divides by tp 1001 and pp 1"):
        shape_of(8e9, "total", Architecture(128_256, 4096, tp=7 * 11 * 13))
