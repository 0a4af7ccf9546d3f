"""Devices that cannot go back as far as others: what that costs a job, and what to do about it."""

from __future__ import annotations

from edge_client.bundle.chain import first_use
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from edge_client.wire.protocol import CheckIn
from server.jobs.job import Job
from server.policy.assignment import Fit, RoundSlot
from server.policy.depths import ENOUGH, costs_of
from server.rounds.selection.fleet import away_before, limits_of, needs_of, runtimes_in, said_by
from server.storage.identities import devices
from server.storage.schema.rows import Device
from server.storage.store import Store

_LOOKED_AT = 200
"""Devices at most: such jobs are for few."""
_NAMED = 3


def shallow(store: Store, job: Job) -> list[str]:
    """Return a line on the devices that train by estimated gradients, with advice; none where there are none."""
    training, units = job.settings.training, len(store.bundles.manifest(job.bundle).units)
    if training.optimizer != "adamw" or training.estimator != "auto" or not units:
        return []
    with store.database.read() as connection:
        here = list(devices.heard_since(connection, away_before(store), _LOOKED_AT))
    short = [device.name for device in here if _estimates(store, job, device)]
    if not short:
        return []
    more = f" and {len(short) - _NAMED} more" if len(short) > _NAMED else ""
    named = f"{', '.join(short[:_NAMED])}{more}, {len(short)} of {len(here)} devices here"
    to_do = "give them more (--max-memory), let them join with --low-memory, or make the job by preset auto"
    what = "too little memory to go back through the whole model"
    return [f"{what}: {named}; they walk by estimates and learn little: {to_do}"]


def spared(store: Store, job: Job) -> list[str]:
    """Return a line on passes that such devices leave over, where the bundle has no earlier units for the others."""
    settings, manifest = job.settings, store.bundles.manifest(job.bundle)
    if settings.passes is None or settings.secure_aggregation or settings.is_private or _adapts_all(manifest):
        return []
    costs, limits = costs_of(manifest, settings.training), limits_of(store, job)
    most = max(costs.values())
    short = sum(costs[limit] < most for limit in limits)
    if not 0 < short <= (1 - ENOUGH) * len(limits) or most > settings.passes:
        return []
    who = f"{short} of {len(limits)} devices here go{'es' if short == 1 else ''} back through fewer blocks than others"
    return [f"{who}: with a bundle of `spry export --last-blocks 0` those go deeper, for as many passes in the mean"]


def _adapts_all(manifest: Manifest) -> bool:
    first = min((first_use(manifest, unit) for unit in manifest.units), default=0)
    return manifest.segments[first].first_block == 0


def _estimates(store: Store, job: Job, device: Device) -> bool:
    """Tell whether a device that can take part finds some of the gradients along directions alone."""
    said: CheckIn | None = said_by(device)
    if said is None or said.memory_bytes is None:
        return False
    manifest, needs = store.bundles.manifest(job.bundle), needs_of(store, job)
    runtimes = runtimes_in(manifest, said)

    def fit(slot: RoundSlot) -> Fit | None:
        return needs.fit(slot, runtimes, said.memory_bytes, low_memory=said.low_memory)

    whole = fit(RoundSlot(0, tuple(range(len(manifest.units)))))
    if whole is not None:
        return bool(kind_of(whole.training).directed(manifest, whole.training, whole.units, whole.cut))
    by_units = {slot.units: slot for slot in job.settings.slots(manifest, job.settings.invited)}
    return any(fit(slot) is not None for slot in by_units.values())
