"""Predictions on the device, by the newest weights that it has of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Weights
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME, Manifest
from edge_client.data.encoder import Encoded, Question, answers
from edge_client.errors import SpryError, StoreError
from edge_client.runtimes.runtime import available
from edge_client.step.stepper import Stepper
from edge_client.store.jobs import Job, JobStore, Store
from edge_client.training.plan import Workbench, fitting_shape

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Prediction:
    """For one text: its class with every class's probability, a question's answer, or the next token."""

    label: str | None
    scores: dict[str, float] = field(default_factory=dict[str, float])


def predict(
    store: Store, texts: Sequence[Text], *, job: str | None = None, personal: bool = False, threads: int = 0
) -> list[Prediction]:
    """Predictions for texts, for pairs, or for questions with their contexts."""
    if not texts:
        return []
    kept, about = find_job(store, job)
    bundle = open_bundle(store, about)
    weights = kept_weights(kept, about, bundle, personal=personal)
    runtime = about.runtime if about.runtime in available() else next(iter(available()), about.runtime)
    bench = Workbench(bundle, runtime, threads=threads)
    try:
        return list(_predicted(bench, texts, weights))
    finally:
        bench.close()


def find_job(store: Store, wanted: str | None) -> tuple[JobStore, Job]:
    """The job that was asked for, by id or name, or the one that this device took part in last."""
    known = [(job, about) for job in store.jobs() if (about := job.about) is not None]
    for job, about in known:
        if wanted in (None, about.id, about.name):
            return job, about
    if not known:
        raise StoreError(f"{store.folder} holds no job yet: take part in a round first (spry join)")
    names = ", ".join(about.name for _, about in known)
    raise StoreError(f"this device took part in no job {wanted!r}; it knows {names}")


def open_bundle(store: Store, about: Job) -> Bundle:
    """The bundle of a job that this device took part in."""
    folder = store.bundle(about.bundle)
    if not (folder / FILE_NAME).is_file():
        raise StoreError(f"the bundle of {about.name} is not there any more: take part in a round again (spry join)")
    from edge_client.bundle.manifest import read

    return Bundle(folder, read(folder / FILE_NAME))


def kept_weights(kept: JobStore, about: Job, bundle: Bundle, *, personal: bool) -> Weights:
    """The newest global weights that this device has, or those that it trained last."""
    if not personal:
        found = kept.weights(about.bundle)
        return bundle.initial_adapter() if found is None else found.weights
    found = kept.personal(about.bundle)
    if found is None:
        raise StoreError(
            f"there is no personal adapter of {about.name}: it comes with the first round of mode epoch; leave out "
            "--personal for the newest global one"
        )
    return found.weights


def _predicted(bench: Workbench, texts: Sequence[Text], weights: Weights) -> list[Prediction]:
    manifest = bench.manifest
    batch, length = fitting_shape(manifest, len(texts))
    directions = next(iter(manifest.directions), 1)
    stepper = Stepper(manifest, bench.runtime, bench.runtime_name, batch, length, directions)
    encoder = bench.encoder(batch, length)
    found: list[Prediction] = []
    for start in range(0, len(texts), batch):
        part = list(texts[start : start + batch])
        encoded = encoder.encode(part)
        step = stepper.forward(encoded.tokens, _no_labels(manifest, batch, length), weights)
        found += _read(step.logits[: len(part)], part, encoded, manifest, bench)
    return found


def _no_labels(manifest: Manifest, batch: int, length: int) -> NDArray[np.int64]:
    shapes = {"qa": (batch, 2), "causal-lm": (batch, length)}
    return np.zeros(shapes.get(manifest.model.task, (batch,)), np.int64)


def _read(
    logits: NDArray[Any], texts: Sequence[Text], encoded: Encoded, manifest: Manifest, bench: Workbench
) -> list[Prediction]:
    task, labels = manifest.model.task, manifest.model.labels
    if task == "qa":
        if not all(isinstance(text, tuple) for text in texts):
            raise SpryError("this job answers questions: give pairs of a question and its context")
        return [
            Prediction(answer)
            for answer in answers(
                logits, [Question(text, "") if isinstance(text, str) else Question(*text) for text in texts], encoded
            )
        ]
    if task == "causal-lm":
        last = [sum(encoding.attention_mask) - 1 for encoding in encoded.encodings]
        tokens = [int(row[position].argmax()) for row, position in zip(logits, last, strict=True)]
        return [Prediction(bench.token(token)) for token in tokens]
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    shares = exps / exps.sum(-1, keepdims=True)
    names = labels or tuple(str(i) for i in range(logits.shape[-1]))
    return [
        Prediction(names[int(row.argmax())], {name: float(share) for name, share in zip(names, row, strict=True)})
        for row in shares
    ]
