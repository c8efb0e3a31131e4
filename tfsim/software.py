"""How a model is run: software styles and precision policies, few and named, for the user to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tfsim.errors import choice
from tfsim.operators.core import Style

CURRENT_ATTENTION = 0.8
"""What current attention kernels achieve of what a large matmul achieves (FlashAttention-2 on A100 0.61 of peak against
0.79, FlashAttention-3 on H100 0.66 against 0.78)."""


@dataclass(frozen=True)
class Software:
    """A software style.

    ``dispatch_s``: host time to launch one kernel; a kernel cannot take less (11-18 us for an eager PyTorch operator,
    nothing inside a CUDA graph). ``gap_s``: idle device time between two kernels (1.6-2.7 us back to back, 1.0-1.4 us
    in a graph; figures of public kernel tables, see docs/conventions.md). ``attention_fraction``: what an attention
    kernel achieves of what a large matmul achieves; below ``CURRENT_ATTENTION`` it is an older kernel, of
    which only that share is known. ``sustained``: what arithmetic reaches inside a pass of what the same
    kernel reaches alone (clocks under the power limit, interference; set by hand in first trials, not fitted).
    ``overlap``: gradient communication runs beside the passes. ``all_reduce``: inside a node, NCCL's, or the kernels
    of a serving engine: one that waits at barriers (vLLM) or passes flags with the data (TensorRT-LLM). ``experts``:
    what takes tokens to their experts and back: NCCL's all-to-all, or the faster of that and of kernels that send a
    token once to each device (DeepEP; Megatron-LM's flex dispatcher), where the device's generation has been measured.
    """

    name: str
    pointwise: Literal["eager", "fused"]
    attention: Literal["eager", "fused"]
    dispatch_s: float
    gap_s: float
    attention_fraction: float = CURRENT_ATTENTION
    sustained: float = 0.9
    overlap: bool = True
    all_reduce: Literal["nccl", "barrier", "flags"] = "nccl"
    experts: Literal["nccl", "faster"] = "nccl"
    about: str = ""

    @property
    def older_attention(self) -> bool:
        """Whether its attention kernel is older than those that operator tables measure."""
        return self.attention_fraction < CURRENT_ATTENTION

    def style(self, dtype: str) -> Style:
        """The operator style for activations of ``dtype``."""
        return Style(dtype, self.pointwise, self.attention)


SOFTWARE: dict[str, Software] = {
    s.name: s
    for s in (
        Software(
            "eager", "eager", "fused", 12e-6, 1.6e-6, about="plain PyTorch: one kernel per operation, fused attention"
        ),
        Software(
            "fused",
            "fused",
            "fused",
            6e-6,
            1.6e-6,
            experts="faster",
            about="fused norms, gates and loss, as Megatron-LM or torch.compile",
        ),
        Software(
            "graph",
            "fused",
            "fused",
            0.0,
            1.2e-6,
            all_reduce="flags",
            experts="faster",
            about="fused kernels replayed from a CUDA graph, as serving engines",
        ),
        Software(
            "flash-1",
            "fused",
            "fused",
            6e-6,
            1.6e-6,
            0.51,
            about="fused kernels with FlashAttention-1 (2022): up to 40 % of peak (Dao 2023, abstract)",
        ),
        Software("unfused-attention", "eager", "eager", 12e-6, 1.6e-6, about="PyTorch with materialised scores"),
    )
}


def software(name: str) -> Software:
    """The software style called ``name``. Raises InputError for an unknown one."""
    return SOFTWARE[choice("software", name, SOFTWARE)]


@dataclass(frozen=True)
class Precision:
    """A training precision policy; bytes per parameter for each kind of state.

    ``compute``: dtype of the activations; ``matmul``: format of the block matmuls; ``master``: the optimizer's own
    copy of the weights; ``moments``: optimizer state (Adam: two).
    """

    name: str
    compute: str
    matmul: str
    weights: int
    gradients: int
    master: int
    moments: int
    about: str = ""


# Transformer Engine's DelayedScaling recipe with Format.HYBRID (Micikevicius et al. 2022, section 3)
_FP8 = (
    "block matmuls in fp8 (E4M3 forward, E5M2 gradients, a scale per tensor); attention, norms, softmax, router,"
    " embeddings, head and kept activations bf16; gradients and Adam fp32"
)

PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("bf16", "bf16", "bf16", 2, 4, 4, 8, "bf16 weights, fp32 gradients, fp32 Adam (Megatron-LM)"),
        Precision("bf16-grads", "bf16", "bf16", 2, 2, 4, 8, "bf16 weights and gradients, fp32 Adam (FSDP, DeepSpeed)"),
        Precision("fp16", "fp16", "fp16", 2, 2, 4, 8, "fp16 weights and gradients, fp32 Adam (Rajbhandari 2020)"),
        Precision("fp8", "bf16", "fp8", 2, 4, 4, 8, _FP8),
        Precision("tf32", "tf32", "tf32", 4, 4, 0, 8, "stored as fp32, multiplied as tf32 (A100 and later)"),
        Precision("fp32", "fp32", "fp32", 4, 4, 0, 8, "everything fp32"),
    )
}


def precision(name: str) -> Precision:
    """The precision policy called ``name``. Raises InputError for an unknown one."""
    return PRECISIONS[choice("precision", name, PRECISIONS)]
