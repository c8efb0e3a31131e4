"""What every chart shares: size, fonts and colours."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Literal

import matplotlib

# its notes about building a font cache are nothing for a user's terminal
logging.getLogger("matplotlib").setLevel(logging.ERROR)
matplotlib.use("Agg")

from matplotlib.figure import Figure  # noqa: E402  (after the backend is chosen)

INK = "#333333"
FREE = "#EEEEEE"

_SETTINGS: Any = {  # matplotlib types the keys one by one
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "tfsim",  # the same figure gives the same file
}


@contextmanager
def house_style() -> Iterator[None]:
    """matplotlib's settings for the charts made inside."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def image(figure: Figure, form: Literal["png", "svg"], dpi: int = 150) -> bytes:
    """The figure as the bytes of a file."""
    out = BytesIO()
    metadata = {"Date": None} if form == "svg" else {}
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(out, format=form, dpi=dpi, metadata=metadata, facecolor="white")
    return out.getvalue()
