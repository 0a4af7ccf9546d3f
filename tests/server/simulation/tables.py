"""Compute a round's costs by the paper's tables (appendix "Communication and Computation Costs").

The tables know L layers with the same number of weights each, M clients, and none but the layers' weights. What is
counted of a simulated round (`server.simulation.run.traffic`) has more in it, each part of which a client needs:

- the head's weights, of every client and in both directions, or the head's own derivatives;
- on the way down all units' newest weights, where the tables count a Spry client's own: no client can run the forward
  pass without the others'. `numbers_down_own` is the tables' part of `numbers_down`;
- in mode iteration a derivative for each direction, and for each example where they have directions of their own, where
  the tables count one for a batch; and every participant's numbers in the records that come down, from which clients
  take the server's step instead of fetching the weights again.
"""

from __future__ import annotations

from typing import NamedTuple

from edge_client.wire.protocol import Mode
from server.simulation.methods.methods import Family, Method


class Shape(NamedTuple):
    """The shapes that the tables of costs are about."""

    layers: int
    """L"""
    clients: int
    """M"""
    layer_weights: int
    """The weights of one layer."""

    @property
    def all_weights(self) -> int:
        return self.layer_weights * self.layers

    @property
    def own_layers(self) -> float:
        """Count the layers of a client among which they are split: max(L / M, 1), a mean where M does not divide L."""
        return max(self.layers / self.clients, 1)

    @property
    def holders(self) -> float:
        """Clients with the same layers."""
        return max(self.clients / self.layers, 1)


def in_tables(method: Method) -> bool:
    """Tell whether the tables have the method: forward gradients where layers are split, else all others."""
    split = method.settings["assignment"] != "all"
    return split == (method.family == "forward") and method.adapter is None


# --- communication ---------------------------------------------------------------------------------------------------


def numbers_up(family: Family, frequency: Mode, shape: Shape) -> float:
    """Count the numbers from each client to the server in a round; a round per iteration is one iteration."""
    if frequency == "iteration" and family != "backprop":
        return 1
    return shape.layer_weights * shape.own_layers if family == "forward" else shape.all_weights


def numbers_down(family: Family, frequency: Mode, shape: Shape) -> float:
    """Count the numbers from the server to all clients in a round."""
    own = shape.layer_weights * shape.own_layers if family == "forward" else shape.all_weights
    seeds = 1 if frequency == "iteration" and family != "backprop" else 0
    return (own + seeds) * shape.clients


# --- computation -----------------------------------------------------------------------------------------------------


class Operations(NamedTuple):
    """An amount of it, in the table's units."""

    products: float
    """c: a layer's matrix products, once forward."""
    columns: float
    """v: what multiplying column by column costs on top, for a layer."""
    numbers: float
    """Drawn, or added up."""


def client_work(family: Family, shape: Shape, *, directions: int = 1, draws: int = 1) -> Operations:
    """Count what a client computes for an iteration; MeZO draws each direction three times."""
    if family == "backprop":
        return Operations(3 * shape.layers, 0, 0)
    if family == "zero-order":
        return Operations(2 * directions * shape.layers, 0, draws * directions * shape.all_weights)
    return Operations(2 * shape.own_layers, 2 * shape.own_layers, shape.all_weights)


def server_work(family: Family, frequency: Mode, shape: Shape) -> float:
    """Count the numbers that the server draws or adds up for a round."""
    if family == "forward":
        groups, weights = min(shape.layers, shape.clients), shape.layer_weights * shape.own_layers
        return groups * weights * (2 * shape.holders if frequency == "iteration" else shape.holders - 1)
    if frequency == "iteration" and family == "zero-order":
        return 2 * shape.clients * shape.all_weights
    return (shape.clients - 1) * shape.all_weights
