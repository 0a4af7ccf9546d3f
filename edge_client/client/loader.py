"""The bundle that a device works with, left open from round to round."""

from __future__ import annotations

from edge_client.errors import SpryError, WrongResults
from edge_client.events import Tell
from edge_client.memory import trim_memory
from edge_client.store.download import fetch
from edge_client.store.jobs import DeviceStore
from edge_client.store.tried import refuse, refused, try_once
from edge_client.training.session import TrainingSession
from edge_client.wire.protocol import Task
from edge_client.wire.server import Server


class BundleLoader:
    """Open the training session that a task needs, and close the one before.

    Args:
        server: has the bundles.
        store: keeps them.
        runtimes: that this device offers; those with wrong results are taken out.
        publisher: whose bundles alone are taken; None: all.
        threads: that a runtime may use; 0 leaves it to the runtime.
        device: where programs run.
        tell: takes the events of downloads.
    """

    def __init__(
        self,
        server: Server,
        store: DeviceStore,
        runtimes: list[str],
        publisher: str | None,
        *,
        threads: int,
        device: str,
        tell: Tell,
    ) -> None:
        self.runtimes = runtimes
        self.has_opened = False
        """True if a runtime was loaded, parts of which stay in the process until it ends."""
        self._server = server
        self._store = store
        self._publisher = publisher
        self._threads = threads
        self._device = device
        self._tell = tell
        self._open: tuple[tuple[str, str], TrainingSession] | None = None

    def session_for(self, task: Task, memory: int | None = None) -> TrainingSession:
        """Open the task's bundle with its runtime, which is tried in that much memory."""
        wanted = task.bundle, task.runtime
        if self._open is None or self._open[0] != wanted:
            self.close()
            if task.runtime not in self.runtimes:
                raise SpryError(
                    f"the task is for the runtime {task.runtime}, this device offers {', '.join(self.runtimes)}: "
                    "it goes back to the server, and the next check-in brings another"
                )
            if why := refused(self._store.folder, task.bundle, task.runtime):
                self._take_out(task.runtime)
                raise WrongResults(why)
            folder = self._store.bundle(task.bundle)
            whose, tell = self._publisher, self._tell
            bundle = fetch(
                self._server, task.bundle, task.runtime, folder, publisher=whose, mirrors=task.mirrors, tell=tell
            )
            self.has_opened = True
            session = TrainingSession(bundle, task.runtime, threads=self._threads, device=self._device)
            self._open = wanted, session
            self._try(session, task.bundle, memory)
        return self._open[1]

    def _try(self, session: TrainingSession, name: str, memory: int | None) -> None:
        """Try a runtime once; one that gives wrong results is offered no more, and its task is given back."""
        try:
            try_once(session.bundle.folder, session.manifest, session.runtime_name, session.runtime, memory)
        except WrongResults as error:
            refuse(self._store.folder, name, session.runtime_name, str(error))
            self._take_out(session.runtime_name)
            raise

    def _take_out(self, runtime: str) -> None:
        self.runtimes = [name for name in self.runtimes if name != runtime]

    def close(self) -> None:
        """Give back the memory of runtime, programs and tokenizer."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
            trim_memory()
