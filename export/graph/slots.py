"""Define the placeholders of a graph, from the captured model to the programs of a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor, fx


class Role(Enum):
    """The role of a graph's placeholder."""

    INPUT = "input"
    """Tokens, masks and labels: batched along dimension 0."""
    STATE = "state"
    """The hidden states that one segment hands to the next: batched."""
    ADAPTER = "adapter"
    HEAD = "head"
    FROZEN = "frozen"
    """A weight of the base model: stored in the bundle, quantized where asked."""
    TANGENT = "tangent"
    """The tangent of the state: K·B rows."""
    DIRECTION = "direction"
    """The tangent of an adapter's or the head's weight, per direction and example: [K·B, *shape]."""
    GRADIENT = "gradient"
    """The gradient of the loss by the segment's last state."""
    EXAMPLE_WEIGHT = "example_weight"
    """The weight of each example in the gradient: [B]."""
    CONSTANT = "constant"
    """A buffer or a value computed at export: stored as it is."""


STORED = (Role.FROZEN, Role.CONSTANT)


@dataclass(frozen=True)
class Slot:
    """A placeholder's role and its name outside the graph."""

    role: Role
    name: str
    rows: tuple[int, int] | None = None
    """The rows of a frozen weight that the slot names, from the first up to the last; None for all."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return this slot's rows of the weight that it names."""
        return tensor if self.rows is None else tensor[slice(*self.rows)]


def slot_of(node: fx.Node) -> Slot:
    slot: Slot = node.meta["slot"]
    return slot


def value_of(node: fx.Node) -> Tensor:
    """Return the fake tensor that stands for a node's value: its shape and dtype."""
    value: Tensor = node.meta["val"]
    return value
