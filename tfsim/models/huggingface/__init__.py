"""From a Hugging Face config.json to a model specification.

``spec_from_config`` reads the architecture (a module per kind of family) and the number formats
(quantization.py). Defaults are those of the configuration classes of transformers 5.24; the names that older files
use are accepted too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from tfsim.errors import InputError, quote, unknown
from tfsim.files import validate
from tfsim.models.huggingface import (
    classic,
    deepseek4,
    delta,
    dense,
    dit,
    encoders,
    evoformer,
    gemma4,
    hybrid,
    indexed,
    latent,
    mixtures,
    modern,
    modules,
    quantization,
    recurrent,
    relatives,
    seq2seq,
    sparse,
    ssm,
    vision,
    windowed,
)
from tfsim.models.huggingface.common import Decoder, stack_fields
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.huggingface.harmless import COMMON_HARMLESS, COMMON_REFUSED, WRAPPER_FIELDS
from tfsim.models.huggingface.towers import TOWERS, above_text, has_tower, tower
from tfsim.models.spec import ModelSpec

__all__ = ["FAMILIES", "MODEL_TYPES", "Family", "holds", "spec_from_config"]


@dataclass(frozen=True)
class Family:
    """One model type: its fields, and the function that turns them into a decoder."""

    table: FieldTable
    build: Callable[[Fields], Decoder]
    names: modules.Modules = modules.LLAMA_MODULES
    family: str = ""


_GROK = Family(sparse.GROK, sparse.grok, family="grok")
_DEEPSEEK_V3 = Family(latent.DEEPSEEK_V3, latent.deepseek_v3)

FAMILIES: dict[str, Family] = {
    "gpt2": Family(classic.GPT2, classic.gpt2, modules.GPT2_MODULES),
    "gpt_neox": Family(classic.GPT_NEOX, classic.gpt_neox, modules.NEOX_MODULES),
    "gptj": Family(classic.GPTJ, classic.gptj, modules.GPTJ_MODULES),
    "opt": Family(classic.OPT, classic.opt, modules.OPT_MODULES),
    "bloom": Family(classic.BLOOM, classic.bloom, modules.BLOOM_MODULES),
    "falcon": Family(classic.FALCON, classic.falcon, modules.BLOOM_MODULES),
    "mpt": Family(classic.MPT, classic.mpt, modules.MPT_MODULES),
    "llama": Family(dense.LLAMA, dense.llama),
    "mistral": Family(dense.MISTRAL, dense.mistral),
    "mixtral": Family(sparse.MIXTRAL, sparse.mixtral, modules.MIXTRAL_MODULES),
    "qwen2": Family(dense.QWEN2, dense.qwen2),
    "qwen2_moe": Family(sparse.QWEN2_MOE, sparse.qwen2_moe, modules.QWEN_MOE_MODULES),
    "qwen3": Family(dense.QWEN3, dense.qwen3),
    "qwen3_moe": Family(sparse.QWEN3_MOE, sparse.qwen3_moe, modules.QWEN_MOE_MODULES),
    "gemma": Family(dense.GEMMA, dense.gemma),
    "gemma2": Family(dense.GEMMA2, dense.gemma2),
    "gemma3_text": Family(dense.GEMMA3, dense.gemma3, family="gemma3"),
    "phi": Family(dense.PHI, dense.phi, modules.PHI_MODULES),
    "phi3": Family(dense.PHI3, dense.phi3),
    "deepseek_v2": Family(latent.DEEPSEEK_V2, latent.deepseek_v2),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": replace(_DEEPSEEK_V3, family="kimi_k2"),
    "dbrx": Family(sparse.DBRX, sparse.dbrx, modules.DBRX_MODULES),
    "grok-1": _GROK,
    "grok1": _GROK,
    "gpt_oss": Family(sparse.GPT_OSS, sparse.gpt_oss, modules.GPT_OSS_MODULES),
    "llama4_text": Family(sparse.LLAMA4, sparse.llama4, modules.LLAMA4_MODULES, family="llama4"),
    "cohere": Family(dense.COHERE, dense.cohere),
    "olmo": Family(dense.OLMO, dense.olmo),
    "olmo2": Family(dense.OLMO2, dense.olmo2),
    "starcoder2": Family(dense.STARCODER2, dense.starcoder2, modules.STARCODER2_MODULES),
    "stablelm": Family(dense.STABLELM, dense.stablelm),
    "deepseek_v4": Family(deepseek4.DEEPSEEK_V4, deepseek4.deepseek_v4, modules.DEEPSEEK_V4_MODULES),
    "deepseek_v32": Family(indexed.DEEPSEEK_V32, indexed.deepseek_v32),
    "glm_moe_dsa": Family(indexed.GLM_MOE_DSA, indexed.glm_moe_dsa),
    "minimax_m3_vl_text": Family(indexed.MINIMAX_M3, indexed.minimax_m3, modules.MINIMAX_M3_MODULES, "minimax_m3"),
    "gemma4_text": Family(gemma4.GEMMA4, gemma4.gemma4, modules.GEMMA4_MODULES, "gemma4"),
    "mimo_v2_flash": Family(windowed.MIMO_V2, windowed.mimo_v2),
    "step3p5": Family(windowed.STEP3, windowed.step3, modules.STEP3_MODULES, "step3"),
    "glm4_moe": Family(modern.GLM4_MOE, modern.glm4_moe),
    "minimax": Family(modern.MINIMAX, modern.minimax, modules.MIXTRAL_MODULES),
    "minimax_text_01": Family(modern.MINIMAX, modern.minimax, modules.MIXTRAL_MODULES, "minimax"),
    "minimax_m2": Family(modern.MINIMAX_M2, modern.minimax_m2, modules.MIXTRAL_MODULES),
    "qwen3_vl_text": Family(modern.QWEN3_VL, modern.qwen3_vl, family="qwen3_vl"),
    "qwen3_vl_moe_text": Family(modern.QWEN3_VL_MOE, modern.qwen3_vl_moe, modules.QWEN_MOE_MODULES, "qwen3_vl_moe"),
    "qwen3_next": Family(delta.QWEN3_NEXT, delta.qwen3_next, modules.QWEN_DELTA_MODULES),
    "qwen3_5_text": Family(delta.QWEN3_5, delta.qwen3_5, modules.QWEN_DELTA_MODULES, "qwen3_5"),
    "qwen3_5_moe_text": Family(delta.QWEN3_5_MOE, delta.qwen3_5_moe, modules.QWEN_DELTA_MODULES, "qwen3_5_moe"),
    "granite": Family(relatives.GRANITE, dense.llama),
    "arcee": Family(relatives.ARCEE, relatives.arcee),
    "seed_oss": Family(relatives.SEED_OSS, relatives.seed_oss),
    "ernie4_5": Family(relatives.ERNIE4_5, relatives.ernie4_5),
    "hunyuan_v1_dense": Family(relatives.HUNYUAN_DENSE, relatives.hunyuan_dense, family="hunyuan"),
    "helium": Family(relatives.HELIUM, relatives.helium),
    "exaone": Family(relatives.EXAONE, relatives.exaone),
    "internlm3": Family(relatives.INTERNLM3, relatives.exaone),
    "smollm3": Family(relatives.SMOLLM3, relatives.smollm3),
    "ministral": Family(relatives.MINISTRAL, relatives.ministral),
    "ministral3": Family(relatives.MINISTRAL3, dense.mistral),
    "cwm": Family(relatives.CWM, relatives.cwm),
    "glm": Family(relatives.GLM, relatives.glm),
    "glm4": Family(relatives.GLM, relatives.glm4),
    "glm4v_text": Family(relatives.GLM4V, relatives.glm4v, family="glm4v"),
    "exaone4": Family(relatives.EXAONE4, relatives.exaone4),
    "olmo3": Family(relatives.OLMO3, relatives.olmo3),
    "cohere2": Family(relatives.COHERE2, relatives.cohere2),
    "nemotron": Family(relatives.NEMOTRON, relatives.nemotron),
    "vaultgemma": Family(dense.GEMMA2, relatives.vaultgemma),
    "qwen2_vl_text": Family(relatives.QWEN2_VL, dense.qwen2, family="qwen2_vl"),
    "qwen2_5_vl_text": Family(relatives.QWEN2_VL, dense.qwen2, family="qwen2_5_vl"),
    "youtu": Family(relatives.YOUTU, relatives.latent_dense),
    "minicpm3": Family(relatives.MINICPM3, relatives.latent_dense),
    "glm4_moe_lite": Family(mixtures.GLM4_MOE_LITE, mixtures.glm4_moe_lite),
    "glm4v_moe_text": Family(mixtures.GLM4V_MOE, mixtures.glm4v_moe, family="glm4v_moe"),
    "mistral4": Family(mixtures.MISTRAL4, mixtures.mistral4),
    "granitemoe": Family(mixtures.GRANITE_MOE, mixtures.granite_moe, modules.GRANITE_HYBRID_MODULES),
    "granitemoeshared": Family(
        mixtures.GRANITE_MOE_SHARED, mixtures.granite_moe_shared, modules.GRANITE_HYBRID_MODULES
    ),
    "olmoe": Family(mixtures.OLMOE, mixtures.olmoe),
    "flex_olmo": Family(mixtures.FLEX_OLMO, mixtures.flex_olmo),
    "phimoe": Family(mixtures.PHIMOE, mixtures.phimoe, modules.MIXTRAL_MODULES),
    "dots1": Family(mixtures.DOTS1, mixtures.dots1),
    "solar_open": Family(mixtures.SOLAR_OPEN, mixtures.solar_open),
    "hy_v3": Family(mixtures.HY_V3, mixtures.hy_v3, modules.HY_V3_MODULES),
    "exaone_moe": Family(mixtures.EXAONE_MOE, mixtures.exaone_moe),
    "afmoe": Family(mixtures.AFMOE, mixtures.afmoe, modules.AFMOE_MODULES),
    "ernie4_5_moe": Family(mixtures.ERNIE4_5_MOE, mixtures.ernie4_5_moe),
    "hunyuan_v1_moe": Family(mixtures.HUNYUAN_MOE, mixtures.hunyuan_moe, modules.HUNYUAN_MOE_MODULES, "hunyuan"),
    "mamba": Family(ssm.MAMBA, ssm.mamba, modules.MAMBA_MODULES),
    "falcon_mamba": Family(ssm.FALCON_MAMBA, ssm.falcon_mamba, modules.MAMBA_MODULES),
    "mamba2": Family(ssm.MAMBA2, ssm.mamba2, modules.MAMBA_MODULES),
    "rwkv": Family(ssm.RWKV_4, ssm.rwkv, modules.RWKV_MODULES),
    "jamba": Family(hybrid.JAMBA, hybrid.jamba, modules.JAMBA_MODULES),
    "nemotron_h": Family(hybrid.NEMOTRON_H, hybrid.nemotron_h, modules.NEMOTRON_H_MODULES),
    "dit": Family(dit.DIT, dit.dit),
    "evoformer": Family(evoformer.EVOFORMER, evoformer.evoformer),
    "bert": Family(encoders.BERT, encoders.bert),
    "roberta": Family(encoders.ROBERTA, encoders.roberta),
    "xlm-roberta": Family(encoders.ROBERTA, encoders.roberta),
    "electra": Family(encoders.ELECTRA, encoders.electra),
    "deberta-v2": Family(encoders.DEBERTA_V2, encoders.deberta_v2, family="deberta"),
    "modernbert": Family(encoders.MODERNBERT, encoders.modernbert),
    "vit": Family(vision.VIT, vision.vit),
    "clip": Family(vision.CLIP, vision.clip),
    "t5": Family(seq2seq.T5, seq2seq.t5),
    "mt5": Family(seq2seq.MT5, seq2seq.t5),
    "switch_transformers": Family(seq2seq.SWITCH, seq2seq.switch, family="switch"),
    "bart": Family(seq2seq.BART, seq2seq.bart),
    "whisper": Family(seq2seq.WHISPER, seq2seq.whisper),
    "transformer2017": Family(seq2seq.TRANSFORMER_2017, seq2seq.transformer_2017),
    "bamba": Family(hybrid.BAMBA, hybrid.bamba, modules.JAMBA_MODULES),
    "granitemoehybrid": Family(hybrid.GRANITE_HYBRID, hybrid.granite_hybrid, modules.GRANITE_HYBRID_MODULES),
    "gnmt": Family(recurrent.GNMT, recurrent.gnmt),
    "rnn_lm": Family(recurrent.RNN_LM, recurrent.rnn_lm, family="rnn"),
}


@dataclass(frozen=True)
class Wrapper:
    """A multimodal type. ``texts``: the types its text part may have, the default first. ``tied``: what its class takes
    where the top level does not say whether embeddings are tied; None: only the text part's own field counts.
    ``either``: the text part's field ties them too. ``flat``: older files hold the text part's fields at the top.
    ``beside`` and ``within``: fields at the top and of the text part that change no count."""

    texts: tuple[str, ...]
    tied: bool | None = False
    either: bool = False
    flat: bool = False
    beside: tuple[str, ...] = ()
    within: tuple[str, ...] = ()


_WRAPPERS: dict[str, Wrapper] = {
    "gemma3": Wrapper(("gemma3_text",), tied=True),
    "llama4": Wrapper(("llama4_text",), tied=None),
    "kimi_k25": Wrapper(("kimi_k2",), tied=True),
    "gemma4": Wrapper(("gemma4_text",), tied=True),
    "step3p7": Wrapper(("step3p5",)),
    "qwen3_vl": Wrapper(("qwen3_vl_text",)),
    "minimax_m3_vl": Wrapper(("minimax_m3_vl_text",), either=True),
    "qwen3_vl_moe": Wrapper(("qwen3_vl_moe_text",)),
    "qwen3_5": Wrapper(("qwen3_5_text",)),
    "qwen3_5_moe": Wrapper(("qwen3_5_moe_text",)),
    "qwen2_vl": Wrapper(("qwen2_vl_text",), either=True, flat=True),
    "qwen2_5_vl": Wrapper(("qwen2_5_vl_text",), either=True, flat=True),
    "mistral3": Wrapper(("mistral", "ministral3", "mistral4"), tied=True),
    "glm4v": Wrapper(("glm4v_text",), either=True),
    "glm4v_moe": Wrapper(("glm4v_moe_text",), either=True),
    "glm46v": Wrapper(("glm4v_text", "glm4v_moe_text")),
    "exaone4_5": Wrapper(("exaone4",)),
    "aya_vision": Wrapper(("cohere2", "cohere"), tied=True),
    "cohere2_vision": Wrapper(("cohere2",), tied=True),
    "llava": Wrapper(("llama", "mistral", "qwen2", "gemma"), either=True, beside=("vocab_size",)),
    "llava_next": Wrapper(("llama", "mistral", "qwen2"), beside=("vocab_size",)),
    "llava_onevision": Wrapper(("qwen2",), either=True),
    "internvl": Wrapper(("qwen2", "qwen3", "qwen3_moe", "llama", "gpt_oss"), tied=True),
    # PaliGemma's prompt sees itself whole: the same score rectangle, but "halved" counts it as causal
    "paligemma": Wrapper(
        ("gemma", "gemma2"),
        tied=True,
        beside=("hidden_size", "vocab_size", "_vocab_size"),
        within=("num_image_tokens", "use_bidirectional_attention"),
    ),
    "idefics3": Wrapper(("llama",), beside=("vocab_size", "_pad_token_id")),
    "smolvlm": Wrapper(("llama",), beside=("vocab_size", "_pad_token_id")),
}

MODEL_TYPES: tuple[str, ...] = (*FAMILIES, *_WRAPPERS)

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "auto": "bf16",
}
_TOP_LEVEL_OF_TEXT = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "compression_config")


def spec_from_config(
    config: Mapping[str, Any],
    *,
    name: str | None = None,
    source: str = "",
    ignore_fields: Sequence[str] = (),
    quant_config: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """The model that a config.json describes.

    ``name`` and ``source`` are written into the specification (``source`` also starts every error message).
    ``ignore_fields``: fields to leave out, so that the class's default holds. ``quant_config``: content of the
    hf_quant_config.json beside the file, if any; else the file's own ``quantization_config`` sets the formats. A file
    without ``dtype`` (or ``torch_dtype``) is taken as bf16. A multimodal model has its image tower beside its text part
    where towers.py or projectors.py build it; else the note says that it is left out. Audio parts are left out.

    Raises: InputError, one line naming the field, for an unknown model_type, an unknown field, a value that tfsim
    does not model, or one of the wrong type or size.
    """
    where = source or "config.json"
    if not isinstance(config, Mapping):
        raise InputError(f"{where}: holds {quote(config)}, not a mapping")
    if not all(isinstance(key, str) for key in config):
        raise InputError(f"{where}: holds a key that is not text")
    absent = [field for field in ignore_fields if not holds(config, field)]
    if absent:
        raise InputError(f"{where}: field {quote(absent[0])}: cannot be ignored, the file does not have it")
    given = config
    model_type, config, note = _text_part(config, where, ignore_fields)
    family = FAMILIES[model_type]
    fields = Fields(config, family.table, where, ignore_fields)
    with _one_line(where):
        decoder = family.build(fields)
    dtype = _dtype(config, where, ignore_fields)
    if "quantization_config" in ignore_fields:
        quant_config = None
    formats = quantization.formats(
        None if "quantization_config" in ignore_fields else _quantization(config),
        quant_config,
        decoder.layers,
        family.names,
        where,
        tied=decoder.tied,
    )
    title = name if name is not None else _own_name(config, model_type)
    data = {
        "schema": 1,
        "name": title,
        "family": family.family or model_type,
        "source": source[:500],
        "note": "; ".join(part for part in (note, "" if dtype else "the file states no dtype: taken as bf16") if part),
        "formats": formats.model,
        "kv_format": formats.kv,
        **stack_fields(decoder, formats.layers, dtype or "bf16"),
    }
    if decoder.encoder is not None:
        if formats.layers is not decoder.layers:
            raise InputError(f"{where}: field 'quantization_config': quantised encoders are not modelled")
        inner = stack_fields(decoder.encoder, decoder.encoder.layers, dtype or "bf16")
        data["encoder"] = {"name": f"{title[:110]} encoder", "family": data["family"], **inner}
    with _one_line(f"{where}: vision_config"):
        eyes = tower(given.get("model_type"), given, where, ignore_fields, decoder.d_model)
    if eyes is not None:
        inner = stack_fields(eyes, eyes.layers, dtype or "bf16")
        data["vision"] = {"name": f"{title[:110]} vision", "family": data["family"], **inner}
    return validate(ModelSpec, data, where)


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """Sizes that contradict each other, found where a part of the specification is built, as an InputError."""
    try:
        yield
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = ".".join(str(step) for step in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}: {path + ': ' if path else ''}{message}") from None


def _quantization(config: Mapping[str, Any]) -> object:
    """quantization_config, with the experts' format that DeepSeek-V4 states beside it."""
    inner, beside = config.get("quantization_config"), config.get("expert_dtype")
    return {"expert_dtype": beside, **inner} if isinstance(inner, Mapping) and beside is not None else inner


def holds(config: Mapping[str, Any], field: str) -> bool:
    """Whether a config.json has this field, at its top or in a part."""
    for part in ("text_config", "vision_config"):
        inner = config.get(part)
        if isinstance(inner, Mapping) and holds(inner, field):
            return True
    head, _, rest = field.partition(".")
    value = config.get(head)
    return field in config or (bool(rest) and isinstance(value, Mapping) and rest in value)


def _text_part(config: Mapping[str, Any], where: str, ignore: Sequence[str]) -> tuple[str, Mapping[str, Any], str]:
    """The model type, the text model's fields and a note on what is left out."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        if "model_type" not in config:
            raise InputError(f"{where}: field 'model_type': missing, and required")
        raise InputError(f"{where}: field 'model_type': must be text, not {quote(model_type)}")
    if model_type in FAMILIES:
        return model_type, config, ""
    if model_type not in _WRAPPERS:
        raise InputError(f"{where}: field 'model_type': {unknown('model type', model_type, MODEL_TYPES)}")
    wrapper, text = _WRAPPERS[model_type], config.get("text_config")
    known = COMMON_HARMLESS | WRAPPER_FIELDS | set(_TOP_LEVEL_OF_TEXT) | set(ignore)
    known |= {*above_text(model_type), *wrapper.beside}
    if text is None:
        text = {field: value for field, value in config.items() if wrapper.flat and field not in known}
    if not isinstance(text, Mapping):
        raise InputError(f"{where}: field 'text_config': must be a mapping, not {quote(text)}")
    inner = text.get("model_type", wrapper.texts[0])
    if inner not in wrapper.texts:
        raise InputError(
            f"{where}: field 'text_config.model_type': must be {' or '.join(wrapper.texts)}, not {quote(inner)}"
        )
    for field, value in config.items():
        changes_nothing = value in COMMON_REFUSED.get(field, ())
        if field not in known and not changes_nothing and not (wrapper.flat and field in text and text[field] == value):
            raise InputError(
                f"{where}: field {quote(field)}: not known beside the text_config of {model_type} "
                f"(--ignore-field {field} leaves it out)"
            )
    text = {field: value for field, value in text.items() if field not in wrapper.within}
    above = {field: config[field] for field in _TOP_LEVEL_OF_TEXT if config.get(field) is not None}
    tied, note = _tied(wrapper, inner, text, config, where, ignore)
    towers = model_type in TOWERS and has_tower(config, ignore)
    left_out = "" if towers else "text part only: the vision tower and its projector are left out"
    deaf = "the audio tower is left out" if isinstance(config.get("audio_config"), Mapping) else ""
    return inner, {**text, **above, **tied}, "; ".join(part for part in (left_out, deaf, note) if part)


def _tied(
    wrapper: Wrapper, inner: str, text: Mapping[str, Any], config: Mapping[str, Any], where: str, ignore: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """The field that says whether a multimodal model's embeddings are tied, and a note where no field does."""
    name = "tie_word_embeddings"
    own, top = (None if name in ignore else source.get(name) for source in (text, config))
    own_default = FAMILIES[inner].table.used[name]
    if wrapper.tied is None:
        return {name: own_default if own is None else own}, ""
    if top is None and wrapper.tied and own is False:
        raise InputError(
            f"{where}: field 'text_config.{name}': is false, but transformers ties the embeddings unless {name} is "
            f"false at the top level: say it there (--ignore-field {name} ties them)"
        )
    if top is None and own is None and wrapper.tied and not own_default:
        return {name: True}, "embeddings tied, the default of the class: the file does not say"
    said = wrapper.tied if top is None else top
    also = own_default if own is None else own
    return {name: also if wrapper.either and said is False else said}, ""


def _own_name(config: Mapping[str, Any], model_type: str) -> str:
    path = config.get("_name_or_path")
    last = path.rstrip("/").rsplit("/", 1)[-1] if isinstance(path, str) else ""
    return last[:120] or model_type


def _dtype(config: Mapping[str, Any], where: str, ignore: Sequence[str]) -> str | None:
    """The number format of the weights; None where the file states none."""
    for field in ("dtype", "torch_dtype"):
        value = config.get(field)
        if value is None or field in ignore:
            continue
        known = _DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
        if known is None:
            raise InputError(f"{where}: field '{field}': value {quote(value)}: must be one of {', '.join(_DTYPES)}")
        return known
    return None
