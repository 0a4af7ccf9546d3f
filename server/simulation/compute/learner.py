"""Define a simulation's model; the exporter provides it, found by its entry point in the group `spry.simulation`.

A model that another distribution adds to the group takes its place.

A learner computes for many clients at once: each has a batch and trainable weights of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tokenizers import Tokenizer

from edge_client import plugins
from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch
from edge_client.data.templates import Template
from edge_client.errors import RuntimeMissing
from edge_client.training.round import Computation
from edge_client.wire.protocol import Task
from server.errors import SimulationError

Given = TypeVar("Given")


class Bottleneck(Protocol):
    """The tensors around a unit's bottleneck in one batch; see `edge_client.bundle.manifest.Unit.tangents`."""

    @property
    def entering(self) -> Array:
        """[batch, tokens, features]: what enters the factor before it."""
        ...

    @property
    def gradient(self) -> Array:
        """[batch, tokens, rank]: of each example's loss by what leaves that factor."""
        ...


class Differentiated(Protocol):
    """One client's losses, logits and gradients."""

    @property
    def loss(self) -> Array: ...
    @property
    def logits(self) -> Array: ...
    @property
    def gradients(self) -> Weights: ...
    @property
    def bottlenecks(self) -> Mapping[str, Bottleneck]:
        """Collect the tensors around bottlenecks, by their parameters; where gradients are of each example alone."""
        ...


class Predicted(Protocol):
    """One client's logits."""

    @property
    def logits(self) -> Array: ...


class Computed(Predicted, Protocol):
    """One client's losses and logits, and the features behind them."""

    @property
    def loss(self) -> Array: ...
    @property
    def features(self) -> Array | None: ...


class Model(Protocol):
    """A model that all clients of a process share: a learner, or a bundle's programs."""

    manifest: Manifest
    initial: Weights

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def template(self) -> Template:
        """Makes texts of conversations."""
        ...

    def forward(self, weights: Sequence[Weights], batches: Sequence[Batch]) -> Sequence[Predicted]:
        """Compute logits of each batch by its own weights."""
        ...

    def save_adapter(self, folder: Path, weights: Weights) -> None:
        """Write what `PeftModel.from_pretrained` loads."""
        ...


class ClientRunner(Protocol):
    """Runs the clients of a round."""

    def run(self, tasks: Sequence[Task], work: Callable[[int, Computation], Given]) -> list[Given]:
        """Give what `work(number, passes)` returns for each task."""
        ...


class Learner(Model, Protocol):
    """A model that computes for many clients at once."""

    def forward(self, weights: Sequence[Weights], batches: Sequence[Batch]) -> Sequence[Computed]:
        """Compute each client's losses, logits and features."""
        ...

    def differentiate(
        self,
        weights: Sequence[Weights],
        batches: Sequence[Batch],
        names: Sequence[Collection[str]],
        *,
        per_example: bool,
    ) -> Sequence[Differentiated]:
        """Losses, and gradients by each client's `names`, of each example's loss or of the weighted mean."""
        ...


class Exporter(Protocol):
    """A function that opens models: `export.rows.open_model`."""

    def __call__(self, source: str, /, *, device: str, **options: Any) -> Learner:
        """Open the model at `source`."""
        ...


def exporter() -> Exporter:
    """Load the function that opens models; this imports the libraries behind it, which takes seconds."""
    *_, last = plugins.added(plugins.SIMULATION).values()  # this project's own comes first
    return last.load()


def open_learner(source: str, *, device: str, **options: Any) -> Learner:
    """Open the model at `source`; see `export.rows.open_model`."""
    _check_device(device)
    try:
        return exporter()(source, device=device, **options)
    except ModuleNotFoundError as error:
        raise RuntimeMissing("spry simulate", "export", f"{error.name} is not installed") from error


def _check_device(device: str) -> None:
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise SimulationError(f"unknown device {device!r}; expected cpu, cuda or cuda:N")
    if kind == "cuda":
        import torch

        if int(number or 0) >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise SimulationError(
                f"--device {device} was asked for, but torch {torch.__version__} finds {count} CUDA devices; use cpu"
            )
