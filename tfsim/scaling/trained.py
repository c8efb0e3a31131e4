"""What was really trained: published dense models, to set beside what a law advises."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfsim.files import read_yaml


@dataclass(frozen=True)
class Trained:
    """A published dense decoder: all its parameters, the tokens it was trained on, and the paper that says so."""

    name: str
    parameters: float
    tokens: float
    year: int
    source: str

    @property
    def compute(self) -> float:
        """Training FLOPs at 6 N D."""
        return 6 * self.parameters * self.tokens


@cache
def trained_models() -> tuple[Trained, ...]:
    """The models of trained.yaml."""
    tree = read_yaml(Path(__file__).with_name("trained.yaml"))
    return tuple(
        Trained(name, float(entry["parameters"]), float(entry["tokens"]), entry["year"], entry["source"])
        for name, entry in tree.items()
    )
