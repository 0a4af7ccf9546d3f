"""A device's tasks: each is done, or given back with the reason, and the device goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from traceback import format_exception

from edge_client.data.local import OwnData
from edge_client.errors import (
    MACHINE_ERRORS,
    ServerError,
    SpryError,
    StoreError,
    TrainingError,
    Unauthorized,
    Unreachable,
    is_panic,
)  # fmt: skip
from edge_client.events import Event, Tell
from edge_client.store.job import JobStore, KnownJob
from edge_client.store.jobs import DeviceStore
from edge_client.wire.protocol import Receipt, Task
from edge_client.wire.server import Server

from .check_ins import CheckIns
from .loader import BundleLoader
from .waits import Waits


@dataclass
class Done:
    """Count a run's rounds by how they ended."""

    rounds: int = 0
    failures: int = 0
    late: int = 0
    """Results that came when their rounds were over: of a few in each where more devices are invited than wanted."""

    @property
    def is_nothing(self) -> bool:
        """True if no task has had a result."""
        return not (self.rounds or self.failures or self.late)


@dataclass
class Attempts:
    """Do a device's tasks, or give them back with the reason."""

    server: Server
    store: DeviceStore
    data: OwnData
    loader: BundleLoader
    check_ins: CheckIns
    waits: Waits
    tell: Tell
    done: Done = field(default_factory=Done)
    """The results of this run."""

    def take(self, task: Task) -> None:
        """Take a task that has arrived."""
        job = self.store.job(task.job)
        self.waits.over()
        details = {"task": task.id, "job": task.job_name, "round": task.round, "units": len(task.units)}
        self.tell(Event("task", f"round {task.round} of {task.job_name}: {len(task.units)} units", details))
        self._guarded(job, task, lambda: self.take_part(task, job))

    def send_left_over(self) -> None:
        """Send a result that was finished before this process started; the server may have it already."""
        for job in self.store.jobs():
            task = job.task()
            if task is not None and job.update() is not None:
                self._guarded(job, task, lambda task=task, job=job: self._send(task, job))

    # --- done ---

    def take_part(self, task: Task, job: JobStore) -> Receipt:
        """Train, and send the result."""
        if self.check_ins.only_sums and task.sum is None:
            raise TrainingError(f"{task.job_name} shows updates to its server, and this device joined with --only-sums")
        if task.sum is not None:
            from edge_client.secagg.messages import require_known

            require_known(task.sum.format)
        task = job.begin(task)
        if job.update() is None:
            conditions = self.check_ins.conditions
            session = self.loader.session_for(task, conditions.memory())
            session.require(task)
            job.save_about(KnownJob(task.job, task.job_name, task.bundle, task.runtime))
            examples, held_back = self.data.fitting(
                session.manifest.model,
                session.kind.fields,
                session.check(),
                session.template,
                converses=session.kind.converses,
            )
            self.check_ins.validation.tell_of_long(session, task, examples)
            from edge_client.rounds.participation import Participation

            part = Participation(
                task, self.server, job, session, examples, held_back, self.tell, conditions.memory(),
                conditions.low_memory,
            )  # fmt: skip
            self.check_ins.step_seconds = part.run()
        if task.training.mode == "iteration":
            job.finish()
            return Receipt(0.0)
        return self._send(task, job)

    def _send(self, task: Task, job: JobStore) -> Receipt:
        receipt = self._add(task, job) if task.sum else self.server.send_update(task.id, job.update() or b"")
        job.finish()
        again = " (it had it already)" if receipt.repeated else ""
        details = {"task": task.id, "round": task.round, "repeated": receipt.repeated}
        self.tell(Event("uploaded", f"the server has the result of round {task.round}{again}", details))
        return receipt

    def _add(self, task: Task, job: JobStore) -> Receipt:
        """Add the result to a secure sum."""
        from .secure_sum import Adding

        key = self.store.key()
        if key is None:
            raise TrainingError("this device has no key of its own to add its update with: enrol again")
        self.loader.close()  # others may train for long
        return Adding(task, self.server, job, key, self.waits.pause, self.tell).run()

    # --- or ended early ---

    def _guarded(self, job: JobStore, task: Task, work: Callable[[], Receipt]) -> None:
        """Do a task; an error is reported, to the server too, and the client goes on."""
        try:
            receipt = work()
        except (Unauthorized, Unreachable):  # the task and its result stay for another run
            raise
        except ServerError as error:
            job.finish()
            if error.code == "late":  # others were faster, or a time was up
                self.done.late += 1
                self.tell(Event("late", f"round {task.round}: {error}", {"task": task.id}))
                self.waits.after_late()
                return
            self.done.failures += 1
            self.tell(Event("refused", f"round {task.round}: {error}", {"task": task.id, "code": error.code}))
            self.waits.after_failure()
        except (SpryError, MemoryError) as error:
            self._give_back(job, task, str(error) or "out of memory: join with --low-memory")
            self.done.failures += 1
            if isinstance(error, StoreError) or not self.loader.runtimes:  # the next task would fare no better
                raise
            self.waits.after_failure()
        except BaseException as error:  # a bundle's doing, or a defect: the next task may fare better
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            self._give_back(job, task, f"{type(error).__name__}: {error}", "".join(format_exception(error)))
            self.done.failures += 1
            if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:  # a full disk, for one
                raise
            self.waits.after_failure()
        else:
            self.done.rounds += 1
            self.waits.after_success(receipt.wait)

    def _give_back(self, job: JobStore, task: Task, reason: str, traceback: str = "") -> None:
        """Give the task back for another device; events have the traceback, and people read the reason."""
        job.finish()
        details = {"task": task.id} | ({"traceback": traceback} if traceback else {})
        self.tell(Event("failed", f"round {task.round} of {task.job_name}: {reason}", details))
        self.loader.close()
        try:
            self.server.send_failure(task.id, reason)
        except (Unauthorized, Unreachable):
            raise
        except ServerError as error:  # it took too long, and the task is nobody's any more
            self.tell(Event("refused", str(error), {"task": task.id, "code": error.code}))
