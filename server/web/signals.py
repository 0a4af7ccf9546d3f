"""Handle the signals that end the server.

uvicorn waits for all answers before it stops the application. An endless answer, such as a stream
of events, must end before.
"""

from __future__ import annotations

import signal
import threading
from functools import partial
from types import FrameType
from typing import Any


def hear_signals(stopping: threading.Event) -> None:
    """Set `stopping` when a signal comes, and leave the rest to who handled it before."""
    if threading.current_thread() is not threading.main_thread():  # no signals come here
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.getsignal(number)
        if callable(before):
            signal.signal(number, partial(_pass_on, stopping, before))


def _pass_on(stopping: threading.Event, before: Any, number: int, frame: FrameType | None) -> None:
    stopping.set()
    before(number, frame)
