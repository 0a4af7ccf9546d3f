"""A node's side of a round over Flower: `client_round` as a ClientApp."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from edge_client.arrays import Weights
from edge_client.bundle.folder import Bundle, sha256
from edge_client.bundle.manifest import FILE_NAME
from edge_client.client.conditions import Conditions
from edge_client.data.columns import Columns
from edge_client.data.examples import Examples
from edge_client.data.local import OwnData
from edge_client.data.templates import Template
from edge_client.errors import SpryError
from edge_client.format import parse_bytes
from edge_client.memory import peak_above_now, return_freed_blocks
from edge_client.runtimes.runtime import chosen
from edge_client.tasks.registry import task_named
from edge_client.training.epoch import steps_in
from edge_client.training.round import client_round
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import CheckIn, Task
from server.errors import FlowerError
from server.flower.config import Config, text_of
from server.flower.fleet import NOWHERE, NodeOffer
from server.flower.messages import (
    NodeUpdate,
    offer_content,
    refusal_content,
    task_in,
    update_content,
)

PARTITION = "partition-id"
Answer = Callable[[RecordDict, "FlowerNode"], RecordDict]


@dataclass(frozen=True)
class FlowerNode:
    """A node's bundle, rows and limits, by its own configuration and the run's."""

    bundle: str
    data: str
    columns: Columns
    holdout: float
    runtime: str | None
    threads: int
    conditions: Conditions
    position: int

    @classmethod
    def of(cls, context: Context, bundle: str = "", data: str = "") -> FlowerNode:
        """Read a node's configuration; what it names itself comes before what the run names."""
        node, run = cast("Config", context.node_config), cast("Config", context.run_config)

        def text(name: str, default: str | None = None) -> str:
            return text_of(run, name, node, default)

        memory = text("max-memory", "")
        return cls(
            bundle or text("bundle"),
            data or text("data"),
            Columns(text("text", ""), text("pair", ""), text("label", "")),
            float(text("holdout", "0.1")),
            text("runtime", "") or None,
            int(text("threads", "0")),
            Conditions(
                max_memory=parse_bytes(memory) if memory else None,
                low_memory=text("low-memory", "").lower() == "true",
            ),
            int(node.get(PARTITION, NOWHERE)),
        )


def spry_client(bundle: str = "", data: str = "") -> ClientApp:
    """Make the app of a node that trains a bundle on its own rows.

    Args:
        bundle: the folder that `spry export` wrote, on the node; by its configuration where left out.
        data: the node's rows; by its configuration where left out.
    """
    app = ClientApp()

    def answered(message: Message, context: Context, answer: Answer) -> Message:
        try:
            content = answer(message.content, FlowerNode.of(context, bundle, data))
        except (SpryError, OSError, ValueError) as error:
            content = refusal_content(str(error))
        return Message(content=content, reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return answered(message, context, offered)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answered(message, context, trained)

    return app


def offered(content: RecordDict, node: FlowerNode) -> RecordDict:
    """Say what a node has: its runtimes, memory and rows, and which bundle."""
    del content
    bundle = Bundle.open(node.bundle)
    said = CheckIn(
        runtimes=chosen(node.runtime),
        examples=sum(map(len, _examples(node, bundle))),
        memory_bytes=node.conditions.memory(),
        low_memory=node.conditions.low_memory,
    )
    return offer_content(NodeOffer(said, sha256(bundle.folder / FILE_NAME), node.position))


def trained(content: RecordDict, node: FlowerNode) -> RecordDict:
    """Train a task's units and the head on a node's rows."""
    task, weights = task_in(content)
    return_freed_blocks()
    bundle = Bundle.open(node.bundle, verify=False)  # its files were compared when the node was asked
    if (found := sha256(bundle.folder / FILE_NAME)) != task.bundle:
        raise FlowerError(f"the task is of bundle {task.bundle[:16]}, and the node's is {found[:16]}")
    session = TrainingSession(bundle, task.runtime, threads=node.threads)
    try:
        session.require(task)
        return update_content(_update(task, session.bundle.initial_adapter() | weights, session, node))
    finally:
        session.close()


def _update(task: Task, weights: Weights, session: TrainingSession, node: FlowerNode) -> NodeUpdate:
    data = session.data(task, *_examples(node, session.bundle))
    again = steps_in(task.training, len(data.batches)) > len(data.batches)
    memory, low_memory = node.conditions.memory(), node.conditions.low_memory
    passes = session.passes(task, memory, keep_prefixes=again, low_memory=low_memory)
    peak, started = peak_above_now(), time.monotonic()
    update = client_round(task, session.model(task, passes), weights, data)
    report = replace(update.report, seconds=round(time.monotonic() - started, 3), peak_bytes=peak())
    return NodeUpdate(update.tensors, report)


def _examples(node: FlowerNode, bundle: Bundle) -> tuple[Examples, Examples]:
    """Read a node's rows as examples of the bundle's task: to train on, and held back."""
    model, template = bundle.manifest.model, Template.of(bundle)
    kind = task_named(model.task)
    own = OwnData(node.data, holdout=node.holdout, columns=node.columns)
    own.count()
    return own.fitting(model, kind.fields, kind.check(model.labels, template), template, converses=kind.converses)
