"""Layer patterns: ``dense*3 (local*5 global)*2``."""

from __future__ import annotations

import re

from tfsim.models.spec.base import MAX_LAYERS

# How far compress_layers looks: published models start with a few layers of their own, then repeat few.
LONGEST_PREFIX = 8
LONGEST_PERIOD = 64

_TOKEN = re.compile(r"\s*(?:(\()|(\))(?:\*(\d{1,6}))?|([A-Za-z_][\w.-]*)(?:\*(\d{1,6}))?)")


def expand_layers(pattern: str) -> tuple[str, ...]:
    """The block names of a pattern such as ``dense*3 (local*5 global)*2``.

    Raises ValueError when the pattern is malformed or has more than ``MAX_LAYERS`` layers.
    """
    stack: list[list[str]] = [[]]
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise ValueError(f"layers: cannot read {pattern[position : position + 20]!r}; write e.g. 'dense*3 moe*58'")
        opening, closing, group_repeat, name, repeat = match.groups()
        if opening:
            stack.append([])
        else:
            if closing and len(stack) == 1:
                raise ValueError("layers: a ')' without '('")
            part = stack.pop() if closing else [name]
            times = int((group_repeat if closing else repeat) or 1)
            if len(part) * times + sum(map(len, stack)) > MAX_LAYERS:
                raise ValueError(f"layers: more than {MAX_LAYERS} layers")
            if times == 0:
                raise ValueError("layers: a repeat of 0")
            stack[-1].extend(part * times)
        position = match.end()
    if len(stack) != 1:
        raise ValueError("layers: a '(' without ')'")
    if not stack[0]:
        raise ValueError("layers: no layer at all")
    return tuple(stack[0])


def compress_layers(names: list[str]) -> str:
    """A short pattern for a list of block names: run lengths, or a period that repeats after a prefix."""

    def runs(part: list[str]) -> str:
        words: list[str] = []
        start = 0
        for end in range(1, len(part) + 1):
            if end == len(part) or part[end] != part[start]:
                words.append(part[start] if end - start == 1 else f"{part[start]}*{end - start}")
                start = end
        return " ".join(words)

    found = [runs(names)]
    for start in range(min(len(names) // 2, LONGEST_PREFIX) + 1):
        for period in range(2, min((len(names) - start) // 2, LONGEST_PERIOD) + 1):
            cycle, whole = names[start : start + period], 1
            while names[start + whole * period : start + (whole + 1) * period] == cycle:
                whole += 1
            if whole > 1:
                parts = (runs(names[:start]), f"({runs(cycle)})*{whole}", runs(names[start + whole * period :]))
                found.append(" ".join(part for part in parts if part))
    return min(found, key=len)
