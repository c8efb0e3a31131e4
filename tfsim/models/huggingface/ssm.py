"""State space models: Mamba, Falcon-Mamba, Mamba-2, RWKV-4. Those with attention layers are in hybrid.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfsim.models.huggingface.common import Decoder, stack
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import words
from tfsim.models.spec import (
    LAYER_NORM,
    RWKV,
    ChannelMix,
    Mamba,
    Mamba2,
    Mixer,
    Norm,
)
from tfsim.units import ceil_div

STEP = (
    "time_step_scale time_step_min time_step_max time_step_floor time_step_limit time_step_init_scheme "
    "rescale_prenorm_residual use_mambapy use_associative_scan use_mamba_kernels num_logits_to_keep"
)
_MAMBA: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "state_size": 16,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "residual_in_fp32": True,
    "time_step_rank": "auto",
    "intermediate_size": None,
    "pad_vocab_size_multiple": None,
    "tie_word_embeddings": True,
}
_OLD_NAMES = {"d_model": "hidden_size", "n_layer": "num_hidden_layers", "d_inner": "intermediate_size"}
MAMBA = FieldTable(
    {**_MAMBA, "vocab_size": 50280},
    aliases=_OLD_NAMES,
    harmless=words(STEP, "ssm_cfg rms_norm fused_add_norm num_parameters"),
    refused={"hidden_act": ("silu",)},
)
FALCON_MAMBA = FieldTable(
    {**_MAMBA, "vocab_size": 50280},
    aliases=_OLD_NAMES,
    harmless=words(STEP, "mixer_rms_eps use_falcon_mambapy"),
    refused={"hidden_act": ("silu",)},
)
MAMBA2 = FieldTable(
    {
        **{name: default for name, default in _MAMBA.items() if name != "time_step_rank"},
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "state_size": 128,
        "num_heads": 128,
        "head_dim": 64,
        "n_groups": 8,
        "chunk_size": 256,
        "tie_word_embeddings": False,
    },
    aliases=_OLD_NAMES,
    harmless=words(STEP, "time_step_rank rms_norm norm_before_gate"),
    refused={"hidden_act": ("silu",)},
)
RWKV_4 = FieldTable(
    {
        "vocab_size": 50277,
        "context_length": 1024,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "attention_hidden_size": None,
        "intermediate_size": None,
        "tie_word_embeddings": False,
    },
    aliases={"max_position_embeddings": "context_length"},
    harmless=words("rescale_every"),
)


def step_rank(f: Fields, name: str, hidden: int) -> int:
    """The rank of the step sizes: ``auto`` is a sixteenth of the hidden size, rounded up."""
    return int(ceil_div(hidden, 16)) if f.raw(name) == "auto" else f.size(name)


def _inner(f: Fields, name: str, hidden: int) -> int:
    """Channels: ``expand`` times the hidden size, which may be a fraction."""
    factor = f.number(name)
    return int((2 if factor is None else factor) * hidden)


def mamba(f: Fields) -> Decoder:
    """Mamba-1: norm, selective state space, residual in fp32; no feed-forward network."""
    return _mamba(f, None)


def falcon_mamba(f: Fields) -> Decoder:
    """Falcon-Mamba: Mamba with weightless norms on step sizes, B and C."""
    return _mamba(f, Norm(weight=False))


def _mamba(f: Fields, inner_norm: Norm | None) -> Decoder:
    hidden = f.size("hidden_size")
    bias = f.flag("use_bias")
    d_inner = _inner(f, "expand", hidden)
    _same_inner(f, d_inner)
    mixer = Mamba(
        d_inner=d_inner,
        d_state=f.size("state_size"),
        d_conv=f.size("conv_kernel"),
        dt_rank=step_rank(f, "time_step_rank", hidden),
        conv_bias=f.flag("use_conv_bias"),
        proj_bias=bias,
        inner_norm=inner_norm,
    )
    return _recurrent(f, [mixer] * f.layers("num_hidden_layers"))


def _same_inner(f: Fields, d_inner: int) -> None:
    given = f.maybe_size("intermediate_size")
    if given is not None and given != d_inner:
        raise f.fault("intermediate_size", f"must be expand x hidden_size = {d_inner}", given)


def _recurrent(f: Fields, mixers: Sequence[Mixer]) -> Decoder:
    """A stack of mixers without feed-forward networks."""
    return Decoder(
        layers=stack(mixers, [None] * len(mixers)),
        d_model=f.size("hidden_size"),
        vocab_size=_vocabulary(f),
        tied=f.flag("tie_word_embeddings"),
        dropout=(),
        extra={"residual_fp32": f.flag("residual_in_fp32")},
    )


def _vocabulary(f: Fields) -> int:
    """Rows of the embedding: the original Mamba files round the vocabulary up when they are loaded."""
    size = f.size("vocab_size")
    multiple = f.maybe_size("pad_vocab_size_multiple")
    return int(ceil_div(size, multiple)) * multiple if multiple else size


def mamba2(f: Fields) -> Decoder:
    """Mamba-2: as Mamba, with heads and a gated norm."""
    hidden = f.size("hidden_size")
    n_heads, width = f.size("num_heads"), f.size("head_dim")
    d_inner = _inner(f, "expand", hidden)
    if d_inner != n_heads * width:
        raise f.fault("num_heads", f"must give num_heads x head_dim = expand x hidden_size = {d_inner}", n_heads)
    _same_inner(f, d_inner)
    mixer = Mamba2(
        n_heads=n_heads,
        d_head=width,
        d_state=f.size("state_size"),
        n_groups=f.size("n_groups"),
        d_conv=f.size("conv_kernel"),
        chunk=f.size("chunk_size"),
        conv_bias=f.flag("use_conv_bias"),
        proj_bias=f.flag("use_bias"),
    )
    return _recurrent(f, [mixer] * f.layers("num_hidden_layers"))


def rwkv(f: Fields) -> Decoder:
    """RWKV-4: time mixing and channel mixing, a LayerNorm after the embedding."""
    n, hidden = f.layers("num_hidden_layers"), f.size("hidden_size")
    mixer = RWKV(d_attn=f.maybe_size("attention_hidden_size") or hidden, d_shift=hidden)
    ffn = ChannelMix(d_ff=f.maybe_size("intermediate_size") or 4 * hidden)
    return Decoder(
        layers=stack([mixer] * n, [ffn] * n),
        d_model=hidden,
        vocab_size=f.size("vocab_size"),
        tied=f.flag("tie_word_embeddings"),
        max_seq_len=f.size("context_length"),
        norm=LAYER_NORM,
        dropout=(),
        extra={"embedding_norm": True, "embedding_norm_in_layer": True},
    )
