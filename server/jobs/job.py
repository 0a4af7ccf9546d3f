"""Jobs: a bundle to train, how, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from server.jobs.settings import JobSettings

JobState = Literal["running", "paused", "set-aside", "ended"]
RUNNING, PAUSED, SET_ASIDE, ENDED = "running", "paused", "set-aside", "ended"


@dataclass(frozen=True)
class Job:
    """A job as it stands."""

    id: str
    name: str
    bundle: str
    settings: JobSettings
    state: JobState
    reason: str
    version: int
    round: int
    done: int
    created: float
    ended: float | None
