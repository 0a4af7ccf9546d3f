"""A job's weights on a device: the version that a task starts from, and how to get there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from edge_client.bundle.names import REPEATED, prefix_of
from edge_client.errors import BadAnswer, ServerError
from edge_client.events import Tell, silent
from edge_client.store.job import JobStore, KeptWeights
from edge_client.store.mirrors import WEIGHTS, Mirrors
from edge_client.training.replay import replay
from edge_client.wire.answers import Tensors
from edge_client.wire.protocol import Task
from edge_client.wire.scalars import StepRecord
from edge_client.wire.server import Server
from edge_client.wire.tensors import parse_tensors

_SAME_VERSION = "server and device need the same version of spry"
_HEADER, _SLACK = 256, 1 << 20
"""Bytes that describe a tensor, and those of a step's record."""


def newest_kept(store: JobStore, bundle: Bundle, task: Task) -> KeptWeights:
    """Read the newest version that is kept of a job; version 0 comes with the bundle."""
    kept = store.weights(task.bundle)
    return KeptWeights(0, bundle.initial_adapter()) if kept is None or kept.version > task.version else kept


def current(server: Server, store: JobStore, bundle: Bundle, task: Task, tell: Tell = silent) -> KeptWeights:
    """Return the version that a task of mode epoch starts from."""
    kept = newest_kept(store, bundle, task)
    if (kept.version, kept.published) != (task.version, task.published or kept.published):
        kept = mirrored(kept, bundle.manifest, task, server.ca, tell) or downloaded(server, kept, bundle.manifest, task)
        if kept.version != task.version:
            what = f"the weights are at version {kept.version}, the task starts from {task.version}: its round is over"
            raise ServerError(what, code="stale")
        kept = replace(kept, published=task.published)
        store.save_weights(task.bundle, kept)
    return kept


def mirrored(kept: KeptWeights, manifest: Manifest, task: Task, ca: Path | None, tell: Tell) -> KeptWeights | None:
    """Fetch all weights of a task's version from a mirror; None where none has them, or gives them as it should."""
    if not task.weights:
        return None
    with Mirrors(task.mirrors, ca=ca, tell=tell) as places:
        data = places.whole(WEIGHTS, task.weights, task.weights, largest(manifest))
    return None if data is None else merged(kept, Tensors(task.version, data), manifest)


def downloaded(server: Server, kept: KeptWeights, manifest: Manifest, task: Task) -> KeptWeights:
    """Fetch what has changed since the kept version, or everything where the server does not know that one.

    A number alone does not prove that it is known: a server restored from a backup counts on from an earlier version.
    """
    is_of_this_line = not (task.published and kept.version) or (kept.published and kept.version != task.version)
    since = kept.version if is_of_this_line else -1
    try:
        answer = server.weights(task.job, since, largest(manifest), kept.published)
    except ServerError as error:
        if error.code != "stale":
            raise
        answer = server.weights(task.job, -1, largest(manifest))
    return kept if answer is None else merged(kept, answer, manifest)


def largest(manifest: Manifest) -> int:
    """Bytes of all that a server can send of a version: weights with their optimizer's state, and what names them."""
    each = (4 * parameter.size + len(parameter.name) + _HEADER for parameter in manifest.trained)
    return (1 + len(REPEATED)) * sum(each) + _SLACK


def merged(kept: KeptWeights, answer: Tensors, manifest: Manifest) -> KeptWeights:
    """Return the newer version that tensors of the server lead to."""
    try:
        tensors, _ = parse_tensors(answer.data)
    except ValueError as error:
        raise BadAnswer(f"the server's weights cannot be read ({error}); {_SAME_VERSION}", status=200) from None
    shapes = {parameter.name: parameter.shape for parameter in manifest.trained}
    weights, optimizer = dict(kept.weights), dict(kept.optimizer)
    for name, value in tensors.items():
        slot = prefix_of(name, REPEATED)
        if shapes.get(name.removeprefix(slot)) != value.shape or value.dtype != np.float32:
            raise BadAnswer(
                f"the server sends {name} as {value.dtype} {list(value.shape)}, which the bundle does not train; "
                f"{_SAME_VERSION}"
            )
        (optimizer if slot else weights)[name] = value
    return KeptWeights(answer.version, weights, optimizer)


def applied(
    record: StepRecord, kept: KeptWeights, manifest: Manifest, task: Task
) -> tuple[KeptWeights, frozenset[str]]:
    """Return the weights after a published step, and the names of those that moved."""
    if record.version <= kept.version:
        return kept, frozenset()
    if record.version != kept.version + 1:
        raise BadAnswer(
            f"the server's steps start from version {record.version - 1}, this device has {kept.version}; "
            f"{_SAME_VERSION}"
        )
    weights, optimizer = dict(kept.weights), dict(kept.optimizer)
    try:
        names = replay(record, weights, optimizer, manifest, task.training, task.optimizers)
    except (ValueError, LookupError, OverflowError) as error:
        raise BadAnswer(f"the server's step cannot be taken ({error}); {_SAME_VERSION}", status=200) from None
    return KeptWeights(record.version, weights, optimizer), names
