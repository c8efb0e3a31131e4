"""tfsim run: answer a scenario on one screen, and write its reports."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfsim.cli.options import Carbon, Json, Power, Price, Pue, Set, overrides, writable_folder
from tfsim.cli.shell import new_app

if TYPE_CHECKING:
    from tfsim.scenario import ScenarioResult

app = new_app()

Out = Annotated[Path | None, typer.Option(help="Folder for the reports; default tfsim-reports.", file_okay=True)]


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(help="A scenario's YAML file, or the name of one that comes with tfsim.")],
    out: Out = None,
    price: Price = None,
    power: Power = None,
    pue: Pue = None,
    carbon: Carbon = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Answer the questions of a scenario file, and write a Markdown and an HTML report.

    With --json reports are written only if --out is given.
    """
    from tfsim.scenario import load_scenario, run_scenario

    folder = Path("tfsim-reports") if out is None else out
    if out is not None or not json:
        writable_folder(folder, "out")
    given = overrides(price, power, pue, carbon, set_)
    result = run_scenario(load_scenario(scenario), given)
    if json:
        from tfsim.cli.output import print_json

        written = [] if out is None else write_report_files(result, out, scenario)
        print_json(result.to_dict() | {"reports": written})
        return
    from tfsim.cli.output import print_reports
    from tfsim.cli.screen import print_comparison, print_sections
    from tfsim.reports.summary import confidence, sections

    print_sections(
        sections(result),
        title=result.scenario.title,
        about=result.scenario.about,
        closing=f"Confidence: {confidence(result)}",
    )
    if result.compare is not None:
        print_comparison(result.compare)
    if result.size is not None:
        from tfsim.cli.size import print_tables

        print_tables(result.size.estimate)
    print_reports(write_report_files(result, folder, scenario))


def write_report_files(result: "ScenarioResult", folder: Path, scenario: str) -> list[Path]:
    """Draw the charts and write the Markdown and HTML reports; their paths."""
    from tfsim.cli.charts import pictures
    from tfsim.reports.render import write_reports
    from tfsim.scenario import scenario_name

    return write_reports(result, pictures(result), folder, scenario_name(scenario))
