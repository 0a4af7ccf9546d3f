"""The content of messages between a SuperLink and its nodes, as Flower's records.

    query   nothing                      -> check-in: what the node has, and the sha256 of its bundle
    train   task, and the round's weights -> report, and the weights of the task's units and the head

A node that cannot answers with `refused`, which says why in a line. A node's message is a claim: it is checked against
the bundle's manifest as an update that comes by HTTP is. Bundles never travel in messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import TypeAdapter, ValidationError

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.training.features import MEAN, PRODUCTS, shapes_of
from edge_client.wire.protocol import Report, Task
from server.errors import FlowerError
from server.flower.fleet import NodeOffer

SAID, WEIGHTS, REFUSED = "spry", "weights", "refused"
T = TypeVar("T")


@dataclass(frozen=True)
class NodeUpdate:
    """The result of a node's part in a round."""

    tensors: Weights
    """The weights of its units and the head, and the moments of its features where it was asked for them."""
    report: Report


_OFFER, _TASK, _REPORT = TypeAdapter(NodeOffer), TypeAdapter(Task), TypeAdapter(Report)


def offer_content(offer: NodeOffer) -> RecordDict:
    """Encode a node's answer to the first question."""
    return RecordDict({SAID: _told(offer)})


def offer_in(content: RecordDict) -> NodeOffer:
    """Decode a node's answer to the first question."""
    return _heard(_OFFER, content, "an offer")


def task_content(task: Task, weights: ArrayRecord) -> RecordDict:
    """Encode a node's part in a round; all nodes' are given the same weights."""
    return RecordDict({SAID: _told(task), WEIGHTS: weights})


def task_in(content: RecordDict) -> tuple[Task, Weights]:
    """Decode a node's part in a round, and the round's weights."""
    return _heard(_TASK, content, "a task"), weights_in(content)


def update_content(update: NodeUpdate) -> RecordDict:
    """Encode the result of a node's part."""
    return RecordDict({SAID: _told(update.report), WEIGHTS: record_of(update.tensors)})


def update_in(content: RecordDict, manifest: Manifest, task: Task) -> NodeUpdate:
    """Decode the result of a node's part, which must be exactly what the task asked for."""
    report, tensors = _heard(_REPORT, content, "a report"), weights_in(content)
    measured = task.measure and tensors.keys() & {MEAN, PRODUCTS}
    expected = [*manifest.trained_with(task.units), *(_moments(manifest) if measured else [])]
    _check(tensors, expected)
    return NodeUpdate(tensors, report)


def refusal_content(why: str) -> RecordDict:
    """Encode why a node cannot do what it was asked."""
    return RecordDict({REFUSED: ConfigRecord({"reason": why[:500]})})


def weights_in(content: RecordDict) -> Weights:
    """Decode a message's weights, by parameter name."""
    if WEIGHTS not in content.array_records:
        raise FlowerError("the message has no weights: both sides need the same version of spry")
    return arrays_of(content.array_records[WEIGHTS])


def record_of(weights: Weights) -> ArrayRecord:
    """Encode arrays by their names."""
    return ArrayRecord({name: Array(value) for name, value in weights.items()})


def arrays_of(record: ArrayRecord) -> Weights:
    """Decode a record's arrays."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError, EOFError) as error:
        raise FlowerError(f"the message's weights are no arrays: {error}") from None


def _told(message: NodeOffer | Task | Report) -> ConfigRecord:
    return ConfigRecord({"json": msgspec.json.encode(message).decode()})


def _heard(adapter: TypeAdapter[T], content: RecordDict, what: str) -> T:
    """Parse a message; raise the reason of a refusal."""
    records = content.config_records
    if REFUSED in records:
        raise FlowerError(str(records[REFUSED].get("reason", ""))[:500])
    told = records[SAID].get("json", "") if SAID in records else ""
    try:
        return adapter.validate_json(told if isinstance(told, str) else "", strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FlowerError(f"the message is not valid: {what}: {where} {first['msg']}") from None


def _moments(manifest: Manifest) -> list[Parameter]:
    if manifest.features is None:
        return []
    return [Parameter(name, shape) for name, shape in shapes_of(manifest, manifest.features).items()]


def _check(tensors: Weights, expected: Sequence[Parameter]) -> None:
    wanted = {parameter.name: parameter.shape for parameter in expected}
    if differing := sorted(wanted.keys() ^ tensors.keys()):
        kind = "lacks" if differing[0] in wanted else "holds"
        raise FlowerError(
            f"the update {kind} {differing[0][:200]} ({len(differing)} parameters differ from its task's)"
        )
    for name, shape in wanted.items():
        value = tensors[name]
        if value.dtype != np.float32 or value.shape != shape:
            raise FlowerError(
                f"the update's {name} is {value.dtype} {list(value.shape)}, expected float32 {list(shape)}"
            )
        if not np.isfinite(value).all():
            raise FlowerError(f"the update's {name} holds numbers that are not finite; lower the learning rate")
