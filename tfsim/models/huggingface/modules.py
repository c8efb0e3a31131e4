"""Module names of checkpoints: which matrices an operator of ours is, and lists of names with wildcards."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfsim.errors import InputError, quote
from tfsim.models.spec import (
    MLA,
    RWKV,
    Attention,
    Block,
    ChannelMix,
    CompressedAttention,
    DenseFFN,
    GatedDelta,
    Indexer,
    LinearAttention,
    Mamba,
    Mamba2,
    MoE,
)

_ATTENTION = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "qkv_proj": "self_attn.qkv_proj",
    "o_proj": "self_attn.o_proj",
    "g_proj": "self_attn.g_proj",
    "output_gate": "self_attn.output_gate",
    "out_proj": "self_attn.out_proj",
    "index_q_proj": "self_attn.indexer.wq_b",
    "index_k_proj": "self_attn.indexer.wk",
    "index_weights": "self_attn.indexer.weights_proj",
    "q_a_proj": "self_attn.q_a_proj",
    "q_b_proj": "self_attn.q_b_proj",
    "kv_a_proj": "self_attn.kv_a_proj_with_mqa",
    "kv_b_proj": "self_attn.kv_b_proj",
}


def _mlp(where: str) -> dict[str, str]:
    names = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
    return {name: f"{where}.{name}" for name in names}


def _shared(where: str) -> dict[str, str]:
    return {f"shared_{name}": path for name, path in _mlp(where).items()}


def _experts(gate: str, up: str, down: str, router: str) -> dict[str, str]:
    return {"experts_up": f"{gate} {up}", "experts_down": down, "router": router}


@dataclass(frozen=True)
class Modules:
    """Where a model type keeps its matrices: ``layer`` holds {i}; ``paths``: operator -> module names inside a layer,
    separated by spaces, with {e} for the expert."""

    paths: Mapping[str, str]
    layer: str = "model.layers.{i}."
    head: str = "lm_head"

    def names(self, operator: str, index: int, n_experts: int) -> list[str]:
        """The modules of one operator in one layer; of all experts when ``n_experts`` is their number."""
        prefix = self.layer.format(i=index)
        paths = self.paths.get(operator, operator).split()
        return [prefix + path.format(e=e) for path in paths for e in (range(n_experts) if "{e}" in path else (0,))]


_LLAMA = {
    **_ATTENTION,
    **_mlp("mlp"),
    **_shared("mlp.shared_experts"),
    **_experts("mlp.experts.{e}.gate_proj", "mlp.experts.{e}.up_proj", "mlp.experts.{e}.down_proj", "mlp.gate"),
}
LLAMA_MODULES = Modules(_LLAMA)
_DELTA = {f"in_proj_{name}": f"linear_attn.in_proj_{name}" for name in ("qkvz", "ba", "qkv", "z", "b", "a")}
QWEN_DELTA_MODULES = Modules(
    {**_LLAMA, **_shared("mlp.shared_expert"), **_DELTA, "out_proj": "linear_attn.out_proj"},
)
QWEN_MOE_MODULES = Modules({**_LLAMA, **_shared("mlp.shared_expert")})
_MIXTRAL_EXPERT = "block_sparse_moe.experts.{e}."
MIXTRAL_MODULES = Modules(
    {
        **_LLAMA,
        **_experts(f"{_MIXTRAL_EXPERT}w1", f"{_MIXTRAL_EXPERT}w3", f"{_MIXTRAL_EXPERT}w2", "block_sparse_moe.gate"),
    }
)
MINIMAX_M3_MODULES = Modules(
    {
        **MIXTRAL_MODULES.paths,
        **_shared("block_sparse_moe.shared_experts"),
        "index_q_proj": "self_attn.index_q_proj",
        "index_k_proj": "self_attn.index_k_proj",
    }
)
GEMMA4_MODULES = Modules(
    {
        **_LLAMA,
        **_shared("mlp"),
        **_experts("experts.{e}.gate_proj", "experts.{e}.up_proj", "experts.{e}.down_proj", "router.proj"),
    }
)
STEP3_MODULES = Modules(
    {
        **_LLAMA,
        **_shared("share_expert"),
        **_experts("moe.gate_proj", "moe.up_proj", "moe.down_proj", "moe.gate"),
    }
)
DEEPSEEK_V4_MODULES = Modules(
    {
        **_LLAMA,
        **{name: f"self_attn.{name}" for name in ("kv_proj", "o_a_proj", "o_b_proj")},
        "index_q_proj": "self_attn.compressor.indexer.q_b_proj",
    }
)
GPT_OSS_MODULES = Modules(
    {
        **_LLAMA,
        "experts_up": "mlp.experts.gate_up_proj",
        "experts_down": "mlp.experts.down_proj",
        "router": "mlp.router",
    }
)
LLAMA4_MODULES = Modules(
    {
        **_ATTENTION,
        **_mlp("feed_forward"),
        **_shared("feed_forward.shared_expert"),
        "experts_up": "feed_forward.experts.gate_up_proj",
        "experts_down": "feed_forward.experts.down_proj",
        "router": "feed_forward.router",
    }
)
PHI_MODULES = Modules({**_LLAMA, "o_proj": "self_attn.dense", "up_proj": "mlp.fc1", "down_proj": "mlp.fc2"})
STARCODER2_MODULES = Modules({**_LLAMA, "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"})
OPT_MODULES = Modules(
    {**_ATTENTION, "o_proj": "self_attn.out_proj", "up_proj": "fc1", "down_proj": "fc2"},
    layer="model.decoder.layers.{i}.",
)
GPT2_MODULES = Modules(
    {"qkv_proj": "attn.c_attn", "o_proj": "attn.c_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"},
    layer="transformer.h.{i}.",
)
GPTJ_MODULES = Modules(
    {
        **{name: f"attn.{name}" for name in ("q_proj", "k_proj", "v_proj")},
        "o_proj": "attn.out_proj",
        "up_proj": "mlp.fc_in",
        "down_proj": "mlp.fc_out",
    },
    layer="transformer.h.{i}.",
)
_4H = {"up_proj": "mlp.dense_h_to_4h", "down_proj": "mlp.dense_4h_to_h"}
NEOX_MODULES = Modules(
    {"qkv_proj": "attention.query_key_value", "o_proj": "attention.dense", **_4H},
    layer="gpt_neox.layers.{i}.",
    head="embed_out",
)
BLOOM_MODULES = Modules(
    {"qkv_proj": "self_attention.query_key_value", "o_proj": "self_attention.dense", **_4H},
    layer="transformer.h.{i}.",
)
MPT_MODULES = Modules(
    {"qkv_proj": "attn.Wqkv", "o_proj": "attn.out_proj", "up_proj": "ffn.up_proj", "down_proj": "ffn.down_proj"},
    layer="transformer.blocks.{i}.",
)
DBRX_MODULES = Modules(
    {
        "qkv_proj": "norm_attn_norm.attn.Wqkv",
        "o_proj": "norm_attn_norm.attn.out_proj",
        **_experts("ffn.experts.mlp.w1", "ffn.experts.mlp.v1", "ffn.experts.mlp.w2", "ffn.router.layer"),
    },
    layer="transformer.blocks.{i}.",
)

_SSM = ("in_proj", "x_proj", "dt_proj", "out_proj")
MAMBA_MODULES = Modules({name: f"mixer.{name}" for name in _SSM}, layer="backbone.layers.{i}.")
_MIXER_EXPERTS = "mixer.experts.{e}."
NEMOTRON_H_MODULES = Modules(
    {
        **{name: f"mixer.{name}" for name in (*_SSM, "q_proj", "k_proj", "v_proj", "o_proj")},
        **_mlp("mixer"),
        **_shared("mixer.shared_experts"),
        "experts_up": f"{_MIXER_EXPERTS}up_proj",
        "experts_down": f"{_MIXER_EXPERTS}down_proj",
        "router": "mixer.gate",
        "latent_in": "mixer.fc1_latent_proj",
        "latent_out": "mixer.fc2_latent_proj",
    },
    layer="backbone.layers.{i}.",
)
_FFN_EXPERTS = "feed_forward.experts.{e}."
JAMBA_MODULES = Modules(
    {
        **_ATTENTION,
        **{name: f"mamba.{name}" for name in _SSM},
        **_mlp("feed_forward"),
        **_experts(
            f"{_FFN_EXPERTS}gate_proj", f"{_FFN_EXPERTS}up_proj", f"{_FFN_EXPERTS}down_proj", "feed_forward.router"
        ),
    }
)
GRANITE_HYBRID_MODULES = Modules(
    {
        **JAMBA_MODULES.paths,
        "gate_up_proj": "shared_mlp.input_linear",
        "down_proj": "shared_mlp.output_linear",
        "shared_gate_proj": "shared_mlp.input_linear",
        "shared_up_proj": "shared_mlp.input_linear",
        "shared_down_proj": "shared_mlp.output_linear",
        "experts_up": "block_sparse_moe.input_linear",
        "experts_down": "block_sparse_moe.output_linear",
        "router": "block_sparse_moe.router.layer",
    }
)
_GATED_QUERY = {"q_proj": "self_attn.q_proj self_attn.gate_proj"}  # two matrices of the checkpoint, one operator
AFMOE_MODULES = Modules({**_LLAMA, **_GATED_QUERY, "router": "mlp.router.gate"})
HY_V3_MODULES = Modules({**_LLAMA, **_shared("mlp.shared_mlp"), "router": "mlp.router.gate"})
HUNYUAN_MOE_MODULES = Modules({**_LLAMA, **_shared("mlp.shared_mlp"), "router": "mlp.gate.wg"})
RWKV_MODULES = Modules(
    {
        **{name: f"attention.{name}" for name in ("key", "value", "receptance", "output")},
        **{f"ffn_{name}": f"feed_forward.{name}" for name in ("key", "value", "receptance")},
    },
    layer="rwkv.blocks.{i}.",
    head="head",
)


def operator_groups(block: Block) -> dict[str, tuple[str, ...]]:
    """The matrices of a block by parameter group, under the operators' names."""
    mixer, ffn = block.mixer, block.ffn
    if isinstance(mixer, MLA):
        query = ("q_a_proj", "q_b_proj") if mixer.q_lora_rank else ("q_proj",)
        index = () if mixer.reuses_selection else _index_matrices(mixer.indexer)
        groups = {"attn": (*query, "kv_a_proj", "kv_b_proj", "o_proj", *index)}
    elif isinstance(mixer, Attention):
        keys = {"own": ("k_proj", "v_proj"), "key": ("k_proj",), "reused": ()}[mixer.value]
        gate = ("g_proj",) if mixer.output_gate == "head" else ()
        separate = ("q_proj", *keys, *gate, "o_proj", *_index_matrices(mixer.indexer))
        groups = {"attn": ("qkv_proj", "o_proj") if mixer.fused_qkv else separate}
    elif isinstance(mixer, CompressedAttention):  # what makes compressed entries stays in the model's dtype
        index = ("index_q_proj",) if mixer.compression and mixer.compression.indexer else ()
        groups = {"attn": ("q_a_proj", "q_b_proj", "kv_proj", "o_a_proj", "o_b_proj", *index)}
    elif isinstance(mixer, GatedDelta):
        inputs = ("qkvz", "ba") if mixer.fused_input else ("qkv", "z", "b", "a")
        groups = {"ssm": (*(f"in_proj_{name}" for name in inputs), "out_proj")}
    elif isinstance(mixer, LinearAttention):
        projected = ("qkv_proj",) if mixer.fused_qkv else ("q_proj", "k_proj", "v_proj")
        groups = {"attn": (*projected, *(("output_gate",) if mixer.gated else ()), "out_proj")}
    elif isinstance(mixer, Mamba):
        groups = {"ssm": ("in_proj", "x_proj", "dt_proj", "out_proj")}
    elif isinstance(mixer, Mamba2):
        groups = {"ssm": ("in_proj", "out_proj")}
    elif isinstance(mixer, RWKV):
        groups = {"attn": ("key", "value", "receptance", "output")}
    else:
        groups = {}
    if isinstance(ffn, MoE):
        groups["moe_routed"] = ("experts_up", "experts_down")
        groups["moe_router"] = ("router",)
        if ffn.shared:
            plain_shared = DenseFFN(d_ff=ffn.shared.d_ff, gated=ffn.gated)
            groups["moe_shared"] = tuple(f"shared_{name}" for name in _matrices(plain_shared))
        if ffn.d_latent:
            groups["moe_shared"] = (*groups.get("moe_shared", ()), "latent_in", "latent_out")
    elif isinstance(ffn, DenseFFN):
        groups["ffn_dense"] = _matrices(ffn)
    elif isinstance(ffn, ChannelMix):
        groups["ffn_dense"] = ("ffn_key", "ffn_value", "ffn_receptance")
    return groups


def _index_matrices(indexer: Indexer | None) -> tuple[str, ...]:
    if indexer is None:
        return ()
    return ("index_q_proj", "index_k_proj", *(("index_weights",) if indexer.weighted else ()))


def _matrices(ffn: DenseFFN) -> tuple[str, ...]:
    if not ffn.gated:
        return ("up_proj", "down_proj")
    return ("gate_up_proj", "down_proj") if ffn.fused_gate_up else ("gate_proj", "up_proj", "down_proj")


def plain(pattern: str) -> str:
    """A module name without the prefix of the text part of a multimodal model."""
    for prefix in ("model.language_model.", "language_model.model.", "model.text_model."):
        if pattern.startswith(prefix):
            return f"model.{pattern[len(prefix) :]}"
    return pattern.removeprefix("language_model.")


# Modules that hold no matrix of the decoder: naming them leaves nothing out.
_ELSEWHERE = re.compile(
    r"norm|(^|\.)ln_|embed|vision|visual|projector|connector|newline|patch_merge|e_score_correction_bias|mtp|eh_proj|shared_head|rotary|"
    r"gate$|router|conv1d|A_log|dt_bias|^model\.decoder\.self_attn|indexer|compressor|_hc|hc_|sinks|wte|wpe|lm_head|"
    r"embed_out|shared_expert_gate|audio|per_layer_"
)


@dataclass
class Names:
    """Module names with wildcards; a name covers the module, what is inside it, and what it is the end of.

    A name of one word covers the modules inside any module of that name (AWQ's ``self_attn``). ``a.*.b`` are shell
    wildcards (modelopt, gpt-oss), ``re:...`` regular expressions (compressed-tensors).
    """

    patterns: Sequence[str]
    field_name: str
    where: str
    _literals: set[str] = field(init=False, default_factory=set)
    _regexes: list[re.Pattern[str]] = field(init=False, default_factory=list)
    _hit: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            try:
                if pattern.startswith("re:"):
                    self._regexes.append(re.compile(pattern[3:]))
                elif "*" in pattern or "?" in pattern:
                    glob = fnmatch.translate(plain(pattern))
                    inside = fnmatch.translate(f"{plain(pattern)}.*")
                    self._regexes += [re.compile(glob), re.compile(inside)]
                else:
                    self._literals.add(plain(pattern))
            except (re.error, RecursionError, OverflowError):
                raise InputError(
                    f"{self.where}: field {quote(self.field_name)}: value {quote(pattern)}: not a valid pattern"
                ) from None

    @property
    def names_experts(self) -> bool:
        """Whether a name may tell single experts apart."""
        return any(re.search(r"experts\\?\.\d", pattern) for pattern in self.patterns)

    def holds(self, module: str) -> bool:
        """Whether a name covers this module."""
        steps = module.split(".")
        candidates = {".".join(steps[:n]) for n in range(1, len(steps) + 1)}
        candidates |= {".".join(steps[n:]) for n in range(len(steps))} | set(steps)
        hits = candidates & self._literals
        self._hit |= hits
        return bool(hits) or any(regex.match(module) for regex in self._regexes)

    def check(self, modules: Modules, n_layers: int, where: str) -> None:
        """Refuse a name without wildcards that covers nothing: it may be a layer tfsim would wrongly quantise."""
        beyond = re.compile(re.escape(modules.layer).replace(r"\{i\}", r"(\d+)"))
        for name in sorted(self._literals - self._hit):
            inside = beyond.match(f"{name}.")
            if _ELSEWHERE.search(name) or (inside and int(inside[1]) >= n_layers):
                continue
            raise InputError(
                f"{where}: field {quote(self.field_name)}: {quote(name)} is no matrix of this model "
                f"(--ignore-field quantization_config leaves quantisation out)"
            )
