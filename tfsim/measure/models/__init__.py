"""Small models of every family, each a plain torch module beside its tfsim specification.

``llama.py`` is the module, ``llama.yaml`` the specification that sizes it and that tfsim counts. Naming them, reading a
specification and listing the cases needs no torch; ``build`` does.

Two sets of cases: ``development``, which the formulas were refined on, and ``held_out``, other sizes of every model
(``held_out/llama.yaml``) on other batches and lengths, which nobody looked at while refining them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
Set = Literal["development", "held_out"]
SETS: tuple[Set, ...] = ("development", "held_out")


@dataclass(frozen=True)
class Sizes:
    """What a family runs on in one set: (batch, length) of passes over sequences, ``encoder`` the encoder's lengths or
    an alignment's sequences beside them; ``decode``: (batch, cached tokens) of decode steps; ``longest``: of one more
    training step, so that the family's cases span a hundred times in time."""

    passes: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...] = ()
    encoder: tuple[int, ...] = ()
    longest: tuple[int, int] | None = None


@dataclass(frozen=True)
class Family:
    """A measured model: ``module`` and ``cls`` of its torch code; what it runs on in the ``development`` set and
    ``held_out``; ``attention``: by torch's fused kernel or with scores in memory; ``recompute``: of its training steps.
    """

    module: str
    cls: str
    development: Sizes
    held_out: Sizes
    attention: Literal["fused", "eager"] = "fused"
    recompute: Literal["none", "full"] = "none"


@dataclass(frozen=True)
class Case:
    """One measurement: a ``phase`` of ``model``, sized as in ``set``, on ``batch`` sequences of ``seq_len`` new
    positions, after ``past_len`` cached ones; ``encoder_len`` beside them (0: none). ``train``: forward, backward and
    optimizer step."""

    model: str
    phase: Phase
    batch: int
    seq_len: int
    past_len: int = 0
    encoder_len: int = 0
    set: Set = "development"


# Fixed before anything was calibrated: from passes that are all launches to steps a hundred times as long.
_DECODE = ((1, 31), (16, 479))
_WHOLE = Sizes(((1, 16), (4, 128), (8, 256)), _DECODE, longest=(16, 256))
_STEPWISE = Sizes(((1, 16), (8, 64), (32, 128)), _DECODE)
_OTHER = Sizes(((2, 24), (6, 160)), ((5, 200),))
_OTHER_STEPWISE = Sizes(((2, 24), (12, 96)), ((5, 200),))
FAMILIES: dict[str, Family] = {
    "gpt2": Family("gpt2", "GPT2", _WHOLE, _OTHER),
    "llama": Family("llama", "Llama", _WHOLE, _OTHER),
    "window": Family("llama", "Llama", _WHOLE, _OTHER, attention="eager"),
    "moe": Family("llama", "Llama", _WHOLE, _OTHER),
    "lora": Family("lora", "AdaptedLlama", _WHOLE, _OTHER),
    "checkpointed": Family("gpt2", "Checkpointed", replace(_WHOLE, longest=None), _OTHER, recompute="full"),
    "bert": Family("bert", "BERT", replace(_WHOLE, decode=()), replace(_OTHER, decode=())),
    "encoder_decoder": Family(
        "encoder_decoder",
        "EncoderDecoder",
        replace(_WHOLE, encoder=(16, 128, 256), longest=None),
        replace(_OTHER, encoder=(24, 160)),
    ),
    "vit": Family("vit", "ViT", Sizes(((1, 65), (4, 65), (32, 65)), longest=(96, 65)), Sizes(((2, 101), (12, 101)))),
    "dit": Family("dit", "DiT", Sizes(((1, 64), (4, 64), (32, 64)), longest=(96, 64)), Sizes(((2, 100), (12, 100)))),
    "mamba": Family(
        "mamba", "Mamba", Sizes(((1, 16), (4, 64), (8, 128)), _DECODE), Sizes(((2, 24), (6, 96)), ((5, 200),))
    ),
    "lstm": Family("recurrent", "RecurrentLM", _STEPWISE, _OTHER_STEPWISE),
    "gru": Family("recurrent", "RecurrentLM", _STEPWISE, _OTHER_STEPWISE),
    "gnmt": Family(
        "gnmt",
        "GNMT",
        Sizes(((1, 16), (8, 32), (32, 64)), _DECODE, encoder=(16, 32, 64)),
        Sizes(((2, 24), (12, 48)), ((5, 200),), encoder=(24, 48)),
    ),
    "evoformer": Family(
        "evoformer",
        "Evoformer",
        Sizes(((1, 8), (1, 24), (1, 64)), encoder=(4, 16, 32), longest=(6, 64)),
        Sizes(((1, 16), (2, 48)), encoder=(8, 24)),
    ),
    "s4": Family("s4", "S4", _WHOLE, _OTHER),
}


def family(name: str) -> Family:
    """The measured model called ``name``. Raises InputError for an unknown one."""
    return FAMILIES[choice("measured model", name, FAMILIES)]


def spec(name: str, which: Set = "development") -> ModelSpec:
    """Its specification, sized as in the set ``which``. Raises InputError for an unknown name or set."""
    family(name)
    folder = Path(__file__).parent
    return load_model(str((folder / which if choice("set", which, SETS) == "held_out" else folder) / f"{name}.yaml"))


def specification(name: str, which: Set = "development") -> ModelSpec:
    """Of a measured model, or of whatever else ``load_model`` finds by that name or path.

    Raises InputError for an unknown one.
    """
    return spec(name, which) if name in FAMILIES else load_model(name)


def cases(name: str, which: Set = "development", *, quick: bool = False) -> tuple[Case, ...]:
    """The cases measured of a model in a set: passes over sequences without and with training, then decode steps;
    ``quick``: without the longest sequences. Raises InputError for an unknown model or set."""
    sizes: Sizes = getattr(family(name), choice("set", which, SETS))
    beside = sizes.encoder or (0,) * len(sizes.passes)
    given = [(*size, source) for size, source in zip(sizes.passes, beside, strict=True)]
    if quick:
        given = given[:2]
    runs: dict[Phase, list[tuple[int, int, int]]] = {"forward": given, "train": list(given)}
    if sizes.longest and not quick:
        runs["train"].append((*sizes.longest, beside[-1]))
    passes = [
        Case(name, phase, batch, length, encoder_len=source, set=which)
        for phase, run in runs.items()
        for batch, length, source in run
    ]
    steps = [Case(name, "decode", batch, 1, past, beside[-1], which) for batch, past in sizes.decode]
    return (*passes, *steps)


def build(name: str, sizes: ModelSpec | None = None) -> Measured:
    """The torch module of ``name``, in fp32, sized by its specification or by ``sizes``."""
    found = family(name)
    module = import_module(f"{__name__}.{found.module}")
    made: Measured = getattr(module, found.cls)(sizes or spec(name))
    return made
