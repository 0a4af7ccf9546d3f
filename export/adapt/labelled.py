"""Labelled examples that lie at hand where a model is exported, and a task layer fitted to them for a while."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edge_client.data.batches import Labelled, in_order, shuffled
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import examples_for
from edge_client.data.sources import open_data
from export.errors import ExportError
from export.graph.capture import TaskForward
from export.model.loading import Loaded, template_of

MOST = 512
"""The most rows of the file, drawn at random; more add little."""
_BATCH, _LENGTH = 16, 128
_FITTING = 60
"""Steps at most."""
_DECAY = 1.0
"""The decay of a layer behind standardized features; with less it learns these few by heart, without a gradient."""

Batch = dict[str, Tensor]
"""The model's inputs and the labels."""


def read_batches(loaded: Loaded, path: Path) -> list[Batch]:
    """Read the examples of a JSONL or CSV file, as devices read theirs."""
    if loaded.tokenizer is None:
        raise ExportError(f"{loaded.name} has no tokenizer, so the examples of {path} cannot be read")
    check = loaded.task.kind.check(loaded.labels, template_of(loaded.tokenizer))
    examples = examples_for(open_data(path), check)
    chosen = [examples[number] for number in sorted(shuffled(len(examples), 0, 0)[:MOST])]
    length = min(_LENGTH, loaded.positions or _LENGTH)
    encoder = TextEncoder(loaded.tokenizer.backend_tokenizer, loaded, _BATCH, length)
    return [
        without_filling(part, per_token=loaded.task.kind.per_token)
        for part in in_order(chosen, encoder, loaded.task.kind.encode)
    ]


def without_filling(part: Labelled, *, per_token: bool) -> Batch:
    """Return the arrays without rows and columns that only fill; labels have the columns where each token has one."""
    arrays, rows = {**part.encoded.tokens, "labels": part.labels}, len(part.examples)
    longest = int(arrays["attention_mask"][:rows].sum(1).max())
    lengthwise = {name for name in arrays if name != "labels" or per_token}
    return {
        name: torch.from_numpy(values[:rows, :longest] if name in lengthwise else values[:rows])
        for name, values in arrays.items()
    }


@contextmanager
def lent_head(loaded: Loaded) -> Generator[list[nn.Parameter], None, None]:
    """Lend the task layer's weights, to be changed for a while."""
    base = loaded.model.base_model_prefix + "."
    own = loaded.model.named_parameters() if loaded.task.kind.has_head else ()
    head = [parameter for name, parameter in own if not name.startswith(base)]
    kept = [parameter.detach().clone() for parameter in head]
    try:
        yield head
    finally:
        with torch.no_grad():
            for parameter, value in zip(head, kept, strict=True):
                parameter.copy_(value)


@contextmanager
def fitted_head(loaded: Loaded, batches: Sequence[Batch]) -> Generator[None, None, None]:
    """Fit the task layer alone and return it; a new one's gradient is of no use for the task."""
    with lent_head(loaded) as head:
        if head:
            _fit(loaded, head, batches)
        yield


def _fit(loaded: Loaded, head: Sequence[nn.Parameter], batches: Sequence[Batch]) -> None:
    forward = TaskForward(loaded.model, loaded.task, loaded.inputs)
    optimizer = torch.optim.LBFGS(head, max_iter=_FITTING, line_search_fn="strong_wolfe")
    total = sum(len(batch["labels"]) for batch in batches)

    def mean_loss() -> Tensor:
        optimizer.zero_grad()
        mean = _DECAY * torch.stack([parameter.square().sum() for parameter in head]).sum()
        for batch in batches:
            losses, _ = forward(*batch.values())
            mean = mean + losses.sum() / total
        mean.backward()
        return mean

    for parameter in head:
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad(), _remembered(loaded.model.base_model, batches):
            optimizer.step(mean_loss)  # type: ignore[arg-type] -- a tensor is what it expects
    finally:
        for parameter in head:
            parameter.grad = None
            parameter.requires_grad_(False)


@contextmanager
def _remembered(base: nn.Module, batches: Sequence[Batch]) -> Generator[None, None, None]:
    """Remember the base model's result of each batch; it is given again in the same order."""
    results: list[Any] = []
    turns = _again_and_again(len(batches))
    compute = base.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        turn = next(turns)
        if turn == len(results):
            with torch.no_grad():
                results.append(compute(*arguments, **named))
        return results[turn]

    base.forward = forward
    try:
        yield
    finally:
        del base.forward  # of the instance; the class has its own


def _again_and_again(count: int) -> Iterator[int]:
    while True:
        yield from range(count)
