"""Steps of training, each a chain of programs that a runtime runs one after the other.

    forward   plain programs from end to end
    along     plain before the cut, tangents from there: losses, directional derivatives, the head's exact gradient or
              its own directional derivative in place of it
    exact     a plain pass that keeps what crosses segments, then vjp programs from the head down to the cut
    mixed     along up to a second cut and exact from there: the gradient that arrives at it, times the tangents that
              arrive at it, gives the directional derivatives

Everything before the cut can be computed once (`prefix`) and kept; steps then start from the kept hidden states.
Weights, directions and gradients are dictionaries under the parameters' names in the manifest. A direction's array is
[K * batch, *shape], K outermost; a parameter without one does not move. The shape of one at a bottleneck is what
`Unit.tangents_of` says, and the step tells what such directions are in weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from edge_client.arrays import Array, Arrays
from edge_client.bundle.chain import Chain, Cut
from edge_client.bundle.manifest import VJP, Manifest, ProgramSpec
from edge_client.bundle.names import GRADIENT, MOVED, within
from edge_client.gradient.estimate import slopes

from .inputs import Inputs


class Programs(Protocol):
    """Run programs for a step. Loading what is loaded and releasing what is not do nothing."""

    def load(self, program: ProgramSpec, /) -> None:
        """Load a program before its first run."""
        ...

    def run(self, program: ProgramSpec, inputs: dict[str, Array], /) -> Mapping[str, Array]:
        """Outputs by name from inputs by name."""
        ...

    def set_aside(self, program: ProgramSpec, /) -> None:
        """Told of a program that does not run again in this step."""
        ...

    def release(self, program: ProgramSpec, /) -> None:
        """Free a program's memory."""
        ...


class ForwardPass(NamedTuple):
    """A pass without derivatives."""

    loss: Array
    """[batch]"""
    logits: Array
    """The logits; predictions are read from them (`edge_client.tasks.task.TaskType.read`)."""
    features: Array | None = None
    """The features behind the logits, of each example or each token, where the bundle's programs return them."""


class Step(NamedTuple):
    """A forward-mode step."""

    loss: Array
    """[batch]"""
    jvp: Array
    """[K, batch]: the derivative of each example's loss along each of its directions of the units."""
    head_jvp: Array
    """[K, batch], along the head's directions alone; zero where the head has none or gives its gradient."""
    gradients: dict[str, Array]
    """The head's exact gradient, weighted over the examples; empty where the head takes directions."""
    moved: dict[str, Array]
    """The directions at bottlenecks as directions of weights, [K * batch, *shape]."""


class ExactStep(NamedTuple):
    """A step with true gradients."""

    loss: Array
    gradients: dict[str, Array]
    """The head's and those of the units whose uses all lie at or after the cut, weighted over the examples."""
    arrived: Array | None
    """[batch, ...]: the gradient by what enters the segment that the way back ended at; None where nothing enters."""


class MixedStep(NamedTuple):
    """A step with true gradients from its second cut on, and derivatives along what moves before."""

    jvp: Array
    """[K, batch]"""
    behind: ExactStep
    moved: dict[str, Array]
    """The directions at bottlenecks as directions of weights, [K * batch, *shape]."""


class Stepper:
    """Runs steps of one shape (batch, length) with K directions.

    Args:
        manifest: what the bundle holds.
        runtime: where programs run.
        name: the runtime's name in the manifest.
        batch: examples per step.
        length: tokens per example.
        directions: K, how many directions each example takes.
        low_memory: hold one program at a time, at the cost of loading it anew in every step.
    """

    def __init__(
        self,
        manifest: Manifest,
        runtime: Programs,
        name: str,
        batch: int,
        length: int,
        directions: int = 1,
        *,
        low_memory: bool = False,
    ) -> None:
        self.manifest = manifest
        self.chain = Chain(manifest, name, batch, length, directions)
        self.low_memory = low_memory
        self._runtime = runtime
        self._inputs = Inputs(self.chain)

    # --- steps ---

    def forward(
        self, tokens: Arrays, labels: Array, weights: Arrays, *, hidden: Array | None = None, cut: Cut = 0
    ) -> ForwardPass:
        """Losses and logits; from `hidden`, a prefix's result, where only what follows the cut has changed."""
        first = self.chain.position(cut)
        self._inputs.check_hidden(hidden, first)
        values = self._inputs.values(tokens, weights, labels=labels)
        results = self._follow(self.chain.forward(first), values, hidden=hidden)
        return ForwardPass(results["loss"], results["logits"], results.get("features"))

    def prefix(self, tokens: Arrays, weights: Arrays, cut: Cut) -> Array | None:
        """Compute the hidden states that enter the cut; None where nothing lies before it."""
        programs = self.chain.prefix(self.chain.position(cut))
        if not programs:
            return None
        return self._follow(programs, self._inputs.values(tokens, weights))["hidden"]

    def along(
        self,
        tokens: Arrays,
        labels: Array,
        weights: Arrays,
        directions: Arrays,
        cut: Cut,
        example_weight: ArrayLike | None = None,
        *,
        scalar_head: bool = False,
        hidden: Array | None = None,
    ) -> Step:
        """Run a forward-mode step: losses, and their derivatives along the directions of units at or after the cut.

        With `scalar_head` the head moves along directions too, and gives a derivative in place of its gradient. From
        `hidden`, a prefix's result, only what follows the cut is computed.
        """
        start = self.chain.position(cut)
        self._inputs.check_directions(directions, start, head=scalar_head)
        if hidden is None:
            hidden = self.prefix(tokens, weights, start)
        self._inputs.check_hidden(hidden, start)
        values = self._inputs.values(tokens, weights, directions, labels=labels, example_weight=example_weight)
        results = self._follow(self.chain.suffix(start, scalar=scalar_head), values, hidden=hidden)
        jvp, head_jvp = self._by_direction(results.get("jvp")), self._by_direction(results.get("head_jvp"))
        gradients = self._named(results, self._inputs.head)
        return Step(results["loss"], jvp, head_jvp, gradients, _moved(results, directions))

    def exact(
        self,
        tokens: Arrays,
        labels: Array,
        weights: Arrays,
        cut: Cut,
        example_weight: ArrayLike | None = None,
        *,
        low_memory: bool | None = None,
    ) -> ExactStep:
        """True gradients at the memory of one segment and the states between segments.

        With `low_memory` each program is released as soon as it has run: those that go backwards hold their weights
        in a second orientation.
        """
        alone = self.low_memory if low_memory is None else low_memory
        values = self._inputs.values(tokens, weights, labels=labels, example_weight=example_weight)
        first, uses = self.chain.position(cut), self.chain.first_use.values()
        lowest = min((use for use in uses if use >= first), default=self.chain.head)
        hidden = None
        for program in self.chain.prefix(lowest):
            hidden = self._run(program, values, alone=alone, hidden=hidden)["hidden"]
        return self._and_back(lowest, hidden, values, alone=alone)

    def mixed(
        self,
        tokens: Arrays,
        labels: Array,
        weights: Arrays,
        directions: Arrays,
        cut: Cut,
        exact_cut: Cut,
        example_weight: ArrayLike | None = None,
        *,
        hidden: Array | None = None,
        behind: ExactStep | None = None,
    ) -> MixedStep:
        """True gradients from the second cut on, and derivatives along the directions of units before it.

        `hidden` is that of `along`. Given what another turn of directions has found `behind` the second cut, a step
        stops there.
        """
        start, end = self.chain.position(cut), self.chain.position(exact_cut)
        self._inputs.check_directions(directions, start, head=False, end=end)
        if hidden is None:
            hidden = self.prefix(tokens, weights, start)
        self._inputs.check_hidden(hidden, start)
        values = self._inputs.values(tokens, weights, directions, labels=labels, example_weight=example_weight)
        arriving = self._follow(self.chain.tangents(start, end), values, hidden=hidden)
        if behind is None:
            behind = self._and_back(end, arriving.get("hidden", hidden), values, alone=self.low_memory)
        if behind.arrived is None or "tangent" not in arriving:
            return MixedStep(self._by_direction(None), behind, {})
        jvp = slopes(behind.arrived, arriving["tangent"], example_weight)
        return MixedStep(jvp, behind, _moved(arriving, directions))

    # --- memory ---

    def release(self) -> None:
        """Give back the memory of all programs of this shape."""
        self._release(self.chain.programs.values())

    def _release(self, programs: Iterable[ProgramSpec]) -> None:
        for program in programs:
            self._runtime.release(program)

    # --- running programs ---

    def _and_back(self, first: int, hidden: Array | None, values: Arrays, *, alone: bool) -> ExactStep:
        """Run from the input of a segment to the head, and back to that segment."""
        states = [hidden]  # what enters each segment
        for program in self.chain.forward(first)[:-1]:
            states.append(self._run(program, values, alone=alone, hidden=states[-1])["hidden"])
            if not alone:  # the way back has a program of its own
                self._runtime.set_aside(program)
        result = self._run(self.chain.program(self.chain.head, VJP), values, alone=alone, hidden=states.pop())
        wanted = {name for name, use in self.chain.first_use.items() if use >= first}
        gradients = self._named(result, wanted | self._inputs.head)
        gradient = result.get("gradient")
        for segment in range(self.chain.head - 1, first - 1, -1):
            program = self.chain.program(segment, VJP)
            segment_result = self._run(program, values, alone=alone, hidden=states.pop(), gradient=gradient)
            gradient = segment_result.get("gradient")
            for name, part in self._named(segment_result, wanted).items():
                gradients[name] = gradients[name] + part if name in gradients else part  # shared by several segments
        return ExactStep(result["loss"], gradients, gradient)

    def _follow(self, programs: Sequence[ProgramSpec], values: Arrays, *, hidden: Array | None = None) -> Arrays:
        """Run programs one after the other, each on the state and tangent that the one before left.

        What directions at bottlenecks are in weights is kept of all of them, the rest of the last alone.
        """
        results: Arrays = {}
        moved: Arrays = {}
        tangent: Array | None = None
        for program in programs:
            results = self._run(program, values, alone=self.low_memory, hidden=hidden, tangent=tangent)
            hidden, tangent = results.get("hidden"), results.get("tangent")
            moved = {**moved, **{name: value for name, value in results.items() if name.startswith(MOVED)}}
        return {**moved, **results}

    def _run(self, program: ProgramSpec, values: Arrays, *, alone: bool, **states: Array | None) -> Arrays:
        given = {**values, **{name: state for name, state in states.items() if state is not None}}
        inputs = self._inputs.of(program, given)
        self._runtime.load(program)
        results = self._runtime.run(program, inputs)
        if alone:
            self._runtime.release(program)
        elif program.kind == VJP:
            self._runtime.set_aside(program)
        return results

    # --- what comes out ---

    def _by_direction(self, jvp: Array | None) -> Array:
        shape = self.chain.directions, self.chain.batch
        return np.zeros(shape, np.float32) if jvp is None else jvp.reshape(shape)

    def _named(self, results: Arrays, wanted: Iterable[str]) -> dict[str, Array]:
        """Return the gradients of these parameters among a program's results."""
        return {name: results[GRADIENT + name] for name in wanted if GRADIENT + name in results}


def _moved(results: Arrays, directions: Arrays) -> dict[str, Array]:
    """Turn directions at bottlenecks into directions of weights."""
    return {name: value for name, value in within(results, MOVED).items() if name in directions}
