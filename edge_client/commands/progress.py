"""Print the progress of long work while it runs: the stage, how far it is, and an estimate of the rest.

On a terminal that is a bar for each stage. Elsewhere a stage gives a line when it is done, and one every few seconds
until then, so that a log says as much as a screen.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from edge_client.commands.console import progress_console

EVERY = 10.0
"""Seconds between two lines where no terminal is."""


class Progress(Protocol):
    """Report the progress of long work, on a terminal or in a log."""

    def stage(self, name: str, steps: int = 0) -> AbstractContextManager[None]:
        """Run a stage of the work, which ends with the block; `steps` are counted by `advance`."""
        ...

    def advance(self, what: str) -> None:
        """Count one step of the stage as done."""
        ...


class Silent:
    """A progress for callers that want none."""

    def stage(self, name: str, steps: int = 0) -> AbstractContextManager[None]:  # noqa: ARG002
        """Tells nobody."""
        return nullcontext()

    def advance(self, what: str) -> None:
        pass


class Terminal:
    """Progress on standard error: a bar per stage where somebody watches, lines otherwise."""

    def __init__(self) -> None:
        self._console = progress_console()
        self._bars = Bars(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("[dim]{task.fields[detail]}"),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._ended = threading.Event()

    @contextmanager
    def stage(self, name: str, steps: int = 0) -> Generator[None, None, None]:
        self._task = self._bars.add_task(name, total=max(steps, 1), detail="")
        yield
        self._bars.update(self._task, completed=max(steps, 1), detail="")
        ended, self._task = self._task, None
        if not self._console.is_terminal:
            self._console.print(f"{name}: done in {self._bars.tasks[ended].elapsed or 0:.1f} s")

    def advance(self, what: str) -> None:
        assert self._task is not None
        self._bars.update(self._task, advance=1, detail=what)

    @contextmanager
    def shown(self) -> Generator[Terminal, None, None]:
        """While it lasts, progress is shown."""
        if self._console.is_terminal:
            with self._bars:
                yield self
            return
        telling = threading.Thread(target=self._tell, daemon=True)
        telling.start()
        try:
            yield self
        finally:
            self._ended.set()
            telling.join()

    def _tell(self) -> None:
        while not self._ended.wait(EVERY):
            number = self._task
            if number is not None:
                self._console.print(line(self._bars.tasks[number]), markup=False)


def is_of_stage(text: str) -> bool:
    """Tell whether a line of a log is a stage's."""
    return ": done in " in text or " s so far" in text


def line(task: Task) -> str:
    """Describe how far a stage is, in words."""
    done = f", {task.completed:.0f} of {task.total:.0f}" if (task.total or 0) > 1 else ""
    detail = f" ({task.fields['detail']})" if task.fields.get("detail") else ""
    left = seconds_left(task)
    remaining = "" if left is None else f", about {left:.0f} s left"
    return f"{task.description}{done}{detail}: {task.elapsed or 0:.0f} s so far{remaining}"


def seconds_left(task: Task) -> float | None:
    """About how long a stage still takes, by the steps that are done; None before the first."""
    if not task.completed or not task.total or task.finished:
        return None
    return (task.elapsed or 0.0) / task.completed * (task.total - task.completed)


class _Left(ProgressColumn):
    """About how long a stage still takes."""

    def render(self, task: Task) -> Text:
        left = seconds_left(task)
        return Text("" if left is None else f"about {left:.0f} s left", style="progress.remaining")
