"""Print a device's progress, for whatever is there to read it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from edge_client.commands.console import is_muted, progress_console
from edge_client.events import Event, Tell

if TYPE_CHECKING:
    from rich.progress import Progress

_LOG_SECONDS = 10.0
"""The seconds between two lines of progress in a log."""
_MOVING = {"progress": ("step", "steps"), "download": ("bytes", "total")}
"""Events that come many times: which of their details tell how far it went."""


def _share(event: Event) -> tuple[int, int]:
    done, total = (event.details.get(name) for name in _MOVING.get(event.kind, ("", "")))
    return (done, total) if isinstance(done, int) and isinstance(total, int) else (0, 0)


class Reporter:
    """Shows events: as lines of JSON, as a moving bar on a terminal, or as lines of a log."""

    def __init__(self, *, as_json: bool) -> None:
        self._bar: Progress | None = None
        self._logged = 0.0
        self._show: Callable[[Event], None] = self._log
        if as_json:
            self._show = self._json
        elif is_muted():
            self._show = lambda _: None
        elif sys.stderr.isatty():
            self._show = self._terminal

    def __enter__(self) -> Tell:
        return self._show

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the terminal as it was; the next event takes it again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @staticmethod
    def _json(event: Event) -> None:
        line: dict[str, Any] = {"time": round(time.time(), 3), "event": event.kind, "message": event.message}
        sys.stdout.write(msgspec.json.encode({**event.details, **line}).decode() + "\n")
        sys.stdout.flush()

    def _log(self, event: Event) -> None:
        if event.kind in _MOVING:
            done, total = _share(event)
            if done < total and time.monotonic() - self._logged < _LOG_SECONDS:
                return
            self._logged = time.monotonic()
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event.message}\n")
        sys.stderr.flush()

    def _terminal(self, event: Event) -> None:
        bar = self._bar or self._started()
        done, total = _share(event)
        complete = event.kind == "download" and done == total
        if event.kind not in _MOVING or complete:
            bar.console.print(event.message, markup=False, highlight=False)
            bar.update(bar.task_ids[0], visible=False)
            return
        bar.update(bar.task_ids[0], description=event.message, completed=done, total=total, visible=done < total)

    def _started(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn

        # It draws when told to: a thread of its own would wake an idle device ten times a second.
        columns = BarColumn(), TextColumn("{task.description}", markup=False)
        self._bar = Progress(*columns, console=progress_console(), transient=True, auto_refresh=False)
        self._bar.add_task("", visible=False)
        self._bar.start()
        return self._bar
