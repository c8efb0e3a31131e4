"""tfsim size: what model, on how much data, for this budget?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfsim.cli.options import Carbon, Json, Power, Price, Pue, Set, checked, overrides, writable, writable_folder
from tfsim.cli.shell import new_app

if TYPE_CHECKING:
    from tfsim.scenario import SizingAnswer, SizingQuestion
    from tfsim.sizing import SizingEstimate

app = new_app()

Count = Annotated[str | None, typer.Option(metavar="N")]


@app.command()
def size(
    budget: Annotated[
        str | None,
        typer.Option(help="1e24flops, '$5M', '200k GPU-hours' or '100 PF-days'.", metavar="AMOUNT"),
    ] = None,
    on: Annotated[str | None, typer.Option("--on", help="The system, by name or path.", metavar="SYSTEM")] = None,
    devices: Annotated[
        str | None, typer.Option(help="Devices in all; default as few as end by the deadline.", metavar="N")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="Longest run, such as 30d; with --devices a budget.", metavar="TIME"),
    ] = None,
    params: Annotated[str | None, typer.Option(help="All parameters, such as 8B.", metavar="N")] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens of training, such as 2T.", metavar="N")] = None,
    loss: Annotated[float | None, typer.Option(help="Loss to reach, as the law counts it.", metavar="L")] = None,
    law: Annotated[str | None, typer.Option(help="Scaling law; default refit-240 (docs/scaling.md).")] = None,
    seq_len: Annotated[str | None, typer.Option(help="Tokens per sequence; default 4,096.", metavar="N")] = None,
    vocab_size: Annotated[str | None, typer.Option(help="Vocabulary; default 128,256.", metavar="N")] = None,
    unique_tokens: Annotated[
        str | None, typer.Option(help="Tokens that there are; more are epochs (muennighoff-2023).", metavar="N")
    ] = None,
    serve_tokens: Annotated[
        str | None, typer.Option(help="Tokens served over the model's life: both bills are minimised.", metavar="N")
    ] = None,
    experts: Annotated[str | None, typer.Option(help="Experts of a mixture (ludziejewski-2025).", metavar="N")] = None,
    top_k: Annotated[str | None, typer.Option(help="Experts that a token visits; default 2.", metavar="N")] = None,
    granularity: Annotated[float | None, typer.Option(help="Of krajewski-2024-moe.", metavar="G")] = None,
    bits: Annotated[float | None, typer.Option(help="Bits of training (kumar-2024).", metavar="BITS")] = None,
    global_batch: Annotated[
        str | None, typer.Option(help="Sequences per step; default the Step Law's.", metavar="N")
    ] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor parallel degree.", metavar="N")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.", metavar="N")] = None,
    precision: Annotated[str, typer.Option(help="bf16, bf16-grads, fp16, fp8, tf32 or fp32.")] = "bf16",
    software: Annotated[str, typer.Option(help="fused, eager, graph, flash-1 or unfused-attention.")] = "fused",
    out_model: Annotated[
        Path | None, typer.Option(help="Write the model as YAML for tfsim train and serve.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a Markdown and an HTML report with charts.", metavar="DIR")
    ] = None,
    price: Price = None,
    power: Power = None,
    pue: Pue = None,
    carbon: Carbon = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Size a model: N, tokens, loss and shape for a budget, and on a system its plan, days and cost.

    Give one of --budget, --params, --tokens and --loss; --budget with --params or --tokens; or --devices with
    --deadline.
    """
    plan = {name: value for name, value in {"tp": tp, "pp": pp}.items() if value is not None}
    asked: dict[str, Any] = {
        "budget": budget, "system": on, "devices": devices, "deadline": deadline, "params": params, "tokens": tokens,
        "loss": loss, "law": law, "seq_len": seq_len, "vocab_size": vocab_size, "unique_tokens": unique_tokens,
        "serve_tokens": serve_tokens,
        "experts": experts, "top_k": top_k, "granularity": granularity, "bits": bits, "global_batch": global_batch,
        "plan": plan or "auto", "precision": precision, "software": software,
    }  # fmt: skip
    from tfsim.scenario import SizingQuestion, answer_sizing

    if out_model is not None:
        writable(out_model, "out-model")
    if out is not None:
        writable_folder(out, "out")
    question = checked(SizingQuestion, asked)
    given = overrides(price, power, pue, carbon, set_)
    answer = answer_sizing(question, given)
    if out_model is not None:
        from tfsim.files import write_text
        from tfsim.models.load import dump_model

        write_text(out_model, dump_model(answer.estimate.model))
    reports = []
    if out is not None:
        rates = {"price": price, "power": power, "pue": pue, "carbon": carbon}
        command = _command({**asked, "plan": None, "tp": tp, "pp": pp, **rates}, set_ or [])
        reports = _write_reports(answer, question.model_copy(update={"overrides": given}), command, out)
    if json:
        from tfsim.cli.output import print_json

        print_json(answer.to_dict() | {"reports": reports})
        return
    print_sizing(answer, out_model)
    from tfsim.cli.output import print_reports

    print_reports(reports)


def _command(asked: dict[str, Any], fields: list[str]) -> str:
    """The command line of what was asked."""
    import shlex

    usual = {"precision": "bf16", "software": "fused"}
    words = ["tfsim", "size"]
    for name, value in asked.items():
        if value is not None and value != usual.get(name):
            words += ["--on" if name == "system" else f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(word for field in fields for word in ("--set", field))])


def _write_reports(answer: "SizingAnswer", question: "SizingQuestion", command: str, folder: Path) -> list[Path]:
    """The reports of the scenario that asks the same."""
    from tfsim.cli.run import write_report_files
    from tfsim.scenario import Scenario, ScenarioResult

    asked = Scenario(schema=1, title=sizing_title(answer.estimate), about=f"Answered by: {command}", size=question)
    return write_report_files(ScenarioResult(asked, size=answer), folder, "sizing")


def sizing_title(e: "SizingEstimate") -> str:
    """The question in words."""
    return f"Sizing for {e.asked}" + ("" if e.system is None else f" on {e.system}")


def print_sizing(answer: "SizingAnswer", out_model: Path | None = None) -> None:
    """One screen: the model, its run, other sizes, other laws."""
    from tfsim.cli.screen import print_sections, screen
    from tfsim.reports.sizing import sizing_sections

    e = answer.estimate
    print_sections(sizing_sections(e), title=sizing_title(e))
    print_tables(e)
    if e.training is not None:
        screen().print(f"Confidence: {e.training.confidence}", style="dim")
    if out_model is not None:
        screen().print(f"Model: {out_model}" + train_words(answer, out_model), style="dim", soft_wrap=True)


def print_tables(e: "SizingEstimate") -> None:
    """Other sizes and other laws."""
    from tfsim.cli.screen import print_grid
    from tfsim.reports.sizing import bowl_rows, bowl_title, law_rows, laws_summary

    if rows := bowl_rows(e):
        print_grid(rows, title=bowl_title(e))
    if rows := law_rows(e):
        print_grid(rows, title=f"Other laws: {laws_summary(e)}")


def train_words(answer: "SizingAnswer", out_model: Path) -> str:
    """The command that trains it, or nothing without a system."""
    e = answer.estimate
    if e.training is None:
        return ""
    options = f"--devices {e.devices} --global-batch {e.global_batch} --seq-len {e.seq_len} --tokens {e.tokens:.0f}"
    return f" (tfsim train {out_model} --on {e.system} {options})"
