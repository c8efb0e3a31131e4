"""What is asked: an engine (model, machine, software, number formats) and the load on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfsim.errors import InputError, choice, quote
from tfsim.hardware import System, require_system
from tfsim.models.decoder import segments
from tfsim.models.images import read_images
from tfsim.models.shape import Shape
from tfsim.models.spec import ModelSpec, require_decoder
from tfsim.models.weights import with_weights
from tfsim.operators.core import Style
from tfsim.operators.formats import FORMAT_NAMES
from tfsim.software import Software, software
from tfsim.units import Number, as_number, floor_div, maximum

INPUT_LEN, OUTPUT_LEN = 2000, 300
INSTRUCTION_LEN = 32  # "What action should the robot take to [instruction]?" (Brohan et al. 2023, section 3.2)
COMPUTE_DTYPES = ("bf16", "fp16", "fp32")
WIDE_FORMATS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Engine:
    """A model as one engine runs it on one kind of machine.

    ``model``: with the weight and KV formats it is served in; ``dtype``: of activations; ``memory_utilization``: share
    of the device's capacity the engine may use; ``max_batch``: most sequences it decodes at once;
    ``max_prefill_tokens``: most prompt tokens of one prefill pass (longer prompts go in chunks of that size).
    An image tower runs in the compute dtype.
    """

    model: ModelSpec
    system: System
    software: Software
    dtype: str
    memory_utilization: Number
    max_batch: Number
    max_prefill_tokens: Number

    @property
    def limits(self) -> tuple[Number, Number, Number]:
        """What bounds a batch: memory_utilization, max_batch, max_prefill_tokens."""
        return self.memory_utilization, self.max_batch, self.max_prefill_tokens

    @property
    def style(self) -> Style:
        """How its operators run."""
        return self.software.style(self.dtype)

    @property
    def kv_dtype(self) -> str:
        """Format of the KV cache."""
        return self.model.kv_format or self.dtype

    @property
    def block_formats(self) -> list[str]:
        """Formats of the blocks' matrices, the routers' apart, each once."""
        found = (
            weight.fmt
            for part in segments(self.model, Shape(1, 1))
            if part.layer
            for op in part.operators
            if op.kind in ("matmul", "grouped_matmul", "recurrent")
            for weight in op.weights
            if weight.group != "moe_router" and not weight.bias
        )
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Load:
    """Requests of ``input_len`` prompt and ``output_len`` generated tokens; ``batch`` sequences at once on each replica
    (None: as many as fit); ``devices`` in all; ``images`` per request, whose tokens are part of its prompt."""

    devices: Number
    input_len: Number
    output_len: Number
    batch: Number | None
    images: Number = 0

    def prompts_per_pass(self, engine: Engine) -> Number:
        """Prompts that one prefill pass can take."""
        return maximum(1, floor_div(engine.max_prefill_tokens, self.input_len))


def read_load(model: ModelSpec, devices: Any, input_len: Any, output_len: Any, batch: Any, images: Any) -> Load:
    """A Load from a user's numbers; None takes the default.

    Of a model that acts (``action_tokens``) a request is one control step of one robot: an image, its instruction, the
    tokens of one action, and no others beside it.
    Raises InputError.
    """
    acts = model.action_tokens > 0
    if images is None:
        images = 1 if acts and model.tokens_per_image else 0
    if input_len is None:
        input_len = as_number(images, "images") * model.tokens_per_image + INSTRUCTION_LEN if acts else INPUT_LEN
    length = whole(input_len, "input_len")
    return Load(
        whole(devices, "devices"),
        length,
        whole((model.action_tokens or OUTPUT_LEN) if output_len is None else output_len, "output_len"),
        (1 if acts else None) if batch is None else whole(batch, "batch"),
        read_images(model, images, "input_len", length),
    )


def whole(value: Any, name: str) -> Number:
    """A whole number (or array) of at least 1. Raises InputError naming ``name``."""
    return as_number(value, name, at_least=1, whole=True)


def make_engine(
    model: Any,
    system: Any,
    *,
    dtype: str | None,
    weights_dtype: str | None,
    kv_dtype: str | None,
    software_name: str,
    memory_utilization: Any,
    max_batch: Any,
    max_prefill_tokens: Any,
) -> Engine:
    """An Engine from a user's words. Raises InputError for whatever is not one."""
    require_decoder(model)
    require_system(system)
    share = as_number(memory_utilization, "memory_utilization", at_least=0)
    if not _all(share > 0) or not _all(share <= 1):
        raise InputError(f"memory_utilization: {quote(memory_utilization)} is not a share in (0, 1]")
    compute = compute_dtype(model, dtype)
    return Engine(
        served(model, compute, weights_dtype, kv_dtype),
        system,
        software(software_name),
        compute,
        share,
        whole(max_batch, "max_batch"),
        whole(max_prefill_tokens, "max_prefill_tokens"),
    )


def compute_dtype(model: ModelSpec, dtype: str | None) -> str:
    """The activation dtype: the one asked for, else fp16 where the model is published in it, else bf16."""
    if dtype is None:
        return "fp16" if model.dtype == "fp16" else "bf16"
    if isinstance(dtype, str) and dtype in FORMAT_NAMES and dtype not in COMPUTE_DTYPES:
        raise InputError(f"dtype: {quote(dtype)} is no activation dtype: did you mean weights_dtype={quote(dtype)}?")
    return choice("dtype", dtype, COMPUTE_DTYPES)


def served(model: ModelSpec, compute: str, weights_dtype: str | None, kv_dtype: str | None) -> ModelSpec:
    """The model in the formats it is served in.

    16- and 32-bit weights are held in the compute dtype, quantised ones as published; ``weights_dtype`` puts them all
    into another format (see tfsim.models.weights).
    """

    def held(fmt: str) -> str:
        return compute if fmt in WIDE_FORMATS else fmt

    kv = model.kv_format if kv_dtype is None else choice("kv_dtype", kv_dtype, FORMAT_NAMES)
    if weights_dtype is not None:
        vision = None if model.vision is None else served(model.vision, compute, None, None)
        return with_weights(model, weights_dtype, compute).model_copy(update={"kv_format": kv, "vision": vision})
    blocks = {
        name: block.model_copy(update={"formats": {key: held(fmt) for key, fmt in block.formats.items()}})
        for name, block in model.blocks.items()
    }
    rest = {key: held(fmt) for key, fmt in model.formats.items()}
    beside = {"encoder": model.encoder, "vision": model.vision}
    inner = {name: None if spec is None else served(spec, compute, None, None) for name, spec in beside.items()}
    changes = {"blocks": blocks, "formats": rest, "dtype": held(model.dtype), "kv_format": kv, **inner}
    return model.model_copy(update=changes)


def _all(condition: Any) -> bool:
    return bool(condition) if isinstance(condition, bool) else bool(condition.all())
