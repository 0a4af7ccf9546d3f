"""Prepare the inputs of a step's programs, checked before any of them reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from edge_client.arrays import Array, Arrays
from edge_client.bundle.chain import Chain
from edge_client.bundle.manifest import IGNORED, PLAIN, ProgramSpec, TensorSpec
from edge_client.bundle.names import DIRECTION, WEIGHT, prefix_of, under
from edge_client.errors import ProgramInputError
from edge_client.gradient.estimate import shares
from edge_client.tasks.registry import task_named


class Inputs:
    """Check the inputs of a chain of programs, and put them together for each of them."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.head = chain.manifest.head_names
        self._zeros: dict[tuple[int, ...], Array] = {}

    # --- of a step ---

    def values(
        self,
        tokens: Arrays,
        weights: Arrays,
        directions: Arrays | None = None,
        *,
        labels: Array | None = None,
        example_weight: ArrayLike | None = None,
    ) -> Arrays:
        """Everything that a step is given, under the names of its inputs; examples count alike unless told."""
        if labels is not None:
            self._check_labels(labels)
        return {
            **tokens,
            **({} if labels is None else {"labels": labels}),
            "example_weight": shares(example_weight, self._chain.batch),
            **under(WEIGHT, weights),
            **under(DIRECTION, directions or {}),
        }

    def check_hidden(self, hidden: Array | None, start: int) -> None:
        """Check that a pass begins on the hidden states that enter its first segment, if anything lies before that."""
        if hidden is None and start > 0:
            raise ProgramInputError(
                f"a pass from {self._chain.segments[start]} on needs the hidden states of its prefix"
            )
        if hidden is not None and start == 0:
            raise ProgramInputError(f"hidden states were given, but nothing lies before {self._chain.segments[0]}")

    def check_directions(self, directions: Arrays, start: int, *, head: bool, end: int | None = None) -> None:
        """Refuse a direction that no program would read: it would still enter the estimate of the gradient."""
        first_use = self._chain.first_use
        for name in directions:
            if name in self.head:
                if not head:
                    raise ProgramInputError(
                        f"this step gives the exact gradient of {name}, so it takes no direction for it"
                    )
            elif name not in first_use:
                raise ProgramInputError(f"a direction was given for {name!r}, which the bundle does not train")
            elif first_use[name] < start:
                used, cut = self._chain.segments[first_use[name]], self._chain.segments[start]
                raise ProgramInputError(f"{name} is used in {used}, before the cut {cut}: cut earlier or leave it out")
            elif end is not None and (last := self._chain.last_use[name]) >= end:
                used, cut = self._chain.segments[last], self._chain.segments[end]
                raise ProgramInputError(
                    f"{name} is used in {used}, and this step goes back to {cut}: go back less far, or take no "
                    "direction for it"
                )

    def _check_labels(self, labels: Array) -> None:
        """Refuse a label out of range, which would read past the end of the logits."""
        chain, task = self._chain, task_named(self._chain.manifest.model.task)
        logits = next(spec for spec in chain.program(chain.head, PLAIN).outputs if spec.name == "logits")
        limit = task.label_limit(logits.shape, chain.manifest.model)
        low, high = (int(labels.min()), int(labels.max())) if labels.size else (0, 0)
        if high >= limit or (low < 0 and not (task.ignores and set(np.unique(labels[labels < 0])) == {IGNORED})):
            also = f", or {IGNORED} to ignore it" if task.ignores else ""
            raise ProgramInputError(f"labels must be from 0 to {limit - 1}{also}; got {low} to {high}")

    # --- of a program ---

    def of(self, program: ProgramSpec, given: Arrays) -> dict[str, Array]:
        """Select a program's inputs from what a step is given."""
        return {spec.name: self._checked(program, spec, given.get(spec.name)) for spec in program.inputs}

    def _checked(self, program: ProgramSpec, spec: TensorSpec, value: Array | None) -> Array:
        called = f"the {_called(spec.name)}, an input of {program.name},"
        if value is None:
            if spec.name == "tangent" or spec.name.startswith(DIRECTION):
                return self._zero(spec.shape)
            raise ProgramInputError(f"{called} is missing; expected {spec.dtype} {list(spec.shape)}")
        if value.shape != spec.shape:
            raise ProgramInputError(f"{called} must have shape {list(spec.shape)}, got {list(value.shape)}")
        if value.dtype != spec.dtype:
            raise ProgramInputError(
                f"{called} must be {spec.dtype}, got {value.dtype}: convert it with .astype('{spec.dtype}')"
            )
        return value

    def _zero(self, shape: tuple[int, ...]) -> Array:
        """Return zeros, one array for all parameters of a shape that do not move."""
        if shape not in self._zeros:
            self._zeros[shape] = np.zeros(shape, np.float32)
        return self._zeros[shape]


def _called(name: str) -> str:
    kinds = {WEIGHT: "weight", DIRECTION: "direction of"}
    prefix = prefix_of(name, kinds)
    return f"{kinds[prefix]} {name.removeprefix(prefix)}" if prefix else name
