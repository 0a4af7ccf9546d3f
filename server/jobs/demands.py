"""What a job asks of a device, whichever place of a round it takes."""

from __future__ import annotations

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import ESTIMATORS
from edge_client.wire.protocol import CheckIn
from server.jobs.job import Job


def unsuited(job: Job, manifest: Manifest, check_in: CheckIn) -> str | None:
    """Why a device can take no place of a job, by what it said of itself."""
    if not set(manifest.runtimes) & set(check_in.runtimes):
        return f"{job.name} needs one of the runtimes {', '.join(manifest.runtimes)}"
    if (estimator := job.settings.training.estimator) not in ESTIMATORS:
        return f"{job.name} needs the estimator {estimator}, which the server has no more"
    if job.settings.secure_aggregation and not check_in.sums:
        return f"{job.name} adds updates in secret, for which this device needs a key of its own and a newer spry"
    if check_in.only_sums and not job.settings.secure_aggregation:
        return f"{job.name} shows updates to its server, and this device takes part in sums alone"
    if (why := check_in.unfit.get(job.id)) is not None:
        return f"this device's rows do not fit {job.name}: {why}"
    return _kept_away(job, check_in)


def _kept_away(job: Job, check_in: CheckIn) -> str | None:
    """Why a device can take no place as it is at this moment."""
    if job.settings.mains_only and check_in.power == "battery":
        return f"{job.name} takes no devices on battery"
    if job.settings.unmetered_only and check_in.metered:
        return f"{job.name} takes no devices on a metered network"
    return None


def is_wanted(job: Job, check_in: CheckIn) -> bool:
    """Whether a device asks for any job, or for this one by its id or name."""
    return check_in.job in (None, job.id, job.name)
