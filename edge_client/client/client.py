"""The device client: enrols once, then takes part in rounds for as long as it runs.

client = Client("https://spry.example.org", token="…", data="my.jsonl")
client.run()
client.predict(["Shares fell four percent."])
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from edge_client.data.columns import Columns
from edge_client.data.examples import BadRows
from edge_client.data.local import OwnData
from edge_client.data.sources import Row
from edge_client.errors import (
    ServerError,
    SpryError,
    StoreError,
    TrainingError,
    Unauthorized,
    Unreachable,
    WrongResults,
)
from edge_client.events import Event, Tell, silent
from edge_client.keys import read_public, split_token
from edge_client.memory import resident, trim_memory
from edge_client.runtimes.runtime import CPU, chosen, require_publisher
from edge_client.store.download import fetch
from edge_client.store.jobs import JobStore, KnownJob, Store, default_home
from edge_client.store.tried import try_once
from edge_client.training.plan import Workbench
from edge_client.wire.protocol import CheckIn, Receipt, Task
from edge_client.wire.server import Server

from .conditions import Conditions
from .enrolment import enrol
from .fitness import Fitness
from .waits import Waits

if TYPE_CHECKING:
    from edge_client.tasks.task import Prediction, Text

_USUAL = Columns()


@dataclass
class Done:
    """What a run came to."""

    rounds: int = 0
    failures: int = 0
    late: int = 0
    """Results that came when their rounds were over: of a few in each where more devices are invited than wanted."""


@dataclass(frozen=True)
class Idle:
    """A long wait, and what a client must not forget over it."""

    seconds: float
    reason: str = ""
    rows: int = 0
    failures: int = 0
    step_seconds: float | None = None
    resident_bytes: int | None = None
    """What the server is told of how this device does."""


class Client:
    """A device on one server.

    Args:
        server: its address.
        token: to enrol with; not needed by a device that has. One that names a publisher pins their key.
        data: a JSONL or CSV file, or rows.
        home: where everything is kept; $SPRY_HOME or ~/.local/share/spry when left out.
        job: the only job to take part in, by id or name.
        runtime: the only runtime to use of those installed.
        threads: that a runtime may use; 0 leaves it to the runtime.
        device: where programs run: `cpu`, or with TorchScript a GPU, such as `cuda`.
        name: what the server shows for this device.
        ca: a file with the certificates to trust.
        trust: the public key, or its file, of the only publisher whose bundles are taken; it is kept.
        conditions: when to take part, and with how much memory.
        bad_rows: `refuse` the data when a row cannot be used, or `skip` the row.
        holdout: the share of the data that is kept for evaluation.
        columns: what holds texts and labels; found by the names that data sets commonly have where left out.
        only_sums: take part where the server learns sums of updates alone.
        on_event: hears what happens.
        on_idle: called before a long wait, once a runtime has been loaded. What is worth keeping is on disk, so that it
            may end the process, and another go on with `run(idle=...)`.
        transport: how requests travel.
        patience: the seconds after which an unreachable server is given up; never when left out.
        pause: waits some seconds.
    """

    def __init__(
        self,
        server: str,
        token: str | None = None,
        data: Path | str | Iterable[Row] | None = None,
        *,
        home: Path | str | None = None,
        job: str | None = None,
        runtime: str | None = None,
        threads: int = 0,
        device: str = CPU,
        name: str | None = None,
        ca: Path | str | None = None,
        trust: Path | str | None = None,
        conditions: Conditions | None = None,
        bad_rows: BadRows = "refuse",
        holdout: float = 0.1,
        columns: Columns = _USUAL,
        only_sums: bool = False,
        on_event: Tell = silent,
        on_idle: Callable[[Idle], object] | None = None,
        transport: httpx.BaseTransport | None = None,
        patience: float | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.token, named = split_token(token)
        self.job = job
        self.threads = threads
        self.only_sums = only_sums
        self.name = name or platform.node() or "device"
        self.conditions = conditions or Conditions()
        self.device = device
        self.runtimes = chosen(runtime, device)
        self.store = Store(Path(home) if home is not None else default_home(), server, tell=on_event)
        self._publisher = read_public(str(trust)) if trust is not None else self.store.publisher() or named
        require_publisher(self.runtimes, self._publisher)
        self._data = OwnData(data, bad_rows=bad_rows, holdout=holdout, columns=columns, tell=on_event)
        self._fitness = Fitness(self._data, job, on_event)
        self._tell = on_event
        self._on_idle = on_idle
        self._pause = pause
        self._waits = Waits(pause, on_event, self.unload, self._hand_over)
        self._bench: tuple[tuple[str, str], Workbench] | None = None
        self._rows = 0
        self._loaded = False
        self._step_seconds: float | None = None
        self._resident: int | None = None
        where = Path(ca) if ca is not None else None
        self.server = Server(server, ca=where, transport=transport, patience=patience, pause=pause, tell=on_event)

    # --- taking part ---

    def run(self, *, once: bool = False, rounds: int | None = None, idle: Idle | None = None) -> Done:
        """Take part until the server revokes this device.

        Args:
            once: take part in what there is now alone.
            rounds: take part in so many alone.
            idle: the wait that `on_idle` was told, to go on with.
        """
        if idle is None:
            self.server.warn_if_open()
        self._rows = self._data.count() if idle is None else idle.rows
        done = Done()
        with self.store.locked():
            try:
                if idle is not None:
                    self._step_seconds, self._resident = idle.step_seconds, idle.resident_bytes
                    self._waits.go_on(idle.seconds, idle.reason, idle.failures)
                if self._publisher is not None:
                    self.store.pin(self._publisher)
                enrol(self.server, self.store, self.token, self.name, self._tell)
                self._send_left_over(done)
                while rounds is None or done.rounds < rounds:
                    went_on = self._turn(done)
                    if once and (done.rounds or done.failures or done.late or not went_on):
                        break
            finally:
                self.unload()
        return done

    def close(self) -> None:
        """Give back memory and connections; the folder stays."""
        self.unload()
        self.server.close()

    def _send_left_over(self, done: Done) -> None:
        """A result that was finished before this process started; the server may have it already."""
        for job in self.store.jobs():
            task = job.task()
            if task is not None and job.update() is not None:
                self._guarded(job, task, lambda task=task, job=job: self._send(task, job), done)

    def _turn(self, done: Done) -> bool:
        """One check-in and what comes of it; False when there was nothing to do."""
        refusal = self.conditions.refusal()
        if refusal is not None:
            self._waits.wait(refusal.seconds, refusal.reason)
            return False
        answer = self.server.check_in(
            CheckIn(
                runtimes=self.runtimes,
                examples=self._rows,
                memory_bytes=self.conditions.memory(),
                power=self.conditions.machine.power(),
                metered=self.conditions.is_metered(),
                job=self.job,
                step_seconds=self._step_seconds,
                resident_bytes=self._most_memory(),
                low_memory=self.conditions.low_memory,
                unfit=self._fitness.look(self.server),
                sums=self.server.signing is not None,
                only_sums=self.only_sums,
            )
        )
        if answer.task is None:
            done.failures += self._fitness.fits_none
            self._waits.wait(answer.wait, answer.reason)
            return False
        task, job = answer.task, self.store.job(answer.task.job)
        self._waits.over()
        details = {"task": task.id, "job": task.job_name, "round": task.round, "units": len(task.units)}
        self._tell(Event("task", f"round {task.round} of {task.job_name}: {len(task.units)} units", details))
        self._guarded(job, task, lambda: self._take_part(task, job), done)
        return True

    def _take_part(self, task: Task, job: JobStore) -> Receipt:
        if self.only_sums and task.sum is None:
            raise TrainingError(f"{task.job_name} shows updates to its server, and this device joined with --only-sums")
        job.begin(task)
        if job.update() is None:
            bench = self._workbench(task)
            job.save_about(KnownJob(task.job, task.job_name, task.bundle, task.runtime))
            examples, held_back = self._data.fitting(
                bench.manifest.model, bench.kind.fields, bench.check(), bench.template, converses=bench.kind.converses
            )
            self._fitness.tell_of_long(bench, task, examples)
            from edge_client.training.round import Participation

            part = Participation(
                task, self.server, job, bench, examples, held_back, self._tell, self.conditions.memory(),
                self.conditions.low_memory,
            )  # fmt: skip
            self._step_seconds = part.run()
        if task.training.mode == "iteration":
            job.finish()
            return Receipt(0.0)
        return self._send(task, job)

    def _send(self, task: Task, job: JobStore) -> Receipt:
        receipt = self._add(task, job) if task.sum else self.server.send_update(task.id, job.update() or b"")
        job.finish()
        again = " (it had it already)" if receipt.repeated else ""
        details = {"task": task.id, "round": task.round, "repeated": receipt.repeated}
        self._tell(Event("uploaded", f"the server has the result of round {task.round}{again}", details))
        return receipt

    def _add(self, task: Task, job: JobStore) -> Receipt:
        """The result goes into a sum."""
        from .summing import Adding

        key = self.store.key()
        if key is None:
            raise TrainingError("this device has no key of its own to add its update with: enrol again")
        self.unload()  # others may train for long
        return Adding(task, self.server, job, key, self._pause, self._tell).run()

    def _guarded(self, job: JobStore, task: Task, work: Callable[[], Receipt], done: Done) -> None:
        """Do a task; what ends it early is told, to the server too, and the client goes on."""
        try:
            receipt = work()
        except (Unauthorized, Unreachable):  # the task and its result stay for another run
            raise
        except ServerError as error:
            job.finish()
            if error.code == "late":  # others were faster, or a time was up
                done.late += 1
                self._tell(Event("late", f"round {task.round}: {error}", {"task": task.id}))
                self._waits.after_late()
                return
            done.failures += 1
            self._tell(Event("refused", f"round {task.round}: {error}", {"task": task.id, "code": error.code}))
            self._waits.after_failure()
        except (SpryError, MemoryError) as error:
            self._give_back(job, task, str(error) or "out of memory: join with --low-memory")
            done.failures += 1
            if isinstance(error, StoreError) or not self.runtimes:  # the next task would fare no better
                raise
            self._waits.after_failure()
        except Exception as error:  # a runtime's, for one: this client ends, and its operator hears why
            self._give_back(job, task, f"{type(error).__name__}: {error}")
            raise
        else:
            done.rounds += 1
            self._waits.after_success(receipt.wait)

    def _give_back(self, job: JobStore, task: Task, reason: str) -> None:
        job.finish()
        self._tell(Event("failed", f"round {task.round} of {task.job_name}: {reason}", {"task": task.id}))
        self.unload()
        try:
            self.server.send_failure(task.id, reason)
        except (Unauthorized, Unreachable):
            raise
        except ServerError as error:  # it took too long, and the task is nobody's any more
            self._tell(Event("refused", str(error), {"task": task.id, "code": error.code}))

    # --- what a task needs ---

    def _workbench(self, task: Task) -> Workbench:
        """The task's bundle with its runtime, left open from round to round."""
        wanted = task.bundle, task.runtime
        if self._bench is None or self._bench[0] != wanted:
            self.unload()
            if task.runtime not in self.runtimes:
                raise SpryError(
                    f"the task is for the runtime {task.runtime}, this device offers {', '.join(self.runtimes)}: "
                    "it goes back to the server, and another comes with the next look"
                )
            folder = self.store.bundle(task.bundle)
            bundle = fetch(self.server, task.bundle, task.runtime, folder, publisher=self._publisher, tell=self._tell)
            self._loaded = True
            bench = Workbench(bundle, task.runtime, threads=self.threads, device=self.device)
            self._bench = wanted, bench
            self._try(bench)
        return self._bench[1]

    def _try(self, bench: Workbench) -> None:
        """A runtime that gives wrong results is offered no more; what took it on is given back."""
        try:
            try_once(bench.bundle.folder, bench.manifest, bench.runtime_name, bench.runtime)
        except WrongResults:
            self.runtimes = [name for name in self.runtimes if name != bench.runtime_name]
            raise

    def unload(self) -> None:
        """Give back the memory of runtime, programs and tokenizer."""
        if self._bench is not None:
            self._bench[1].close()
            self._bench = None
            trim_memory()

    # --- what another process goes on with ---

    def _hand_over(self, seconds: float) -> None:
        """Let a long wait end this process, if it has loaded a runtime."""
        if self._loaded and self._on_idle is not None:
            known = self._waits.failures, self._step_seconds, self._most_memory()
            self._on_idle(Idle(seconds, self._waits.reason, self._rows, *known))

    def _most_memory(self) -> int | None:
        """Of this process and those that it took over from; None where the system does not tell."""
        with suppress(OSError, SpryError):
            self._resident = max(resident("VmHWM"), self._resident or 0)  # a round sets the system's mark back
        return self._resident

    # --- prediction ---

    def predict(self, texts: Sequence[Text], *, personal: bool = False) -> list[Prediction]:
        """Predictions by the newest global weights that this device has, or by those that it trained itself."""
        from .predictions import predict

        low = self.conditions.low_memory
        return predict(self.store, texts, job=self.job, personal=personal, threads=self.threads, low_memory=low)

    def generate(
        self,
        prompt: str,
        *,
        personal: bool = False,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Iterator[str]:
        """What a language model goes on with, piece by piece as it comes, by the weights that `predict` takes.

        Args:
            prompt: what the text begins with.
            personal: by the adapter that this device trained last, not the global one.
            max_tokens: at most so many; until the model ends, or the bundle holds no more, when left out.
            temperature: 0 takes the likeliest token; 1 draws as the model says.
            top_k: draw from so many of the likeliest; 0: from all.
            top_p: draw from the fewest likeliest whose probabilities come to this; 1: from all.
            repetition_penalty: above 1, tokens that were there come less often again.
            stop: words that end the text, and do not belong to it.
            seed: the same seed draws the same text.
        """
        from edge_client.generation.generator import Wish
        from edge_client.generation.sampler import Sampling

        from .generation import generate

        wish = Wish(Sampling(temperature, top_k, top_p, repetition_penalty, seed), max_tokens, tuple(stop))
        return generate(self.store, prompt, wish, job=self.job, personal=personal, threads=self.threads)
