"""Text that others wrote: which characters no name may have, and how it is shown where it came all the same."""

from __future__ import annotations

from edge_client.format import CONTROLS, shown


def printable(text: str) -> str:
    """Return the text with each such character as its escape."""
    return CONTROLS.sub(lambda control: control[0].encode("unicode_escape").decode(), text)


def spaced(text: str) -> str:
    """Return the text with a space for each such character: no longer than it was."""
    return shown(text)
