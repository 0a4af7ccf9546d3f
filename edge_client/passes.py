"""Steps over a whole batch, whatever shapes the bundle and the memory leave to run them in.

A batch runs in pieces of rows when memory is short, and its K directions in turns when there are no programs for all of
them at once; losses and derivatives come back as if it had been one step. What enters the cut is kept for the next pass
over the same batch, as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .batches import Batch
from .chain import first_use
from .errors import TrainingError
from .manifest import Manifest
from .optimizers import Weights
from .protocol import Task
from .steps import Programs, Stepper

Array = NDArray[Any]


class Pass(NamedTuple):
    """Losses and derivatives of a batch."""

    loss: Array
    """[batch]; 0 for rows that only fill it."""
    jvp: Array
    """[K, batch]"""
    head_jvp: Array
    """[K, batch]; 0 where the head gives its gradient."""
    gradients: dict[str, Array]
    """The exact ones: the head's, and with `exact` the units'."""


class _Piece(NamedTuple):
    """Rows of a batch that run together."""

    key: tuple[int, int]
    rows: slice
    tokens: dict[str, Array]
    labels: Array
    weight: Array
    share: float
    """Of the batch's weight."""


class Prefixes:
    """Hidden states that enter the cut, kept for each piece of a batch up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: dict[tuple[int, int], Array] = {}

    def get(self, key: tuple[int, int]) -> Array | None:
        return self._kept.get(key)

    def keep(self, key: tuple[int, int], hidden: Array) -> None:
        if self.bytes + hidden.nbytes <= self.limit:
            self._kept[key] = hidden
            self.bytes += hidden.nbytes

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = 0


class Passes:
    """Runs the steps of one task.

    Args:
        manifest: of the bundle.
        runtime: where its programs run.
        task: whose training, cut, batch and runtime's name count.
        cache_bytes: for hidden states that enter the cut; 0 keeps none.
        low_memory: hold one program at a time.
    """

    def __init__(
        self, manifest: Manifest, runtime: Programs, task: Task, *, cache_bytes: int = 0, low_memory: bool = False
    ) -> None:
        training = task.training
        self.manifest = manifest
        self.cut = task.cut
        self.batch = training.batch
        self.directions = training.directions
        self.prefixes = Prefixes(cache_bytes if training.prefix_cache else 0)
        shape = rows_at_once(manifest, task), training.length
        turn = directions_at_once(manifest, training.directions)
        self._stepper = Stepper(manifest, runtime, task.runtime, *shape, turn, low_memory=low_memory)
        early = [unit for unit in manifest.units if first_use(manifest, unit) < self.cut]
        self._before = {parameter.name for unit in early for parameter in unit.parameters}

    # --- steps ---

    def dual(self, batch: Batch, weights: Weights, directions: Mapping[str, Array]) -> Pass:
        """Derivatives along the units' directions, and the head's exact gradient."""
        found = self._empty()
        for piece in self._pieces(batch):
            hidden = self._hidden(piece, weights)
            for turn, part in self._turns(piece, directions):
                step = self._stepper.suffix(hidden, piece.tokens, piece.labels, weights, part, self.cut, piece.weight)
                self._fill(found, piece, turn, step.loss, step.jvp)
                if turn.start == 0:  # the head's gradient is the same in every turn
                    _add(found.gradients, step.gradients, piece.share)
        return found

    def scalars(self, batch: Batch, weights: Weights, directions: Mapping[str, Array]) -> Pass:
        """Derivatives along the units' and the head's directions."""
        found = self._empty()
        for piece in self._pieces(batch):
            hidden = self._hidden(piece, weights)
            for turn, part in self._turns(piece, directions):
                step = self._stepper.scalars(piece.tokens, piece.labels, weights, part, self.cut, hidden=hidden)
                self._fill(found, piece, turn, step.loss, step.jvp, step.head_jvp)
        return found

    def exact(self, batch: Batch, weights: Weights) -> Pass:
        """True gradients of units and head."""
        found = self._empty()
        for piece in self._pieces(batch):
            step = self._stepper.exact(piece.tokens, piece.labels, weights, self.cut, piece.weight)
            self._fill(found, piece, slice(0), step.loss)
            _add(found.gradients, step.gradients, piece.share)
        return found

    def losses(self, batch: Batch, weights: Weights) -> Array:
        """[batch], without derivatives."""
        found = self._empty()
        for piece in self._pieces(batch):
            hidden = self._hidden(piece, weights)
            step = self._stepper.forward(piece.tokens, piece.labels, weights, hidden=hidden, cut=self.cut)
            self._fill(found, piece, slice(0), step.loss)
        return found.loss

    def logits(self, batch: Batch, weights: Weights) -> Array:
        """[batch, ...], from end to end and without leaving anything in the cache."""
        parts: list[Array] = []
        for piece in self._pieces(batch):
            logits = self._stepper.forward(piece.tokens, piece.labels, weights).logits
            parts.append(logits[: piece.rows.stop - piece.rows.start])
        return np.concatenate(parts)

    # --- memory ---

    def changed(self, names: Iterable[str]) -> None:
        """Weights before the cut have changed: what was kept is of no use."""
        if not self._before.isdisjoint(names):
            self.prefixes.clear()

    def release(self) -> None:
        self.prefixes.clear()
        self._stepper.release()

    # --- pieces ---

    def _pieces(self, batch: Batch) -> Iterator[_Piece]:
        """The batch's rows in pieces of the programs' size; pieces that only fill are left out."""
        size = self._stepper.chain.batch
        total = float(batch.weight.sum())
        for number, start in enumerate(range(0, self.batch, size)):
            rows = slice(start, min(start + size, self.batch))
            weight = _filled(batch.weight[rows], size)
            weight[rows.stop - rows.start :] = 0
            if weight.any():
                tokens = {name: _filled(values[rows], size) for name, values in batch.tokens.items()}
                share = float(weight.sum()) / total
                yield _Piece((batch.number, number), rows, tokens, _filled(batch.labels[rows], size), weight, share)

    def _turns(self, piece: _Piece, directions: Mapping[str, Array]) -> Iterator[tuple[slice, dict[str, Array]]]:
        """The directions that run together, cut to a piece's rows."""
        at_once, size = self._stepper.chain.directions, self._stepper.chain.batch
        for first in range(0, self.directions, at_once):
            turn = slice(first, first + at_once)
            part: dict[str, Array] = {}
            for name, values in directions.items():
                shaped = values.reshape(self.directions, self.batch, *values.shape[1:])[turn, piece.rows]
                missing = size - shaped.shape[1]
                if missing:
                    shaped = np.pad(shaped, [(0, 0), (0, missing), *[(0, 0)] * (shaped.ndim - 2)])
                part[name] = np.ascontiguousarray(shaped).reshape(at_once * size, *values.shape[1:])
            yield turn, part

    def _hidden(self, piece: _Piece, weights: Weights) -> Array | None:
        hidden = self.prefixes.get(piece.key)
        if hidden is None:
            hidden = self._stepper.prefix(piece.tokens, weights, self.cut)
            if hidden is not None:
                self.prefixes.keep(piece.key, hidden)
        return hidden

    def _empty(self) -> Pass:
        shape = self.directions, self.batch
        return Pass(np.zeros(self.batch, np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.float32), {})

    @staticmethod
    def _fill(
        found: Pass, piece: _Piece, turn: slice, loss: Array, jvp: Array | None = None, head_jvp: Array | None = None
    ) -> None:
        counted = piece.weight[: piece.rows.stop - piece.rows.start] > 0
        found.loss[piece.rows] = loss[: len(counted)] * counted
        for whole, part in ((found.jvp, jvp), (found.head_jvp, head_jvp)):
            if part is not None:
                whole[turn, piece.rows] = part[:, : len(counted)] * counted


def _filled(rows: Array, size: int) -> Array:
    """Rows up to `size`, the last one repeated."""
    return rows[np.minimum(np.arange(size), len(rows) - 1)]


def _add(total: dict[str, Array], part: Mapping[str, Array], share: float) -> None:
    for name, value in part.items():
        scaled = share * value
        total[name] = total[name] + scaled if name in total else scaled


def rows_at_once(manifest: Manifest, task: Task) -> int:
    """The largest batch that the bundle has programs for and the task allows."""
    length, most = task.training.length, min(task.batch, task.training.batch)
    offered = [batch for batch, offered in manifest.shapes if offered == length]
    fitting = [batch for batch in offered if batch <= most]
    if not fitting:
        shapes = ", ".join(f"{batch}x{tokens}" for batch, tokens in manifest.shapes)
        raise TrainingError(
            f"the bundle has no programs for at most {most} examples of {length} tokens; it has {shapes}"
        )
    return max(fitting)


def directions_at_once(manifest: Manifest, directions: int) -> int:
    """The largest number of directions that there are programs for and that divides what is wanted."""
    fitting = [k for k in manifest.directions if directions % k == 0]
    return max(fitting, default=next(iter(manifest.directions), directions))
