"""A run's folder: what was asked for, a line for each round, and where it stands, so that it can go on.

config.json     everything that decides the numbers
rounds.jsonl    a line for each round; rounds.csv holds the same at the end
checkpoint/     the newest state, replaced as a whole after each round
summary.json, curves.svg, adapter/    when it is done
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from server.errors import SimulationError
from server.models import Model
from server.simulation.fleet import State

_WEIGHTS, _OPTIMIZER, _CHANGE = "weights/", "optimizer/", "change/"


class Folder:
    """Where a simulation writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.rounds = path / "rounds.jsonl"
        self.summary = path / "summary.json"
        self.adapter = path / "adapter"
        self._checkpoint = path / "checkpoint" / "state.safetensors"

    @contextmanager
    def taken(self) -> Generator[None, None, None]:
        """Nobody else writes here meanwhile."""
        if self.path.exists() and not self.path.is_dir():
            raise SimulationError(f"{self.path} is not a folder; choose another --out")
        if self.path.is_dir() and any(self.path.iterdir()) and not self.config.exists():
            raise SimulationError(f"{self.path} holds something else than a simulation; choose another --out")
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with (self._checkpoint.parent / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SimulationError(f"a simulation is running in {self.path}; choose another --out") from None
            yield

    def begin(self, config: Mapping[str, Any]) -> None:
        """Note what is simulated; refused where the folder is of another simulation. More rounds are the same one."""
        wanted = json.loads(json.dumps(config))
        if self.config.exists():
            known = json.loads(self.config.read_text())
            same, asked = _but_rounds(known), _but_rounds(wanted)
            if differing := sorted(key for key in same.keys() | asked.keys() if same.get(key) != asked.get(key)):
                raise SimulationError(
                    f"{self.path} holds a simulation that differs in {', '.join(differing)}; choose another --out, or "
                    "remove the folder"
                )
        _write(self.config, json.dumps(wanted, indent=1) + "\n")

    def load(self) -> State | None:
        """Where the simulation stands, to go on from there; None before its first round has ended."""
        state = self.state()
        if state is None:
            self.rounds.unlink(missing_ok=True)
        else:
            self._cut_off(state.round)
        return state

    def state(self) -> State | None:
        """The same, for those who only look."""
        if not self._checkpoint.exists():
            return None
        try:
            with safe_open(self._checkpoint, "numpy") as file:
                noted = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dictionary
        except (SafetensorError, OSError) as error:
            raise SimulationError(f"{self._checkpoint} cannot be read ({error}); remove {self.path}") from None
        weights, optimizer, change = (
            {name.removeprefix(kind): value for name, value in tensors.items() if name.startswith(kind)}
            for kind in (_WEIGHTS, _OPTIMIZER, _CHANGE)
        )
        return State(Model(int(noted["version"]), weights, optimizer), int(noted["round"]), change or None)

    def save(self, state: State, line: Mapping[str, Any]) -> None:
        """A round is over: its line first, then the state that says so."""
        with self.rounds.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        tensors = {
            kind + name: value
            for kind, values in (
                (_WEIGHTS, state.model.weights),
                (_OPTIMIZER, state.model.optimizer),
                (_CHANGE, state.last_change or {}),
            )
            for name, value in values.items()
        }
        noted = {"round": str(state.round), "version": str(state.model.version)}
        _write(self._checkpoint, save(tensors, noted))

    def lines(self) -> list[dict[str, Any]]:
        """Of all rounds so far."""
        return [json.loads(line) for line in self.rounds.read_text().splitlines()]

    def finish(self, summary: Mapping[str, Any]) -> None:
        lines = self.lines()
        names = list(dict.fromkeys(name for line in lines for name in line))
        with (self.path / "rounds.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(lines)
        _write(self.summary, json.dumps(summary, indent=1) + "\n")

    def _cut_off(self, last: int) -> None:
        """Lines of rounds that ended after the last state was kept."""
        whole = [line for line in self.rounds.read_text().splitlines(keepends=True) if line.endswith("\n")]
        kept = [line for line in whole if json.loads(line)["round"] <= last]
        _write(self.rounds, "".join(kept))


def _but_rounds(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for key, value in config["settings"].items() if key != "rounds"}
    return {**config, "settings": settings, "rounds": None}


def _write(path: Path, content: str | bytes) -> None:
    """Whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
