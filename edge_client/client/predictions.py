"""Predictions on the device, by the newest weights that it has of a job."""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.arrays import Weights
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME
from edge_client.bundle.signature import check_folder
from edge_client.data.batches import in_order
from edge_client.errors import StoreError
from edge_client.runtimes.runtime import available, require_publisher, unasked
from edge_client.step.stepper import Stepper
from edge_client.store.job import JobStore, KnownJob
from edge_client.store.jobs import DeviceStore
from edge_client.store.tried import try_once
from edge_client.tasks.task import Prediction, Text
from edge_client.training.session import TrainingSession, fitting_shape

from .conditions import Machine


def predict(
    store: DeviceStore,
    texts: Sequence[Text],
    *,
    job: str | None = None,
    personal: bool = False,
    threads: int = 0,
    low_memory: bool = False,
) -> list[Prediction]:
    """Predictions for texts, for pairs, or for questions with their contexts; `low_memory`: by a program at a time."""
    if not texts:
        return []
    kept, about = find_job(store, job)
    bundle = open_bundle(store, about)
    weights = kept_weights(kept, about, bundle, personal=personal)
    bench = open_bench(store, about, bundle, threads)
    try:
        return list(_predicted(bench, texts, weights, low_memory=low_memory))
    finally:
        bench.close()


def find_job(store: DeviceStore, wanted: str | None) -> tuple[JobStore, KnownJob]:
    """Find the job that was asked for, by id or name, or the one that this device took part in last."""
    known = [(job, about) for job in store.jobs() if (about := job.about) is not None]
    for job, about in known:
        if wanted in (None, about.id, about.name):
            return job, about
    if not known:
        raise StoreError(f"{store.folder} holds no job yet: take part in a round first (spry join)")
    names = ", ".join(about.name for _, about in known)
    raise StoreError(f"this device took part in no job {wanted!r}; it knows {names}")


def open_bundle(store: DeviceStore, about: KnownJob) -> Bundle:
    """Open the bundle of a job that this device took part in."""
    folder = store.bundle(about.bundle)
    if not (folder / FILE_NAME).is_file():
        raise StoreError(f"the bundle of {about.name} is not there any more: take part in a round again (spry join)")
    from edge_client.bundle.manifest import read

    publisher = store.publisher()
    if publisher is not None:
        check_folder(folder, publisher)
    return Bundle(folder, read(folder / FILE_NAME))


def open_bench(store: DeviceStore, about: KnownJob, bundle: Bundle, threads: int) -> TrainingSession:
    """Open a bundle with the job's runtime where it is installed; its library may have changed since the last round."""
    runtime = about.runtime if about.runtime in available() else next(iter(unasked()), about.runtime)
    require_publisher([runtime], store.publisher())
    bench = TrainingSession(bundle, runtime, threads=threads)
    try:
        try_once(bundle.folder, bundle.manifest, runtime, bench.runtime, Machine().free_memory())
    except BaseException:
        bench.close()
        raise
    return bench


def kept_weights(kept: JobStore, about: KnownJob, bundle: Bundle, *, personal: bool) -> Weights:
    """Return the newest global weights that this device has, or those that it trained last."""
    if not personal:
        newest = kept.weights(about.bundle)
        return bundle.initial_adapter() if newest is None else newest.weights
    trained = kept.personal(about.bundle)
    if trained is None:
        raise StoreError(
            f"there is no personal adapter of {about.name}: it comes with the first round that this device "
            "completes; leave out --personal for the newest global one"
        )
    return trained.weights


def _predicted(
    bench: TrainingSession, texts: Sequence[Text], weights: Weights, *, low_memory: bool
) -> list[Prediction]:
    manifest = bench.manifest
    batch, length = fitting_shape(manifest, len(texts))
    directions = next(iter(manifest.directions), 1)
    shape = batch, length, directions
    stepper = Stepper(manifest, bench.runtime, bench.runtime_name, *shape, low_memory=low_memory)
    encoder = bench.encoder(batch, length)
    examples = [bench.kind.asked(text) for text in texts]
    predictions: list[Prediction] = []
    for part in in_order(examples, encoder, bench.kind.encode):
        logits = stepper.forward(part.batch.tokens, part.labels, weights).logits[: len(part.examples)]
        predictions += bench.kind.read(logits, part, manifest.model.labels, bench.token)
    return predictions
