"""Test which devices go against the others: by hand, beside all partings, and in fleets whose devices differ."""

from itertools import combinations

import numpy as np
import pytest

from server.aggregation.agreeing import between, by_chance, of_one, parted, settled
from server.aggregation.agreeing import opposed as opposed_of

NUMBERS, CLASSES = 60, 4


def rows(*values):
    return np.array(values, np.float64)


def opposed(said, before, freedom=None):
    return opposed_of(said, before, freedom or said.shape[1])


def nobody(said):
    return np.zeros(len(said), bool)


def test_a_minority_that_goes_the_other_way_by_hand():
    said = np.zeros((5, 400))
    said[:3, 0], said[3:, 0], said[3:, 1] = 3, -3, 4
    products = said @ said.T
    away = parted(products, 2)
    assert list(away) == [False, False, False, True, True]
    assert between(products, away) == -9 * 3 * 2
    assert of_one(products, away, 400) == pytest.approx(-2 * (3 * 9 * 2 * 25 / 400) ** 0.5)
    assert -9 * 3 * 2 < by_chance(products, 400, 2) < 0
    assert opposed(said, nobody(said)) == {3: pytest.approx(-0.6), 4: pytest.approx(-0.6)}


def test_the_majority_is_right_whatever_it_says():
    said = np.zeros((5, 400))
    said[:, 0] = -1, -1, -1, 1, 1
    assert set(opposed(said, nobody(said))) == {3, 4}


def test_devices_that_know_nothing_of_each_other_are_all_heard():
    said = np.eye(7, 50)
    assert not opposed(said, nobody(said))


def test_two_cannot_tell_and_half_of_four_are_no_minority():
    assert not opposed(rows([1, 0], [-1, 0]), np.zeros(2, bool))
    said = np.zeros((4, 400))
    said[:, 0] = 1, 1, -1, -1
    assert len(opposed(said, nobody(said))) <= 1


def test_of_two_who_share_what_nobody_else_has_none_is_left_out():
    said = np.zeros((6, 300))
    said[:4, 0] = 1
    said[4:, 1] = 1, -1
    assert not opposed(said, nobody(said))


def test_who_is_parted_off_with_others_and_goes_against_nobody_by_itself_is_heard():
    """Its cosine is within what independent devices have."""
    said = np.zeros((7, 400))
    said[:4, 0], said[4:6, 0], said[6, 0], said[6, 1] = 3, -3, -0.1, 3
    assert set(opposed(said, np.arange(7) > 3)) == {4, 5}
    said[6, 0] = -0.3
    assert set(opposed(said, np.arange(7) > 3)) == {4, 5, 6}


def test_who_clearly_contradicts_two_of_many_goes_against_them():
    """Its cosine with the others' sum is within chance, as it has no class in common with most of them."""
    said = np.zeros((10, 400))
    said[:5, 0], said[7:9, 0] = 3, -3
    said[5, 5] = said[6, 6] = said[9, 9] = 1
    said[9, 5] = -0.15
    assert set(opposed(said, np.arange(10) > 6)) == {7, 8}
    said[9, 6] = -0.15
    assert set(opposed(said, np.arange(10) > 6)) == {7, 8, 9}


def test_who_goes_along_with_those_who_are_left_out_is_left_out_beside_them():
    said = np.zeros((7, 400))
    said[:4, 0], said[4:6, 0], said[6, 0], said[4:, 1] = 3, -3, -0.1, 3
    assert set(opposed(said, np.arange(7) > 3)) == {4, 5, 6}
    said[6, 0] = 0.1
    assert set(opposed(said, np.arange(7) > 3)) == {4, 5}, "it does not go against the others"


def test_a_still_fleet_has_no_minority():
    assert not opposed(np.zeros((6, 9)), np.zeros(6, bool))


def test_the_search_finds_the_best_of_all_partings_or_one_nearly_as_good():
    """It is the best but for one case in a thousand, where it came to 0.94 of the best and more."""
    rng, missed = np.random.default_rng(), 0
    for _ in range(60):
        devices = int(rng.integers(3, 10))
        said = rng.normal(size=(devices, int(rng.integers(2, 40))))
        products, most = said @ said.T, (devices - 1) // 2
        sides = [side for count in range(1, most + 1) for side in combinations(range(devices), count)]
        least = min(0.0, *(between(products, np.isin(np.arange(devices), side)) for side in sides))
        side = parted(products, most)
        assert side.sum() <= most
        assert least - 1e-9 <= between(products, side) <= 0.75 * least
        missed += between(products, side) != pytest.approx(least, rel=1e-9, abs=1e-9)
    assert missed <= 3


def test_no_change_of_one_side_betters_what_is_settled():
    rng = np.random.default_rng()
    said = rng.normal(size=(12, 5))
    products = said @ said.T
    away = settled(products, np.arange(12) < 3, 5)
    for place in range(12):
        other = away.copy()
        other[place] = not other[place]
        if 0 < other.sum() <= 5:
            assert between(products, other) >= between(products, away) - 1e-9


@pytest.mark.parametrize("devices", [10, 30, 100])
def test_chance_leaves_hardly_anybody_out(devices):
    rng = np.random.default_rng(devices)
    found = [opposed(rng.normal(size=(devices, 200)), np.zeros(devices, bool)) for _ in range(10)]
    assert sum(map(bool, found)) <= 2


def fleet(rng, alpha, turned=0, factor=1.0, devices=10, examples=100):
    """Make a fleet's updates of a head of zeros: errors times features, whose classes overlap.

    The last ones call each class by the next one's name (`turned`), or send their change times a factor.
    """
    means = rng.normal(size=(CLASSES, NUMBERS)) * 0.35
    said = []
    for device in range(devices):
        kinds = rng.choice(CLASSES, examples, p=rng.dirichlet(np.full(CLASSES, alpha)))
        features = means[kinds] - means.mean(0) + rng.normal(size=(examples, NUMBERS))
        lies = device >= devices - turned
        errors = np.full((examples, CLASSES), 1 / CLASSES) - np.eye(CLASSES)[(kinds + (lies and factor == 1)) % CLASSES]
        said.append((factor if lies else 1.0) * (-errors.T @ features).ravel() / examples)
    return np.stack(said)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_honest_devices_are_heard_whatever_their_classes(alpha):
    rng = np.random.default_rng()
    left_out = sum(len(opposed(fleet(rng, alpha), np.zeros(10, bool))) for _ in range(20))
    assert left_out <= 4  # of 200


@pytest.mark.parametrize("factor", [1.0, -1.0])
@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_three_of_ten_that_lie_are_left_out(alpha, factor):
    rng = np.random.default_rng()
    found = [opposed(fleet(rng, alpha, 3, factor), np.zeros(10, bool)) for _ in range(20)]
    assert sum(len({7, 8, 9} & one.keys()) for one in found) > 48  # of 60
    assert sum(len(one.keys() - {7, 8, 9}) for one in found) <= 4


def test_malicious_devices_that_were_left_out_do_not_frame_others():
    """Of a fleet that says little more, two would be parted off with those whom loud liars contradict most."""
    said = np.zeros((10, 100))
    one, other, liars = [0, 1, 5, 6], [2, 3, 4], [7, 8, 9]
    said[:7, 0] = 0.3
    said[one, 1] = said[other, 2] = 2
    said[liars, :3] = -0.5, -3, 1.5  # so loud against the one that it seems to be against all
    assert opposed(said, np.isin(np.arange(10), liars)).keys() == set(liars)
    assert opposed(said, nobody(said)).keys() == set(one)


def test_who_was_left_out_comes_back_by_the_bound_of_one_parting():
    said = np.eye(5, 200)
    said[:3, -1], said[3:, -1] = 0.255, -0.255
    products, side = said @ said.T, np.arange(5) > 2
    assert by_chance(products, 200, 2) < between(products, side) < of_one(products, side, 200)
    assert not opposed(said, nobody(said))
    assert opposed(said, side).keys() == {3, 4}


def test_who_repents_is_heard_again():
    said = np.zeros((5, 200))
    said[:, 0] = 1
    assert not opposed(said, np.arange(5) > 3)
