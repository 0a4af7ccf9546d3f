"""Choose the segments whose int8 products need a second digit.

Rounding errors of segments are independent, so that their squares add up. Those of a few neighbours are found alone:
the chain runs in two digits, which are nearly exact, and these in one. Those with most error for their price get the
second digit, until what the others leave lies well within the bound of verification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.manifest import PLAIN, Manifest, ProgramSpec
from edge_client.runtimes.runtime import Runtime, open_runtime
from edge_client.step.stepper import Stepper
from export.check.verify import JVP_BOUND, Truth, along

_SHARE = 0.6
"""The share of the bound that is allowed: an error nearer to it takes verification many directions."""
_KNOWN = 2
"""Directions whose derivatives say how large errors are; verification of the whole takes as many."""
GROUPS = 12
"""The most groups of neighbouring segments, each measured by one step."""


def needed_in_two(
    one: Path, two: Path, manifest: Manifest, runtime: str, truth: Truth, advance: Callable[[str], None]
) -> set[str]:
    """Find the segments that need the second digit, by a bundle in `one` digit and one in `two`, for one runtime."""
    spec = manifest.runtimes[runtime]
    with open_runtime(runtime, one) as coarse, open_runtime(runtime, two) as fine:
        programs = _Exchanged(fine, coarse)
        shape = *manifest.shapes[0], manifest.directions[0]
        differing = {program.segment for program in spec.programs if _differ(one / program.file, two / program.file)}
        squares = _squares(Stepper(manifest, programs, runtime, *shape), programs, truth, differing, advance)
    flops = {program.segment: program.flops for program in spec.programs if program.kind == PLAIN}
    prices = {group: sum(flops[name] for name in group) for group in squares}
    chosen = costliest(squares, prices, (_SHARE * JVP_BOUND[spec.precision]) ** 2)
    return {name for group in chosen for name in group}


def _differ(one: Path, other: Path) -> bool:
    return one.read_bytes() != other.read_bytes()


_Key = TypeVar("_Key", bound=Hashable)


def costliest(squares: Mapping[_Key, float], prices: Mapping[_Key, int], allowed: float) -> set[_Key]:
    """Choose those of most square error for their price, until the others' errors are within what is allowed."""
    chosen: set[_Key] = set()
    for key in sorted(squares, key=lambda key: squares[key] / max(prices[key], 1), reverse=True):
        if sum(square for other, square in squares.items() if other not in chosen) <= allowed:
            break
        chosen.add(key)
    return chosen


class _Exchanged:
    """The programs of a bundle in two digits, but for a few segments'; what comes before these is computed once."""

    def __init__(self, fine: Runtime, coarse: Runtime) -> None:
        self._fine = fine
        self._coarse = coarse
        self._segments: Collection[str] = ()
        self._is_behind = False
        self._before: dict[str, Mapping[str, Array]] = {}

    def exchange(self, segments: Collection[str]) -> None:
        """Run these segments in one digit in the next step, of the same inputs."""
        self._segments, self._is_behind = segments, False

    def run(self, program: ProgramSpec, inputs: dict[str, Array], /) -> Mapping[str, Array]:
        if program.segment in self._segments:
            self._is_behind = True
            results = self._coarse.run(program, inputs)
            self._coarse.release(program)
            return results
        if self._is_behind:
            return self._fine.run(program, inputs)
        if program.name not in self._before:
            self._before[program.name] = self._fine.run(program, inputs)
        return self._before[program.name]

    def load(self, program: ProgramSpec, /) -> None:
        """Do nothing: the first run loads it."""

    def set_aside(self, program: ProgramSpec, /) -> None:
        """Do nothing: no step here goes backwards."""

    def release(self, program: ProgramSpec, /) -> None:
        """Do nothing: the next step needs it again."""


def _squares(
    stepper: Stepper, programs: _Exchanged, truth: Truth, segments: Collection[str], advance: Callable[[str], None]
) -> dict[tuple[str, ...], float]:
    """Measure, for each group, the square error that its rounding leaves in the derivatives."""
    known = truth.jvps(_KNOWN)
    squares: dict[tuple[str, ...], float] = {}
    for group in groups([name for name in stepper.chain.segments if name in segments]):
        programs.exchange(group)
        found = along(stepper, truth.sample, 0).jvp[0]
        squares[group] = square_error(found, known)
        advance(f"{stepper.chain.runtime}, {group[0]}")
    return squares


def square_error(found: Array, known: Array) -> float:
    """Compute the square error of derivatives along the first direction, over the mean square along all that are known.

    Few examples' derivatives along one direction may all be small, and every error then looks large beside them.
    """
    square = float(np.square(found - known[0]).mean() / np.square(known).mean())
    return square if math.isfinite(square) else math.inf


def groups(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Group neighbours, and leave the last one alone: a language model's head costs as much as several blocks."""
    *blocks, last = names
    size = max(1, -(-len(blocks) // (GROUPS - 1)))
    return [*(tuple(blocks[first : first + size]) for first in range(0, len(blocks), size)), (last,)]
