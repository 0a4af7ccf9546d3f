"""Directions that labelled examples at the desk give, in place of random ones.

K random directions see K of the d numbers of a gradient. Gradients of a few small groups of labelled examples, at the
weights that a step starts from, span most of what the gradient of any other examples is there, however large d
(`benchmarks/guide.py`). A client's derivatives along them say how far its own examples agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Array, Weights
from edge_client.data.batches import Batches, Encode
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.gradient.estimate import parts
from server.errors import SimulationError
from server.simulation.compute.learner import Learner
from server.simulation.methods.guided import flat

GROUP = 8
"""Examples of a direction at most: as many as a client's usual batch."""
_NOTHING = 1e-6
"""What is left of a direction of length 1 that the ones before it already span."""


class GuideMaker:
    """What gradients of groups of examples span; the groups are drawn anew each time.

    Args:
        learner: computes them.
        examples: labelled ones.
        encode: makes arrays of them, as their kind of task has them.
        directions: as many as there are groups.
        length: tokens of an example, at most.
        apart: directions of a unit are orthonormal by themselves, as a client has one; else of all units together.
    """

    def __init__(
        self,
        learner: Learner,
        examples: Sequence[Example],
        encode: Encode,
        *,
        directions: int,
        length: int,
        apart: bool,
    ) -> None:
        if len(examples) < directions:
            raise SimulationError(
                f"{directions} guided directions need as many --examples or more, and there are {len(examples)}: "
                "give more examples, or lower --guided"
            )
        self._learner = learner
        self._examples = examples
        self._encode = encode
        self._directions = directions
        self._encoder = TextEncoder(
            learner.tokenizer, learner.manifest, min(GROUP, len(examples) // directions), length
        )
        units = [unit.parameters for unit in learner.manifest.units]
        self._parts = units if apart else [tuple(parameter for unit in units for parameter in unit)]

    def at(self, version: int, weights: Weights) -> Weights:
        """Directions for steps from the weights of this version, [directions, *shape] for each parameter of a unit."""
        directions: Weights = {}
        gradients = self._gradients(version, weights)
        for parameters in self._parts:
            directions.update(parts(parameters, orthonormal(flat(gradients, parameters)).astype(np.float32)))
        return directions

    def _gradients(self, version: int, weights: Weights) -> Weights:
        """The gradients of each group by all parameters."""
        drawn = Batches(self._examples, self._encoder, self._encode, version)
        groups = [drawn.at(step) for step in range(self._directions)]
        names = [parameter.name for parameters in self._parts for parameter in parameters]
        count = len(groups)
        differentiated = self._learner.differentiate([weights] * count, groups, [names] * count, per_example=False)
        return {name: np.stack([one.gradients[name] for one in differentiated]) for name in names}


def orthonormal(rows: Array) -> NDArray[np.float64]:
    """Rows that span what these do; zero for a row that those before it span already."""
    basis = np.zeros(rows.shape, np.float64)
    for number, row in enumerate(rows.astype(np.float64)):
        rest = _unit(row)
        for _ in range(2):  # once more, for what rounding left
            # Not by BLAS: its threads and those of a round's clients would wait for each other.
            along = np.einsum("kn,n->k", basis[:number], rest)
            rest = rest - np.einsum("k,kn->n", along, basis[:number])
        if np.sqrt(np.square(rest).sum()) > _NOTHING:
            basis[number] = _unit(rest)
    return basis


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    length = np.sqrt(np.square(vector).sum())
    return vector / length if length else vector
