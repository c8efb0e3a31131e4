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
_PNG_COLOURS = 128

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
    """The figure as the bytes of a file; a PNG has few colours, which makes it small."""
    out = BytesIO()
    metadata = {"Date": None} if form == "svg" else {}
    with matplotlib.rc_context(_SETTINGS):
        settle(figure)
        figure.savefig(out, format=form, dpi=dpi, metadata=metadata, facecolor="white")
    return _with_few_colours(out) if form == "png" else out.getvalue()


def settle(figure: Figure) -> None:
    """Lay the figure out once: to do so again for every file takes longer than to draw it."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def _with_few_colours(png: BytesIO) -> bytes:
    from PIL import Image  # which comes with matplotlib

    out = BytesIO()
    Image.open(png).convert("RGB").quantize(_PNG_COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()
