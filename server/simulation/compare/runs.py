"""The folders that `spry simulate` writes, one for each run, read into records.

A run may be going on, or may have been killed: then it has no summary, and the last line of its rounds may be cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from edge_client.errors import SpryError
from server.simulation.compare.scores import SCORES

CONFIG, ROUNDS, SUMMARY = "config.json", "rounds.jsonl", "summary.json"


class RunError(SpryError):
    """A folder that cannot be read as a run, or runs that cannot be compared."""


class AdapterConfig(msgspec.Struct, frozen=True):
    method: str
    rank: int | None = None
    alpha: float | None = None
    targets: list[str] | str | None = None
    last_blocks: int | None = 0
    examples: str = ""


class DataConfig(msgspec.Struct, frozen=True):
    name: str
    classes: int | None = None
    examples: int | None = None
    test: int | None = None


class Numbers(msgspec.Struct, frozen=True):
    """The numbers of weights that are trained."""

    units: int | None = None
    unit_weights: int = 0
    head_weights: int = 0


class Config(msgspec.Struct, frozen=True):
    """The configuration that a run was started with."""

    method: str
    model: str
    data: DataConfig
    seed: int
    preset: str | None = None
    adapter: AdapterConfig | None = None
    clients: int | None = None
    per_round: int | None = None
    rounds: int | None = None
    alpha: float | None = None
    """The parameter of the Dirichlet split; None for a natural one."""
    arithmetic: str | None = None
    differences: str | None = None
    variance_bound: float | None = None
    able: float = 1.0
    others: str = "block"
    speeds: float = 1.0
    settings: dict[str, Any] = {}
    """The job's."""
    numbers: Numbers = Numbers()


class RoundLine(msgspec.Struct, frozen=True):
    """A line of a run; bytes and numbers are sums over the round's clients, scores go from 0 to 1."""

    round: int
    seconds: float
    loss: float | None = None
    clients: int | None = None
    examples: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    numbers_up: int | None = None
    numbers_down: int | None = None
    passes: float | None = None
    """Forward passes that a client's step costs."""
    device_passes: float | None = None
    """The forward passes of all steps, and of evaluations beside them."""
    step_seconds: float | None = None
    clock: float | None = None
    """Simulated time until its end."""
    staleness: float | None = None
    scores: dict[str, float | None] = {}
    """The scores that the round was evaluated for."""


_COLUMNS = [name for name in RoundLine.__struct_fields__ if name != "scores"] + list(SCORES)


class Summary(msgspec.Struct, frozen=True):
    """The figures of a run that has ended which its rounds do not have."""

    peak_bytes: int | None = None


@dataclass(frozen=True)
class Run:
    folder: Path
    config: Config
    rounds: pd.DataFrame
    """The fields of each round's line, and its scores, by the number of the round."""
    summary: Summary | None
    """The summary; None until the run has ended."""

    @property
    def last_round(self) -> int:
        return int(self.rounds.index.max()) if len(self.rounds) else 0

    def points(self, field: str) -> pd.Series:
        """The finite values of a field, by round."""
        values = self.rounds[field]
        return values[np.isfinite(values)]

    def spent(self) -> pd.Series:
        """The forward passes of a device until each round's end, a mean over the fleet; not known everywhere."""
        return (self.rounds["device_passes"] / (self.config.clients or np.nan)).cumsum(skipna=False)


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """Find the runs among some folders and below them, each once."""
    folders: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise RunError(f"{path} is no folder; give one that `spry simulate` wrote, or one that holds such folders")
        here = [path] if (path / ROUNDS).is_file() else sorted(file.parent for file in path.rglob(ROUNDS))
        if not here:
            raise RunError(f"{path} holds no run; give a folder that `spry simulate` wrote, with its {ROUNDS}")
        folders |= dict.fromkeys(folder.resolve() for folder in here)
    return [read_run(folder) for folder in folders]


def read_run(folder: Path) -> Run:
    file = folder / CONFIG
    if not file.is_file():
        raise RunError(f"{folder} holds no {CONFIG}, so it is no run; give a folder that `spry simulate` wrote")
    try:
        config = msgspec.json.decode(file.read_bytes(), type=Config)
    except msgspec.DecodeError as error:
        raise RunError(f"{file} is not that of a run: {error}; leave this folder out, or run it again") from None
    return Run(folder, config, _rounds(folder / ROUNDS), _summary(folder / SUMMARY))


def _rounds(file: Path) -> pd.DataFrame:
    """Read rounds in their order; one that a resumed run repeated counts as it was last written."""
    rounds: dict[int, RoundLine] = {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if file.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            # Python's reader takes the NaN of a loss that has left the finite numbers.
            given = msgspec.convert(json.loads(line), dict[str, Any])
            scores = {name: given[name] for name in SCORES if name in given}
            row = msgspec.convert(given | {"scores": scores}, RoundLine)
        except ValueError as error:
            if not line.endswith("\n"):
                break  # it was being written
            raise RunError(f"{file}, line {number} is no round: {error}; leave this run out, or run it again") from None
        rounds[row.round] = row
    frame = pd.DataFrame([msgspec.structs.asdict(row) | row.scores for row in rounds.values()], columns=_COLUMNS)
    return frame.astype(float).set_index(frame["round"].astype(int)).drop(columns="round").sort_index()


def _summary(file: Path) -> Summary | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Summary)
    except FileNotFoundError:
        return None
    except msgspec.ValidationError as error:
        raise RunError(f"{file} is not that of a run: {error}; leave this folder out, or run it again") from None
    except msgspec.DecodeError:  # killed while it was being written
        return None
