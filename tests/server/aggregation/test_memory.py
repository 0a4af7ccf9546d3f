"""Test the memory of devices' updates in all of their rounds: by hand, over many rounds, and in few numbers."""

import numpy as np
import pytest

from server.aggregation.agreeing import opposed
from server.aggregation.memory import KEPT_DEVICES, MOST_NUMBERS, Fingerprints, left_out, shortened
from server.aggregation.memory import heard as heard_of


def nobody(sums, out, freedom):
    return {}


def heard(judge, state, version, devices, said):
    return heard_of(judge, state, version, devices, Fingerprints(said, said.shape[1]))


def rows(*values):
    return np.array(values, np.float64)


def sum_of(sums, device):
    return sums[device][:-3]


def test_sums_are_by_device_and_none_says_more_than_the_median():
    first = heard(nobody, {}, 0, ["a", "b", "c"], rows([1, 0], [2, 0], [0, -10]))  # 1, 2 and 10 long
    np.testing.assert_allclose(sum_of(first.sums, "a"), [1, 0])
    np.testing.assert_allclose(sum_of(first.sums, "c"), [0, -2])
    second = heard(nobody, first.sums, 1, ["c", "a", "d"], rows([3, 0], [3, 0], [3, 0]))
    for device, told in (("c", [3, -2]), ("a", [4, 0]), ("b", [2, 0]), ("d", [3, 0])):
        np.testing.assert_allclose(sum_of(second.sums, device), told, rtol=1e-6)
    third = heard(nobody, second.sums, 2, ["a", "b"], rows([0, 1], [0, 1]))  # 1 - 1/4 of 9 - 3/2
    np.testing.assert_allclose(sum_of(third.sums, "a"), [4, 0.1], rtol=1e-6)


def test_who_was_left_out_is_told_to_the_rule_and_does_not_say_how_far_a_round_goes():
    asked = []

    def last(sums, out, freedom):
        asked.append(list(out))
        return {len(sums) - 1: -0.5}

    said = rows([1, 0], [1, 0], [1, 0], [-1, 0])
    first = heard(last, {}, 0, ["a", "b", "c", "d"], said)
    assert first.away == {3: -0.5}
    second = heard(last, first.sums, 1, ["d", "a", "b", "c"], said[[3, 0, 1, 2]])
    assert asked == [[False] * 4, [True, False, False, False]]
    np.testing.assert_allclose(sum_of(second.sums, "a"), [2, 0])


def test_who_goes_with_all_others_that_are_heard_agrees_with_them_clearly_or_not():
    """Independent fingerprints of 100 numbers have cosines with a standard deviation of .1."""
    said = np.zeros((5, 100))
    said[:, 0], said[:3, 1] = (1, 1, 0.3, 0.1, -1), (0, 0, 0.95)
    said[3, 2] = 0.99
    found = heard(lambda *_: {4: -0.9}, {}, 0, list("abcde"), said)
    assert found.agreeing == {0, 1, 2}
    assert heard(nobody, found.sums, 1, ["d"], said[3:4]).agreeing == set()
    assert heard(nobody, {}, 0, ["a"], said[:1]).agreeing == set(), "there are no others"


def test_who_goes_against_its_own_rounds_is_left_out_until_it_no_longer_does():
    """The bound is a cosine of -.3 here: three standard deviations in 100 dimensions."""
    truth = np.zeros((5, 100))
    truth[:, 0] = 1
    turned = truth.copy()
    turned[4] = -truth[4]
    state = heard(nobody, {}, 0, list("abcde"), truth).sums
    found = heard(nobody, state, 1, list("abcde"), turned)
    assert found.turned == {4: -1}
    assert not found.away
    assert left_out(found.sums) == ["e"]
    assert left_out(heard(nobody, found.sums, 2, list("abcd"), truth[:4]).sums) == ["e"], "of its last round"
    turned[4, :2] = -0.29, 0.96
    assert not heard(nobody, found.sums, 2, list("abcde"), turned).turned, "no further than by chance"
    assert not heard(nobody, state, 1, ["v", "w", "x", "y", "z"], turned).turned, "they are new"


def test_a_fleet_that_goes_too_far_and_back_leaves_nobody_out():
    truth = np.ones((5, 100))
    state = heard(nobody, {}, 0, list("abcde"), truth).sums
    back = truth * [[-1], [-1], [1], [1], [1]]
    assert heard(nobody, state, 1, list("abcde"), back).turned.keys() == {0, 1}
    back[2] *= -1
    assert not heard(nobody, state, 1, list("abcde"), back).turned


def test_who_lied_first_may_tell_the_truth_now():
    """A device that the judge left out for its sum is not compared with this sum."""
    said = np.ones((5, 100))
    state = heard(lambda *_: {0: -0.5}, {}, 0, list("abcde"), said * [[-1], [1], [1], [1], [1]]).sums
    assert not heard(nobody, state, 1, list("abcde"), said).turned
    again = heard(lambda *_: {0: -0.5}, state, 1, list("abcde"), said)
    assert again.away.keys() == {0}
    assert not again.turned


def test_few_malicious_devices_of_a_fleet_are_few_where_most_of_a_round_are_they():
    rng = np.random.default_rng()
    names = [f"device-{number}" for number in range(12)]
    truth = rng.normal(size=80)
    said = np.where(np.arange(12) < 9, 1.0, -1.0)[:, None] * truth + rng.normal(size=(12, 80))
    state = {}
    for places in ([0, 1, 2, 3, 4, 9], [4, 5, 6, 7, 8, 10], [0, 2, 4, 6, 8, 11]):
        state = heard(opposed, state, 0, [names[place] for place in places], said[places]).sums
    found = heard(opposed, state, 1, names[8:], said[8:])
    assert found.away.keys() == {1, 2, 3}
    assert heard(opposed, {}, 0, names[8:], said[8:]).away.keys() == {0}, "by that round alone"


def test_rounds_after_which_a_fleet_stands_still_part_no_honest_devices():
    """Each goes on to say what it alone would have, and all together nothing."""
    rng = np.random.default_rng()
    common, own = rng.normal(size=50), rng.normal(size=(10, 50)) * 2
    own -= own.mean(0)
    state, away, plain = {}, 0, np.zeros((10, 50))
    for number in range(60):
        said = common * (number < 5) + own
        found = heard(opposed, state, number, [str(device) for device in range(10)], said)
        state, away, plain = found.sums, away + len(found.away) + len(found.turned), plain + said
    assert away == 0
    assert opposed(plain, np.zeros(10, bool), 50), "a plain sum would have parted them"


def test_devices_that_are_unknown_are_judged_by_their_round_alone():
    assert not heard(nobody, {}, 0, ["", ""], rows([1, 0], [0, 1])).sums


def test_a_still_round_leaves_sums_as_they_are():
    first = heard(nobody, {}, 0, ["a", "b"], rows([1, 0], [1, 0]))
    second = heard(nobody, first.sums, 1, ["a", "b"], np.zeros((2, 2)))
    np.testing.assert_array_equal(sum_of(second.sums, "a"), sum_of(first.sums, "a"))
    assert not np.isnan(sum_of(heard(nobody, {}, 0, ["a"], np.zeros((1, 2))).sums, "a")).any()


def test_the_largest_numbers_there_are_stay_numbers():
    rng, state = np.random.default_rng(), {}
    for number in range(3):
        found = heard(opposed, state, number, [str(device) for device in range(5)], 3e38 * rng.normal(size=(5, 40)))
        state = found.sums
        assert all(np.isfinite(own).all() for own in state.values())


def test_what_was_of_something_else_is_forgotten():
    first = heard(nobody, {}, 0, ["a", "b"], np.ones((2, 5)))
    assert {len(own) for own in heard(nobody, first.sums, 1, ["a"], np.ones((1, 3))).sums.values()} == {3 + 3}


def test_those_who_were_heard_last_are_kept():
    many = [f"device-{number}" for number in range(KEPT_DEVICES)]
    first = heard(nobody, {}, 0, many, np.ones((KEPT_DEVICES, 2)))
    second = heard(nobody, first.sums, 1, ["new", many[0]], np.ones((2, 2)))
    assert len(second.sums) == KEPT_DEVICES
    assert {"new", many[0]} <= second.sums.keys()


def test_fewer_numbers_keep_products():
    rng = np.random.default_rng()
    said = rng.normal(size=(6, 20_000)) + 0.5
    found, freedom = shortened(Fingerprints(said, 20_000))
    assert found.shape == (6, MOST_NUMBERS)
    assert freedom == pytest.approx(MOST_NUMBERS / (1 + MOST_NUMBERS / 20_000))
    whole, few = said @ said.T, found @ found.T
    scale = np.sqrt(np.outer(np.diag(whole), np.diag(whole)))
    assert np.abs(few - whole).max() / scale.max() == pytest.approx(0, abs=6 / MOST_NUMBERS**0.5)
    again = shortened(Fingerprints(2 * said - said[[1, 2, 3, 4, 5, 0]], 20_000)).said
    np.testing.assert_allclose(again, 2 * found - found[[1, 2, 3, 4, 5, 0]], atol=1e-9)
    little = Fingerprints(said[:, :MOST_NUMBERS], 7)
    assert shortened(little) is little
