"""Feed-forward networks: dense, gated, sparse."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from tfsim.models.spec.base import Flag, Real, Size, Strict

ActivationName = Literal[
    "relu", "relu2", "gelu", "gelu_tanh", "gelu_new", "silu", "quick_gelu", "clamped_swiglu", "limited_silu"
]


_GATED = {
    "silu": "SwiGLU",
    "gelu": "GeGLU",
    "gelu_tanh": "GeGLU",
    "relu": "ReGLU",
    "clamped_swiglu": "clamped SwiGLU",
    "limited_silu": "limited SwiGLU",
}


def _network(activation: str, gated: bool) -> str:
    plain = "squared ReLU" if activation == "relu2" else activation
    return _GATED.get(activation, f"gated {plain}") if gated else plain


class DenseFFN(Strict):
    """Two-matrix (``gated: false``) or three-matrix gated feed-forward network (Shazeer 2020: SwiGLU, GeGLU)."""

    kind: Literal["dense"] = "dense"
    d_ff: Size
    activation: ActivationName = "silu"
    gated: Flag = True
    bias: Flag = False
    fused_gate_up: Flag = False

    def describe(self) -> str:
        """Such as "SwiGLU FFN 28,672"."""
        return f"{_network(self.activation, self.gated)} FFN {self.d_ff:,}"


class SharedExpert(Strict):
    """An expert every token passes; ``gate``: its output is scaled by a learned sigmoid (Qwen-MoE)."""

    d_ff: Size
    gate: Flag = False


class MoE(Strict):
    """Sparse mixture of ``n_experts`` FFNs of width ``d_ff`` of which a token visits ``top_k``, plus a shared expert.

    ``router``: softmax over all experts then top-k, top-k then softmax, sigmoid scores (DeepSeek-V3),
    or the square root of softplus (DeepSeek-V4);
    ``router_fp32``: the router matmul runs in fp32; ``router_noise``: its input is multiplied by noise in training
    (Switch); ``normalize_top_k``: chosen weights are rescaled to sum to one;
    ``weigh_input``: the routing weight scales an expert's input, not its output (Llama-4); ``branch_norms``: routed and
    shared experts each have a norm on their output, and the routed ones their own on the stream (Gemma-4);
    ``router_scales``: the router reads the unscaled norm of the stream times a learned vector, and each expert has a
    learned scale (Gemma-4); ``capacity_factor``: an expert takes at most ceil(factor x tokens x top_k / n_experts) of a
    device's token copies in passes over sequences, in buffers padded to that size, and drops what is beyond (Fedus et
    al. 2022; null: none is dropped); ``d_latent``: routed experts work between two shared projections, d_model to
    d_latent and back (Nemotron-3).
    """

    kind: Literal["moe"] = "moe"
    n_experts: Size
    top_k: Size
    d_ff: Size
    activation: ActivationName = "silu"
    gated: Flag = True
    bias: Flag = False
    shared: SharedExpert | None = None
    router: Literal["softmax_topk", "topk_softmax", "sigmoid", "sqrt_softplus"] = "softmax_topk"
    router_bias: Flag = False
    router_fp32: Flag = False
    router_noise: Flag = False
    normalize_top_k: Flag = True
    weigh_input: Flag = False
    n_groups: Size = 1
    branch_norms: Flag = False
    router_scales: Flag = False
    d_latent: Size | None = None
    capacity_factor: Real | None = None

    @model_validator(mode="after")
    def _consistent(self) -> MoE:
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k ({self.top_k}) is larger than n_experts ({self.n_experts})")
        return self

    def describe(self) -> str:
        """Such as "MoE 64 experts, top 6, SwiGLU 1,408 + shared expert 2,816"."""
        shared = f" + shared expert {self.shared.d_ff:,}" if self.shared else ""
        kind = _network(self.activation, self.gated)
        room = f", capacity {self.capacity_factor:g}" if self.capacity_factor else ""
        return f"MoE {self.n_experts} experts, top {self.top_k}, {kind} {self.d_ff:,}{shared}{room}"
