"""Settings that are settled: noise for a budget, or how often a budget lets a device come."""

import pytest

from server.errors import SettingsError
from server.jobs.settings import JobSettings
from server.privacy.accountant import epsilon_of, noise_for, sampled_epsilon
from server.privacy.budget import may_go_on, mechanism_of, sampled_spent, settled, settled_by_chance, wanted_in
from tests.vectors.make_training import MANIFEST


def settings(**values):
    return JobSettings.model_validate({"rounds": 12, "per_round": 10} | values)


def test_a_job_without_a_budget_stays_as_it_is():
    assert settled(settings()) == settled_by_chance(settings(), 100) == settings()


def test_noise_is_for_a_device_that_comes_as_often_as_it_may():
    assert settled(settings(privacy_epsilon=4)).privacy_noise == pytest.approx(noise_for(4.0, 1e-5, 12))
    few = settled(settings(privacy_epsilon=4, privacy_times=3))
    assert (few.privacy_noise, few.privacy_times) == (pytest.approx(noise_for(4.0, 1e-5, 3)), 3)
    assert settled(settings(privacy_epsilon=4, privacy_times=90)).privacy_times == 12
    assert settled(few) == few  # a job that is made from another's settings is the same


def test_noise_that_is_named_says_how_often_a_budget_lets_a_device_come():
    found = settled(settings(privacy_epsilon=4, privacy_noise=3))
    assert 1 < found.privacy_times < 12
    assert epsilon_of(3, 1e-5, found.privacy_times) <= 4 < epsilon_of(3, 1e-5, found.privacy_times + 1)
    assert settled(settings(privacy_noise=10)).privacy_times == 12
    with pytest.raises(SettingsError, match="in one round, more than privacy_epsilon 4"):
        settled(settings(privacy_epsilon=4, privacy_noise=0.3))


def test_a_simulation_stops_where_the_next_round_is_not_paid():
    chosen = settled_by_chance(settings(privacy_epsilon=4), 100)
    assert 3.9 < sampled_spent(chosen, 12, 100) <= 4
    assert all(may_go_on(chosen, done, 100) for done in range(12))
    named = settled_by_chance(settings(privacy_epsilon=4, privacy_noise=0.8), 100)
    last = next(done for done in range(12) if not may_go_on(named, done, 100))
    assert sampled_epsilon(0.8, 1e-5, last, 0.1) <= 4 < sampled_epsilon(0.8, 1e-5, last + 1, 0.1)
    assert may_go_on(settled_by_chance(settings(privacy_noise=0.1), 100), 11, 100)
    with pytest.raises(SettingsError, match="in one round"):
        settled_by_chance(settings(privacy_epsilon=0.1, privacy_noise=0.3), 100)


def test_what_a_parameter_is_divided_by_is_known_before_anybody_comes():
    split = wanted_in(settings(privacy_noise=1, per_round=4), MANIFEST)  # three units: the first has two holders
    assert (split["first.a"], split["second.b"], split["third.a"], split["head.bias"]) == (2, 1, 1, 4)
    assert set(wanted_in(settings(privacy_noise=1, per_round=4, units_per_client=0), MANIFEST).values()) == {4}
    assert {parameter.name for parameter in MANIFEST.trained} == set(split)


def test_the_mechanism_is_that_of_the_settings():
    made = mechanism_of(settings(privacy_noise=2, privacy_clip=0.5, privacy_quantile=0.8))
    assert (made.noise, made.clip, made.per_round, made.quantile) == (2, 0.5, 10, 0.8)
