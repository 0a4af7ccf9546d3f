"""Advance the stages of a secure sum, from the first card to the last opening.

    card → shares → update → vow → opening

A device trains first, as in any round, and sends its keys of the round (its card) when its update is ready. The cards
take the place of reports: when a round would be complete, those that sent one are the roster. From then on each stage
ends when all have answered, or when its time is up without those who have not. What a stage decides is written down
once, and never changed: a device that received one decision refuses another.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from edge_client import keys
from edge_client.secagg.messages import FORMAT
from edge_client.secagg.streams import KEY
from edge_client.wire.protocol import Sum, Training
from server.jobs.job import Job
from server.privacy.shares import share_of
from server.rounds.outcome.evaluation import task_of
from server.rounds.secrecy.privacy import pay_for_sum
from server.secagg.arrangement import Arrangement, Entrant, arranged, teams
from server.secagg.opening import is_enough
from server.storage.schema.rows import Assignment, Round
from server.storage.store import Store
from server.storage.work import rounds, sums
from server.storage.work.sums import Summand, SumStanding
from server.strategy.mean import largest_weight

log = logging.getLogger("spry.server")


def carried(store: Store, job: Job, slot: int) -> tuple[int, ...]:
    """Return the units of a slot that are added up; its device may train more."""
    settings = job.settings
    return settings.slots(store.bundles.manifest(job.bundle), settings.invited)[slot].units


def scores_of(store: Store, job: Job) -> list[str]:
    """List the scores in reports beside the counted one."""
    kind = task_of(store, job)
    return [score.name for score in kind.scores if score.name != kind.counted]


def sum_of(store: Store, job: Job, assignment: Assignment) -> Sum | None:
    """Describe a secure sum to an assignment's device."""
    if not job.settings.secure_aggregation:
        return None
    units = list(carried(store, job, assignment.slot))
    noise = job.settings.privacy_noise if job.settings.is_private else None
    return Sum(assignment.slot, units, job.settings.min_holders, scores_of(store, job), noise, FORMAT)


def entrant(store: Store, job: Job, summand: Summand) -> Entrant:
    identity = keys.decoded(summand.key, KEY) or b""
    return Entrant(summand.place, carried(store, job, summand.place), identity, summand.card)


def arrangement_of(store: Store, job: Job, standing: SumStanding, known: Sequence[Summand]) -> Arrangement:
    """Rebuild the same arrangement from what is stored, whoever asks and whenever."""
    inside = set(standing.roster)
    entrants = [entrant(store, job, summand) for summand in known if summand.place in inside]
    share = share_of(job.settings)
    return arranged(entrants, job.settings.min_holders, standing.cap, share.terms if share else b"")


def dealt_in(standing: SumStanding, known: Sequence[Summand]) -> dict[int, bytes]:
    """Return the shares dealt by members whose shares arrived in time."""
    there = set(standing.sharers)
    return {summand.place: summand.shares or b"" for summand in known if summand.place in there}


def openings_in(known: Sequence[Summand]) -> dict[int, bytes]:
    return {summand.place: summand.opening for summand in known if summand.opening is not None}


# --- carried on ------------------------------------------------------------------------------------------------------


def carry_on(
    store: Store, job: Job, round_: Round, in_time: Callable[[], bool | None], fewest: Callable[[Round, int], int]
) -> bool | None:
    """Advance the sum of an open round; True if it moved on, None where it can be opened, or failed.

    `in_time` tells whether the devices that sent their keys are all that the round wants; None: it waits for others.
    """
    with store.database.read() as connection:
        standing = sums.find(connection, round_)
        known = sums.summands_of(connection, round_)
    if standing is None:
        if (complete := in_time()) is None:
            return False
        came = sum(summand.is_open for summand in known)
        return _begin(store, job, round_, fewest(round_, came), in_time=complete)
    if standing.stage == "over":
        return None
    if standing.stage == "opening":
        arrangement = arrangement_of(store, job, standing, known)
        if is_enough(arrangement, standing.sharers, openings_in(known)):
            return None
    if not _is_over(store, job, standing, known):
        return False
    return _go_on(store, job, round_, standing)


def _begin(store: Store, job: Job, round_: Round, fewest: int, *, in_time: bool) -> bool:
    """Fix the roster: the devices that sent their keys, team by team."""
    with store.database.write() as connection:
        current = rounds.lock_open(connection, round_.job, round_.number)
        if current is None or sums.find(connection, round_) is not None:
            return False
        rounds.settle(connection, round_, in_time=in_time)
        known = [summand for summand in sums.summands_of(connection, round_) if summand.is_open]
        if len(known) < fewest:
            why = f"{len(known)} of at least {fewest} clients reported in time"
            sums.give_up(connection, round_, why, store.now())
            return True
        least = job.settings.min_holders
        known = _large_enough(store, job, known, least)
        if not known:
            why = f"no unit has {least} holders (min_holders) that reported in time: let more devices take part"
            sums.give_up(connection, round_, why, store.now())
            return True
        roster = [summand.place for summand in known]
        cap = _cap(job, [summand.declared for summand in known])
        sums.begin(connection, round_, roster, cap, _until(store, job))
        late = f"its update is not in the sum: it came late, or its units have fewer than {least} holders (min_holders)"
        sums.leave_out(connection, replace(current, in_time=in_time), roster, late, store.now())
    log.info("job %s: round %d: %d devices add their updates", job.name, round_.number, len(roster))
    return True


def _large_enough(store: Store, job: Job, known: Sequence[Summand], least: int) -> list[Summand]:
    """Keep the members whose team is large enough."""
    each = teams(entrant(store, job, summand) for summand in known)
    inside = {place for team in each.values() if len(team) >= least for place in team}
    return [summand for summand in known if summand.place in inside]


def _cap(job: Job, declared: Sequence[int | None]) -> int:
    """Compute by how many examples one device may outweigh the others: as in a plain mean, of declared examples."""
    if job.settings.is_private:
        return 1
    told = [_taken(job.settings.training, count) for count in declared if count]
    return math.ceil(largest_weight(told, job.settings.weight_bound)) if told else 1


def _taken(training: Training, declared: int) -> int:
    """Bound a number of examples by those that a round's steps can take."""
    return min(declared, training.iterations * training.batch) if training.iterations else declared


def _until(store: Store, job: Job) -> float:
    return store.now() + job.settings.iteration_deadline


def _is_over(store: Store, job: Job, standing: SumStanding, known: Sequence[Summand]) -> bool:
    """Tell whether nobody is waited for any more."""
    if store.now() >= standing.until:
        return True
    if standing.stage == "vow":
        arrangement = arrangement_of(store, job, standing, known)
        return _vowed(arrangement, known) >= arrangement.quorum
    awaited = set(standing.roster if standing.stage == "shares" else standing.sharers)
    if standing.stage == "opening":
        awaited = set(standing.survivors)
    silent = [one for one in known if one.place in awaited and one.said(standing.stage) is None and one.is_open]
    return not silent


def _vowed(arrangement: Arrangement, known: Sequence[Summand]) -> int:
    """Count the witnesses that have signed."""
    vowed = {summand.place for summand in known if summand.vow is not None}
    return sum(witness in vowed for witness in arrangement.witnesses)


def _go_on(store: Store, job: Job, round_: Round, seen: SumStanding) -> bool:
    with store.database.write() as connection:
        current = rounds.lock_open(connection, round_.job, round_.number)
        standing = sums.find(connection, round_)
        if current is None or standing is None or standing.stage != seen.stage:
            return False
        known = sums.summands_of(connection, round_)
        why = _next_stage(connection, store, job, round_, standing, known)
        if why is not None:
            sums.give_up(connection, round_, why, store.now())
    return True


def _next_stage(
    connection: Connection, store: Store, job: Job, round_: Round, standing: SumStanding, known: Sequence[Summand]
) -> str | None:
    """Record the devices that are left; return why there is no next stage, if there is none."""
    stage, least, until = standing.stage, job.settings.min_holders, _until(store, job)
    fewest = max(least, job.settings.minimum or 0)
    arrangement = arrangement_of(store, job, standing, known)
    if stage == "shares":
        came = [one.place for one in known if one.place in set(standing.roster) and one.shares is not None]
        sharers = _whole_teams(arrangement, came, least)
        if len(sharers) < fewest:
            return f"{len(sharers)} of at least {fewest} devices sent shares in time"
        sums.go_on(connection, round_, "update", until, sharers=sharers)
    elif stage == "update":
        survivors = [one.place for one in known if one.place in set(standing.sharers) and one.update is not None]
        if len(survivors) < fewest or _whole_teams(arrangement, survivors, least) != survivors:
            return f"{len(survivors)} of {len(standing.sharers)} devices sent an update in time: too few of some unit"
        sums.go_on(connection, round_, "vow", until, survivors=survivors)
    elif stage == "vow":
        vowed = _vowed(arrangement, known)
        if vowed < arrangement.quorum:
            witnesses = len(arrangement.witnesses)
            return f"{vowed} of {witnesses} witnesses said who is in the sum, {arrangement.quorum} must"
        pay_for_sum(connection, job, round_, standing.survivors)
        sums.go_on(connection, round_, "opening", until)
    else:
        return f"{len(openings_in(known))} of {len(standing.survivors)} devices were there to open the sum: too few"
    return None


def _whole_teams(arrangement: Arrangement, places: Sequence[int], least: int) -> list[int]:
    """Drop the slots of teams of which too few are left."""
    there = set(places)
    return [place for place in places if len(there.intersection(arrangement.team(place))) >= least]


def clean_up(store: Store, round_: Round) -> None:
    """Delete what a round that is over no longer needs; a crash in here leaves files, not faults."""
    with store.database.write() as connection:
        current = rounds.find(connection, round_.job, round_.number)
        blobs: set[str] = sums.forget(connection, round_) if current.state in ("done", "failed") else set()
    for sha in blobs:
        store.blobs.forget(sha)
