"""Virtual clients, of which only those that are asked for have their rows read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edge_client.data.examples import Example, Examples
from edge_client.errors import DataError
from server.simulation.data.dataset import Dataset
from server.simulation.data.draws import Purpose, order, uniform
from server.simulation.data.split import Indices, by_kind, by_mix, held_back

OWN_TEST = 0.2
"""The share of a client's rows that its personal model is tested on."""


class VirtualClient(NamedTuple):
    """The rows of one client, in memory."""

    train: Sequence[Example]
    test: Sequence[Example]


class Population:
    """Clients of a data set.

    Args:
        dataset: the rows; its `groups` are what is split over.
        clients: how many.
        alpha: of a Dirichlet split into equally large clients; None for a natural one, a client for each group.
        seed: of the split.
        own_test: each client's share of rows to be tested on, one at least.
    """

    def __init__(
        self, dataset: Dataset, clients: int, alpha: float | None, seed: int = 0, own_test: float = OWN_TEST
    ) -> None:
        if not 0 < own_test < 1:
            raise DataError(f"a client's share of rows to be tested on must be between 0 and 1, got {own_test:g}")
        if alpha is None:
            if not dataset.by:
                raise DataError(
                    "a natural split needs the column that says to which client a row belongs (--by), or give an "
                    "--alpha"
                )
            self._shares = by_kind(dataset.groups, clients, seed)
        else:
            self._shares = by_mix(dataset.groups, clients, alpha, seed)
        self.clients = clients
        self.labels = dataset.labels
        self.examples = len(dataset.train)
        self._dataset = dataset
        self._own_test = own_test

    @property
    def test(self) -> Examples:
        """Open the data set's own test rows, which no client has."""
        return self._dataset.test

    def client(self, number: int) -> VirtualClient:
        train, test = self.rows(number)
        examples = self._dataset.train
        return VirtualClient([examples[int(row)] for row in train], [examples[int(row)] for row in test])

    def rows(self, number: int) -> tuple[Indices, Indices]:
        """Return a client's rows of the data set, to train on and to be tested on."""
        return held_back(self._shares.of(number), self._dataset.classes, self._own_test)

    def sample(self, count: int, seed: int) -> list[Example]:
        """Sample `count` of the rows that clients train on, each as likely as another; all where there are no more."""
        rows = np.concatenate([self.rows(number)[0] for number in range(self.clients)])
        chosen = np.sort(rows[order(len(rows), seed, Purpose.SAMPLE)[:count]])
        return [self._dataset.train[int(row)] for row in chosen]

    def counts(self, number: int) -> Indices:
        """Count a client's rows of each class, in the order of `dataset.classes`."""
        classes = self._dataset.classes
        return np.bincount(classes.of[self._shares.of(number)], minlength=len(classes.names))

    def largest_class(self) -> float:
        """Return how unlike the clients are: the mean share of a client's largest class."""
        counts = (self.counts(number) for number in range(self.clients))
        return float(np.mean([own.max() / own.sum() for own in counts]))

    @property
    def fingerprint(self) -> str:
        """A digest of the rows and their split."""
        parts = (self._dataset.fingerprint.encode(), self._shares.rows.astype("<i8").tobytes(),
                 self._shares.ends.astype("<i8").tobytes(), repr(self._own_test).encode())  # fmt: skip
        return hashlib.sha256(b"\n".join(parts)).hexdigest()[:32]


def sampled(seed: int, round_: int, clients: int, per_round: int) -> list[int]:
    """Which clients take part in a round, each as likely as another in each place: no client has units of its own."""
    if not 1 <= per_round <= clients:
        raise DataError(f"a round can have 1 to {clients} of the {clients} clients, got {per_round}")
    return order(clients, seed, Purpose.CLIENTS, round_)[:per_round].tolist()


def taken(seed: int, round_: int, clients: int, per_round: int) -> list[int]:
    """Sample clients independently, each with the same probability, about `per_round` of them (Poisson sampling).

    The privacy accountant requires that: with a fixed number, each choice depends on the others.
    """
    comes = uniform(clients, seed, Purpose.CHANCE, round_) < per_round / clients
    places = order(clients, seed, Purpose.CLIENTS, round_)
    return places[comes[places]].tolist()
