"""The server's side of a round over Flower: nodes are queried and given tasks, and their updates are aggregated.

Flower's own strategies expect the same keys in all replies of a round (`FedAvg.aggregate_train` skips others). Here
each node trains units of its own, as many as its memory can hold, so that replies have different keys.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from edge_client.arrays import Weights
from edge_client.bundle.adapters import folded
from edge_client.bundle.folder import Bundle, sha256
from edge_client.bundle.manifest import FILE_NAME
from edge_client.runtimes.runtime import chosen
from edge_client.store import files
from edge_client.tasks.registry import task_named
from edge_client.training.epoch import evaluate
from edge_client.training.features import without_moments
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import Task
from server.errors import FlowerError, Refusal
from server.flower.config import Config, hosted, settings_for, text_of
from server.flower.fleet import JOB, NodeFleet, NodeOffer
from server.flower.messages import NodeUpdate, arrays_of, offer_in, record_of, task_content, update_in
from server.formats.learned import Learned, Version
from server.formats.peft import peft_files
from server.jobs.settings import JobSettings
from server.strategy.counts import held_to
from server.strategy.evaluations import as_reported, unlearned_in
from server.strategy.outliers import norms, usual
from server.strategy.registry import strategy_of
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution

logger = logging.getLogger("flwr")
T = TypeVar("T")
ASKED_SECONDS = 120.0
"""The time that nodes have to report their data; one that is late is asked again in the next round."""
_LOOKS_AGAIN = 1.0


class SpryStrategy(FlowerStrategy):
    """Fine-tune a bundle's adapter over Flower: units split among nodes by their memory, joined by a SPRY strategy.

    Args:
        bundle: the folder that `spry export` wrote; each node has a copy.
        settings: the job's, as `spry job create` takes them.
    """

    def __init__(self, bundle: Path | str, settings: JobSettings) -> None:
        self._bundle = Bundle.open(bundle)
        self._name = sha256(self._bundle.folder / FILE_NAME)
        self._manifest = self._bundle.manifest
        self.settings = hosted(settings, self._manifest)
        initial = self._bundle.initial_adapter()
        self._initial = initial
        self._model = ServerState(0, {one.name: initial[one.name] for one in self._manifest.trained})
        self._fleet = NodeFleet(self.settings, self._manifest, self._name)
        self._offers: dict[int, NodeOffer] = {}
        self._tasks: dict[int, Task] = {}

    @classmethod
    def of(cls, config: Config) -> SpryStrategy:
        """Make the strategy that a run's configuration describes: `bundle`, `preset` and what stands under `job.`."""
        bundle = text_of(config, "bundle")
        opened = Bundle.open(bundle, verify=False)
        settings = settings_for(config, opened.manifest)
        return cls(bundle, settings)

    @property
    def arrays(self) -> ArrayRecord:
        """The weights as they stand, for `start` and for Flower's own result."""
        return record_of(self._model.weights)

    @property
    def result(self) -> Weights:
        """Give the trained weights by parameter name: the newest, or their running average where the job keeps one."""
        return self._model.result

    def save(self, folder: Path | str) -> None:
        """Write the adapter that `PeftModel.from_pretrained` loads."""
        tensors = folded(self._initial | self.result)
        learned = Learned(Version(JOB, self._model.version, self._name), self._bundle, tensors)
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in {**peft_files(learned), "spry.json": learned.described()}.items():
            files.write(Path(folder) / name, content)

    def evaluation(self, rows: Path | str, runtime: str | None = None) -> Callable[[int, ArrayRecord], MetricRecord]:
        """Make an `evaluate_fn` that measures the result on rows which the server has, by the bundle's programs."""
        training = self.settings.training
        session = TrainingSession(self._bundle, self._runtime(runtime))
        examples, encoder = session.examples(rows), session.encoder(training.batch, training.length)
        passes = session.passes(session.task(training), None)

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            del server_round, arrays  # the running average is measured, where there is one
            weights = [self._initial | self.result]
            (score,) = evaluate(passes.logits, examples, encoder, session.kind, weights)
            return MetricRecord(session.kind.told(score))

        return evaluated

    def _runtime(self, wanted: str | None) -> str:
        found = [name for name in chosen(wanted) if name in self._manifest.runtimes]
        if not found:
            raise FlowerError(f"the bundle's runtimes are {', '.join(self._manifest.runtimes)}, and none is installed")
        return found[0]

    # --- what Flower calls ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select this round's nodes, and give each a task that its memory can hold."""
        del config  # a task says all that a node needs
        self._model = replace(self._model, weights=arrays_of(arrays))
        offers = self._present(server_round, grid)
        nodes = self._fleet.selected(server_round, offers)
        self._tasks = self._fleet.assigned(server_round, self._model.version, nodes, offers)
        for node in nodes:
            if node not in self._tasks:
                logger.warning("node %d is left out: no free slot fits its memory", node)
        return [
            Message(
                content=task_content(task, arrays), dst_node_id=node, message_type=MessageType.TRAIN,
                group_id=str(server_round),
            )
            for node, task in self._tasks.items()
        ]  # fmt: skip

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the server's step by the updates that came; without enough of them the weights stay as they are."""
        updates = self._updates(replies)
        least = min(self.settings.fewest, len(self._tasks))
        if len(updates) < max(least, 1):
            logger.warning("round %d failed: %d of %d updates came", server_round, len(updates), max(least, 1))
            return None, None
        known = usual([update.norms for update in updates])
        context = RoundContext(self.settings, self._manifest, known)
        outcome = strategy_of(self.settings).aggregate(self._model, updates, context)
        for task, why in outcome.refused:
            logger.warning("the update of task %s is left out: %s", task, why)
        if not outcome.is_finite:
            logger.warning("round %d failed: its weights are not all numbers; lower the learning rate", server_round)
            return None, None
        unlearned = unlearned_in(self._manifest, [self._model.version] * len(outcome.reports))
        self._model = outcome.model
        kind = task_named(self._manifest.model.task)
        reported = as_reported(outcome.reports, self.settings, kind, unlearned)
        return self.arrays, MetricRecord({"clients": len(outcome.reports), **reported})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for nothing more: where `device_evaluation` says so, a node measures before and after it trains."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Give nothing: accuracies that nodes measured stand among a round's training metrics."""
        del server_round, replies

    def summary(self) -> None:
        """Log what is trained, and how."""
        training, manifest = self.settings.training, self._manifest
        logger.info("\t├──> bundle %s, %d units of %s", self._name[:16], len(manifest.units), manifest.adapter.method)
        logger.info("\t├──> estimator %s, %d nodes a round", training.estimator, self.settings.per_round)
        logger.info("\t└──> strategy %s, aggregation %s", self.settings.strategy, self.settings.aggregation)

    # --- nodes ---

    def _present(self, server_round: int, grid: Grid) -> dict[int, NodeOffer]:
        """Wait for as many nodes as a round wants, ask those that are new, and give those that can take part."""
        wanted, waits = self.settings.per_round, False
        while len(here := set(grid.get_node_ids())) < wanted:
            if not waits:
                logger.info("round %d waits for %d nodes, %d are here", server_round, wanted, len(here))
            waits = True
            time.sleep(_LOOKS_AGAIN)
        self._ask(grid, sorted(here - self._offers.keys()), server_round)
        return {node: offer for node, offer in self._offers.items() if node in here}

    def _ask(self, grid: Grid, nodes: Sequence[int], server_round: int) -> None:
        """Ask nodes what they have; who cannot take part is asked again in the next round."""
        questions = [
            Message(content=RecordDict(), dst_node_id=node, message_type=MessageType.QUERY, group_id=str(server_round))
            for node in nodes
        ]
        for reply in grid.send_and_receive(questions, timeout=ASKED_SECONDS) if questions else ():
            offer = _read(reply, offer_in)
            if offer is None:
                continue
            if (why := self._fleet.misfit(offer)) is not None:
                logger.warning("node %d takes no part: %s", reply.metadata.src_node_id, why)
                continue
            self._offers[reply.metadata.src_node_id] = offer

    # --- updates ---

    def _updates(self, replies: Iterable[Message]) -> list[Contribution]:
        """Return the updates in the order of their slots, whichever came first."""
        found: dict[int, Contribution] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if (task := self._tasks.get(node)) is None:
                continue
            update = _read(reply, partial(self._taken, node, task))
            if update is not None:
                found[int(task.id.rpartition("-")[2])] = self._contribution(node, task, update)
        return [found[place] for place in sorted(found)]

    def _taken(self, node: int, task: Task, content: RecordDict) -> NodeUpdate:
        """Decode an update, its counts held to what the node has and its task could process, as on the server."""
        update = update_in(content, self._manifest, task)
        declared = self._offers[node].check_in.examples or None
        return replace(update, report=held_to(update.report, declared, task.training, self._manifest))

    def _contribution(self, node: int, task: Task, update: NodeUpdate) -> Contribution:
        lengths = norms(
            without_moments(update.tensors), self._model.weights, self._manifest.head_names, self._manifest.units
        )
        return Contribution(
            task.id, tuple(task.units), task.training, lengths, update.report, lambda: update.tensors, device=str(node)
        )


def _read(reply: Message, decode: Callable[[RecordDict], T]) -> T | None:
    """Decode a reply; where that fails, log why, and go on without it."""
    node = reply.metadata.src_node_id
    if reply.has_error():
        logger.warning("node %d failed: %s", node, reply.error.reason)
        return None
    try:
        return decode(reply.content)
    except (FlowerError, Refusal) as error:
        logger.warning("node %d is left out: %s", node, error)
        return None
