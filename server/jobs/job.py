"""Define jobs: a bundle to train, its settings and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from server.jobs.settings import JobSettings

JobState = Literal["running", "paused", "set-aside", "ended"]
RUNNING, PAUSED, SET_ASIDE, ENDED = "running", "paused", "set-aside", "ended"


@dataclass(frozen=True)
class Job:
    """A job with its present state."""

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
