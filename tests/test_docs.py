"""What the pages say of the code, held against the code."""

from __future__ import annotations

import re
from pathlib import Path

from tfsim.hardware import list_devices, list_systems
from tfsim.models import list_models
from tfsim.models.huggingface import MODEL_TYPES

ROOT = Path(__file__).parent.parent
NOT_SHOWN = {"__init__.py", "__main__.py"}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_readme_counts_what_there_is() -> None:
    models, devices, systems = re.search(
        r"(\d+) models .*\n.*?(\d+) devices, (\d+) systems", page("README.md")
    ).groups()  # type: ignore[union-attr]
    assert (int(models), int(devices), int(systems)) == (len(list_models()), len(list_devices()), len(list_systems()))


def test_every_imported_type_is_listed() -> None:
    text = page("docs/models.md").split("## Hugging Face configurations")[1]
    words = set(re.findall(r"[\w-]+(?:\.\d\w*)?", text))
    inner = {f"{word}_text" for word in words}  # a multimodal type's text part is read alone too
    assert sorted(set(MODEL_TYPES) - words - inner) == []


def test_the_map_of_the_code_shows_the_files_that_there_are() -> None:
    """Rooms with one line per file: each file is named, and each name is a file."""
    text = page("docs/architecture.md").split("## Order")[0]
    named = set(re.findall(r"[a-z_0-9]+\.py", text))
    there = {path.name for path in (ROOT / "tfsim").rglob("*.py")} | {
        path.name for path in (ROOT / "tools").glob("*.py")
    }
    assert sorted(named - there) == []
    for room in ("tfsim/operators", "tfsim/models"):
        files = {path.name for path in (ROOT / room).glob("*.py")} - NOT_SHOWN
        assert sorted(files - named) == [], room
