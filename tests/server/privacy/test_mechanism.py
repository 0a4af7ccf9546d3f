"""The private mean against one worked out by hand, and its noise against what it says it is."""

import math
import random

import numpy as np
import pytest

from server.privacy.mechanism import RATE, Mechanism, shares_of
from server.privacy.noise import Noise

START = {"a": np.array([1.0, 2.0], np.float32), "b": np.array([[0.5]], np.float32)}
WANTED = {"a": 4, "b": 2}


class Silence(Noise):
    """Noise of no strength: what is left is the mean."""

    def normal(self, count):
        return np.zeros(count)


def moved(**changes):
    return {name: START[name] + np.array(change, np.float32) for name, change in changes.items()}


def test_updates_are_clipped_as_wholes_and_divided_by_how_many_are_wanted():
    updates = [moved(a=[3, 0], b=[[4]]), moved(a=[0, 0.5])]  # lengths 5 and a half; the second does not hold b
    change, clip = Mechanism(1.0, 1.0, 4).mean(START, None, updates, WANTED, Silence())
    np.testing.assert_allclose(change["a"], np.array([3 / 5, 0.5]) / 4, atol=1e-6)
    np.testing.assert_allclose(change["b"], [[4 / 5 / 2]], atol=1e-6)
    assert clip is None


def test_no_client_moves_the_sum_by_more_than_the_clip():
    """However far it goes: in units of what each parameter is divided by, as noise is laid on the sum."""
    rng = np.random.default_rng()
    for _ in range(20):
        clip = rng.uniform(0.01, 1)
        others = [moved(a=rng.normal(size=2), b=rng.normal(size=(1, 1))) for _ in range(3)]
        liar = moved(a=rng.normal(size=2) * 1e6, b=rng.normal(size=(1, 1)))
        mechanism = Mechanism(1.0, clip, 4)
        with_, _ = mechanism.mean(START, None, [*others, liar], WANTED, Silence())
        without, _ = mechanism.mean(START, None, others, WANTED, Silence())
        apart = [WANTED[name] * (with_[name].astype(float) - without[name]).ravel() for name in WANTED]
        assert np.linalg.norm(np.concatenate(apart)) == pytest.approx(clip, rel=1e-3)


def test_noise_is_as_strong_as_it_says_on_every_parameter():
    start = {"a": np.zeros(40_000, np.float32), "b": np.zeros(40_000, np.float32)}
    change, _ = Mechanism(1.7, 0.3, 10).mean(start, None, [], {"a": 10, "b": 5}, Noise())
    assert np.std(change["a"]) == pytest.approx(1.7 * 0.3 / 10, rel=0.03)
    assert np.std(change["b"]) == pytest.approx(1.7 * 0.3 / 5, rel=0.03)
    assert abs(np.corrcoef(change["a"], change["b"])[0, 1]) < 0.03


def test_sum_and_count_together_tell_as_much_as_the_jobs_noise():
    """A client moves the sum by a clip and the count by a half: squares of sensitivity by deviation add up."""
    for per_round in (3, 100, 5000):
        noise = random.uniform(0.3, 20)
        of_sum, of_count = shares_of(noise, per_round, counts=True)
        assert (1 / of_sum) ** 2 + (0.5 / of_count) ** 2 == pytest.approx(1 / noise**2)
        assert noise < of_sum < 1.06 * noise
    assert shares_of(2.0, 10, counts=False) == (2.0, 0.0)


def test_the_clip_goes_where_a_quantile_of_updates_is_shorter():
    mechanism = Mechanism(0.5, 1.0, 200, quantile=0.7)
    lengths = np.random.default_rng().lognormal(-3, 0.5, 200)
    updates = [moved(b=[[length]]) for length in lengths]
    clip = None
    for _ in range(60):
        _, clip = mechanism.mean(START, clip, updates, WANTED, Noise())
    assert np.mean(lengths < mechanism.clip_at(clip)) == pytest.approx(0.7, abs=0.1)


def test_one_step_of_the_clip_by_hand():
    updates = [moved(a=[0.5, 0]), moved(a=[2.0, 0]), moved(a=[0.995, 0])]  # the last was clipped on its device
    _, clip = Mechanism(0.5, 1.0, 4, quantile=0.5).mean(START, None, updates, WANTED, Silence())
    share = (1 - 2) / 2 / 4 + 0.5
    assert clip == pytest.approx(math.exp(-RATE * (share - 0.5)))
    assert Mechanism(0.5, 1.0, 4).clip_at(clip) == clip
