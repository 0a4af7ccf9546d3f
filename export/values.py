"""Values of options that cannot work, each refused in a line that says what was expected and what came."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from export.errors import ExportError


def known(what: str, names: Sequence[str], offered: Collection[str]) -> None:
    """Names that are offered, each once."""
    if not names:
        raise ExportError(f"no {what} given; expected some of {', '.join(offered)}")
    for name in names:
        if name not in offered:
            raise ExportError(f"unknown {what} {name!r}; expected one of {', '.join(offered)}")
    if len(set(names)) != len(names):
        raise ExportError(f"each {what} may be named once, got {listed(names)}")


def positive(what: str, numbers: Sequence[int]) -> None:
    if min(numbers, default=0) < 1:
        raise ExportError(f"{what} must be at least 1, got {listed(numbers)}")


def listed(values: Sequence[object]) -> str:
    return ",".join(str(value) for value in values) or "nothing"
