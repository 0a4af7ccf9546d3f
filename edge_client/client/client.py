"""The device client: enrols once, then takes part in rounds for as long as it runs.

client = Client("https://spry.example.org", token="…", data="my.jsonl")
client.run()
client.predict(["Shares fell four percent."])
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from edge_client.data.columns import Columns
from edge_client.data.examples import BadRows
from edge_client.data.local import OwnData
from edge_client.data.sources import Row
from edge_client.events import Tell, silent
from edge_client.keys import read_public, split_token
from edge_client.runtimes.runtime import CPU, chosen, require_publisher
from edge_client.store.jobs import DeviceStore, default_home
from edge_client.wire.server import Server

from .attempts import Attempts, Done
from .check_ins import CheckIns
from .conditions import Conditions
from .enrolment import enrol
from .loader import BundleLoader
from .validation import DataValidation
from .waits import MOST_LATE, Waits

if TYPE_CHECKING:
    from edge_client.tasks.task import Prediction, Text

_USUAL = Columns()


@dataclass(frozen=True)
class Idle:
    """A long wait, and what a client must not forget over it."""

    seconds: float
    reason: str = ""
    rows: int = 0
    failures: int = 0
    step_seconds: float | None = None
    resident_bytes: int | None = None
    """The device's own figures for the server."""


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
        on_event: takes the events.
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
        runtimes = chosen(runtime, device)
        self.store = DeviceStore(Path(home) if home is not None else default_home(), server, tell=on_event)
        self._publisher = read_public(str(trust)) if trust is not None else self.store.publisher() or named
        require_publisher(runtimes, self._publisher)
        self._data = OwnData(data, bad_rows=bad_rows, holdout=holdout, columns=columns, tell=on_event)
        self._tell = on_event
        self._on_idle = on_idle
        where = Path(ca) if ca is not None else None
        self.server = Server(server, ca=where, transport=transport, patience=patience, pause=pause, tell=on_event)
        self._loader = BundleLoader(
            self.server, self.store, runtimes, self._publisher, threads=threads, device=device, tell=on_event
        )
        self._waits = Waits(pause, on_event, self.unload, self._hand_over)
        validation = DataValidation(self._data, job, on_event)
        self._check_ins = CheckIns(self.server, self.conditions, validation, job, only_sums)
        self._attempts = Attempts(
            self.server, self.store, self._data, self._loader, self._check_ins, self._waits, on_event
        )

    @property
    def runtimes(self) -> list[str]:
        """List the runtimes that this device offers, without those that gave wrong results."""
        return self._loader.runtimes

    # --- taking part ---

    def run(self, *, once: bool = False, rounds: int | None = None, idle: Idle | None = None) -> Done:
        """Take part until the server revokes this device.

        Args:
            once: take part in what is open now, and end.
            rounds: end after so many rounds.
            idle: the wait that `on_idle` was given, to go on with.
        """
        told, attempts = self._check_ins, self._attempts
        if idle is None:
            self.server.warn_if_open()
            told.rows = self._data.count()
        else:
            told.rows, told.step_seconds, told.resident_bytes = idle.rows, idle.step_seconds, idle.resident_bytes
        done = attempts.done = Done()
        with self.store.locked():
            try:
                if idle is not None:
                    self._waits.go_on(idle.seconds, idle.reason, idle.failures)
                if self._publisher is not None:
                    self.store.pin(self._publisher)
                enrol(self.server, self.store, self.token, self.name, self._tell)
                attempts.send_left_over()
                while rounds is None or done.rounds < rounds:
                    went_on = self._turn()
                    if once and not (done.is_nothing and went_on):
                        break
            finally:
                self.unload()
        return done

    def close(self) -> None:
        """Give back memory and connections; the folder stays."""
        self.unload()
        self.server.close()

    def _turn(self) -> bool:
        """Check in once and do the task; False when there was nothing to do."""
        refusal = self.conditions.refusal()
        if refusal is not None:
            self._waits.wait(refusal.seconds, refusal.reason, at_most_late=MOST_LATE)
            return False
        answer = self._check_ins.look(self.runtimes)
        if answer.task is None:
            validation = self._check_ins.validation
            self._attempts.done.failures += validation.fits_none or (validation.finds_none and not self._knows_job())
            self._waits.wait(answer.wait, answer.reason)
            return False
        self._attempts.take(answer.task)
        return True

    def _knows_job(self) -> bool:
        """Tell whether the job that was named is one that this device took part in, which has ended or is paused."""
        known = (job.about for job in self.store.jobs())
        return any(self.job in (about.id, about.name) for about in known if about is not None)

    def unload(self) -> None:
        """Give back the memory of runtime, programs and tokenizer."""
        self._loader.close()

    def _hand_over(self, seconds: float) -> None:
        """Let a long wait end this process, if it has loaded a runtime."""
        if self._loader.has_opened and self._on_idle is not None:
            told = self._check_ins
            known = self._waits.failures, told.step_seconds, told.most_memory()
            self._on_idle(Idle(seconds, self._waits.reason, told.rows, *known))

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
        """Generate text with a language model, piece by piece, by the weights that `predict` takes.

        Args:
            prompt: the beginning of the text.
            personal: by the adapter that this device trained last, not the global one.
            max_tokens: at most so many; until the model ends, or the bundle holds no more, when left out.
            temperature: 0 takes the likeliest token; 1 draws with the model's probabilities.
            top_k: draw from so many of the likeliest; 0: from all.
            top_p: draw from the fewest likeliest whose probabilities add up to this; 1: from all.
            repetition_penalty: above 1, tokens that were there come less often again.
            stop: words that end the text, and do not belong to it.
            seed: the same seed draws the same text.
        """
        from edge_client.generation.generator import GenerationConfig
        from edge_client.generation.sampler import Sampling

        from .generation import generate

        config = GenerationConfig(
            Sampling(temperature, top_k, top_p, repetition_penalty, seed), max_tokens, tuple(stop)
        )
        return generate(self.store, prompt, config, job=self.job, personal=personal, threads=self.threads)
