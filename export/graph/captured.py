"""Define a captured model: its graph, and the weights that the graph names."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, fx


@dataclass
class Captured:
    """A model's plain forward: (inputs, weights) -> (per-example losses, what predictions are read from)."""

    graph: fx.GraphModule
    stored: dict[str, Tensor]
    """The frozen weights and constants that the graph names."""
