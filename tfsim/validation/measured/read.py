"""Measured runs as a table: the columns that ``tfsim measure models`` writes, or a user's own file with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tfsim.errors import InputError, quote

CASE = ("model", "phase", "batch", "seq_len", "past_len", "encoder_len")
COUNTS = ("parameters", "flops", "saved_bytes", "cache_bytes")
"""Quantities that torch counts, and that must be equal."""
SIZES = ("batch", "seq_len", "past_len", "encoder_len")
PHASES = ("forward", "train", "decode")
MODES = ("eager", "compile")
NEEDED = (*CASE, "time_s")
NUMBERS = (*SIZES, *COUNTS, "peak_memory_bytes", "time_s", "spread")

SETS = ("development", "held_out")
_LARGEST = 2**40  # a size beyond it is a slip of the pen, and its products leave what a float counts exactly

_WORDS = {"mode": "eager", "error": "", "attention": "fused", "recompute": "none", "set": "development"}
_CHOICES = (("phase", PHASES), ("mode", MODES), ("attention", ("fused", "eager")), ("set", SETS))


def read_runs(path: str | Path) -> pd.DataFrame:
    """The rows of a file of measured runs; columns that it lacks are empty (a missing ``mode`` is eager, a missing
    ``set`` development, missing lengths are 0).

    Raises InputError for a missing or malformed file, one without rows, or a cell that is not what its column holds.
    """
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"--data: {path}: cannot read as CSV: {str(error).splitlines()[0]}") from None
    if missing := [name for name in (*NEEDED[:4], "time_s") if name not in frame]:
        raise InputError(f"--data: {path}: no column {missing[0]!r}; needed are {', '.join(NEEDED)}")
    if frame.empty:
        raise InputError(f"--data: {path}: no rows below the header")
    frame = frame.reindex(columns=[*frame.columns, *(n for n in dict.fromkeys((*CASE, *NUMBERS)) if n not in frame)])
    for column, usual in _WORDS.items():  # an empty column is read as one of numbers
        frame[column] = frame[column].astype(object).fillna(usual) if column in frame else usual
    frame[["past_len", "encoder_len"]] = frame[["past_len", "encoder_len"]].fillna(0)
    for column in NUMBERS:
        wrong = frame.index[frame[column].notna() & pd.to_numeric(frame[column], errors="coerce").isna()]
        if len(wrong):
            cell = quote(str(frame[column][wrong[0]]))
            raise InputError(f"{path}: line {wrong[0] + 2}: {column}: {cell} is not a number")
        frame[column] = pd.to_numeric(frame[column])
        wrong = frame.index[frame[column].notna() & ~((frame[column] >= 0) & (frame[column] < np.inf))]
        if len(wrong):
            raise InputError(
                f"{path}: line {wrong[0] + 2}: {column}: {frame[column][wrong[0]]:g} is not a finite number from 0 up"
            )
    wrong = frame.index[frame["model"].isna()]
    if len(wrong):
        raise InputError(f"{path}: line {wrong[0] + 2}: model: empty")
    for column, known in _CHOICES:
        wrong = frame.index[~frame[column].isin(known)]
        if len(wrong):
            cell = quote(str(frame[column][wrong[0]]))
            raise InputError(f"{path}: line {wrong[0] + 2}: {column}: {cell} is not one of {', '.join(known)}")
    for column in SIZES:
        least = 1 if column in ("batch", "seq_len") else 0
        wrong = frame.index[~((frame[column] >= least) & (frame[column] <= _LARGEST) & (frame[column] % 1 == 0))]
        if len(wrong):
            raise InputError(
                f"{path}: line {wrong[0] + 2}: {column}: {frame[column][wrong[0]]:g} is not a whole number from {least}"
                " to 2^40"
            )
    return frame.astype(dict.fromkeys(SIZES, int))
