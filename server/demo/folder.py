"""Keep the demo's files: the bundle for the next run, all else until then."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_client.errors import SpryError
from server.demo.intents import Phrase
from server.processes import held
from server.project.export import Recipe

_MARK = ".spry-demo"


class DemoFolder:
    """The parts of a demo's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bundle = path / "bundle"
        self.server = path / "server"
        self.devices = path / "devices"
        self.adapter = path / "adapter"
        self.logs = path / "logs"
        self.recipe = Recipe(self.bundle, path / "bundle.recipe")

    @contextmanager
    def taken(self) -> Generator[None]:
        """Take the folder for one demo at a time, and clear a demo's own folder of what the last one left."""
        if self.path.exists() and not self.path.is_dir():
            raise SpryError(f"{self.path} is a file; choose a folder for the demo with --out")
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / _MARK).is_file():
            raise SpryError(f"{self.path} holds something else; choose an empty or new folder with --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpryError(f"{self.path} cannot be made: {error.strerror}; choose another folder with --out") from None
        with held(self.path / _MARK, SpryError(f"another demo runs in {self.path}; end it, or choose another --out")):
            for part in (self.server, self.devices, self.adapter, self.logs):
                shutil.rmtree(part, ignore_errors=True)
            yield

    def write_rows(self, name: str, rows: Sequence[Phrase]) -> Path:
        path = self.devices / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
