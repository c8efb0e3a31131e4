"""How a table of operator measurements is read: which formula a row asks for, and with which constants.

A predictor sees a row without its measured time, source and model name (``visible``): sizes, hardware, number format,
kernel generation and the way it was timed are all that it may use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from tfsim.hardware import Device
from tfsim.timing.machine import Machine
from tfsim.units import Array

C = TypeVar("C")

HIDDEN = ("time_s", "source", "name", "model", "node")  # what no predictor sees
# Columns that hold words; the others of a table hold numbers.
WORDS = (
    "source", "device", "timing", "name", "model", "node", "dtype", "kv_dtype", "phase", "part", "kernel",
    "distribution", "op", "library", "kind", "layer",
)  # fmt: skip
# Whose published rows are in the tables: of these a fit uses only those that a part names, the others stay a test.
MEASURERS = (
    "aiconfigurator", "deepgemm", "infersim", "llmcompass", "llmservingsim", "simumax", "vidur", "vtrain",
)  # fmt: skip


@dataclass(frozen=True)
class Part(Generic[C]):
    """Rows of a table that one formula predicts.

    ``kind`` and ``constants``: the class of constants in the calibration files. ``variant``: of each row, its variant
    of them ("" where the row is not of this part). ``seconds``: predicted times of rows of one variant.
    ``roofline``: the baseline, the longer of FLOPs over the peak and bytes over the bandwidth. ``borrow``: for a
    variant nobody fits, the one whose constants it takes. ``fits_on``: published sources whose rows a fit may use (a
    part that has none is never fitted), of which it uses ``fit_rows``; rows of nobody in ``MEASURERS`` are a user's own
    and fitted too. ``published``: constants that are published figures, by device, where they are not fitted.
    """

    kind: str
    constants: type[C]
    variant: Callable[[pd.DataFrame], pd.Series[str]]
    seconds: Callable[[pd.DataFrame, Machine, C, str], Array]
    roofline: Callable[[pd.DataFrame, Machine, str], Array]
    fits_on: tuple[str, ...] = ("aiconfigurator",)
    borrow: Callable[[str], str] = lambda variant: variant
    fit_rows: Callable[[pd.DataFrame], pd.Series[bool]] = lambda frame: frame["time_s"] > 0
    published: Callable[[Device], C] | None = None


@dataclass(frozen=True)
class Table:
    """One file of measurements. ``columns``: those that a file of this class has (one without ``source`` is a user's
    own); ``faults``: per row the named fault
    of the measurement that excludes it ("" for a good row); it may look at the measured time, the parts may not.
    ``group``: the columns that errors are grouped by. ``prepare``: adds what a name in the file stands for
    (the dimensions of a model), before names are hidden."""

    name: str
    columns: frozenset[str]
    parts: tuple[Part[Any], ...]
    faults: Callable[[pd.DataFrame, Device], pd.Series[str]]
    group: tuple[str, ...] = ("device", "dtype")
    prepare: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame


def visible(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows as a predictor sees them."""
    return frame.drop(columns=[c for c in HIDDEN if c in frame.columns])


def no_faults(frame: pd.DataFrame, device: Device) -> pd.Series[str]:
    """No row is excluded."""
    return pd.Series("", index=frame.index)


def where(frame: pd.DataFrame, *cases: tuple[pd.Series[bool] | Any, str]) -> pd.Series[str]:
    """Per row the text of the first case that holds, else ""."""
    text = np.select([np.asarray(condition, bool) for condition, _ in cases], [t for _, t in cases], "")
    return pd.Series(text, index=frame.index)
