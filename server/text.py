"""Text that others wrote: which characters no name may have, and how it is shown where it came all the same."""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal, ends a line, turns the direction of writing, or is no character: half of a pair."""


def printable(text: str) -> str:
    """The text with each such character as its escape."""
    return CONTROLS.sub(lambda control: control[0].encode("unicode_escape").decode(), text)


def spaced(text: str) -> str:
    """The text with a space for each such character: no longer than it was."""
    return CONTROLS.sub(" ", text)
