"""Take updates in buffered rounds as they arrive, of tasks of earlier rounds too.

After Nguyen et al., Federated learning with buffered asynchronous aggregation (2022). So many updates complete a round
and move the weights. Tasks that devices are still at work on go over to the next round, with the version of the weights
that they began with: an open task always belongs to the open round, and an accepted update to the round that averages
it, so that all else is as in a round that waits for its own clients. An update is the difference from the weights that
its device began with; the older these are, the less of it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from server.errors import Refusal
from server.jobs.job import Job
from server.policy.assignment import RoundSlot
from server.storage.schema.rows import Assignment, Round
from server.storage.store import Store
from server.storage.work import assignments, inflight, rounds

BUSY = 503
"""The status on which a device sends again: its finished update waits while a round is being closed."""
_AGAIN = 1.0
"""The seconds after which it sends again."""
_LOOKED_AT = 8
"""The number of rounds over which given slots are counted."""

# --- an update that comes late ---------------------------------------------------------------------------------------


def mean(staleness: Sequence[int]) -> dict[str, float]:
    """Return the mean staleness as a metric; nothing where rounds wait for their clients."""
    return {"staleness": sum(staleness) / len(staleness)} if staleness else {}


def counts(staleness: Sequence[int]) -> dict[str, dict[str, int]]:
    """Count updates by staleness, as a round's result has them: keys of JSON are texts."""
    counted = sorted(Counter(staleness).items())
    return {"stale": {str(versions): count for versions, count in counted}} if counted else {}


def in_words(stale: Mapping[str, int]) -> str:
    """Describe the staleness of a round's updates; nothing where rounds wait for their clients."""
    told = [f"{count} with weights {_versions(int(old))} old" for old, count in stale.items() if int(old)]
    newest = [f"{stale['0']} with the newest weights"] if "0" in stale else []
    count = sum(stale.values())
    return f"of {count} update{'' if count == 1 else 's'} {', '.join([*newest, *told])}" if count else ""


def _versions(count: int) -> str:
    return f"{count} version{'' if count == 1 else 's'}"


# --- one assignment --------------------------------------------------------------------------------------------------


def terms(job: Job, version: int, now: float) -> dict[str, Any]:
    """Return the fields of an assignment that may outlive its round."""
    return {"base": version, "until": now + job.settings.deadline} if job.settings.is_buffered else {}


def begun_with(assignment: Assignment, round_: Round) -> int:
    """Return the version that an assignment's device starts from."""
    return round_.version if assignment.base is None else assignment.base


def as_begun(store: Store, job: Job, device: str) -> Job:
    """Return the job at the version that a device's open task starts from: the weights may have moved since."""
    if not job.settings.is_buffered:
        return job
    with store.database.read() as connection:
        assignment = assignments.find_open(connection, device)
    if assignment is None or assignment.job != job.id or assignment.base is None:
        return job
    return replace(job, version=assignment.base)


def carry_over(connection: Connection, job: Job, number: int, now: float) -> None:
    """Move open assignments to a round that opens; end those whose weights have become too old."""
    if not job.settings.is_buffered:
        return
    most = job.settings.max_staleness
    why = f"the weights it began with are more than {most} versions old (max_staleness)"
    inflight.end_stale(connection, job.id, job.version - most, reason=why, now=now)
    inflight.carry_over(connection, job.id, number)


def give_up_overdue(store: Store, job: Job) -> None:
    """End the assignments whose own deadline has passed: their slots go to others."""
    with store.database.read() as connection:
        if not inflight.are_overdue(connection, job.id, store.now()):
            return
    why = f"it took longer than the {job.settings.deadline:g} s of the job's deadline"
    with store.database.write() as connection:
        inflight.end_overdue(connection, job.id, reason=why, now=store.now())
    store.turn += 1


# --- while a round is closed -----------------------------------------------------------------------------------------


def require_no_closing(store: Store, assignment: Assignment) -> None:
    """Refuse an update that could not be taken now, before it is read."""
    if assignment.base is None or assignment.state != "open":
        return
    with store.database.read() as connection:
        is_open = rounds.find_open(connection, assignment.job, assignment.round) is not None
    if not is_open:
        wait_for_next(assignment)


def wait_for_next(assignment: Assignment) -> None:
    """Have a device send again what the next round takes, where its task goes over to that."""
    if assignment.base is not None and assignment.state == "open":
        why = f"round {assignment.round} is being closed: the next one takes the update"
        raise Refusal(BUSY, "busy", why, retry_after=_AGAIN)


# --- slots ----------------------------------------------------------------------------------------------------------


def are_enough(connection: Connection, round_: Round, most: int) -> bool:
    """Tell whether no more devices may be at work."""
    return inflight.count_open(connection, round_) >= most


def given(connection: Connection, round_: Round) -> Mapping[int, int]:
    """Count how often each slot was given out lately, and not given back."""
    return inflight.count_given(connection, round_.job, round_.number - _LOOKED_AT)


def in_turn(free: Sequence[RoundSlot], given: Mapping[int, int], groups: int) -> frozenset[int]:
    """Return the slots to fill first: of the units given out least, lest those of slow devices go untrained."""
    of_group = Counter[int]()
    for slot, count in given.items():
        of_group[slot % groups] += count
    least = min((of_group[slot.number % groups] for slot in free), default=0)
    return frozenset(slot.number for slot in free if of_group[slot.number % groups] == least)
