"""A bundle by `spry export`, as a command of its own: made once, and again when it is asked for otherwise."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from edge_client.bundle.folder import Bundle
from edge_client.commands.progress import is_of_stage
from edge_client.errors import SpryError
from edge_client.store import files
from server.processes import Processes, last_line
from server.screen import Screen

_LOOK = 0.3


class Recipe:
    """The command that a bundle was exported by.

    Args:
        bundle: its folder.
        path: where the recipe is kept.
    """

    def __init__(self, bundle: Path, path: Path) -> None:
        self.bundle = bundle
        self._path = path

    def made(self, words: Sequence[str]) -> bool:
        """Tell whether the bundle is there, whole, and made by these words."""
        if not self._path.is_file() or self._path.read_text() != self._written(words):
            return False
        try:
            Bundle.open(self.bundle)
        except SpryError:  # cut short, or damaged: export again
            return False
        return True

    def _written(self, words: Sequence[str]) -> str:
        """Write words without the project's path: a project that was moved is the same."""
        return " ".join(words).replace(str(self.bundle.parent.absolute()), ".")

    def make(self, words: Sequence[str], log: Path, screen: Screen, doing: str) -> None:
        """Export, and print the stages as they begin."""
        log.unlink(missing_ok=True)
        with (
            screen.stage(doing, f"Exported and verified: {self.bundle}"),
            Processes() as processes,
        ):
            export = processes.start(log, "export", *words, "--overwrite", "--out", str(self.bundle))
            done = threading.Event()
            telling = threading.Thread(target=_tell, args=(log, screen, doing, done), daemon=True)
            telling.start()
            try:
                if export.process.wait():
                    export.check("spry export")
            finally:
                done.set()
                telling.join()
        files.write(self._path, self._written(words).encode())


def _tell(log: Path, screen: Screen, doing: str, done: threading.Event) -> None:
    """Show the export's progress, by the last line that it wrote."""
    told = ""
    while not done.wait(_LOOK):
        latest = last_line(log) if log.is_file() else ""
        screen.doing(f"{doing}: {escape(latest)}" if latest else doing)
        if latest != told and is_of_stage(latest) and not screen.console.is_terminal:
            screen.say(f"  {escape(latest)}")
        told = latest
