"""GGUF file types: which tensor of a model has which ggml type when llama.cpp quantises it.

A file type such as Q4_K_M is a mixture: most matrices in one type, those that lose more by rounding in a wider one.
The rules are those of ``llama_tensor_get_type`` in llama.cpp's src/llama-quant.cpp (commit 007dbbf) without an
importance matrix (with one for IQ1, IQ2 and IQ3_XXS, which want it), without its exceptions for Falcon. Norms, biases,
routers, convolutions and tables of positions stay fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tfsim.errors import InputError
from tfsim.models.decoder import block_operators
from tfsim.models.parts import MATRIX_GROUPS
from tfsim.models.shape import Shape
from tfsim.models.spec import Attention, Block, ModelSpec, MoE, compress_layers
from tfsim.operators.core import Weight
from tfsim.operators.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Where:
    """Where a tensor stands: the ``layer``-th of ``layers`` that have its like; ``grouping``: query heads per KV head;
    ``n_experts`` of the model (1: dense); ``seventy``: llama.cpp's "70B" (80 layers with grouped keys)."""

    layer: int
    layers: int
    grouping: int
    n_experts: int
    seventy: bool

    @property
    def more_bits(self) -> bool:
        """The first and last eighth of the layers, and every third between."""
        eighth = self.layers // 8
        return self.layer < eighth or self.layer >= 7 * self.layers // 8 or (self.layer - eighth) % 3 == 2

    @property
    def first_eighth(self) -> bool:
        """The first eighth of the layers."""
        return self.layer < self.layers // 8

    @property
    def shares_values(self) -> bool:
        """Values are few beside the rest: four or more query heads share them."""
        return self.grouping >= 4


Rule = str | Callable[[Where], str]
# with eight experts keys and values cost next to nothing, and are kept wide; in most file types the output too
_EIGHT = {"key": "q8_0", "value": "q8_0", "out": "q5_k"}
_EIGHT_KEYS = {"key": "q8_0", "value": "q8_0"}
_EIGHT_FEW_BITS = {"key": "q4_k", "out": "q5_k"}


@dataclass(frozen=True, slots=True)
class FileType:
    """A mixture: ``base`` for every matrix that no rule names; ``rules`` by role (value, key, query, out, down, up): a
    type, or a function of where the tensor stands; ``output`` for the output matrix, ``embedding`` for the tokens'
    (None: ``base``); ``eight``: what replaces the rules in a model of eight experts."""

    base: str
    rules: Mapping[str, Rule] = field(default_factory=dict)
    output: str = "q6_k"
    embedding: str | None = None
    eight: Mapping[str, str] = field(default_factory=lambda: _EIGHT)

    @property
    def few_bits(self) -> bool:
        """IQ1 and IQ2, whose rules make no exception for 70B."""
        return self.eight is _EIGHT_FEW_BITS

    def describe(self) -> str:
        """Its types: "q4_k; output q6_k; value, down by layer or grouping"."""
        named = {"output": self.output, "tokens": self.embedding or self.base, **self.rules}
        fixed = [f"{role} {rule}" for role, rule in named.items() if isinstance(rule, str) and rule != self.base]
        placed = [role for role, rule in self.rules.items() if not isinstance(rule, str)]
        rest = [f"{' and '.join(placed)} by layer or grouping"] if placed else []
        return "; ".join([f"{self.base}: {FORMATS[self.base].source}", *fixed, *rest])

    def type_of(self, role: str, where: Where) -> str:
        """The type of a matrix with this role."""
        if where.n_experts == 8:
            rule: Rule = self.eight.get(role) or (self.base if role == "out" else self.rules.get(role, self.base))
        else:
            rule = self.rules.get(role, self.base)
        found = rule if isinstance(rule, str) else rule(where)
        if role == "value" and where.seventy and not self.few_bits and found in ("q3_k", "q4_k"):
            return "q5_k"
        return found


def _either(test: Callable[[Where], bool], yes: str, no: str) -> Callable[[Where], str]:
    return lambda where: yes if test(where) else no


def _more(yes: str, no: str) -> dict[str, Rule]:
    return dict.fromkeys(("value", "down"), _either(lambda w: w.more_bits, yes, no))


def _shared(yes: str, no: str) -> Rule:
    return _either(lambda w: w.shares_values, yes, no)


def _first(yes: str, no: str) -> Rule:
    return _either(lambda w: w.first_eighth, yes, no)


def _few_bits(base: str, wide: str, out: str) -> FileType:
    value = _either(lambda w: w.shares_values or w.n_experts >= 4, "q4_k", wide)
    return FileType(base, {"value": value, "down": _first(wide, base), "out": out}, "q5_k", wide, _EIGHT_FEW_BITS)


FILE_TYPES: dict[str, FileType] = {
    **{name: FileType(name, eight=_EIGHT_KEYS) for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q6_k")},
    "q8_0": FileType("q8_0", output="q8_0", eight=_EIGHT_KEYS),
    "q2_k_s": FileType("q2_k", {"value": _shared("q4_k", "q2_k"), "down": _first("q4_k", "q2_k")}, eight=_EIGHT_KEYS),
    "q2_k": FileType("q2_k", {"value": _shared("q4_k", "q3_k"), "out": "q3_k", "down": "q3_k"}),
    "q3_k_s": FileType("q3_k"),
    "q3_k_m": FileType(
        "q3_k",
        {
            "value": _either(lambda w: w.layer < 2, "q5_k", "q4_k"),
            "out": "q4_k",
            "down": _either(lambda w: w.layer < w.layers // 16, "q5_k", "q4_k"),
        },
    ),
    "q3_k_l": FileType("q3_k", dict.fromkeys(("value", "out", "down"), "q5_k"), eight=_EIGHT_KEYS),
    "q4_k_s": FileType(
        "q4_k", {"value": _either(lambda w: w.layer < 4, "q5_k", "q4_k"), "down": _first("q5_k", "q4_k")}
    ),
    "q4_k_m": FileType("q4_k", _more("q6_k", "q4_k")),
    "q5_k_s": FileType("q5_k", eight=_EIGHT_KEYS),
    "q5_k_m": FileType("q5_k", _more("q6_k", "q5_k"), eight=_EIGHT_KEYS),
    "iq1_s": _few_bits("iq1_s", "q2_k", "iq2_xxs"),
    "iq1_m": _few_bits("iq1_m", "q2_k", "iq2_xxs"),
    "iq2_xxs": _few_bits("iq2_xxs", "q2_k", "iq2_xxs"),
    "iq2_xs": _few_bits("iq2_xs", "q2_k", "iq2_xs"),
    "iq2_s": _few_bits("iq2_xs", "iq3_s", "iq3_s"),
    "iq2_m": _few_bits("iq2_s", "iq3_s", "iq3_s"),
    "iq3_xxs": FileType(
        "iq3_xxs",
        {"value": _shared("q4_k", "iq3_xxs"), "key": "iq2_s", "query": "iq2_s", "out": "iq3_s"},
        "q5_k",
        "iq3_s",
    ),
    "iq3_xs": FileType(
        "iq3_s",
        {
            "value": _shared("q4_k", "iq3_s"),
            "key": "iq3_xxs",
            "query": "iq3_xxs",
            "up": _either(lambda w: w.layers // 8 <= w.layer < 7 * w.layers // 8, "iq3_xxs", "iq3_s"),
        },
    ),
    "iq3_s": FileType("iq3_s", {"value": _shared("q4_k", "iq3_s")}),
    "iq3_m": FileType(
        "iq3_s",
        {
            "value": "q4_k",
            "out": "q4_k",
            "down": _either(lambda w: w.first_eighth or (w.n_experts == 8 and w.more_bits), "q4_k", "iq3_s"),
        },
    ),
    **{
        name: FileType(name, {"value": _shared("q5_k", name), "down": _first("q5_k", name)})
        for name in ("iq4_xs", "iq4_nl")
    },
}

# rows that are no multiple of a block take a type of 32-element blocks, or stay fp16
_NARROWER = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_k", "q3_k"), "q4_0"),
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}

_ROLE_OF = {
    "v_proj": "value", "qkv_proj": "value", "kv_b_proj": "value", "k_proj": "key", "q_proj": "query", "o_proj": "out",
    "down_proj": "down", "experts_down": "down", "shared_down_proj": "down",
    **dict.fromkeys(
        ("up_proj", "gate_proj", "gate_up_proj", "experts_up", "shared_up_proj", "shared_gate_proj"), "up"
    ),
}  # fmt: skip


def quantised(model: ModelSpec, file_type: str) -> ModelSpec:
    """``model`` as the GGUF file of ``file_type`` (a key of FILE_TYPES) stores it. Layers whose types differ become
    blocks of their own; an image tower, a file of its own in llama.cpp, is left as it is.

    Raises InputError for a model with an encoder.
    """
    if model.encoder is not None:
        raise InputError(f"weights_dtype: {file_type} is for models of one stack; {model.name} has an encoder")
    mix = FILE_TYPES[file_type]
    matrices = {name: _matrices(model, name) for name in model.blocks}
    moes = [block.ffn for block in model.blocks.values() if isinstance(block.ffn, MoE)]
    n_experts = moes[0].n_experts if moes else 1
    seen = dict.fromkeys(("value", "down"), 0)
    values = sum("value" in _roles(matrices[name]) for name in model.layer_blocks)
    made: dict[str, list[Block]] = {name: [] for name in model.blocks}
    layers: list[str] = []
    for index, name in enumerate(model.layer_blocks):
        block, roles = model.blocks[name], _roles(matrices[name])
        grouping = block.mixer.n_heads // block.mixer.n_kv_heads if isinstance(block.mixer, Attention) else 1

        def where(role: str, at: int = index, grouping: int = grouping) -> Where:
            layer, n = (seen["value"], values) if role == "value" else (at if moes else seen["down"], model.n_layers)
            return Where(layer, n, grouping, n_experts, model.n_layers == 80 and grouping > 1)

        formats = {
            op: _fitting(mix.type_of(role, where(role)), int(weight.columns))
            for op, weight in matrices[name].items()
            for role in [_ROLE_OF.get(op, "other")]
        }
        for role in seen:
            seen[role] += role in roles
        changed = block.model_copy(update={"formats": formats})
        if changed not in made[name]:
            made[name].append(changed)
        layers.append(_numbered(name, made[name].index(changed)))
    blocks = {_numbered(name, i): block for name, found in made.items() for i, block in enumerate(found)}
    width = model.d_embed or model.d_model
    output = _fitting(mix.output if width % FORMATS[mix.base].columns == 0 else "q8_0", width)
    table = output if model.tied_embeddings else _fitting(mix.embedding or mix.base, width)
    return model.model_copy(
        update={
            "blocks": blocks,
            "layers": compress_layers(layers),
            "formats": {"embed_token": table, "head": output},
            "dtype": "fp32",
        }
    )


def _matrices(model: ModelSpec, name: str) -> dict[str, Weight]:
    """The quantised matrices of a block, by operator: those of its matmuls, routers, indexers and single rows apart."""
    return {
        op.name: weight
        for op in block_operators(model, name, Shape(1, 1))
        if op.kind in ("matmul", "grouped_matmul") and op.name not in ("index_q_proj", "index_k_proj")
        for weight in op.weights
        if weight.group in MATRIX_GROUPS and not weight.bias and weight.rows > 1
    }


def _roles(matrices: dict[str, Weight]) -> set[str]:
    return {_ROLE_OF.get(op, "other") for op in matrices}


def _fitting(fmt: str, columns: int) -> str:
    """``fmt``, or what rows of ``columns`` elements take instead where they are no multiple of its block."""
    if columns % FORMATS[fmt].columns == 0:
        return fmt
    narrower = _NARROWER.get(fmt, "fp16")
    return narrower if narrower == "fp16" or columns % FORMATS[narrower].columns == 0 else "fp16"


def _numbered(name: str, index: int) -> str:
    return f"{name}_v{index + 1}" if index else name
