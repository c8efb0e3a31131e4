"""tfsim train: time, memory and cost of training a model on a system."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfsim.cli.options import Carbon, IgnoreField, Json, Power, Price, Pue, Set, checked, overrides
from tfsim.cli.shell import new_app

if TYPE_CHECKING:
    from tfsim.scenario import TrainingAnswer

app = new_app()


@app.command()
def train(
    model: Annotated[str, typer.Argument(help="A name of the zoo, a tfsim YAML, or a Hugging Face config.json.")],
    on: Annotated[str, typer.Option("--on", help="The system, by name or path.", metavar="SYSTEM")],
    global_batch: Annotated[str, typer.Option(help="Sequences per step.", metavar="N")],
    devices: Annotated[str | None, typer.Option(help="Devices in all; default one node.", metavar="N")] = None,
    seq_len: Annotated[
        str | None, typer.Option(help="Tokens per sequence; default the model's longest.", metavar="N")
    ] = None,
    images: Annotated[str, typer.Option(help="Images per sequence; their tokens are part of it.", metavar="N")] = "0",
    tokens: Annotated[str | None, typer.Option(help="Tokens of the whole run, such as 15T.", metavar="N")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor parallel degree.", metavar="N")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.", metavar="N")] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Data parallel replicas.", metavar="N")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Devices that experts are spread over.", metavar="N")] = None,
    etp: Annotated[int | None, typer.Option(min=1, help="Ways each expert is cut.", metavar="N")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Sequences per micro-batch.", metavar="N")] = None,
    zero_stage: Annotated[int | None, typer.Option(min=0, max=3, help="ZeRO stage.", metavar="0-3")] = None,
    recompute: Annotated[str | None, typer.Option(help="none, selective or full.", metavar="MODE")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Search the plan fields that are not given.")] = False,
    top: Annotated[
        int | None, typer.Option(min=1, help="Print a table of the best plans instead.", metavar="N")
    ] = None,
    precision: Annotated[str, typer.Option(help="bf16, bf16-grads, fp16, fp8, tf32 or fp32.")] = "bf16",
    software: Annotated[str, typer.Option(help="fused, eager, graph, flash-1 or unfused-attention.")] = "fused",
    price: Price = None,
    power: Power = None,
    pue: Pue = None,
    carbon: Carbon = None,
    set_: Set = None,
    ignore_field: IgnoreField = None,
    json: Json = False,
) -> None:
    """Estimate training: step time, MFU, memory, and days, money, energy and carbon of a run.

    Without plan options the fastest plan that fits is searched. With any of them the plan is as given, the others
    at their defaults (1; dp: the devices left; ZeRO stage 1; no recomputation), unless --auto or --top searches them.
    """
    fields = {
        "tp": tp, "pp": pp, "dp": dp, "ep": ep, "etp": etp,
        "micro_batch": micro_batch, "zero_stage": zero_stage, "recompute": recompute,
    }  # fmt: skip
    plan = {name: value for name, value in fields.items() if value is not None}
    search = auto or top is not None or not plan
    asked: dict[str, Any] = {
        "system": on, "devices": devices, "seq_len": seq_len, "global_batch": global_batch, "images": images,
        "tokens": tokens,
        "plan": "auto" if search else plan, "fixed": plan if search else {},
        "precision": precision, "software": software,
    }  # fmt: skip
    from tfsim.models.load import load_model
    from tfsim.scenario import TrainingQuestion, answer_training

    question = checked(TrainingQuestion, asked)
    given = overrides(price, power, pue, carbon, set_)
    answer = answer_training(load_model(model, ignore_fields=ignore_field or ()), question, given)
    if top is not None and answer.plans is not None:
        _print_plans(answer, top, json)
    elif json:
        from tfsim.cli.output import print_json

        print_json(answer)
    else:
        from tfsim.cli.screen import print_sections
        from tfsim.reports.summary import training_section

        title = f"Training {answer.estimate.model}"
        print_sections([training_section(answer)], title=title, closing=f"Confidence: {answer.estimate.confidence}")


def _print_plans(answer: "TrainingAnswer", top: int, json: bool) -> None:
    from tfsim.cli.output import print_json, table
    from tfsim.reports.summary import plan_rows

    assert answer.plans is not None
    plans, e = answer.plans.head(top), answer.estimate
    if json:
        print_json(plans)
        return
    rows = plan_rows(plans, e)
    title = f"Best plans for {e.model} on {e.devices:,} x {answer.system.device.name}: those that fit by step time"
    table(list(rows[0]), [list(row.values()) for row in rows], title=title)
