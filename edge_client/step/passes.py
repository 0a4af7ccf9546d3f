"""Steps over a whole batch, whatever shapes the bundle and the memory leave to run them in.

A batch runs in pieces of rows when memory is short, and its K directions in turns when there are no programs for all of
them at once; losses and derivatives come back as if it had been one step. What enters the cut is kept for the next pass
over the same batch, as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.bundle.chain import directions_at_once, exact_cut
from edge_client.bundle.manifest import Manifest
from edge_client.data.batches import Batch
from edge_client.errors import TrainingError
from edge_client.wire.protocol import Task

from .stepper import ExactStep, Programs, Stepper

Turn = NDArray[np.intp]
"""Which of a step's K directions run together."""
_NONE = np.arange(0)


class Pass(NamedTuple):
    """Losses and derivatives of a batch."""

    loss: Array
    """[batch]; 0 for rows that only fill it."""
    jvp: Array
    """[K, batch]"""
    head_jvp: Array
    """[K, batch]; 0 where the head gives its gradient."""
    gradients: dict[str, Array]
    """The exact ones: the head's, with `exact` the units', and with `mixed` those of units in the last blocks."""
    moved: Mapping[str, Array] = MappingProxyType({})
    """The directions at bottlenecks as directions of weights, [K * batch, *shape]."""


class _Piece(NamedTuple):
    """Rows of a batch that run together."""

    key: tuple[int, int]
    rows: slice
    tokens: dict[str, Array]
    labels: Array
    weight: Array
    share: float
    """The share of the batch's weight."""


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
        cache_bytes: for the hidden states that enter the cut; 0 keeps none.
        keep_prefixes: keep them; it pays where batches are visited again.
        low_memory: hold one program at a time.
    """

    def __init__(
        self,
        manifest: Manifest,
        runtime: Programs,
        task: Task,
        *,
        cache_bytes: int = 0,
        keep_prefixes: bool = True,
        low_memory: bool = False,
    ) -> None:
        training = task.training
        self.manifest = manifest
        self.cut = task.cut
        self.batch = training.batch
        self.directions = training.directions
        self._exact_blocks = training.exact_blocks
        shape = rows_at_once(manifest, task), training.length
        turn = directions_at_once(manifest, training.directions)
        self._stepper = Stepper(manifest, runtime, task.runtime, *shape, turn, low_memory=low_memory)
        self._before = {name for name, use in self._stepper.chain.first_use.items() if use < self.cut}
        self.prefixes = Prefixes(cache_bytes if keep_prefixes else 0)

    # --- steps ---

    def along(
        self, batch: Batch, weights: Weights, directions: Mapping[str, Array], *, scalar_head: bool = False
    ) -> Pass:
        """Derivatives along the units' directions; of the head its exact gradient, or its own derivative."""
        whole = self._empty(directions)
        for piece, turn, hidden, part in self._taking_turns(batch, weights, directions):
            step = self._stepper.along(
                piece.tokens, piece.labels, weights, part, self.cut, piece.weight,
                scalar_head=scalar_head, hidden=hidden,
            )  # fmt: skip
            self._fill(whole, piece, turn, step.loss, step.jvp, step.head_jvp)
            if turn[0] == 0:  # the head's gradient is the same in every turn
                _add(whole.gradients, step.gradients, piece.share)
            self._put(whole, piece, turn, step.moved)
        return whole

    def mixed(self, batch: Batch, weights: Weights, directions: Mapping[str, Array]) -> Pass:
        """True gradients of head and last units, and derivatives along the directions of units before them."""
        whole = self._empty(directions)
        end = exact_cut(self.manifest, self.cut, self._exact_blocks)
        behind: ExactStep | None = None
        for piece, turn, hidden, part in self._taking_turns(batch, weights, directions):
            first = turn[0] == 0
            jvp, behind, moved = self._stepper.mixed(
                piece.tokens, piece.labels, weights, part, self.cut, end, piece.weight,
                hidden=hidden, behind=None if first else behind,
            )  # fmt: skip
            self._fill(whole, piece, turn, behind.loss, jvp)
            self._put(whole, piece, turn, moved)
            if first:
                _add(whole.gradients, behind.gradients, piece.share)
        return whole

    def exact(self, batch: Batch, weights: Weights) -> Pass:
        """True gradients of units and head."""
        whole = self._empty()
        for piece in self._pieces(batch):
            step = self._stepper.exact(piece.tokens, piece.labels, weights, self.cut, piece.weight)
            self._fill(whole, piece, _NONE, step.loss)
            _add(whole.gradients, step.gradients, piece.share)
        return whole

    def losses(self, batch: Batch, weights: Weights) -> Array:
        """[batch], without derivatives."""
        whole = self._empty()
        for piece in self._pieces(batch):
            hidden = self._hidden(piece, weights)
            step = self._stepper.forward(piece.tokens, piece.labels, weights, hidden=hidden, cut=self.cut)
            self._fill(whole, piece, _NONE, step.loss)
        return whole.loss

    def logits(self, batch: Batch, weights: Weights) -> Array:
        """[batch, ...], from end to end and without leaving anything in the cache."""
        return np.concatenate([rows for rows, _ in self._whole(batch, weights)])

    def features(self, batch: Batch, weights: Weights) -> Array:
        """[batch, ...], what the logits are a product of; computed like them."""
        parts = [rows for _, rows in self._whole(batch, weights)]
        return np.concatenate([rows for rows in parts if rows is not None])

    def _whole(self, batch: Batch, weights: Weights) -> Iterator[tuple[Array, Array | None]]:
        """Logits and features of each piece, without rows that only fill."""
        for piece in self._pieces(batch):
            passed = self._stepper.forward(piece.tokens, piece.labels, weights)
            rows = slice(piece.rows.stop - piece.rows.start)
            yield passed.logits[rows], None if passed.features is None else passed.features[rows]

    # --- memory ---

    def changed(self, names: Iterable[str]) -> None:
        """Weights before the cut have changed: what was kept is of no use."""
        if not self._before.isdisjoint(names):
            self.prefixes.clear()

    def release(self) -> None:
        self.prefixes.clear()
        self._stepper.release()

    # --- pieces and turns ---

    def _taking_turns(
        self, batch: Batch, weights: Weights, directions: Mapping[str, Array]
    ) -> Iterator[tuple[_Piece, Turn, Array | None, dict[str, Array]]]:
        """Yield each piece's turns, with what enters the cut, and their part of the directions."""
        at_once = self._stepper.chain.directions
        for piece in self._pieces(batch):
            hidden = self._hidden(piece, weights)
            for first in range(0, self.directions, at_once):
                turn = np.arange(first, min(first + at_once, self.directions))
                yield piece, turn, hidden, self._part(directions, turn, piece)

    def _pieces(self, batch: Batch) -> Iterator[_Piece]:
        """Yield the batch's rows in pieces of the programs' size; pieces that only fill are left out."""
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

    def _part(self, directions: Mapping[str, Array], turn: Turn, piece: _Piece) -> dict[str, Array]:
        """Return a turn's directions of the parameters that it moves, of a piece's rows, which may share them."""
        moving: dict[str, Array] = {}
        for name, values in directions.items():
            own = values.reshape(self.directions, -1, *values.shape[1:])[turn]
            if not own.any():
                continue
            shaped = np.broadcast_to(own, (len(own), self.batch, *own.shape[2:]))[:, piece.rows]
            missing = self._stepper.chain.batch - shaped.shape[1]
            if missing:
                shaped = np.pad(shaped, [(0, 0), (0, missing), *[(0, 0)] * (shaped.ndim - 2)])
            moving[name] = np.ascontiguousarray(shaped).reshape(-1, *values.shape[1:])
        return moving

    def _hidden(self, piece: _Piece, weights: Weights) -> Array | None:
        hidden = self.prefixes.get(piece.key)
        if hidden is None:
            hidden = self._stepper.prefix(piece.tokens, weights, self.cut)
            if hidden is not None:
                self.prefixes.keep(piece.key, hidden)
        return hidden

    def _empty(self, directions: Iterable[str] = ()) -> Pass:
        """Return a pass without values yet, with room for the directions of units with bottlenecks in weights."""
        shape = self.directions, self.batch
        units = {name: unit for name, unit in self.manifest.bottlenecks.items() if name in directions}
        rows = self.directions * self.batch
        moved = {name: np.zeros((rows, *unit.parameters[0].shape), np.float32) for name, unit in units.items()}
        jvp, head_jvp = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        return Pass(np.zeros(self.batch, np.float32), jvp, head_jvp, {}, moved)

    def _put(self, whole: Pass, piece: _Piece, turn: Turn, moved: Mapping[str, Array]) -> None:
        """Turn a chunk's directions at bottlenecks into directions of weights, of a piece's rows."""
        for name, values in moved.items():
            into = whole.moved[name].reshape(self.directions, self.batch, *values.shape[1:])
            own = values.reshape(len(turn), -1, *values.shape[1:])
            into[turn, piece.rows] = own[:, : piece.rows.stop - piece.rows.start]

    @staticmethod
    def _fill(
        whole: Pass,
        piece: _Piece,
        turn: Turn,
        loss: Array,
        jvp: Array | None = None,
        head_jvp: Array | None = None,
    ) -> None:
        counted = piece.weight[: piece.rows.stop - piece.rows.start] > 0
        whole.loss[piece.rows] = loss[: len(counted)] * counted
        for values, part in ((whole.jvp, jvp), (whole.head_jvp, head_jvp)):
            if part is not None:
                values[turn, piece.rows] = part[:, : len(counted)] * counted


def _filled(rows: Array, size: int) -> Array:
    """Rows up to `size`, the last one repeated."""
    return rows[np.minimum(np.arange(size), len(rows) - 1)]


def _add(total: dict[str, Array], part: Mapping[str, Array], share: float) -> None:
    for name, value in part.items():
        scaled = share * value
        total[name] = total[name] + scaled if name in total else scaled


def rows_at_once(manifest: Manifest, task: Task) -> int:
    """Return the largest batch that the bundle has programs for and the task allows."""
    length, most = task.training.length, min(task.batch, task.training.batch)
    offered = [batch for batch, offered in manifest.shapes if offered == length]
    fitting = [batch for batch in offered if batch <= most]
    if not fitting:
        shapes = ", ".join(f"{batch}x{tokens}" for batch, tokens in manifest.shapes)
        raise TrainingError(
            f"the bundle has no programs for at most {most} examples of {length} tokens; it has {shapes}"
        )
    return max(fitting)
