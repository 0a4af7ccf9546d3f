"""Noise is normal, and nobody draws it again."""

import math

import numpy as np

from server.privacy.noise import Noise

MANY = 200_000


def test_numbers_are_standard_normal_and_independent():
    drawn = Noise().normal(MANY)
    error = 5 / math.sqrt(MANY)
    assert abs(drawn.mean()) < error
    assert abs(drawn.std() - 1) < error
    for lag in (1, MANY // 2):  # of pairs made together, too
        assert abs(np.mean(drawn[lag:] * drawn[:-lag])) < 2 * error
    for bound in (0.5, 1.0, 2.0, 3.0):
        beyond = math.erfc(bound / math.sqrt(2))
        assert abs(np.mean(np.abs(drawn) > bound) - beyond) < error * math.sqrt(beyond) + 1e-4


def test_each_is_another_and_simulations_are_the_same_again():
    assert not np.array_equal(Noise().normal(8), Noise().normal(8))
    assert np.array_equal(Noise.of("simulation", 3, 1).normal(7), Noise.of("simulation", 3, 1).normal(7))
    assert not np.array_equal(Noise.of("simulation", 3, 1).normal(7), Noise.of("simulation", 3, 2).normal(7))


def test_a_stream_goes_on():
    noise = Noise(bytes(32))
    first, second = noise.normal(3), noise.normal(3)
    assert len(first) == 3
    assert not np.array_equal(first, second)
