"""Hybrids of the gated delta rule and gated softmax attention: Qwen3-Next, Qwen3.5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfsim.models.huggingface.common import Decoder, layer_types, rope, stack
from tfsim.models.huggingface.dense import GEMMA_NORM, attention, d_head, decoder, ffn, table
from tfsim.models.huggingface.fields import Fields
from tfsim.models.huggingface.sparse import experts, qwen_ffns
from tfsim.models.spec import FFN, GatedDelta, Mixer, QKNorm, SharedExpert

_HYBRID: dict[str, Any] = {
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "layer_types": None,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_REFUSED: dict[str, tuple[Any, ...]] = {
    "attn_output_gate": (True,),
    "mamba_ssm_dtype": ("float32",),
    "use_sliding_window": (False,),
    "sliding_window": (None,),
}
_MTP = "mtp_num_hidden_layers mtp_use_dedicated_embeddings num_nextn_predict_layers max_window_layers"
QWEN3_NEXT = table(
    **_HYBRID,
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=48,
    num_attention_heads=16,
    num_key_value_heads=2,
    decoder_sparse_step=1,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    num_experts_per_tok=10,
    num_experts=512,
    norm_topk_prob=True,
    mlp_only_layers=None,
    harmless=_MTP,
    refused=_REFUSED,
)
QWEN3_5 = table(
    **_HYBRID,
    vocab_size=248320,
    intermediate_size=12288,
    num_attention_heads=16,
    num_key_value_heads=4,
    harmless=_MTP,
    refused={**_REFUSED, "mlp_only_layers": ([], None), "num_experts": (0, None)},
)
QWEN3_5_MOE = table(
    **_HYBRID,
    vocab_size=248320,
    hidden_size=2048,
    num_hidden_layers=40,
    num_attention_heads=16,
    num_key_value_heads=2,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    num_experts_per_tok=8,
    num_experts=256,
    harmless=f"{_MTP} intermediate_size",
    refused={**_REFUSED, "mlp_only_layers": ([], None), "decoder_sparse_step": (1,), "norm_topk_prob": (True,)},
)


def _mixers(f: Fields, n: int, *, fused_input: bool) -> Sequence[Mixer]:
    """Every full_attention_interval-th layer is softmax attention, unless layer_types says otherwise."""
    every = f.size("full_attention_interval")
    types = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(n)]
    bias = f.flag("attention_bias")
    kinds: dict[str, Mixer] = {
        "full_attention": attention(
            f,
            rope=rope(f, d_head(f), partial=0.25),
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=QKNorm(norm=GEMMA_NORM),
            output_gate="element",
        ),
        "linear_attention": GatedDelta(
            n_key_heads=f.size("linear_num_key_heads"),
            n_value_heads=f.size("linear_num_value_heads"),
            d_key=f.size("linear_key_head_dim"),
            d_value=f.size("linear_value_head_dim"),
            conv_kernel=f.size("linear_conv_kernel_dim"),
            fused_input=fused_input,
        ),
    }
    return [kinds[kind] for kind in layer_types(f, n, tuple(kinds), types)]


def _hybrid(f: Fields, feeds: Sequence[FFN], *, fused_input: bool) -> Decoder:
    return decoder(f, stack(_mixers(f, len(feeds), fused_input=fused_input), feeds), GEMMA_NORM)


def _shared(f: Fields) -> SharedExpert:
    return SharedExpert(d_ff=f.size("shared_expert_intermediate_size"), gate=True)


def qwen3_next(f: Fields) -> Decoder:
    """Qwen3-Next (2025): three layers of the gated delta rule, then one of gated attention; experts everywhere."""
    return _hybrid(f, qwen_ffns(f, f.layers("num_hidden_layers"), _shared(f)), fused_input=True)


def qwen3_5(f: Fields) -> Decoder:
    """Qwen3.5 dense, text part: the layers of Qwen3-Next with a dense FFN."""
    return _hybrid(f, [ffn(f)] * f.layers("num_hidden_layers"), fused_input=False)


def qwen3_5_moe(f: Fields) -> Decoder:
    """Qwen3.5 with experts, text part."""
    moe = experts(f, "num_experts", "moe_intermediate_size", shared=_shared(f))
    return _hybrid(f, [moe] * f.layers("num_hidden_layers"), fused_input=False)
