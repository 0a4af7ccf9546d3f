"""Shares of a private sum's noise: how much there is, what an update becomes, and what whole numbers can tell."""

import math
import os

import numpy as np
import pytest

from edge_client.errors import TrainingError
from edge_client.secagg.fixed import HEAD, MOST, UNITS, WHOLE
from edge_client.secagg.noise import FINEST, ROOM, Share, normal_of

NUMBERS = 40_000
LIKELY = 5.5 / math.sqrt(2 * NUMBERS)
"""Of a deviation of so many normal numbers: it is off by more in less than one of 10^7 cases."""


def numbers_of(parts):
    return np.concatenate([parts[part][:-1].view(np.int32) for part in sorted(parts)]).astype(np.float64)


def summed(share, updates, count):
    """Return a server's sum: the integers add up and wrap around."""
    parts = [share.encoded(update, count, os.urandom(32)) for update in updates]
    return {part: sum((one[part] for one in parts[1:]), parts[0][part]) for part in parts[0]}


def drawn(numbers=NUMBERS, size=1.0):
    change = np.random.default_rng().normal(size=numbers)
    return (change * (size / np.linalg.norm(change))).astype(np.float32)


@pytest.mark.parametrize(("least", "there", "count"), [(3, 3, 5), (3, 5, 5), (8, 8, 10), (8, 7, 100)])
def test_a_sum_has_the_noise_that_its_devices_shares_come_to_whoever_is_gone(least, there, count):
    """One fewer than the least are enough for what is counted; the updates themselves are added exactly."""
    share = Share(noise=1.5, clip=0.02, least=least)
    updates = [{HEAD: drawn(size=0.01)} for _ in range(there)]
    total = summed(share, updates, count)[HEAD]
    assert total[-1] == there * WHOLE
    noise = share.mean(total, count, 1) - sum(update[HEAD].astype(np.float64) for update in updates)
    claimed = (1 + ROOM) * 1.5 * 0.02 * math.sqrt(there / (least - 1))
    assert noise.std() == pytest.approx(claimed, rel=LIKELY)
    assert abs(noise.mean()) < 5.5 * claimed / math.sqrt(NUMBERS)
    assert noise.std() >= 1.5 * 0.02 * math.sqrt(there / (least - 1)) * (1 + ROOM - LIKELY)
    middle = np.abs(noise) < 0.6744897501960817 * claimed
    assert middle.mean() == pytest.approx(0.5, abs=5.5 * 0.5 / math.sqrt(NUMBERS)), "half of normal numbers are so near"


@pytest.mark.parametrize("length", [0.3, 1.0, 20.0])
def test_an_update_is_clipped_as_a_whole_and_no_longer_in_whole_numbers(length):
    share, secret = Share(2.0, 0.5, 3), os.urandom(32)
    update = {UNITS: drawn(NUMBERS, length), HEAD: drawn(7, length / 4)}
    silent = {part: np.zeros_like(change) for part, change in update.items()}
    whole = numbers_of(share.encoded(update, 9, secret)) - numbers_of(share.encoded(silent, 9, secret))
    real = np.concatenate([update[part].astype(np.float64) for part in sorted(update)])
    real *= share.scale(9) * min(1, 0.5 / np.linalg.norm(real))
    assert np.array_equal(whole, np.trunc(real))
    assert np.linalg.norm(whole) <= 0.5 * share.scale(9)


def test_noise_is_the_same_again_by_the_same_secret_and_has_nothing_to_do_with_anothers():
    share, update = Share(1.0, 0.1, 3), {UNITS: drawn(5001, 0.1), HEAD: drawn(5001, 0.1)}
    one, other = os.urandom(32), os.urandom(32)
    first, again, third = (share.encoded(update, 4, secret) for secret in (one, one, other))
    assert all(np.array_equal(first[part], again[part]) for part in first)
    both = numbers_of(first), numbers_of(third)
    assert abs(np.corrcoef(*both)[0, 1]) < 5.5 / math.sqrt(10_002)
    assert abs(np.corrcoef(both[0][:5001], both[0][5001:])[0, 1]) < 5.5 / math.sqrt(5001), "nor that of another part"


@pytest.mark.parametrize(("noise", "least", "count"), [(1e-3, 3, 3), (1.0, 3, MOST), (40.0, 90, 100), (1000.0, 3, 3)])
def test_the_grid_is_fine_and_neither_updates_nor_noise_leave_it(noise, least, count):
    share = Share(noise, 0.01, least)
    scale = share.scale(count)
    assert share.deviation * scale > FINEST * 100
    reach = count * 0.01 + 12 * math.sqrt(count) * share.deviation
    assert 2**30 <= reach * scale <= 2**31 - 1


class Coarse(Share):
    """On a grid of whole clips, whose every number can be counted."""

    def scale(self, count):
        return 1.0


def test_one_fewer_than_the_least_and_roundings_tell_no_more_than_is_counted():
    """The exact delta of a sum's integers against that of a normal number with the noise that is counted."""
    generator = np.random.default_rng()
    for _ in range(40):
        noise, clip, least = generator.uniform(0.5, 3), int(generator.integers(2, 20)), int(generator.integers(3, 8))
        share = Coarse(noise, clip, least)
        reach = int(12 * share.deviation) + 2
        one = np.diff([_below((k - 0.5) / share.deviation) for k in range(-reach, reach + 2)])
        mass = one
        for _ in range(least - 2):
            mass = np.convolve(mass, one)
        here, there = np.pad(mass, (0, clip)), np.pad(mass, (clip, 0))
        for epsilon in generator.uniform(0.1, 4, 3) / noise:
            delta = np.maximum(here - math.exp(epsilon) * there, 0).sum()
            left = epsilon - share.rounding(least, 1)
            counted = _below(0.5 / noise - left * noise) - math.exp(left) * _below(-0.5 / noise - left * noise)
            assert delta <= counted + 1e-12


def _below(value):
    return 0.5 * math.erfc(-value / math.sqrt(2))


def test_the_most_that_roundings_tell():
    share = Share(2.0, 0.01, 5)
    scale = share.scale(10)
    whole = (1 + ROOM) * 2.0 * 0.01 / 2 * scale
    assert share.rounding(10, 900) == pytest.approx(30 * 0.01 * scale / whole**2)


def test_normal_numbers_of_uniform_ones():
    words = np.frombuffer(os.urandom(16 * 20_000), "<u8")
    found = np.sort(normal_of(words))
    expected = np.array([_below(value) for value in found])
    assert np.abs(expected - np.arange(1, 40_001) / 40_000).max() < 2.8 / math.sqrt(40_000)  # Kolmogorov: one of 10^6


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_noise_that_hides_nothing_is_refused(noise):
    with pytest.raises(TrainingError, match="is too little in a sum of 4096 devices: nothing is sent"):
        Share(noise, 0.01, 3).encoded({HEAD: drawn(3)}, MOST, bytes(32))


def test_numbers_that_are_none_are_refused():
    with pytest.raises(TrainingError, match="has numbers that are not finite: lower the learning rate"):
        Share(1.0, 0.01, 3).encoded({HEAD: np.array([1, np.nan], np.float32)}, 3, bytes(32))
