"""tfsim measure: torch runs on this machine."""

from tfsim.cli.ladder import ladder
from tfsim.cli.shell import new_app

app = new_app("Runs on this machine (needs PyTorch): a ladder of tiny models for a scaling law.")


@app.callback()
def root() -> None:
    """Runs on this machine (needs PyTorch): a ladder of tiny models for a scaling law."""


app.command("ladder")(ladder)
