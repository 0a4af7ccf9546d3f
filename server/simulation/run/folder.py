"""A run's folder: what was asked for, a line for each round, and its state, so that it can go on.

config.json     everything that decides the numbers
rounds.jsonl    a line for each round; rounds.csv holds the same at the end
checkpoint/     the newest state, replaced as a whole after each round
summary.json, curves.svg, adapter/    when it is done
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from edge_client.arrays import Weights
from edge_client.bundle.names import under, within
from edge_client.store import files
from server.errors import SimulationError
from server.processes import held
from server.simulation.run.state import RunState, Underway
from server.strategy.state import ServerState

_WEIGHTS, _OPTIMIZER, _CHANGE, _BASE = "weights/", "optimizer/", "change/", "base/"
_NOTED = "noted"
_ADAPTER = "adapter_model.safetensors"


class RunFolder:
    """The folder that a simulation writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.rounds = path / "rounds.jsonl"
        self.summary = path / "summary.json"
        self.adapter = path / "adapter"
        self._checkpoint = path / "checkpoint" / "state.safetensors"

    @contextmanager
    def taken(self) -> Generator[None, None, None]:
        """Lock the folder against others. A folder that was made for a command that is then refused is removed."""
        made = not self.path.exists()
        if self.path.exists() and not self.path.is_dir():
            raise SimulationError(f"{self.path} is not a folder; choose another --out")
        if self.path.is_dir() and not self.config.exists() and any(map(_is_foreign, self.path.iterdir())):
            raise SimulationError(f"{self.path} holds something else than a simulation; choose another --out")
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        running = SimulationError(f"a simulation is running in {self.path}; choose another --out")
        with held(self._checkpoint.parent / "lock", running):
            try:
                yield
            finally:
                if made and not self.config.exists():
                    rmtree(self.path, ignore_errors=True)

    def begin(self, config: Mapping[str, Any]) -> RunState | None:
        """Note what is simulated; gives where it stands, None before its first round has ended.

        More rounds than before are the same simulation; anything else that differs is refused, unless no round has
        ended, so that there is nothing to lose.
        """
        wanted = json.loads(json.dumps(config))
        if self.config.exists() and self._checkpoint.exists():
            self._compare(wanted)
        state = self._load()
        if state is not None and state.round > wanted["rounds"]:
            raise SimulationError(
                f"{self.path} holds {state.round} rounds, more than --rounds {wanted['rounds']}; ask for as many or "
                "more, or choose another --out"
            )
        _write(self.config, json.dumps(wanted, indent=1) + "\n")
        return state

    def _compare(self, wanted: Mapping[str, Any]) -> None:
        try:
            known = _but_rounds(json.loads(self.config.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            raise SimulationError(f"{self.config} cannot be read ({error}); remove {self.path}") from None
        asked = _but_rounds(wanted)
        if differing := sorted(key for key in known.keys() | asked.keys() if known.get(key) != asked.get(key)):
            raise SimulationError(
                f"{self.path} holds a simulation that differs in {', '.join(_details(differing, known, asked))}; "
                "choose another --out, or remove the folder"
            )

    def _load(self) -> RunState | None:
        state = self.state()
        if state is None:
            self.rounds.unlink(missing_ok=True)
        else:
            self._cut_off(state.round)
        return state

    def state(self) -> RunState | None:
        """Read the run's state, for those who only look."""
        if not self._checkpoint.exists():
            return None
        try:
            with safe_open(self._checkpoint, "numpy") as file:
                noted = json.loads(file.metadata()[_NOTED])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dictionary
        except (SafetensorError, OSError) as error:
            raise SimulationError(f"{self._checkpoint} cannot be read ({error}); remove {self.path}") from None
        weights, arrays, change = (within(tensors, part) for part in (_WEIGHTS, _OPTIMIZER, _CHANGE))
        return RunState(
            ServerState.read(noted["version"], weights, arrays),
            noted["round"],
            change or None,
            clock=noted.get("clock", 0.0),
            underway=tuple(Underway(*one) for one in noted.get("underway", [])),
            bases={version: within(tensors, f"{_BASE}{version}/") for version in noted.get("bases", [])},
            given={int(slot): count for slot, count in noted.get("given", {}).items()},
            drawn=noted.get("drawn", 0),
        )

    def save(self, state: RunState, line: Mapping[str, Any]) -> None:
        """Save a finished round: its line first, then the state that has it."""
        with _named(self.rounds), self.rounds.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        tensors = under(_WEIGHTS, state.model.weights) | under(_OPTIMIZER, state.model.arrays())
        tensors |= under(_CHANGE, state.last_change or {})
        for version, weights in state.bases.items():
            tensors |= under(f"{_BASE}{version}/", weights)
        noted = {
            "round": state.round, "version": state.model.version, "clock": state.clock, "underway": state.underway,
            "bases": list(state.bases), "given": state.given, "drawn": state.drawn,
        }  # fmt: skip
        _write(self._checkpoint, save(tensors, {_NOTED: json.dumps(noted)}))  # several keys would get a random order

    def lines(self) -> list[dict[str, Any]]:
        """Read what is known of each round so far."""
        return [json.loads(line) for line in self.rounds.read_text().splitlines()]

    def finished(self) -> dict[str, Any] | None:
        """Read the summary, once everything else has been written too."""
        return json.loads(self.summary.read_text()) if self.summary.exists() else None

    def reopen(self) -> None:
        """Remove the summary, as more rounds follow."""
        self.summary.unlink(missing_ok=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The last thing that is written."""
        table = pd.DataFrame(self.lines()).convert_dtypes()
        _write(self.path / "rounds.csv", table.to_csv(index=False))
        _write(self.summary, json.dumps(summary, indent=1) + "\n")

    def _cut_off(self, last: int) -> None:
        """Lines of rounds that ended after the last state was kept."""
        text = self.rounds.read_text() if self.rounds.exists() else ""
        kept = [line for line in text.splitlines(keepends=True) if line.endswith("\n")][:last]
        if len(kept) < last:
            raise SimulationError(f"{self.rounds} lacks rounds that are in the checkpoint; remove {self.path}")
        if (whole := "".join(kept)) != text:
            _write(self.rounds, whole)


def weights_in(folder: Path, initial: Weights) -> Weights:
    """Read the weights of the parameters in `initial`, which they must fit."""
    weights = _trained(folder)
    differing = sorted(n for n, value in initial.items() if n not in weights or weights[n].shape != value.shape)
    if differing:
        raise SimulationError(
            f"{folder} has other weights than this adapter and these labels need, first {differing[0]}; give the "
            "model, the data and the adapter that they were trained with"
        )
    return {name: weights[name].astype(value.dtype) for name, value in initial.items()}


def _trained(folder: Path) -> Weights:
    state = RunFolder(folder).state()
    if state is not None:
        return state.model.weights
    if not (path := folder / _ADAPTER).is_file():
        raise SimulationError(
            f"{folder} holds neither a checkpoint of `spry simulate` nor {_ADAPTER}; give the folder of a run, or "
            "of an adapter"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise SimulationError(f"{path} cannot be read ({error}); download it again") from None


def _but_rounds(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for key, value in config["settings"].items() if key != "rounds"}
    return {**config, "settings": settings, "rounds": None}


def _details(keys: Sequence[str], known: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """List the parts of a part that differ."""
    differing: list[str] = []
    for key in keys:
        before, now = known.get(key), asked.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            inner = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            differing += [f"{key}.{name}" for name in _details(inner, before, now)]
        else:
            differing.append(key)
    return differing


def _is_foreign(path: Path) -> bool:
    """Whether a simulation leaves no such file before its `config.json`."""
    return path.name != "checkpoint" and not path.name.startswith(files.TEMPORARY)


def _write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    with _named(path):
        files.write(path, content.encode() if isinstance(content, str) else content)


@contextmanager
def _named(path: Path) -> Generator[None, None, None]:
    """Name the path in the error of a full disk, which has none of its own."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from None
