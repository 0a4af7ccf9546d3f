"""Mode iteration: numbers go up, everybody's numbers come down, and the weights follow them step by step."""

from __future__ import annotations

import time

from edge_client.bundle.folder import Bundle
from edge_client.data.batches import Batches
from edge_client.errors import ServerError, TrainingError
from edge_client.estimators.directed import ScalarEstimator
from edge_client.events import Event, Tell
from edge_client.step.passes import Passes
from edge_client.store.job import JobStore
from edge_client.training.epoch import Gradients, check_finite, steps_in
from edge_client.training.optimizers import check_server_optimizers
from edge_client.wire.answers import Tensors
from edge_client.wire.protocol import Task
from edge_client.wire.scalars import ScalarReport, StepRecord, decode_records, encode_report
from edge_client.wire.server import Server

from .versions import applied, downloaded, largest, merged, newest_kept

POLL_SECONDS = 25.0
GRACE_SECONDS = 30.0
"""The seconds after its deadline within which a round's last step may still appear."""


class Iterations:
    """The iterations of one round, and the weights between them.

    Args:
        task: the device's part.
        bundle: with the initial weights.
        passes: for the estimator; called when weights before the cut have moved.
        estimator: must give scalars.
        batches: one for each iteration.
        server: where reports go and records come from.
        store: keeps the newest weights.
        tell: takes each iteration.
    """

    def __init__(
        self,
        task: Task,
        bundle: Bundle,
        passes: Passes,
        estimator: Gradients,
        batches: Batches,
        server: Server,
        store: JobStore,
        tell: Tell,
    ) -> None:
        if not isinstance(estimator, ScalarEstimator):
            what = f"the estimator {task.training.estimator} gives gradients, not numbers"
            raise TrainingError(f"{what}: mode iteration cannot use it")
        check_server_optimizers(task.optimizers)
        self.task = task
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.passes = passes
        self.estimator = estimator
        self.batches = batches
        self.server = server
        self.store = store
        self.tell = tell
        self.kept = newest_kept(store, bundle, task)
        self.iteration = task.iteration
        self.total = steps_in(task.training, len(batches))
        self._until = self._patience()
        self._steps = 0
        self._seconds = 0.0

    def _patience(self) -> float:
        """Return the time until which to wait; every step gives the round more time."""
        return time.monotonic() + self.task.seconds + GRACE_SECONDS

    def run(self) -> float | None:
        """Take part until the round is over; gives the seconds that a step took."""
        kept = self.kept
        try:
            self._follow(0.0)
            if self.kept.version < self.task.version:
                self.kept = downloaded(self.server, self.kept, self.manifest, self.task)
            while self.iteration < self.total and self._report() and self._wait():
                pass
        finally:
            if self.kept is not kept:
                self.store.save_weights(self.task.bundle, self.kept)
        return self._seconds / self._steps if self._steps else None

    def _report(self) -> bool:
        """Send this iteration's numbers; False when the round takes nothing more."""
        started = time.monotonic()
        report = self.estimator.report(self.batches.at(self.iteration), self.kept.weights, self.iteration)
        self._steps += 1
        self._seconds += time.monotonic() - started
        _check(report, self.iteration)
        try:
            self.server.send_jvps(self.task.id, self.iteration, encode_report(report))
        except ServerError as error:
            if error.code not in ("stale", "late"):
                raise
            return error.code == "stale"  # the others were faster: their step is on its way
        details = {"round": self.task.round, "step": self.iteration + 1, "steps": self.total, "loss": report.loss}
        message = f"iteration {self.iteration + 1} of {self.total}, loss {report.loss:.3f}"
        self.tell(Event("progress", message, details))
        return True

    def _wait(self) -> bool:
        """Wait until this iteration's step is published; False when it never is."""
        iteration = self.iteration
        while self.iteration == iteration:
            left = self._until - time.monotonic()
            if left <= 0:
                return False
            self._follow(min(POLL_SECONDS, left))
        return True

    def _follow(self, wait: float) -> None:
        """Bring the weights to the newest version."""
        try:
            answer = self.server.steps(self.task.job, self.kept.version, largest(self.manifest), wait)
        except ServerError as error:
            if error.code != "late":
                raise
            self.iteration = self.total  # the job has ended
            return
        if isinstance(answer, Tensors):
            self.kept = merged(self.kept, answer, self.manifest)
            self.passes.changed(self.kept.weights)
            self._until = self._patience()
            # Each iteration is a version. The task may have been given out some of them after the round began.
            self.iteration = max(self.iteration, answer.version - self.task.version)
            return
        for record in decode_records(answer):
            self._apply(record)

    def _apply(self, record: StepRecord) -> None:
        self.kept, moved = applied(record, self.kept, self.manifest, self.task)
        self.passes.changed(moved)
        self._until = self._patience()
        if record.round == self.task.round:
            self.iteration = record.iteration + 1
        elif record.round > self.task.round:
            self.iteration = self.total


def _check(report: ScalarReport, iteration: int) -> None:
    arrays = {"jvp": report.jvp, "head_jvp": report.head_jvp, "head_gradient": report.head_gradient}
    check_finite(report.loss, {name: value for name, value in arrays.items() if value is not None}, iteration)
