"""A device's part in one round, from the weights it starts with to a result that the server has accepted.

Where the round stands is kept, so that it can be left at any point and taken up again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from edge_client.arrays import Weights
from edge_client.data.batches import Batches
from edge_client.data.examples import Examples
from edge_client.data.sequences import taken
from edge_client.errors import ServerError, Unauthorized, Unreachable
from edge_client.estimators.estimator import Estimator
from edge_client.estimators.registry import estimator_for
from edge_client.events import Event, Tell
from edge_client.memory import peak_above_now
from edge_client.step.passes import Passes
from edge_client.store.job import Checkpoint, JobStore
from edge_client.sums.adding import changes
from edge_client.wire.clipping import clipped, silent
from edge_client.wire.protocol import Judgement, Task
from edge_client.wire.server import Server

from .epoch import Judged, TrainingState, evaluate, report, steps_in, train, update
from .features import NOTHING, Moments, measured
from .iterations import Iterations
from .personal import personal
from .plan import Workbench
from .versions import current

CHECKPOINT_SECONDS = 30.0
"""Between two savings of a training's progress: what a crash can cost, and how much flash is worn."""


@dataclass
class Participation:
    """One task and what is needed for it."""

    task: Task
    server: Server
    store: JobStore
    bench: Workbench
    examples: Examples
    held_back: Examples
    """For evaluation."""
    tell: Tell
    memory: int | None = None
    """Bytes that training may take."""
    low_memory: bool = False
    """Hold one program at a time."""

    def run(self) -> float | None:
        """Train until there is a result to send (mode epoch), or until the round is over (mode iteration).

        Gives the seconds that a step took; None if the round was over before the first.
        """
        training = self.task.training
        encoder = self.bench.encoder(training.batch, training.length)
        batches = Batches(taken(self.examples, encoder, training), encoder, self.bench.kind.encode, self.task.seed)
        again = steps_in(training, len(batches)) > len(batches)
        passes = self.bench.passes(self.task, self.memory, keep_prefixes=again, low_memory=self.low_memory)
        estimator = estimator_for(self.bench.manifest, self.task, passes)
        try:
            if training.mode == "iteration":
                return self._iterate(passes, batches, estimator)
            return self._train(passes, batches, estimator)
        finally:
            passes.prefixes.clear()

    def _iterate(self, passes: Passes, batches: Batches, estimator: Estimator) -> float | None:
        where = self.server, self.store, self.tell
        iterations = Iterations(self.task, self.bench.bundle, passes, estimator, batches, *where)
        seconds = iterations.run()
        newest = iterations.kept
        own = self._fitted(passes, batches, self._moved(newest.weights, batches, estimator))
        self.store.save_personal(self.task.bundle, newest.version, own)
        if (judged := self._evaluated(passes, batches, newest.weights, own)) is not None:
            self._tell_server(judged)
        return seconds

    def _tell_server(self, judged: Judged) -> None:
        """What it measured; the round is over, and is worth nothing less where nobody wants to know."""
        try:
            self.server.send_judgement(self.task.id, Judgement(**judged.told()))
        except (Unauthorized, Unreachable):
            raise
        except ServerError as error:
            self.tell(Event("warning", f"the server takes no measured accuracies of round {self.task.round}: {error}"))

    def _train(self, passes: Passes, batches: Batches, estimator: Estimator) -> float:
        start = current(self.server, self.store, self.bench.bundle, self.task).weights
        peak = peak_above_now()
        state = self._steps(self._resumed(start), batches, estimator)
        own_model = self._fitted(passes, batches, state.weights) if self.task.evaluate else state.weights
        judged = self._evaluated(passes, batches, start, own_model)
        moments = self._measured(passes, batches, start)
        own = update(self.task, self.bench.manifest, state)
        told = report(state, peak_bytes=peak(), judged=judged, measured=moments.rows)
        if self.task.clip is not None:
            own, told = clipped(start, own, self.task.clip), silent(told)
        self.store.save_personal(self.task.bundle, self.task.version, own_model)
        if self.task.sum is not None:
            own = changes(self.bench.manifest, self.task.sum.units, own, start)
        self.store.save_update(own | moments.tensors, told)
        return state.seconds / state.step

    def _steps(self, state: TrainingState, batches: Batches, estimator: Estimator) -> TrainingState:
        total, saved = steps_in(self.task.training, len(batches)), time.monotonic()
        try:
            for following in train(self.task, self.bench.manifest, estimator, batches, state):
                state = following
                details = {
                    "round": self.task.round,
                    "step": state.step,
                    "steps": total,
                    "loss": state.loss / state.step,
                }
                self.tell(Event("progress", f"step {state.step} of {total}, loss {details['loss']:.3f}", details))
                if time.monotonic() - saved >= CHECKPOINT_SECONDS:
                    self._checkpoint(state)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            self._checkpoint(state)
            raise
        return state

    def _measured(self, passes: Passes, batches: Batches, start: Weights) -> Moments:
        """Of the features that this device's examples have by the round's weights, where the task asks for them."""
        if not self.task.measure or self.bench.manifest.features is None:
            return NOTHING
        passes.release()  # to measure is to run other programs
        return measured(passes.features, self.examples, batches.encoder, self.bench.kind, start, self.task.seed)

    def _moved(self, weights: Weights, batches: Batches, estimator: Estimator) -> Weights:
        """After a round's steps by this device alone, where no task layer can be fitted to its examples."""
        if self.bench.kind.has_classes and self.bench.manifest.features is not None:
            return weights
        *_, state = train(self.task, self.bench.manifest, estimator, batches, TrainingState(weights))
        return state.weights

    def _fitted(self, passes: Passes, batches: Batches, weights: Weights) -> Weights:
        """This device's model: these weights with a task layer for its own examples, where there is one to fit."""
        features, encoder = self.bench.manifest.features, batches.encoder
        if features is None:
            return weights
        passes.release()  # features come of other programs
        return personal(passes.features, self.examples, encoder, self.bench.kind, weights, features, self.task.seed)

    def _checkpoint(self, state: TrainingState) -> None:
        if state.step:
            own = update(self.task, self.bench.manifest, state)
            progress = Checkpoint(state.step, state.loss, state.examples, state.seconds, own, state.optimizer)
            self.store.save_progress(self.task, self.examples.fingerprint, progress)

    def _resumed(self, start: Weights) -> TrainingState:
        saved = self.store.progress(self.task, self.examples.fingerprint)
        if saved is None:
            return TrainingState(start)
        self.tell(Event("resumed", f"round {self.task.round} goes on after step {saved.step}", {"step": saved.step}))
        return TrainingState(
            start | saved.weights, saved.optimizer, saved.step, saved.loss, saved.examples, saved.seconds
        )

    def _evaluated(self, passes: Passes, batches: Batches, *models: Weights) -> Judged | None:
        if not self.task.evaluate or not len(self.held_back):
            return None
        passes.release()  # evaluation runs other programs
        kind = self.bench.kind
        judged = Judged(kind, *evaluate(passes.logits, self.held_back, batches.encoder, kind, models))
        before, after = kind.hits(judged.before), kind.hits(judged.own)
        message = f"of {judged.before.total} held back, the global model gets {before} right, this device's own {after}"
        self.tell(Event("evaluated", message, judged.told()))
        return judged
