"""Epsilons against published figures, and against divergences that are integrated here."""

import math
import random

import numpy as np
import pytest

from server.privacy.accountant import epsilon_of, noise_for, sampled_epsilon, sampled_noise, times_for

DELTA = 1e-5


def gaussian_delta(noise: float, epsilon: float) -> float:
    """Balle and Wang (2018), equation 6."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return below(0.5 / noise - epsilon * noise) - math.exp(epsilon) * below(-0.5 / noise - epsilon * noise)


def sampled_delta(noise: float, share: float, epsilon: float) -> float:
    """The larger hockey-stick divergence between one round with a client and one without, by a fine sum."""
    x, step = np.linspace(-12 * noise, 1 + 12 * noise, 400_001, retstep=True)

    def density(mean: float) -> np.ndarray:
        return np.exp(-(((x - mean) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))

    without, with_ = density(0.0), (1 - share) * density(0.0) + share * density(1.0)
    pairs = (with_, without), (without, with_)
    return max(float(np.maximum(one - math.exp(epsilon) * other, 0).sum() * step) for one, other in pairs)


def test_who_takes_part_often_pays_as_one_gaussian_of_less_noise():
    for _ in range(5):
        noise, times = random.uniform(1, 5), random.randint(1, 20)
        epsilon = epsilon_of(noise, DELTA, times)
        assert gaussian_delta(noise / math.sqrt(times), epsilon) == pytest.approx(DELTA, rel=1e-4)
    assert epsilon_of(1.0, DELTA, 0) == 0


def test_noise_and_times_are_inverses_of_epsilon():
    for _ in range(5):
        epsilon, times = random.uniform(0.5, 10), random.randint(1, 30)
        noise = noise_for(epsilon, DELTA, times)
        assert epsilon_of(noise, DELTA, times) == pytest.approx(epsilon, rel=1e-6)
        assert times_for(epsilon, DELTA, noise) == times
        assert times_for(epsilon, DELTA, noise * 0.999) == times - 1


def test_the_classical_gaussian_is_dearer():
    """Dwork and Roth's bound, of which the exact figure is below: sqrt(2 ln(1.25 / delta)) for an epsilon of 1."""
    assert 0.5 < noise_for(1.0, DELTA, 1) / math.sqrt(2 * math.log(1.25 / DELTA)) < 1


def test_one_round_by_chance():
    for noise, share in ((0.8, 0.1), (1.5, 0.02), (0.6, 0.5)):
        epsilon = sampled_epsilon(noise, DELTA, 1, share)
        assert sampled_delta(noise, share, epsilon) <= DELTA * 1.001  # its steps are taken for the worse
        assert sampled_delta(noise, share, epsilon - 0.01) > DELTA


def test_published_figures():
    """TensorFlow Privacy's table of its MNIST tutorial: 10 epochs in batches of 256 with noise 1.2 cost an epsilon of
    1.20 by Renyi divergences, of which privacy losses themselves are below. Many rounds are nearly one Gaussian (Bu,
    Dong, Long and Su, 2020, theorem 3)."""
    noise, rounds, share = 1.2, 10 * 60_000 // 256, 256 / 60_000
    epsilon = sampled_epsilon(noise, DELTA, rounds, share)
    assert epsilon < 1.2
    limit = share * math.sqrt(rounds * (math.exp(noise**-2) - 1))
    assert gaussian_delta(1 / limit, 0.9 * epsilon) > DELTA > gaussian_delta(1 / limit, 1.02 * epsilon)


def test_chance_makes_rounds_cheaper_and_certainty_does_not():
    assert sampled_epsilon(1.0, DELTA, 5, 1.0) == epsilon_of(1.0, DELTA, 5)
    assert sampled_epsilon(1.0, DELTA, 5, 0.1) < epsilon_of(1.0, DELTA, 1)
    noise = sampled_noise(8.0, DELTA, 10, 0.1)
    assert 7.9 < sampled_epsilon(noise, DELTA, 10, 0.1) <= 8.0
