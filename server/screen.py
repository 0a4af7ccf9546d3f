"""Show a command's progress while a fleet of this machine works: on standard error, as `--json` has the other."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.status import Status

from edge_client.commands.console import progress_console

_WIDTH = 20


class Screen:
    """A line for each thing done, and on a terminal a moving one for the thing at hand."""

    def __init__(self) -> None:
        self.console = progress_console()
        self._status: Status | None = None

    @contextmanager
    def tells_an_interruption(self) -> Generator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.say("Stopped, with its server and devices; the same command starts again.")
            raise

    @contextmanager
    def stage(self, doing: str, done: str) -> Generator[None]:
        started = time.monotonic()
        if not self.console.is_terminal:
            self.console.print(f"  {doing} ...")
        with self.console.status(doing) as self._status:
            yield
        self._status = None
        self.console.print(f"[green]✓[/green] {done} [dim]({time.monotonic() - started:.0f} s)[/dim]")

    def say(self, text: str) -> None:
        self.console.print(text)

    def doing(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def round_open(self, progress: dict[str, Any] | None, rounds: int) -> None:
        if progress is None or progress["state"] != "open":
            return
        reported = f"{progress['reported']} of {progress['wanted']} devices reported"
        step = f", iteration {progress['iteration'] + 1}" if progress["iteration"] else ""
        self.doing(f"round {progress['number']} of {rounds}{step}: {reported}")

    def round_done(self, row: dict[str, Any], rounds: int) -> None:
        result = row["result"]
        measured = {"on devices": result.get("accuracy_global"), "personal": result.get("accuracy_personal")}
        own = ", ".join(f"{name} {value:.2f}" for name, value in measured.items() if value is not None)
        told = f"loss {result['loss']:.2f}" + (f"   {own}" if own else "")
        if (perplexity := result.get("perplexity")) is not None:
            scores = f"perplexity {perplexity:.2f}"
        else:
            scores = f"{_bar(result['accuracy'])} accuracy {result['accuracy']:.2f}"
        self.console.print(
            f"  round {row['number']:>2} of {rounds}  {scores}   {told}   [dim]{result['seconds']:.1f} s[/dim]"
        )


def _bar(share: float) -> str:
    full = round(share * _WIDTH)
    return f"[cyan]{'━' * full}[/cyan][dim]{'─' * (_WIDTH - full)}[/dim]"
