"""The signals that end a command."""

from __future__ import annotations

import signal
from typing import NoReturn


def end_as_interrupted() -> None:
    """Make SIGTERM, by which systems stop services, end this process as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
