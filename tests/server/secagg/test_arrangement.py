"""Test which devices are neighbours in a sum."""

import random

import pytest

from edge_client.secagg.shamir import threshold
from server.secagg.arrangement import Entrant, arranged


def of(sizes, seed=0):
    """Teams of these sizes, and how they are arranged."""
    rng = random.Random(seed)
    units = [unit for unit, size in enumerate(sizes) for _ in range(size)]
    return arranged(
        [Entrant(place, (unit,), rng.randbytes(32), rng.randbytes(32)) for place, unit in enumerate(units)], 3, 64
    )


@pytest.mark.parametrize(("size", "mates"), [(5, 4), (13, 12), (14, 12), (128, 12), (129, 16), (1000, 16)])
def test_neighbours_are_mutual_and_more_in_a_large_team(size, mates):
    found = of([size, 4])
    assert {len(found.mates[place]) for place in range(size)} == {mates}
    assert all(place in found.mates[mate] for place in range(size) for mate in found.mates[place])
    assert {found.needed(place) for place in range(size)} == {threshold(mates + 1, 3)}


def test_a_large_team_loses_no_more_neighbourhoods_than_one_of_a_hundred():
    lost = {}
    rng = random.Random(1)
    for size in (100, 400):
        found = of([size])
        lost[size] = 0
        for _ in range(200):
            here = set(rng.sample(range(size), 6 * size // 10))
            lost[size] += any(
                len(here.intersection((place, *found.mates[place]))) < found.needed(place) for place in here
            )
    assert 0 < lost[400] <= 1.5 * lost[100]
