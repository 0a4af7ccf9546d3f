"""A device's part in one round, from the weights it starts with to a result that the server has accepted.

This hosts the pure round (`edge_client.training.round`): it fetches weights, saves the round's state, so that it
can be left at any point and taken up again, and measures time and memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from edge_client.arrays import Weights
from edge_client.data.examples import Examples
from edge_client.errors import ServerError, Unauthorized, Unreachable
from edge_client.events import Event, Tell
from edge_client.memory import peak_above_now
from edge_client.step.passes import Passes
from edge_client.store.job import Checkpoint, JobStore
from edge_client.training.epoch import Judged, TrainingState, steps_in, update
from edge_client.training.round import LocalData, LocalModel, client_round, evaluated, personalized
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import EvaluationReport, Task
from edge_client.wire.server import Server

from .iterations import Iterations
from .versions import current

CHECKPOINT_SECONDS = 30.0
"""The seconds between two savings of a training's progress: the loss in a crash, against the wear of flash."""


@dataclass
class Participation:
    """One task and what is needed for it."""

    task: Task
    server: Server
    store: JobStore
    session: TrainingSession
    examples: Examples
    held_back: Examples
    """The examples for evaluation."""
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
        data = self.session.data(self.task, self.examples, self.held_back)
        again = steps_in(training, len(data.batches)) > len(data.batches)
        passes = self.session.passes(self.task, self.memory, keep_prefixes=again, low_memory=self.low_memory)
        model = self.session.model(self.task, passes)
        try:
            return self._iterate(model, data, passes) if training.mode == "iteration" else self._train(model, data)
        finally:
            passes.prefixes.clear()

    def _iterate(self, model: LocalModel, data: LocalData, passes: Passes) -> float | None:
        where = self.server, self.store, self.tell
        iterations = Iterations(self.task, self.session.bundle, passes, model.estimator, data.batches, *where)
        seconds = iterations.run()
        newest = iterations.kept
        own = personalized(self.task, model, data, newest.weights)
        self.store.save_personal(self.task.bundle, newest.version, own)
        if (judged := evaluated(self.task, model, data, newest.weights, own)) is not None:
            self._tell_scores(judged)
            self._tell_server(judged)
        return seconds

    def _tell_server(self, judged: Judged) -> None:
        """Send what this device measured; the round is over, so that a server that refuses it costs a warning alone."""
        try:
            self.server.send_evaluation(self.task.id, EvaluationReport(**judged.told()))
        except (Unauthorized, Unreachable):
            raise
        except ServerError as error:
            self.tell(Event("warning", f"the server takes no measured accuracies of round {self.task.round}: {error}"))

    def _train(self, model: LocalModel, data: LocalData) -> float:
        start = current(self.server, self.store, self.session.bundle, self.task, self.tell).weights
        peak = peak_above_now()
        progress = _Progress(self, steps_in(self.task.training, len(data.batches)))
        resumed = progress.resumed(start)
        try:
            result = client_round(self.task, model, start, data, resumed=resumed, on_step=progress.took)
        except KeyboardInterrupt:
            progress.save()
            raise
        if result.evaluation is not None:
            self._tell_scores(result.evaluation)
        report = replace(result.report, seconds=round(progress.seconds, 3), peak_bytes=peak())
        self.store.save_personal(self.task.bundle, self.task.version, result.personalized)
        self.store.save_update(result.tensors, report)
        return progress.seconds / report.steps

    def _tell_scores(self, judged: Judged) -> None:
        before, after = self.session.kind.hits(judged.before), self.session.kind.hits(judged.own)
        message = f"of {judged.before.total} held back, the global model gets {before} right, this device's own {after}"
        self.tell(Event("evaluated", message, judged.told()))


class _Progress:
    """Time a round's training, report its progress, and save it from time to time."""

    def __init__(self, part: Participation, steps: int) -> None:
        self.seconds = 0.0
        """The seconds that the steps took, those of earlier runs too."""
        self._part = part
        self._steps = steps
        self._state: TrainingState | None = None
        self._began = self._saved = time.monotonic()

    def resumed(self, start: Weights) -> TrainingState | None:
        """Read the state that an earlier run of the task left, trained on the same data."""
        task, part = self._part.task, self._part
        saved = part.store.progress(task, part.examples.fingerprint)
        if saved is None:
            return None
        part.tell(Event("resumed", f"round {task.round} goes on after step {saved.step}", {"step": saved.step}))
        self.seconds = saved.seconds
        return TrainingState(start | saved.weights, saved.optimizer, saved.step, saved.loss, saved.examples)

    def took(self, state: TrainingState) -> None:
        """Take note of a step: add its time, report it, and save it where it is time to."""
        self.seconds += time.monotonic() - self._began
        self._state = state
        loss, part = state.loss / state.step, self._part
        details = {"round": part.task.round, "step": state.step, "steps": self._steps, "loss": loss}
        part.tell(Event("progress", f"step {state.step} of {self._steps}, loss {loss:.3f}", details))
        if time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
            self.save()
        self._began = time.monotonic()

    def save(self) -> None:
        """Keep the last state, so that another run goes on from it."""
        state, part = self._state, self._part
        if state is not None:
            own = update(part.task, part.session.manifest, state)
            progress = Checkpoint(state.step, state.loss, state.examples, self.seconds, own, state.optimizer)
            part.store.save_progress(part.task, part.examples.fingerprint, progress)
            self._saved = time.monotonic()
