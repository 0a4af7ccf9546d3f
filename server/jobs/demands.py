"""Check what a job requires of a device, in any slot of a round."""

from __future__ import annotations

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import ESTIMATORS
from edge_client.wire.protocol import CheckIn
from server.jobs.job import Job


def unsuited(job: Job, manifest: Manifest, check_in: CheckIn) -> str | None:
    """Say why a device can take no slot of a job, by its check-in; None if it can."""
    if not set(manifest.runtimes) & set(check_in.runtimes):
        return f"{job.name} needs one of the runtimes {', '.join(manifest.runtimes)}"
    if (estimator := job.settings.training.estimator) not in ESTIMATORS:
        return f"{job.name} needs the estimator {estimator}, which the server has no more"
    if (why := _not_secret(job, check_in)) is not None:
        return why
    if (why := check_in.unfit.get(job.id)) is not None:
        return f"this device's rows do not fit {job.name}: {why}"
    return _kept_away(job, check_in)


def _not_secret(job: Job, check_in: CheckIn) -> str | None:
    """Say why its update cannot be sent as a job, or the device, requires; None if it can."""
    is_secret = job.settings.secure_aggregation
    if is_secret and not check_in.sums:
        return f"{job.name} uses secure aggregation, for which this device needs a key of its own and a newer spry"
    if is_secret and job.settings.is_private and not check_in.adds_noise:
        return f"{job.name} wants devices to add noise to their updates, for which this one needs a newer spry"
    if check_in.only_sums and not is_secret:
        return f"{job.name} shows updates to its server, and this device takes part only in sums"
    return None


def _kept_away(job: Job, check_in: CheckIn) -> str | None:
    """Say why a device can take no slot in its present state; None if it can."""
    if job.settings.mains_only and check_in.power == "battery":
        return f"{job.name} takes no devices on battery"
    if job.settings.unmetered_only and check_in.metered:
        return f"{job.name} takes no devices on a metered network"
    return None


def is_wanted(job: Job, check_in: CheckIn) -> bool:
    """Tell whether a device asks for any job, or for this one by its id or name."""
    return check_in.job in (None, job.id, job.name)
