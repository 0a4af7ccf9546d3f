"""A round's change unit by unit, and who is far from the others."""

import numpy as np
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from server.aggregation.registry import AGGREGATION_RULES
from server.aggregation.units import KEPT_SIZES, MOST_PULL, Heads, combined, in_words
from server.strategy.mean import Mean


@pytest.fixture
def manifest(bundle):
    return manifests.read(bundle / FILE_NAME)


@pytest.fixture
def start(manifest):
    rng = np.random.default_rng(1)
    return {one.name: rng.normal(size=one.shape).astype(np.float32) for one in manifest.trained}


def update(manifest, start, units, change, head=0.1):
    """Each number of these units moves by `change`, each of the head's by `head`."""
    moved = {one.name: start[one.name] + np.float32(change) for one in manifest.trained_with(units)}
    return moved | {one.name: start[one.name] + np.float32(head) for one in manifest.head}


def come(manifest, start, rule, updates, state=None, weights=None, heads=None):
    own = weights or [dict.fromkeys(sent, 1.0) for sent in updates]
    return combined(AGGREGATION_RULES[rule], start, state or {}, updates, own, manifest, heads)


def unit(manifest, number):
    return [one.name for one in manifest.units[number].parameters]


@pytest.mark.parametrize("rule", AGGREGATION_RULES)
def test_each_unit_goes_by_its_own_holders(manifest, start, rule):
    updates = [update(manifest, start, [0], 0.2) for _ in range(3)] + [update(manifest, start, [1], 0.4)]
    found = come(manifest, start, rule, updates)
    for number, change in ((0, 0.2), (1, 0.4)):
        for name in unit(manifest, number):
            np.testing.assert_allclose(found.change[name], change, atol=1e-6)
    assert not set(unit(manifest, 2)) & found.change.keys(), "nobody held it"
    for one in manifest.head:
        np.testing.assert_allclose(found.change[one.name], 0.1, atol=1e-6)


def test_the_mean_of_a_stack_is_that_of_one_update_after_the_other(manifest, start):
    rng = np.random.default_rng(2)
    updates = [update(manifest, start, [0, 1], *rng.uniform(0.1, 0.2, 2)) for _ in range(5)]
    weights = [dict.fromkeys(sent, float(count)) for count, sent in enumerate(updates, 1)]
    mean = Mean(start)
    for sent, own in zip(updates, weights, strict=True):
        mean.add(sent, own)
    found = come(manifest, start, "mean", updates, weights=weights)
    for name, value in mean.changes().items():
        np.testing.assert_allclose(found.change[name], value, atol=1e-6)
    for name, value in mean.errors().items():
        np.testing.assert_allclose(found.errors[name], value, atol=1e-6)


@pytest.mark.parametrize("rule", ["clipped", "trimmed", "median"])
def test_a_unit_with_one_holder_goes_no_further_than_its_holders_before(manifest, start, rule):
    state = {}
    for _ in range(3):
        state = come(manifest, start, rule, [update(manifest, start, [0], 0.1)], state).sizes
    near = come(manifest, start, rule, [update(manifest, start, [0], -0.2)], state)
    found = come(manifest, start, rule, [update(manifest, start, [0], -0.5)], state)
    for name in unit(manifest, 0):
        np.testing.assert_allclose(near.change[name], -0.1, rtol=1e-4)
        assert not found.change[name].any()
    ((odd, *others),) = found.odd.values()
    assert odd.part == manifest.units[0].name
    assert odd.times == pytest.approx(5, rel=1e-4)
    assert not others


@pytest.mark.parametrize("rule", ["clipped", "trimmed", "median"])
def test_the_first_holder_is_believed_and_of_two_the_smaller_change(manifest, start, rule):
    alone = come(manifest, start, rule, [update(manifest, start, [0], -0.5)])
    np.testing.assert_allclose(alone.change[unit(manifest, 0)[0]], -0.5, rtol=1e-5)
    two = come(manifest, start, rule, [update(manifest, start, [0], 0.1), update(manifest, start, [0], -0.2)])
    np.testing.assert_allclose(two.change[unit(manifest, 0)[0]], 0, atol=1e-6)


def test_sizes_are_kept_of_the_newest_holders_and_unit_by_unit(manifest, start):
    state = {}
    for _ in range(KEPT_SIZES):
        updates = [update(manifest, start, [0], 0.1), update(manifest, start, [1], 0.2)]
        state = come(manifest, start, "clipped", updates, state).sizes
    of = {name: len(sizes) for name, sizes in state.items()}
    assert of == dict.fromkeys((manifest.units[0].name, manifest.units[1].name, "head"), KEPT_SIZES)
    numbers = sum(one.size for one in manifest.units[0].parameters)
    np.testing.assert_allclose(state[manifest.units[0].name], 0.1 * numbers**0.5, rtol=1e-4)


def test_whoever_goes_far_or_against_the_others_is_told(manifest, start):
    updates = [update(manifest, start, [0], 0.1) for _ in range(4)]
    updates += [update(manifest, start, [0], -0.5, -0.5), update(manifest, start, [0], 0.1, -0.1)]
    found = come(manifest, start, "trimmed", updates)
    assert sorted(found.odd) == [4, 5]
    assert in_words(found.odd[4]) == (
        f"its {manifest.units[0].name} goes 5.0 times as far as is usual and against the others (cosine -1.00), and so "
        "do 1 other parts"
    )
    assert in_words(found.odd[5]) == "its head goes against the others (cosine -1.00)"


def test_a_still_fleet_is_not_odd(manifest, start):
    found = come(manifest, start, "median", [update(manifest, start, [0], 0.0, 0.0) for _ in range(4)])
    assert not found.odd
    assert not any(change.any() for change in found.change.values())


def test_whoever_goes_far_in_half_of_its_parts_is_left_out_of_all(manifest, start):
    updates = [update(manifest, start, [0], 0.1) for _ in range(3)] + [update(manifest, start, [0], -0.5, -0.1)]
    found = come(manifest, start, "clipped", updates)
    for one in manifest.head:
        np.testing.assert_allclose(found.change[one.name], 0.1, atol=1e-6)


def test_whoever_goes_far_and_is_judged_to_agree_is_heard_and_shortened(manifest, start):
    updates = [update(manifest, start, [0], 0.1) for _ in range(3)] + [update(manifest, start, [0], -0.5, -0.9)]
    own = [dict.fromkeys(sent, 1.0) for sent in updates]
    found = combined(AGGREGATION_RULES["agreeing"], start, {}, updates, own, manifest, agreeing=frozenset([3]))
    for name in [*unit(manifest, 0), *(one.name for one in manifest.head)]:
        np.testing.assert_allclose(found.change[name], (3 * 0.1 - 0.1) / 4, atol=1e-6)
    assert found.odd.keys() == {3}


def test_where_most_would_be_left_out_each_unit_goes_by_itself(manifest, start):
    updates = [update(manifest, start, [0], *moved) for moved in ((0.7, 0.1), (0.1, 0.7), (0.2, 0.2))]
    found = come(manifest, start, "clipped", updates)
    for name in [*unit(manifest, 0), *(one.name for one in manifest.head)]:
        np.testing.assert_allclose(found.change[name], 0.15, atol=1e-6)


def test_whoever_goes_far_in_fewer_is_heard_and_shortened(manifest, start):
    updates = [update(manifest, start, [0, 1], 0.1) for _ in range(3)] + [update(manifest, start, [0, 1], -0.1, -0.9)]
    found = come(manifest, start, "agreeing", updates)
    for name in [*unit(manifest, 0), *(one.name for one in manifest.head)]:
        np.testing.assert_allclose(found.change[name], 0.05, atol=1e-6)


def test_honest_devices_that_go_far_in_one_unit_do_not_save_malicious_ones(manifest, start):
    """Half of them go far somewhere, the malicious ones everywhere."""
    moved = [(0.1, 0.1)] * 6 + [(0.1, 0.9), (0.9, 0.1), (-0.9, -0.9)] * 2
    updates = [update(manifest, start, [0], *far) for far in moved]
    found = come(manifest, start, "agreeing", updates)
    for name in [*unit(manifest, 0), *(one.name for one in manifest.head)]:
        np.testing.assert_allclose(found.change[name], 0.1, atol=1e-6)


def head_changes(manifest, start, updates):
    """All numbers of the heads' changes, one row for each update."""
    return np.stack(
        [np.concatenate([(own[one.name] - start[one.name]).ravel() for one in manifest.head]) for own in updates]
    )


@pytest.mark.parametrize(("rule", "shortened"), [("agreeing", MOST_PULL * 0.1), ("clipped", 0.1)])
def test_heads_that_are_alike_in_what_is_compared_are_heard_and_shortened(manifest, start, rule, shortened):
    """Devices whose texts are of few classes send such heads; a rule that judges whole devices shortens them less."""
    updates = [update(manifest, start, [], 0.0, head) for head in (0.1, 0.1, 0.1, -0.1, 0.5)]
    heads = Heads(np.ones((5, 3)), head_changes(manifest, start, updates))
    found = come(manifest, start, rule, updates, heads=heads)
    assert not found.odd
    for one in manifest.head:
        np.testing.assert_allclose(found.change[one.name], (3 * 0.1 - 0.1 + shortened) / 5, atol=1e-6)


def test_what_is_compared_of_heads_is_shortened_to_the_median_of_it(manifest, start):
    updates = [update(manifest, start, [], 0.0, head) for head in (0.1, 0.2, 0.3, 0.4, 0.4)]
    lengths = np.array([1.0, 1.0, 1.0, 0.5, 2.0])
    heads = Heads(np.outer(lengths, [0.6, 0.8]), 0 * head_changes(manifest, start, updates))
    found = come(manifest, start, "agreeing", updates, heads=heads)
    for one in manifest.head:
        np.testing.assert_allclose(found.change[one.name], (0.1 + 0.2 + 0.3 + 0.4 + 0.4 / 2) / 5, atol=1e-6)


def test_heads_that_are_far_in_what_is_compared_are_left_out_of_all(manifest, start):
    updates = [update(manifest, start, [0], change) for change in (0.1, 0.1, 0.1, 0.2)]
    compared = np.array([[1.0, 0.1], [1.0, -0.1], [1.0, 0.0], [-4.0, 0.0]])
    heads = Heads(compared, 0 * head_changes(manifest, start, updates))
    found = come(manifest, start, "agreeing", updates, heads=heads)
    assert {place: in_words(parts) for place, parts in found.odd.items()} == {
        3: "its head goes 4.0 times as far as is usual and against the others (cosine -1.00)"
    }
    for name in unit(manifest, 0):
        np.testing.assert_allclose(found.change[name], 0.1, atol=1e-6)


def test_of_two_heads_what_is_compared_says_nothing(manifest, start):
    updates = [update(manifest, start, [], 0.0, head) for head in (0.1, 0.2)]
    compared = Heads(np.eye(2), head_changes(manifest, start, updates))
    one, other = (come(manifest, start, "agreeing", updates, heads=heads) for heads in (None, compared))
    for name, value in one.change.items():
        np.testing.assert_array_equal(value, other.change[name])
