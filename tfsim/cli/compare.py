"""tfsim compare: the same job for several architectures side by side."""

from typing import Annotated, Any

import typer

from tfsim.cli.options import IgnoreField, Json, Set, checked, overrides
from tfsim.cli.shell import new_app

app = new_app()


@app.command()
def compare(
    models: Annotated[list[str], typer.Argument(help="Models: names of the zoo, YAML files, or config.json.")],
    on: Annotated[str, typer.Option("--on", help="The system, by name or path.", metavar="SYSTEM")],
    seq_lens: Annotated[
        str | None,
        typer.Option(help="Context lengths, such as 128,1024,8192; default 128 to 1,048,576.", metavar="TOKENS,..."),
    ] = None,
    batch: Annotated[str, typer.Option(help="Sequences at once.", metavar="N")] = "1",
    dtype: Annotated[str, typer.Option(help="Number format of activations: bf16, fp16, fp32.")] = "bf16",
    software: Annotated[str, typer.Option(help="fused, eager, graph, flash-1 or unfused-attention.")] = "fused",
    set_: Set = None,
    ignore_field: IgnoreField = None,
    json: Json = False,
) -> None:
    """Compare architectures on one device as the context grows.

    Parameters, FLOPs and bytes per token, sequential depth, memory and time; and where one overtakes another.
    """
    asked: dict[str, Any] = {
        "models": models, "system": on, "batch": batch, "dtype": dtype, "software": software,
        "seq_lens": None if seq_lens is None else [text.strip() for text in seq_lens.split(",")],
        "ignore_fields": ignore_field,
    }  # fmt: skip
    from tfsim.scenario import ComparisonQuestion, answer_comparison

    question = checked(ComparisonQuestion, asked)
    answer = answer_comparison(question, overrides(None, None, None, None, set_))
    if json:
        from tfsim.cli.output import print_json

        print_json(answer)
        return
    from tfsim.cli.screen import print_comparison, print_sections
    from tfsim.reports.summary import comparison_section

    print_comparison(answer)
    print_sections([comparison_section(answer)], closing=f"Confidence: {answer.confidence}")
