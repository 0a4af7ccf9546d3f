"""Quantities as people write and read them, and texts of others as they may be shown."""

from __future__ import annotations

import re

from .errors import SpryError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal, end a line, change the direction of writing, or are half of a surrogate pair."""


def parse_bytes(text: str) -> int:
    """`200MB`, `1.5 GB`, `256MiB`, or a plain number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise SpryError(f"an amount of memory must look like 200MB or 1.5GB, got {text!r}")
    return round(float(match[1]) * unit)


def shown(text: str) -> str:
    """Return the text with a space for each character that would steer a terminal or a log: no longer than it was."""
    return CONTROLS.sub(" ", text)


def shown_lines(text: str) -> str:
    """Strip the same from a text of several lines, as a language model writes it."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def count(number: int) -> str:
    """Format a number in three digits: 1.23 M."""
    return _scaled(number, ("", " k", " M", " G", " T", " P"))


def size(number: float) -> str:
    """Bytes in three digits: 1.23 MB, a MB being a million bytes."""
    return _scaled(number, (" B", " kB", " MB", " GB", " TB", " PB"))


def _scaled(number: float, suffixes: tuple[str, ...]) -> str:
    value, power = float(number), 0
    while abs(value) >= 999.5 and power < len(suffixes) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g}{suffixes[power]}"
