"""Small models of every family, each a plain torch module beside its tfsim specification.

``llama.py`` is the module, ``llama.yaml`` the specification that sizes it and that tfsim counts. Naming them, reading a
specification and listing the cases needs no torch; ``build`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tfsim.errors import choice
from tfsim.models import load_model
from tfsim.models.spec import ModelSpec

if TYPE_CHECKING:
    from tfsim.measure.models.base import Measured

Phase = Literal["forward", "train", "decode"]
PHASES: tuple[Phase, ...] = ("forward", "train", "decode")


@dataclass(frozen=True)
class Family:
    """A measured model: ``module`` and ``cls`` of its torch code; ``attention``: by torch's fused kernel or with scores
    in memory; ``recompute``: of its training steps; ``sizes``: (batch, length) of passes over sequences, ``encoder``
    the encoder's lengths or an alignment's sequences beside them; ``decode``: (batch, cached tokens) of decode steps.
    """

    module: str
    cls: str
    sizes: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...] = ()
    encoder: tuple[int, ...] = ()
    attention: Literal["fused", "eager"] = "fused"
    recompute: Literal["none", "full"] = "none"


@dataclass(frozen=True)
class Case:
    """One measurement: a ``phase`` of ``model`` on ``batch`` sequences of ``seq_len`` new positions, after ``past_len``
    cached ones; ``encoder_len`` beside them (0: none). ``train``: forward, backward and optimizer step."""

    model: str
    phase: Phase
    batch: int
    seq_len: int
    past_len: int = 0
    encoder_len: int = 0


# Fixed before anything was calibrated: from passes that are all launches to steps a hundred times as long.
_WHOLE = ((1, 16), (4, 128), (8, 256))
_STEPWISE = ((1, 16), (8, 64), (32, 128))
_DECODE = ((1, 31), (16, 479))
FAMILIES: dict[str, Family] = {
    "gpt2": Family("gpt2", "GPT2", _WHOLE, _DECODE),
    "llama": Family("llama", "Llama", _WHOLE, _DECODE),
    "window": Family("llama", "Llama", _WHOLE, _DECODE, attention="eager"),
    "moe": Family("llama", "Llama", _WHOLE, _DECODE),
    "lora": Family("lora", "AdaptedLlama", _WHOLE, _DECODE),
    "checkpointed": Family("gpt2", "Checkpointed", _WHOLE, _DECODE, recompute="full"),
    "bert": Family("bert", "BERT", _WHOLE),
    "encoder_decoder": Family("encoder_decoder", "EncoderDecoder", _WHOLE, _DECODE, encoder=(16, 128, 256)),
    "vit": Family("vit", "ViT", ((1, 65), (4, 65), (32, 65))),
    "dit": Family("dit", "DiT", ((1, 64), (4, 64), (32, 64))),
    "mamba": Family("mamba", "Mamba", ((1, 16), (4, 64), (8, 128)), _DECODE),
    "lstm": Family("recurrent", "RecurrentLM", _STEPWISE, _DECODE),
    "gru": Family("recurrent", "RecurrentLM", _STEPWISE, _DECODE),
    "gnmt": Family("gnmt", "GNMT", ((1, 16), (8, 32), (32, 64)), _DECODE, encoder=(16, 32, 64)),
    "evoformer": Family("evoformer", "Evoformer", ((1, 8), (1, 24), (1, 64)), encoder=(4, 16, 32)),
    "s4": Family("s4", "S4", _WHOLE, _DECODE),
}


def family(name: str) -> Family:
    """The measured model called ``name``. Raises InputError for an unknown one."""
    return FAMILIES[choice("measured model", name, FAMILIES)]


def spec(name: str) -> ModelSpec:
    """Its specification. Raises InputError for an unknown name."""
    family(name)
    return load_model(str(Path(__file__).parent / f"{name}.yaml"))


def specification(name: str) -> ModelSpec:
    """Of a measured model, or of whatever else ``load_model`` finds by that name or path.

    Raises InputError for an unknown one.
    """
    return spec(name) if name in FAMILIES else load_model(name)


def cases(name: str, *, quick: bool = False) -> tuple[Case, ...]:
    """The cases measured of a model: passes over sequences without and with training, then decode steps; ``quick``:
    without the longest sequences. Raises InputError for an unknown model."""
    found = family(name)
    beside = found.encoder or (0,) * len(found.sizes)
    passes = [
        Case(name, phase, batch, length, encoder_len=source)
        for phase in ("forward", "train")
        for (batch, length), source in list(zip(found.sizes, beside, strict=True))[: 2 if quick else None]
    ]
    source = found.encoder[-1] if found.encoder else 0
    return (*passes, *(Case(name, "decode", batch, 1, past, source) for batch, past in found.decode))


def build(name: str, sizes: ModelSpec | None = None) -> Measured:
    """The torch module of ``name``, in fp32, sized by its specification or by ``sizes``."""
    found = family(name)
    module = import_module(f"{__name__}.{found.module}")
    made: Measured = getattr(module, found.cls)(sizes or spec(name))
    return made
