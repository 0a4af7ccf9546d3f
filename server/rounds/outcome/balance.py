"""A round's few clients have classes by chance; weighed against each other, they have them as the model expects.

Where clients have few classes each, a round has too many texts of some. Most of what clients then agree on is that
these classes ought to be likelier, and units that follow swing from one class to the next, round by round. The head's
bias shows it apart: its change is the sum of a client's errors, what its labels have more of each class than the model
says. Weights by which these sums cancel out take that, and nothing else, from the units' mean, as surveys weigh whom
they asked until these are like those whom they did not. The bias itself, which is there to know how likely a class is,
keeps the mean as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import Manifest
from server.means.rule import Numbers

MOST = 2.0
"""How often a client may weigh what it weighs elsewhere: what it says of its classes is a claim."""


def balanced(weights: Sequence[Mapping[str, float]], errors: Numbers, manifest: Manifest) -> list[dict[str, float]]:
    """What clients weigh in each parameter, by what they weigh alone and their errors' sums [clients, classes]."""
    after = [dict(own) for own in weights]
    for unit in manifest.units:
        names = [parameter.name for parameter in unit.parameters]
        holders = [client for client, own in enumerate(weights) if names[0] in own]
        times = factors(errors[holders], np.array([weights[client][names[0]] for client in holders]))
        for client, factor in zip(holders, times.tolist(), strict=True):
            after[client].update((name, factor * weights[client][name]) for name in names)
    return after


def factors(errors: Numbers, weights: Numbers) -> Numbers:
    """What each client weighs times, so that the mean of what errors sum to comes close to nothing.

    It comes the closer the fewer classes there are beside clients: a share of the spread, one over their number, is
    added in each direction, lest all weight goes to the few that happen to cancel out.
    """
    shares = weights / weights.sum()
    mean = shares @ errors
    roots = np.sqrt(shares)[:, None]
    apart = roots * (errors - mean)
    products = apart @ apart.T
    spread = float(np.trace(products))
    if not 0 < spread < np.inf:
        return np.ones(len(weights))
    eased = products + np.eye(len(weights)) * spread / len(weights)
    return np.clip(1 - np.linalg.solve(eased, apart @ mean) / roots[:, 0], 0.0, MOST)


def errors_of(start: Weights, updates: Iterable[Mapping[str, Array]], bias: str) -> Numbers:
    """What each client's errors sum to, as far as the head's bias has moved by them."""
    return np.stack([update[bias].astype(np.float64) - start[bias] for update in updates])
