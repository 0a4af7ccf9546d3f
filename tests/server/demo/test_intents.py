"""The demo's data: what is held out is never heard, and slices differ."""

from collections import Counter
from itertools import chain

import pytest

from server.demo.intents import HOUSEHOLDS, INTENTS, LABELS, common_test, household, own_test, slice_of

DEVICES = range(24)


def test_there_are_enough_intents_and_each_is_somebodys_habit():
    assert len(LABELS) >= 8
    assert set(chain.from_iterable(one.favourites for one in HOUSEHOLDS)) == set(LABELS)


@pytest.mark.parametrize("intent", LABELS)
def test_held_out_phrasings_are_not_heard(intent):
    heard = {template.lower() for known in INTENTS.values() for template in known.heard}
    assert not heard & {template.lower() for template in INTENTS[intent].held_out}


def test_no_test_phrase_was_heard_by_any_device():
    heard = {row["text"] for number in DEVICES for row in slice_of(number, 72)}
    said = common_test(200) + list(chain.from_iterable(own_test(number, 40) for number in DEVICES))
    assert len(said) == 200 + 40 * len(DEVICES)
    assert not heard & {row["text"] for row in said}


def test_the_common_test_has_every_intent_as_often():
    assert set(Counter(row["label"] for row in common_test(200)).values()) == {200 // len(LABELS)}


@pytest.mark.parametrize("number", DEVICES)
def test_a_slice_is_mostly_its_households_habits(number):
    rows = slice_of(number, 200)
    counted = Counter(row["label"] for row in rows)
    favourites = household(number).favourites
    assert sum(counted[name] for name in favourites) / len(rows) > 0.75
    assert {name for name, _ in counted.most_common(len(favourites))} == set(favourites)
    assert slice_of(number, 200) == rows  # a device that starts again has the same data


def test_devices_are_told_apart():
    assert len({household(number).name for number in DEVICES}) == len(DEVICES)
    slices = [tuple(row["text"] for row in slice_of(number, 50)) for number in DEVICES]
    assert len(set(slices)) == len(DEVICES)


def test_every_phrase_is_filled_in():
    rows = common_test(2000) + list(chain.from_iterable(slice_of(number, 200) for number in DEVICES))
    assert not [row for row in rows if "{" in row["text"] or "}" in row["text"]]
