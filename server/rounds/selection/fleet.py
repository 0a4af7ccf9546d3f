"""Find who is in a round, and who could still join: a round that wants more clients than there are goes on with all.

Devices count that checked in lately and, by their check-ins, can take a slot that is left. Check-ins are written down
within seconds; until then a device that has just enrolled counts as suitable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection

from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import CheckIn
from server.jobs.demands import is_wanted, unsuited
from server.jobs.job import Job
from server.policy.assignment import Needs, RoundSlot
from server.policy.depths import Depth, Reach
from server.rounds.secrecy.privacy import has_paid_all
from server.storage.identities import devices
from server.storage.schema.rows import Device, Round
from server.storage.store import Store
from server.storage.work import assignments, sums
from server.strategy.features import is_asked
from server.strategy.registry import strategy_of
from server.strategy.strategy import RoundContext

GATHERS = 2.0
"""The retry times for which a round stays open for devices to join, unless as many have reported as in the last one."""
_REMEMBERED = 2.0
"""The seconds for which a count of devices is reused."""
_REACH_REMEMBERED = 10.0
"""The seconds for which a fleet's depth is reused: what it can hold hardly changes as devices come and go."""
_LOOKED_AT = 500
"""The most devices whose limits stand for the fleet's."""
_COUNTED = 2000
"""The most devices whose rows stand for the fleet's."""
_SAID = frozenset(field.name for field in fields(CheckIn))


def away_before(store: Store) -> float:
    """Return the time since which a device must have checked in not to be away."""
    return store.presence.away_before


def said_by(device: Device) -> CheckIn | None:
    """Return a device's last check-in; None before it has one."""
    if device.profile is None:
        return None
    return CheckIn(**{name: value for name, value in device.profile.items() if name in _SAID})


def rows_here(store: Store) -> int | None:
    """Sum the rows of the devices that are here; None where none has reported any. A large fleet is sampled."""
    since = away_before(store)
    with store.database.read() as connection:
        said = [said_by(device) for device in devices.heard_since(connection, since, _COUNTED)]
        more = devices.count_heard(connection, since) / _COUNTED if len(said) == _COUNTED else 1.0
    told = [one.examples for one in said if one is not None and one.examples]
    return round(sum(told) * more) if told else None


def needs_of(store: Store, job: Job) -> Needs:
    manifest = store.bundles.manifest(job.bundle)
    return store.needs.setdefault(job.id, Needs(manifest, job.settings.training))


def depth_of(store: Store, job: Job) -> Depth | None:
    """Choose the depth of a job's devices, as of a moment ago; None where there is no choice.

    It is by the reported memory of devices that are here; a device with a slot keeps the depth that it was given.
    """
    return _reach(store, job).depth if needs_of(store, job).has_choice else None


def limits_of(store: Store, job: Job) -> list[int]:
    """Return the number of last blocks that each device that was here a moment ago can backpropagate through."""
    return _reach(store, job).limits


def _reach(store: Store, job: Job) -> Reach:
    known = store.reach.get(job.id)
    if known is None or not known.looked <= store.now() < known.looked + _REACH_REMEMBERED:
        limits = _limits(store, job)
        known = Reach(store.now(), limits, job.settings.depth(store.bundles.manifest(job.bundle), limits))
        store.reach[job.id] = known
    return known


def _limits(store: Store, job: Job) -> list[int]:
    """List how deep devices that are here can go; a large fleet is sampled."""
    manifest, needs = store.bundles.manifest(job.bundle), needs_of(store, job)
    with store.database.read() as connection:
        here = list(devices.heard_since(connection, away_before(store), _LOOKED_AT))
    said = (said_by(device) for device in here)
    fitting = [one for one in said if one is not None and is_wanted(job, one) and unsuited(job, manifest, one) is None]
    limits = (needs.limit(runtimes_in(manifest, one), one.memory_bytes, low_memory=one.low_memory) for one in fitting)
    return [limit for limit in limits if limit is not None]


def runtimes_in(manifest: Manifest, said: CheckIn) -> list[str]:
    """List a device's runtimes that a bundle has programs for, in the device's order."""
    return [name for name in said.runtimes if name in manifest.runtimes]


class Turn(NamedTuple):
    """The slots that a round with fewer devices than it wants fills first: all take turns, round after round."""

    first: int
    slots: int
    """The number of slots in turn; all of a round where there are enough devices."""


def turn(number: int, devices: int, per_round: int) -> Turn:
    """Return a round's turn by its number, and by the devices that took part in the round before."""
    if not 0 < devices < per_round:
        return Turn(0, per_round)
    return Turn((number - 1) * devices % per_round, devices)


def is_to_measure(store: Store, job: Job, number: int, slot: int, version: int) -> bool:
    """Tell whether the device in a slot of a round, which starts from a version, measures its features.

    Its place is counted among the slots in turn: of ten slots, four devices may fill none of three that are asked.
    """
    settings = job.settings
    if not settings.measures(store.bundles.manifest(job.bundle)):
        return False
    before = took_part(store, job, number - 1) if version and not settings.is_buffered else 0
    first, slots = turn(number, before, settings.per_round)
    return is_asked(version, (slot - first) % settings.per_round, slots)


def took_part(store: Store, job: Job, number: int) -> int:
    """Count the devices whose reports a closed round accepted: once, for all that ask."""
    known = store.took_part.get(job.id)
    if known is None or known[0] != number:
        with store.database.read() as connection:
            counts = assignments.count_in(connection, job.id, [number])
        store.took_part[job.id] = known = number, counts[number].get("accepted", 0)
    return known[1]


def present(store: Store, job: Job, round_: Round, most: int) -> int:
    """Count the devices that have or had a part in a round, and up to `most` that can take a slot which is left.

    Nobody looks at all of a large fleet to find out whether it is large enough.
    """
    with store.database.read() as connection:
        members = {one.device for one in assignments.taken_slots(connection, round_)}
        return len(members) + sum(1 for _ in islice(_awaited(store, connection, job, round_), most))


def wants(store: Store, job: Job, round_: Round) -> str | None:
    """Say what a round lacks that wants more clients than there are devices, and what to do about it."""
    here, settings = _lately(store, job, round_), job.settings
    if here >= settings.complete or _was_enough(store, job, round_, here):
        return None
    wanted = f"round {round_.number} wants {settings.complete} client{'s' if settings.complete > 1 else ''}"
    if not here:
        return f"{wanted}, no enrolled device is suitable and here: enrol one, or look at `spry devices list`"
    devices_here = "1 device is" if here == 1 else f"{here} devices are"
    then = "it goes on when all of them have reported"
    if settings.minimum is not None and settings.minimum > here:
        then = f"it fails with fewer than {settings.minimum} (minimum)"
    fewer = f"{'buffer' if settings.is_buffered else 'per_round'}={here}"
    return f"{wanted}, {devices_here} enrolled, suitable and here: {then}; enrol more, or make a job with {fewer}"


def _was_enough(store: Store, job: Job, round_: Round, here: int) -> bool:
    """Tell whether the round before was done by as few devices: nobody is missed then."""
    if not job.done:
        return False
    with store.database.read() as connection:
        before = assignments.count_in(connection, job.id, [round_.number - 1])[round_.number - 1].get("accepted", 0)
    return 0 < before <= here


def _lately(store: Store, job: Job, round_: Round) -> int:
    """Return the number of a round's devices as of a moment ago, for pages that look all the time."""
    counted, number = store.present.get(job.id, (0.0, 0))
    if not counted <= store.now() < counted + _REMEMBERED:
        number = present(store, job, round_, job.settings.complete)
        store.present[job.id] = store.now(), number
    return number


def all_have_reported(store: Store, job: Job, round_: Round, count: int) -> bool:
    """Tell whether nobody is left to wait for: all who joined have reported, and nobody else can join."""
    with store.database.read() as connection:
        pending = assignments.count_pending(connection, round_, job.settings.training.mode)
        if job.settings.secure_aggregation:
            pending -= sums.count(connection, round_)
        if pending > 0:
            return False
        before = assignments.count_in(connection, job.id, [round_.number - 1])[round_.number - 1].get("accepted", 0)
        gathered = round_.started is not None and store.now() - round_.started >= GATHERS * store.settings.retry_seconds
        if not gathered and not 0 < before <= count:
            return False
        return next(_awaited(store, connection, job, round_), None) is None


def _awaited(store: Store, connection: Connection, job: Job, round_: Round) -> Iterator[Device]:
    """Find devices that could take a slot of the round and have none; one that let tasks expire is not waited for."""
    taken = assignments.taken_slots(connection, round_)
    members = {one.device for one in taken}
    free = free_slots(store, job, round_, taken)
    for device in devices.heard_since(connection, away_before(store)):
        if device.id in members or _obstacle(store, job, free, device) is not None:
            continue
        if has_paid_all(connection, job, device.id) is not None:
            continue
        if not assignments.missed(connection, device.id).times:
            yield device


def idlers(store: Store, job: Job, round_: Round) -> dict[str, list[str]]:
    """Group the names of devices that can take no slot left in a round by the reason; a large fleet is sampled."""
    idle: dict[str, list[str]] = {}
    with store.database.read() as connection:
        taken = assignments.taken_slots(connection, round_)
        free = free_slots(store, job, round_, taken)
        for device in devices.heard_since(connection, away_before(store), _LOOKED_AT) if free else ():
            if device.id in {one.device for one in taken}:
                continue
            if (why := _why_idle(store, connection, job, free, device)) is not None:
                idle.setdefault(why, []).append(device.name)
    return idle


def why_idle(store: Store, job: Job, round_: Round, device: Device) -> str | None:
    """Say why a device has no part of an open round; None where it may be given one when it asks."""
    with store.database.read() as connection:
        if assignments.has_accepted(connection, round_, device.id):
            return f"it has done its part of round {round_.number}, which waits for others"
        return _why_idle(
            store, connection, job, free_slots(store, job, round_, assignments.taken_slots(connection, round_)), device
        )


def _why_idle(store: Store, connection: Connection, job: Job, free: list[RoundSlot], device: Device) -> str | None:
    why = has_paid_all(connection, job, device.id) or _obstacle(store, job, free, device)
    if why is None and (times := assignments.missed(connection, device.id).times):
        return f"{times} of its tasks expired in a row: raise the job's deadline if it is slow"
    return why


def free_slots(store: Store, job: Job, round_: Round, taken: list[assignments.TakenSlot]) -> list[RoundSlot]:
    """Return the slots of a round that nobody has; none where as many devices are at work as may be."""
    live = {one.slot for one in taken if one.is_live}
    settings = job.settings
    if settings.is_buffered and sum(one.state == "open" for one in taken) >= settings.per_round:
        return []
    context = RoundContext(settings, store.bundles.manifest(job.bundle))
    slots = strategy_of(settings).configure(round_.number, settings.invited, context)
    return [slot for slot in slots if slot.number not in live]


def _obstacle(store: Store, job: Job, free: list[RoundSlot], device: Device) -> str | None:
    """Say why a device can take none of the slots that are left; None where it can."""
    if not free:
        return "no slot is free"
    if (said := said_by(device)) is None:
        return None
    manifest = store.bundles.manifest(job.bundle)
    if not is_wanted(job, said):
        return f"it asks only for tasks of {said.job} (--job)"
    if (why := unsuited(job, manifest, said)) is not None:
        return why
    runtimes, needs = runtimes_in(manifest, said), needs_of(store, job)
    if any(needs.fit(slot, runtimes, said.memory_bytes, low_memory=said.low_memory) for slot in free):
        return None
    return f"no free slot fits its memory ({(said.memory_bytes or 0) / 1e6:.0f} MB)"
