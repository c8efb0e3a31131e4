"""tfsim serve: latency, throughput, memory and cost of serving a model on a system."""

from typing import Annotated, Any

import typer

from tfsim.cli.options import Carbon, IgnoreField, Json, Power, Price, Pue, Set, WeightsDtype, checked, overrides
from tfsim.cli.shell import new_app

app = new_app()


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A name of the zoo, a tfsim YAML, or a Hugging Face config.json.")],
    on: Annotated[str, typer.Option("--on", help="The system, by name or path.", metavar="SYSTEM")],
    devices: Annotated[str, typer.Option(help="Devices in all.", metavar="N")] = "1",
    input_len: Annotated[
        str | None, typer.Option(help="Prompt tokens of a request; default 2,000.", metavar="TOKENS")
    ] = None,
    output_len: Annotated[
        str | None, typer.Option(help="Generated tokens of a request; default 300.", metavar="TOKENS")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Images per request; their tokens are part of the prompt.", metavar="N")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="Sequences at once per replica; default as many as fit.", metavar="N")
    ] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor parallel degree.", metavar="N")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.", metavar="N")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Devices that experts are spread over.", metavar="N")] = None,
    dtype: Annotated[str | None, typer.Option(help="Number format of activations: bf16, fp16, fp32.")] = None,
    weights_dtype: WeightsDtype = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Number format of the KV cache, such as fp8.")] = None,
    software: Annotated[str, typer.Option(help="graph, fused, eager, flash-1 or unfused-attention.")] = "graph",
    memory_utilization: Annotated[float, typer.Option(help="Share of the memory that the engine uses.")] = 0.9,
    max_batch: Annotated[str, typer.Option(help="Most sequences decoded at once.", metavar="N")] = "512",
    max_prefill_tokens: Annotated[str, typer.Option(help="Most prompt tokens per pass.", metavar="TOKENS")] = "8192",
    price: Price = None,
    power: Power = None,
    pue: Pue = None,
    carbon: Carbon = None,
    set_: Set = None,
    ignore_field: IgnoreField = None,
    json: Json = False,
) -> None:
    """Estimate serving under steady load: TTFT, TPOT, tokens/s, concurrency, and money, energy and carbon per token.

    Without --tp, --pp and --ep the plan with the most output tokens per second and device is searched. A robot's model
    (RT-2, OpenVLA) decodes one control step by default: an action after one image and an instruction.
    """
    plan = {name: value for name, value in {"tp": tp, "pp": pp, "ep": ep}.items() if value is not None}
    asked: dict[str, Any] = {
        "system": on, "devices": devices, "input_len": input_len, "output_len": output_len, "batch": batch,
        "images": images, "plan": plan or "auto", "dtype": dtype, "weights_dtype": weights_dtype, "kv_dtype": kv_dtype,
        "software": software, "memory_utilization": memory_utilization, "max_batch": max_batch,
        "max_prefill_tokens": max_prefill_tokens,
    }  # fmt: skip
    from tfsim.models.load import load_model
    from tfsim.scenario import ServingQuestion, answer_serving

    question = checked(ServingQuestion, asked)
    given = overrides(price, power, pue, carbon, set_)
    answer = answer_serving(load_model(model, ignore_fields=ignore_field or ()), question, given)
    if json:
        from tfsim.cli.output import print_json

        print_json(answer)
        return
    from tfsim.cli.screen import print_sections
    from tfsim.reports.summary import serving_section

    title = f"Serving {answer.estimate.model}"
    print_sections([serving_section(answer)], title=title, closing=f"Confidence: {answer.estimate.confidence}")
