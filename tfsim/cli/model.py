"""tfsim model: list the models of the zoo, show one's counts."""

from typing import TYPE_CHECKING, Annotated

import typer

from tfsim.cli.options import IgnoreField, Json, WeightsDtype, quantity, whole
from tfsim.cli.shell import new_app

if TYPE_CHECKING:
    from tfsim.models.facts import ModelFacts
    from tfsim.units import Number

app = new_app()


@app.command("list")
def list_(
    family: Annotated[str | None, typer.Option(help="Only the models of this family, such as llama.")] = None,
    json: Json = False,
) -> None:
    """List the models that tfsim knows by name."""
    from tfsim.cli.output import print_json, table
    from tfsim.errors import unknown
    from tfsim.models.load import list_models

    models = list_models()
    if family is not None:
        families = sorted({model.family for model in models})
        if family.lower() not in families:
            raise unknown("family", family, families)
        models = [model for model in models if model.family == family.lower()]
    if json:
        print_json(models)
        return
    table(["name", "family", "source"], [[m.name, m.family, m.source] for m in models])


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A name of the zoo, a tfsim YAML, or a Hugging Face config.json.")],
    seq_len: Annotated[str | None, typer.Option(help="Tokens per sequence; default 8,192.", metavar="TOKENS")] = None,
    dtype: Annotated[str, typer.Option(help="Number format of activations and KV cache.")] = "bf16",
    weights_dtype: WeightsDtype = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the specification as YAML, and nothing else.")] = False,
    ignore_field: IgnoreField = None,
    json: Json = False,
) -> None:
    """Show a model: parameters, bytes of weights and KV cache, FLOPs per token by convention."""
    from tfsim.errors import InputError
    from tfsim.models.load import dump_model, load_model

    if yaml and json:
        raise InputError("give --yaml or --json, not both")
    spec = load_model(model, ignore_fields=ignore_field or ())
    if yaml:
        if weights_dtype is not None:
            from tfsim.models.weights import with_weights

            spec = with_weights(spec, weights_dtype, dtype)
        print(dump_model(spec), end="")
        return
    from tfsim.models.facts import model_facts

    length = whole(quantity(seq_len, "tokens", "--seq-len"), "--seq-len")
    found = model_facts(spec, seq_len=length, dtype=dtype, weights_dtype=weights_dtype)
    if json:
        from tfsim.cli.output import print_json

        print_json(found)
        return
    _print(found)


@app.command()
def formats(json: Json = False) -> None:
    """List what weights can be stored in: bits a weight with scales, the matmul rate, what stays in high precision."""
    from tfsim.cli.output import print_json, table
    from tfsim.models.weights import HIGH_PRECISION, weight_formats

    found = weight_formats()
    if json:
        print_json(found)
        return
    for kind, stays in HIGH_PRECISION.items():
        rows = [[f.name, f"{f.bits_per_weight:g}", f.matmul_rate, f.note] for f in found if f.kind == kind]
        table(["weights_dtype", "bits/weight", "matmuls run in", "stored as"], rows, title=f"{kind}: {stays}")


@app.command()
def routing(
    model: Annotated[str, typer.Argument(help="A model with experts: a name, a tfsim YAML, or a config.json.")],
    tokens: Annotated[str, typer.Option(help="Tokens routed at once.", metavar="TOKENS")] = "8192",
    skew: Annotated[float, typer.Option(help="Popularity falls with rank as rank**-skew; 0: uniform.")] = 0.0,
    capacity_factor: Annotated[
        float | None,
        typer.Option(help="An expert drops what exceeds so many mean loads; default the model's."),
    ] = None,
    ignore_field: IgnoreField = None,
    json: Json = False,
) -> None:
    """Show how tokens spread over a model's experts: mean and worst load, experts touched, tokens dropped."""
    from tfsim.errors import InputError
    from tfsim.models.load import load_model
    from tfsim.models.routing import routing as route
    from tfsim.models.spec import MoE

    spec = load_model(model, ignore_fields=ignore_field or ())
    # layers that differ only in their experts' sizes route alike
    kinds = {(f.n_experts, f.top_k): f for block in spec.blocks.values() if isinstance(f := block.ffn, MoE)}
    if not kinds:
        raise InputError(f"model: {spec.name} has no experts to route to")
    n = whole(quantity(tokens, "tokens", "--tokens"), "--tokens")
    found = {moe: route(moe, n, skew=skew, capacity_factor=capacity_factor) for moe in kinds.values()}
    if json:
        from tfsim.cli.output import print_json

        print_json(
            [{"n_experts": moe.n_experts, "top_k": moe.top_k, "skew": skew, **vars(r)} for moe, r in found.items()]
        )
        return
    from tfsim.cli.output import facts as print_facts

    for moe, r in found.items():
        print_facts(
            [
                ("mean load", f"{r.mean.mean():,.1f} token copies per expert, most popular {r.mean.max():,.1f}"),
                ("worst load", f"{r.worst:,.1f} expected in the fullest expert: {r.imbalance:.2f} x the mean"),
                ("experts touched", f"{r.touched:,.1f} of {moe.n_experts:,} expected"),
                *([] if r.capacity is None else [("dropped", f"{r.dropped:.2%} of the copies, beyond {r.capacity:,}")]),
            ],
            title=f"{spec.name}: {r.tokens:,} tokens, top {moe.top_k} of {moe.n_experts:,}, skew {skew:g}",
        )


def _print(facts: "ModelFacts") -> None:
    from tfsim.cli.output import facts as print_facts
    from tfsim.models.conventions import CONVENTIONS
    from tfsim.reports.words import two_units
    from tfsim.units import format_bytes

    p = facts.parameters
    length = f"{facts.seq_len:,} tokens"
    cache = []
    if facts.decodes and facts.kv_bytes_per_sequence:
        cache += [
            ("KV cache per token", f"{two_units(facts.kv_bytes_per_token)} in {facts.kv_format}"),
            (f"KV cache per {length}", format_bytes(float(facts.kv_bytes_per_sequence))),
        ]
    if facts.decodes and facts.cross_bytes_per_sequence:
        read = facts.encoder_reads or f"{length} read by the encoder"
        cache.append(("cross-attention cache", f"{two_units(facts.cross_bytes_per_sequence)} per sequence, of {read}"))
    tied = "tied" if facts.tied_embeddings else "untied"
    print_facts(
        [
            ("family", facts.family),
            ("source", facts.source),
            *([("note", facts.note)] if facts.note else []),
            *([("encoder layers", facts.encoder_layers)] if facts.encoder_layers else []),
            ("layers", f"{facts.n_layers}: {facts.layers}"),
            *((f"  {name}", words) for name, words in facts.blocks.items()),
            ("d_model", f"{facts.d_model:,}"),
            *([("input", facts.reads)] if facts.reads else []),
            *([("encoder input", facts.encoder_reads)] if facts.encoder_reads else []),
            *([("vocabulary", f"{facts.vocab_size:,}, {tied} embeddings")] if facts.vocab_size else []),
            *([("head", facts.head)] if facts.head else []),
            ("positions", facts.positions),
            ("max_seq_len", f"{facts.max_seq_len:,} tokens" if facts.max_seq_len else None),
        ],
        title=facts.name,
    )
    if facts.image_tower is not None:
        print_facts(
            [
                ("tower", facts.image_tower),
                ("tokens per image", f"{facts.tokens_per_image:,}, part of the sequence"),
                ("parameters", f"{facts.tower_parameters:,}, projector included"),
                ("FLOPs per image", f"{_flops(facts.tower_flops_per_image).strip()}  forward, once per image"),
            ],
            title="Images",
        )
    print_facts(
        [
            ("total", f"{p.total:,}"),
            ("active", f"{p.active:,}"),
            ("active_less_input_embedding", f"{p.active_less_input_embedding:,}"),
            ("non_embedding", f"{p.non_embedding:,}"),
            *((f"  {group}", f"{n:,}") for group, n in p.by_group.items() if n),
        ],
        title="Parameters",
    )
    print_facts(
        [
            (
                f"weights as {facts.weights_dtype or 'specified'}",
                f"{two_units(facts.weight_bytes)} in {', '.join(facts.formats)}",
            ),
            (f"weights in {facts.dtype}", two_units(facts.weight_bytes_as)),
            *cache,
            *([("state per sequence", two_units(state))] if (state := facts.state_bytes_per_sequence) else []),
        ],
        title="Bytes (1 GB = 1e9 bytes, 1 GiB = 2**30 bytes)",
    )
    print_facts(
        [
            *(
                (f"training, {name}", f"{_flops(flops)}  {CONVENTIONS[name]}")
                for name, flops in facts.training_flops_per_token.items()
            ),
            ("prefill", f"{_flops(facts.prefill_flops_per_token)}  forward, as the mask lets it"),
            *(
                [("decode", f"{_flops(facts.decode_flops_per_token)}  one token after {length}")]
                if facts.decodes
                else []
            ),
        ],
        title=f"FLOPs per token at {length} (a multiply-add is 2)",
    )


def _flops(flops: "Number") -> str:
    from tfsim.units import format_flops

    return f"{format_flops(float(flops), 4):>11}"
