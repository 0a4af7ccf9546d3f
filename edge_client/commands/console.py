"""Print commands' progress on standard error, which leaves standard output to results."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_muted = Event()


def mute() -> None:
    """Show no progress from now on: results and errors alone."""
    _muted.set()


def is_muted() -> bool:
    """Tell whether progress is hidden."""
    return _muted.is_set()


def progress_console() -> Console:
    """Open the console that progress is shown on."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, quiet=is_muted())
