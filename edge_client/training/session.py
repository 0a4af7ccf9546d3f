"""Open a bundle for training and prediction: its runtime, its tokenizer, and a plan for the memory there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge_client.bundle.chain import Chain, bytes_of, cut_for, directions_at_once
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest, ProgramSpec
from edge_client.data.examples import Check, Example, Examples, examples_for
from edge_client.data.sources import Row, open_data
from edge_client.data.templates import Template
from edge_client.errors import ProgramInputError, TrainingError
from edge_client.estimators.registry import kind_of
from edge_client.runtimes.runtime import CPU, Runtime, open_runtime
from edge_client.step.passes import Passes, rows_at_once
from edge_client.tasks.registry import task_named
from edge_client.wire.protocol import ServerOptimizers, Task, Training

if TYPE_CHECKING:
    from pathlib import Path

    from edge_client.data.encoder import TextEncoder

    from .round import LocalData, LocalModel


CACHE_WITHOUT_LIMIT = 256 << 20
MEGABYTE = 1e6


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of a task within some memory."""

    low_memory: bool
    """Hold one program at a time."""
    cache_bytes: int
    """The bytes for hidden states that are kept."""


class TrainingSession:
    """An open bundle. `close` gives its memory back."""

    def __init__(self, bundle: Bundle, runtime: str, *, threads: int = 0, device: str = CPU) -> None:
        self.bundle = bundle
        self.manifest = bundle.manifest
        self.kind = task_named(bundle.manifest.model.task)
        self.runtime_name = runtime
        self.runtime: Runtime = open_runtime(runtime, bundle.folder, threads=threads, device=device)
        self.template = Template.of(bundle)
        self._tokenizer = bundle.tokenizer()

    def require(self, task: Task) -> None:
        """Refuse a task that names what the bundle does not have."""
        units, segments = len(self.manifest.units), len(self.manifest.segments)
        summed = task.sum.units if task.sum else []
        known = all(unit < units for unit in task.units) and len(set(task.units)) == len(task.units)
        if not (known and task.cut < segments and set(summed) <= set(task.units)):
            raise TrainingError(
                f"the task is of units {task.units[:8]} from segment {task.cut}, where the bundle has {units} units in "
                f"{segments} segments; ask the server's operator"
            )

    def check(self) -> Check:
        """Makes examples of rows."""
        return self.kind.check(self.manifest.model.labels, self.template)

    def encoder(self, batch: int, length: int) -> TextEncoder:
        from edge_client.data.encoder import TextEncoder

        return TextEncoder(self._tokenizer, self.manifest, batch, length)

    def token(self, number: int) -> str:
        """Return the text of a token."""
        return self._tokenizer.decode([number], skip_special_tokens=False)

    def passes(self, task: Task, memory: int | None, *, keep_prefixes: bool = True, low_memory: bool = False) -> Passes:
        """`keep_prefixes` pays where batches are visited again."""
        plan = plan_for(self.manifest, task, memory, low_memory=low_memory)
        self.runtime.keep(programs_of(self.manifest, task))
        return Passes(
            self.manifest, self.runtime, task, cache_bytes=plan.cache_bytes, keep_prefixes=keep_prefixes,
            low_memory=plan.low_memory,
        )  # fmt: skip

    def task(self, training: Training, *, seed: int = 0, units: Sequence[int] | None = None) -> Task:
        """Return a round in mode epoch of one client, which trains these units, or all of them, and the head."""
        units = range(len(self.manifest.units)) if units is None else units
        return Task(
            id="local", job="local", job_name="local", round=1, seed=seed, units=list(units),
            cut=cut_for(self.manifest, units), bundle="", runtime=self.runtime_name, version=0, iteration=0,
            seconds=0.0, training=training, optimizers=ServerOptimizers(), batch=training.batch,
        )  # fmt: skip

    def examples(self, data: Path | str | Iterable[Row]) -> Examples:
        """Examples of a JSONL or CSV file, or of rows."""
        return examples_for(open_data(data), self.check())

    def model(self, task: Task, passes: Passes | None = None) -> LocalModel:
        """Return the model as a task trains it; `passes` where they are planned for some memory."""
        from edge_client.estimators.registry import estimator_for

        from .round import LocalModel

        passes = passes or self.passes(task, None)
        return LocalModel(self.manifest, self.kind, passes, estimator_for(self.manifest, task, passes))

    def data(self, task: Task, examples: Sequence[Example], held_back: Sequence[Example] = ()) -> LocalData:
        """Return a client's examples as a task trains on them."""
        from .round import LocalData, batches_of

        training = task.training
        encoder = self.encoder(training.batch, training.length)
        return LocalData(examples, batches_of(examples, encoder, self.kind, training, task.seed), held_back)

    def close(self) -> None:
        self.runtime.close()


def plan_for(manifest: Manifest, task: Task, memory: int | None, *, low_memory: bool = False) -> MemoryPlan:
    """Programs side by side where they fit, one at a time where not or where asked; the rest may keep prefixes."""
    if memory is None:
        return MemoryPlan(low_memory, cache_bytes=CACHE_WITHOUT_LIMIT)
    programs = programs_of(manifest, task)
    together, alone = bytes_of(programs), bytes_of(programs, low_memory=True)
    if alone > memory:
        raise TrainingError(
            f"the task needs {alone / MEGABYTE:.0f} MB for its largest program, training may take "
            f"{memory / MEGABYTE:.0f} MB: raise --max-memory, or close other programs"
        )
    low_memory = low_memory or together > memory
    return MemoryPlan(low_memory, min(memory - (alone if low_memory else together), CACHE_WITHOUT_LIMIT))


def programs_of(manifest: Manifest, task: Task) -> list[ProgramSpec]:
    """Return the programs that a task's steps load."""
    training = task.training
    shape = rows_at_once(manifest, task), training.length
    chain = Chain(manifest, task.runtime, *shape, directions_at_once(manifest, training.directions))
    return kind_of(training).programs(chain, training, task.cut)


def fitting_shape(manifest: Manifest, examples: int) -> tuple[int, int]:
    """Return a shape for prediction: the longest texts, in a batch that so many examples fill."""
    if not manifest.shapes:
        raise ProgramInputError("the bundle has no programs; export it again")
    length = max(length for _, length in manifest.shapes)
    batches: Sequence[int] = sorted(batch for batch, offered in manifest.shapes if offered == length)
    return next((batch for batch in batches if batch >= examples), batches[-1]), length
