"""Results as files: Markdown with its pictures beside it, and one self-contained HTML page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfsim.errors import InputError
from tfsim.files import write_bytes, write_text
from tfsim.models.conventions import CONVENTIONS
from tfsim.palette import COLOURS
from tfsim.reports.figures import used_figures
from tfsim.reports.sizing_page import Table, sizing_tables, sizing_terms
from tfsim.reports.summary import MEANS, Bar, comparison_rows, confidence, plan_rows, sections
from tfsim.scenario import TOP_PLANS

if TYPE_CHECKING:
    from jinja2 import Environment

    from tfsim.scenario import ScenarioResult

TERMS = {
    **CONVENTIONS,
    "MFU, HFU": "model FLOPs / (time x devices x dense peak of the matmul format); HFU adds recomputation to exact",
    "TTFT": "time to first token: one prefill on an idle engine, no queueing",
    "TPOT": "time per output token: one decode step of all sequences; under load: with other requests' prefills",
    "GB, GiB": "1 GB = 1e9 bytes, 1 GiB = 2**30 bytes",
    "energy": "maximum power x time x PUE: an upper bound, since devices rarely draw their maximum",
}


@dataclass(frozen=True)
class Picture:
    """A chart as files: ``name`` (part of a file name), what it shows, and its bytes in both forms."""

    name: str
    caption: str
    png: bytes
    svg: bytes

    @property
    def data_uri(self) -> str:
        """The SVG as a data URI."""
        return "data:image/svg+xml;base64," + b64encode(self.svg).decode("ascii")


def markdown(result: ScenarioResult, pictures: Sequence[Picture], name: str) -> str:
    """The report as Markdown; its pictures are ``name``-<picture>.png in the same folder."""
    text: str = _templates().get_template("report.md.j2").render(_context(result, pictures), name=name)
    return text


def html(result: ScenarioResult, pictures: Sequence[Picture]) -> str:
    """The report as one HTML page that refers to nothing outside itself."""
    text: str = _templates().get_template("report.html.j2").render(_context(result, pictures))
    return text


def write_reports(result: ScenarioResult, pictures: Sequence[Picture], folder: Path, name: str) -> list[Path]:
    """Write ``name``.md with its pictures and ``name``.html into ``folder``, made if need be; the two reports' paths.

    Raises: InputError when the folder or a file cannot be written.
    """
    page, text = html(result, pictures), markdown(result, pictures, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make this folder: {error.strerror or error}") from None
    for picture in pictures:
        write_bytes(folder / f"{name}-{picture.name}.png", picture.png)
    paths = [folder / f"{name}.md", folder / f"{name}.html"]
    write_text(paths[0], text)
    write_text(paths[1], page)
    return paths


def _context(result: ScenarioResult, pictures: Sequence[Picture]) -> dict[str, Any]:
    return {
        "title": result.scenario.title,
        "about": result.scenario.about,
        "sections": sections(result),
        "colours": COLOURS,
        "is_bar": lambda item: isinstance(item, Bar),
        "pictures": pictures,
        "tables": _tables(result),
        "terms": _terms(result),
        "means": MEANS if _times(result) else {},
        "figures": used_figures(result),
        "model_source": None if result.facts is None else result.facts.source,
        "confidence": confidence(result),
        "scenario": _scenario_yaml(result),
    }


def _tables(result: ScenarioResult) -> list[Table]:
    found = [] if result.size is None else sizing_tables(result.size.estimate)
    if result.compare is not None:
        beyond = "* more than the device has: the times assume it had it."
        found.append(Table("By context length", comparison_rows(result.compare), beyond))
    if result.train is not None and result.train.plans is not None:
        best = plan_rows(result.train.plans.head(TOP_PLANS), result.train.estimate)
        found.append(Table("Best training plans", best))
    return found


def _terms(result: ScenarioResult) -> dict[str, str]:
    """The words that the answers use: those of runs on hardware, those of laws."""
    if result.size is None:
        return TERMS
    used = TERMS if _times(result) else {name: TERMS[name] for name in ("exact", "MFU, HFU", "energy")}
    return sizing_terms(result.size.estimate) | used


def _times(result: ScenarioResult) -> bool:
    """Whether a bar or a table says what time is bound by."""
    return result.size is None or any(x is not None for x in (result.train, result.serve, result.compare))


def _scenario_yaml(result: ScenarioResult) -> str:
    import yaml

    plain = result.scenario.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    text: str = yaml.safe_dump({"schema": 1} | plain, sort_keys=False, allow_unicode=True, width=100)
    return text


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("tfsim.reports"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
