"""Send a device the weights that it lacks of a job's newest version."""

from __future__ import annotations

from safetensors.numpy import save

from edge_client.wire.protocol import SAFETENSORS, STEPS
from server.errors import Refusal
from server.jobs.job import Job
from server.storage.store import Store


def check_known(store: Store, job: Job, since: int, published: float | None) -> None:
    """Refuse a version that was published at another moment: a restored backup does not have it."""
    if published and since > 0 and store.models.published(job.id, since) != published:
        what = f"version {since} of job {job.name} is not the one that was published at {published:.3f}"
        raise Refusal(409, "stale", f"{what}; ask for all with since=-1")


def weights_since(store: Store, job: Job, since: int) -> bytes:
    """Serialize the parameters that moved after a version, all for -1, as safetensors.

    In mode iteration a client takes the server's steps, so it also needs the optimizer's state.
    """
    if since > job.version:
        what = f"job {job.name} is at version {job.version}: {since} is not one of its versions"
        raise Refusal(409, "stale", f"{what}; ask for all with since=-1")
    model = store.models.load(job, job.version)
    if job.settings.training.mode == "iteration":
        return save(model.repeatable)
    if since < 0:
        return save(model.weights)
    changed = store.models.changed_since(job, since)
    return save({name: value for name, value in model.weights.items() if changed is None or name in changed})


def steps_since(store: Store, job: Job, since: int) -> tuple[bytes, str]:
    """Return the records after a version, or the weights where they are fewer bytes or the records are not kept."""
    if job.settings.training.mode != "iteration":
        raise Refusal(409, "invalid", f"job {job.name} has no steps: its mode is epoch; ask for its weights")
    records = store.models.record_bytes(job, since)
    model = store.models.load(job, job.version)
    whole = sum(value.nbytes for value in model.repeatable.values())
    log = sum(len(record) for record in records)
    if len(records) < job.version - since or log > whole:
        return weights_since(store, job, -1), SAFETENSORS
    return b"".join(records), STEPS
