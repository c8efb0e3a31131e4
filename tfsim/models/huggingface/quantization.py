"""Number formats from ``quantization_config`` and hf_quant_config.json.

A scheme says which format a matrix gets by its module name in the checkpoint. Embeddings, norms, biases and routers
stay in the model's dtype unless the file names them; layers whose formats differ become blocks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfsim.errors import InputError, quote
from tfsim.models.huggingface.modules import Modules, Names, operator_groups, plain
from tfsim.models.spec import Block
from tfsim.operators.formats import FORMATS


@dataclass(frozen=True)
class Formats:
    """Blocks with their formats, formats outside the blocks, and the format of the KV cache."""

    layers: Sequence[Block]
    model: Mapping[str, str] = field(default_factory=dict)
    kv: str | None = None


@dataclass(frozen=True)
class Scheme:
    """What a file says: ``default`` for every matrix that ``excluded`` does not name, ``listed`` for single modules.

    ``experts_only``: nothing but the routed experts (gpt-oss). ``head``: whether ``default`` covers the output matrix.
    ``experts``: another format for the routed experts (DeepSeek-V4).
    """

    default: str | None = None
    excluded: Names = field(default_factory=lambda: Names([], "", ""))
    listed: Mapping[str, str] = field(default_factory=dict)
    experts_only: bool = False
    head: bool = True
    kv: str | None = None
    experts: str | None = None

    def format_of(self, module: str, operator: str) -> str | None:
        """The format of one module's weight; None: the model's dtype."""
        if module in self.listed:
            return self.listed[module]
        if operator in ("router", "index_weights") or self.excluded.holds(module) or self.default is None:
            return None
        if self.experts and operator.startswith("experts_"):
            return self.experts
        if self.experts_only and not operator.startswith("experts_"):
            return None
        return self.default


def formats(
    config: object,
    beside: object,
    layers: Sequence[Block],
    modules: Modules,
    where: str,
    *,
    tied: bool,
) -> Formats:
    """The formats of a model from its config's ``quantization_config`` and the hf_quant_config.json ``beside`` it.

    Raises: InputError naming the field for a method, format or module name that tfsim does not know.
    """
    scheme = _scheme(config, beside, where)
    if scheme is None:
        return Formats(layers)
    made: dict[tuple[int, tuple[tuple[str, str], ...]], Block] = {}
    result: list[Block] = []
    every = scheme.excluded.names_experts or bool(scheme.listed)
    for index, block in enumerate(layers):
        found = _block_formats(block, index, scheme, modules, where, every)
        key = (id(block), tuple(sorted(found.items())))
        if key not in made:
            made[key] = block.model_copy(update={"formats": found}) if found else block
        result.append(made[key])
    model: dict[str, str] = {}
    if not tied:
        head = scheme.format_of(modules.head, "head")
        if head is not None and (scheme.head or modules.head in scheme.listed):
            model["head"] = head
    else:
        scheme.excluded.holds(modules.head)
    scheme.excluded.check(modules, len(layers), where)
    if not model and scheme.kv is None and not any(block.formats for block in result):
        raise InputError(f"{where}: field 'quantization_config': touches no weight of this model type that tfsim knows")
    return Formats(result, model, scheme.kv)


def _block_formats(
    block: Block, index: int, scheme: Scheme, modules: Modules, where: str, every: bool
) -> dict[str, str]:
    """The formats of one layer, by group where a whole group agrees."""
    result: dict[str, str] = {}
    for group, operators in operator_groups(block).items():
        found: dict[str, str | None] = {}
        for operator in operators:
            n_experts = getattr(block.ffn, "n_experts", 1) if every else 1
            names = modules.names(operator, index, n_experts)
            kinds = {scheme.format_of(name, operator) for name in names}
            if len(kinds) > 1:
                raise InputError(f"{where}: quantization: {names[0]} and its siblings have different formats")
            found[operator] = kinds.pop()
        values = set(found.values())
        # a learned gate on the shared expert is no part of the quantised matrices
        gated_shared = group == "moe_shared" and getattr(getattr(block.ffn, "shared", None), "gate", False)
        if len(values) == 1 and None not in values and not gated_shared:
            result[group] = next(value for value in values if value is not None)
        else:
            result.update({operator: value for operator, value in found.items() if value is not None})
    return result


# One function per quantisation method, from the file's mapping to a scheme.


@dataclass(frozen=True)
class _Part:
    """A mapping inside the file, with the name that errors give it."""

    data: Mapping[str, Any]
    name: str
    where: str

    def fault(self, key: str, rule: str) -> InputError:
        value = self.data.get(key)
        return InputError(f"{self.where}: field {quote(f'{self.name}.{key}')}: value {quote(value)}: {rule}")

    def only(self, keys: str) -> None:
        """Refuse keys that tfsim does not know."""
        allowed = keys.split()
        for key in self.data:
            if key not in allowed:
                raise InputError(
                    f"{self.where}: field {quote(f'{self.name}.{key}')}: not known "
                    f"(--ignore-field {self.name.split('.')[0]} leaves quantisation out)"
                )

    def text(self, key: str, default: str | None = None) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.fault(key, "must be text")
        return value

    def names(self, key: str) -> Names:
        value = self.data.get(key)
        if value is None:
            value = []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.fault(key, "must be a list of module names")
        return Names(value, f"{self.name}.{key}", self.where)

    def part(self, key: str) -> _Part:
        value = self.data.get(key)
        if not isinstance(value, Mapping):
            raise self.fault(key, "must be a mapping")
        return _Part(value, f"{self.name}.{key}", self.where)


def _scheme(config: object, beside: object, where: str) -> Scheme | None:
    if beside is not None:
        if not isinstance(beside, Mapping):
            raise InputError(f"{where}: hf_quant_config.json must be a mapping")
        whole = _Part(beside, "hf_quant_config", where)
        whole.only("producer quantization quant_method")
        return _modelopt(whole.part("quantization"))
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise InputError(f"{where}: field 'quantization_config': must be a mapping, not {quote(config)}")
    part = _Part(config, "quantization_config", where)
    method = part.text("quant_method", "modelopt" if "quant_algo" in config else None)
    if method not in _METHODS:
        raise part.fault("quant_method", f"must be one of {', '.join(_METHODS)}")
    return _METHODS[method](part)


def _fp8(part: _Part) -> Scheme:
    """DeepSeek's and Qwen's fp8: every linear layer but the output matrix, unless a list says otherwise."""
    part.only(
        "quant_method activation_scheme fmt weight_block_size modules_to_not_convert ignored_layers scale_fmt "
        "expert_dtype packed_modules_mapping dequantize"
    )
    if part.data.get("packed_modules_mapping") not in (None, {}):
        raise part.fault("packed_modules_mapping", "must be empty")
    if part.data.get("fmt") not in (None, "e4m3", "float8_e4m3fn", "float8_e4m3"):
        raise part.fault("fmt", "must be e4m3")
    block = part.data.get("weight_block_size")
    if block not in (None, [128, 128]):
        raise part.fault("weight_block_size", "must be [128, 128] or null")
    key = "modules_to_not_convert" if "modules_to_not_convert" in part.data else "ignored_layers"
    listed = part.data.get(key) is not None
    experts = part.data.get("expert_dtype")
    if experts not in (None, "fp4", "fp8"):
        raise part.fault("expert_dtype", "must be fp4, fp8 or null")
    narrow = "mxfp4" if experts == "fp4" else None
    return Scheme("fp8" if block is None else "fp8_block", part.names(key), head=listed, experts=narrow)


def _fbgemm(part: _Part) -> Scheme:
    """Llama-3.1-405B-FP8: one scale per row, layers left out by name."""
    part.only("quant_method activation_scale_ub modules_to_not_convert")
    return Scheme("fp8_channel", part.names("modules_to_not_convert"), head=False)


def _mxfp4(part: _Part) -> Scheme:
    """gpt-oss: the routed experts' matrices, not their biases."""
    part.only("quant_method modules_to_not_convert dequantize")
    return Scheme("mxfp4", part.names("modules_to_not_convert"), experts_only=True, head=False)


def _grouped_int4(part: _Part, zero_points: bool) -> str:
    if part.data.get("bits") != 4 or isinstance(part.data.get("bits"), bool):
        raise part.fault("bits", "must be 4")
    name = f"int4{'_zp' if zero_points else ''}_g{part.data.get('group_size')}"
    if name not in FORMATS or isinstance(part.data.get("group_size"), bool):
        raise part.fault("group_size", "must be 32, 64 or 128")
    return name


def _gptq(part: _Part) -> Scheme:
    """GPTQ files hold a packed zero point per group, symmetric or not."""
    part.only(
        "quant_method bits group_size sym desc_act damp_percent true_sequential static_groups model_name_or_path "
        "model_file_base_name checkpoint_format lm_head dataset tokenizer batch_size block_name_to_quantize "
        "cache_block_outputs exllama_config max_input_length meta modules_in_block_to_quantize "
        "module_name_preceding_first_block pad_token_id use_cuda_fp16 use_exllama backend"
    )
    if part.data.get("modules_in_block_to_quantize") is not None:
        raise part.fault("modules_in_block_to_quantize", "must be null")
    return Scheme(_grouped_int4(part, True), head=part.data.get("lm_head") is True)


def _awq(part: _Part) -> Scheme:
    """AWQ: packed zero points when zero_point is true."""
    part.only(
        "quant_method bits group_size zero_point version backend modules_to_not_convert do_fuse fuse_max_seq_len "
        "exllama_config modules_to_fuse"
    )
    name = _grouped_int4(part, part.data.get("zero_point", True) is not False)
    return Scheme(name, part.names("modules_to_not_convert"), head=False)


_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_channel",
    "FP8_PB_WO": "fp8_block",
    "FP8_BLOCK_SCALES": "fp8_block",
    "NVFP4": "nvfp4",
    "MXFP8": "mxfp8",
    "MXFP4": "mxfp4",
    "W4A16_MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "W4A16_AWQ": "int4_g{}",
    "W4A8_AWQ": "int4_g{}",
}
_KV = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8", "NONE": None, None: None}


def _modelopt(part: _Part) -> Scheme:
    """NVIDIA TensorRT Model Optimizer: one algorithm with exclusions, or one per module (MIXED_PRECISION)."""
    part.only(
        "quant_method quant_algo kv_cache_quant_algo kv_cache_scheme group_size exclude_modules ignore "
        "quantized_layers producer config_groups has_zero_point pre_quant_scale"
    )
    if part.data.get("has_zero_point"):
        raise part.fault("has_zero_point", "must be false")
    kv = part.data.get("kv_cache_quant_algo")
    if not (kv is None or isinstance(kv, str)) or kv not in _KV:
        raise part.fault("kv_cache_quant_algo", "must be FP8, NVFP4, INT8 or null")
    excluded = part.names("exclude_modules" if "exclude_modules" in part.data else "ignore")
    kv_format = _KV[kv] or _kv_scheme(part)
    if part.text("quant_algo") != "MIXED_PRECISION":
        return Scheme(_algorithm(part), excluded, kv=kv_format)
    layers = part.part("quantized_layers")
    listed = {plain(module): _algorithm(layers.part(module)) for module in layers.data}
    return Scheme(None, excluded, listed, kv=kv_format)


def _algorithm(part: _Part) -> str:
    algorithm, group = part.text("quant_algo"), part.data.get("group_size")
    if algorithm not in _ALGORITHMS:
        raise part.fault("quant_algo", f"must be one of {', '.join(_ALGORITHMS)}")
    name = _ALGORITHMS[algorithm].format(group)
    if name not in FORMATS:
        raise part.fault("group_size", "must be 32, 64 or 128")
    expected = FORMATS[name].columns if name in ("nvfp4", "mxfp8", "mxfp4") else None
    if expected and group not in (None, expected):
        raise part.fault("group_size", f"must be {expected}")
    return name


def _compressed_tensors(part: _Part) -> Scheme:
    """compressed-tensors: one group of settings for all linear layers, with a list of exceptions."""
    part.only(
        "quant_method config_groups format ignore kv_cache_scheme quantization_status global_compression_ratio "
        "sparsity_config transform_config version"
    )
    for key in ("sparsity_config", "transform_config"):
        if part.data.get(key) not in (None, {}):
            raise part.fault(key, "must be empty")
    groups = part.part("config_groups")
    if len(groups.data) != 1:
        raise part.fault("config_groups", "must hold one group")
    group = groups.part(next(iter(groups.data)))
    if group.data.get("targets") != ["Linear"]:
        raise group.fault("targets", "must be ['Linear']")
    return Scheme(_packed(group.part("weights")), part.names("ignore"), kv=_kv_scheme(part))


def _packed(weights: _Part) -> str:
    data = weights.data
    kind = (data.get("type"), data.get("num_bits"), data.get("strategy"), data.get("group_size"))
    symmetric = data.get("symmetric", True) is not False
    names: dict[tuple[object, ...], str] = {
        ("float", 8, "tensor", None): "fp8",
        ("float", 8, "channel", None): "fp8_channel",
        ("float", 8, "block", None): "fp8_block",
        ("int", 8, "channel", None): "int8",
        ("float", 4, "tensor_group", 16): "nvfp4",
        ("float", 4, "group", 32): "mxfp4",
        **{("int", 4, "group", g): f"int4_g{g}" for g in (32, 64, 128)},
    }
    if not all(isinstance(part, str | int | None) for part in kind) or kind not in names:
        raise InputError(
            f"{weights.where}: field {quote(weights.name)}: type, num_bits, strategy and group_size are "
            f"{quote(kind)}, which tfsim does not know"
        )
    name = names[kind]
    if name == "fp8_block" and data.get("block_structure") not in ([128, 128], "128x128"):
        raise weights.fault("block_structure", "must be [128, 128]")
    if not symmetric:
        if not name.startswith("int4_g"):
            raise weights.fault("symmetric", "must be true for this type")
        name = name.replace("int4_", "int4_zp_")
    return name


_QUARK: dict[tuple[object, ...], str] = {
    ("fp8_e4m3", "per_tensor", None): "fp8",
    ("fp8_e4m3", "per_channel", None): "fp8_channel",
    ("int8", "per_channel", None): "int8",
    ("fp4", "per_group", 32): "mxfp4",
    **{("int4", "per_group", g): f"int4_g{g}" for g in (32, 64, 128)},
}


def _quark(part: _Part) -> Scheme:
    """AMD Quark: one format for all linear layers, with a list of exceptions; the cache in fp8 or not at all."""
    part.only(
        "quant_method global_quant_config layer_quant_config layer_type_quant_config kv_cache_quant_config exclude "
        "export quant_mode algo_config softmax_quant_spec version kv_cache_post_rope"
    )
    for key in ("layer_type_quant_config", "softmax_quant_spec"):
        if part.data.get(key) not in (None, {}):
            raise part.fault(key, "must be empty")
    name = _quark_format(part.part("global_quant_config").part("weight"))
    layers = part.part("layer_quant_config") if part.data.get("layer_quant_config") else None
    for pattern in layers.data if layers else ():
        if layers and _quark_format(layers.part(pattern).part("weight")) != name:
            raise part.fault("layer_quant_config", "must give the weights of all layers one format")
    cache = part.part("kv_cache_quant_config").data if part.data.get("kv_cache_quant_config") else {}
    kept = [entry.get("output_tensors") if isinstance(entry, Mapping) else None for entry in cache.values()]
    if not all(isinstance(tensors, Mapping) and tensors.get("dtype") == "fp8_e4m3" for tensors in kept):
        raise part.fault("kv_cache_quant_config", "must give output_tensors of dtype fp8_e4m3")
    return Scheme(name, part.names("exclude"), kv="fp8" if kept else None)


def _quark_format(weights: _Part) -> str:
    data = weights.data
    kind = (data.get("dtype"), data.get("qscheme"), data.get("group_size") or None)
    if not all(isinstance(value, str | int | None) for value in kind) or kind not in _QUARK:
        raise InputError(
            f"{weights.where}: field {quote(weights.name)}: dtype, qscheme and group_size are {quote(kind)}, which "
            f"tfsim does not know"
        )
    if data.get("symmetric") is False:
        raise weights.fault("symmetric", "must be true")
    return _QUARK[kind]


def _kv_scheme(part: _Part) -> str | None:
    value = part.data.get("kv_cache_scheme")
    if value is None:
        return None
    if not isinstance(value, Mapping) or (value.get("num_bits"), value.get("type")) != (8, "float"):
        raise part.fault("kv_cache_scheme", "must be 8-bit float or null")
    return "fp8"


_METHODS: dict[str, Callable[[_Part], Scheme]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "quark": _quark,
}
