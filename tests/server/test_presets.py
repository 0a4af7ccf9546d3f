"""Where settings of jobs and simulations start from."""

from copy import deepcopy
from dataclasses import replace
from typing import get_args

import pytest

from server.jobs import JobSettings
from server.presets import PRESETS, Preset, merged
from server.simulation.plan import plan_for


def started(preset, **changes):
    return JobSettings.model_validate(merged(PRESETS[preset], changes))


def test_each_preset_has_a_name_that_plans_know():
    assert set(PRESETS) == set(get_args(Preset))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_simulation_starts_where_a_job_does(preset):
    plan = plan_for(method="spry", preset=preset, model="tiny", data="notes", seed=0, adapter={}, settings={})
    job = started(preset, assignment="cyclic")
    assert plan.settings.training == job.training
    assert plan.settings.optimizers == job.optimizers
    assert (plan.settings.average, plan.settings.rounds) == (job.average, job.rounds)


def test_the_aligned_preset_from_step_to_step():
    settings = started("aligned-iteration")
    assert (settings.training.mode, settings.training.head, settings.steps) == ("iteration", "exact", 4)
    assert settings.optimizers == started("aligned").optimizers
    assert settings.optimizers.head.kind == "fedavg"
    assert settings.average > started("aligned").average


def test_the_preset_for_pairs_gives_six_units_of_64_numbers_their_whole_gradient():
    settings = started("pairs")
    for slot in settings.slots(6, settings.places):
        assert slot.units == (0, 1, 2, 3, 4, 5)
    training = settings.training
    assert (training.directions, training.kind, training.units_apart) == (6 * 64, "orthogonal", True)
    assert training.rows == 1
    others = replace(training, directions=16, units_apart=False, per_example=True)
    assert others == started("aligned-iteration").training


def test_later_changes_win_and_none_is_altered():
    start = {"training": {"batch": 8, "length": 64}, "average": 0.9}
    before = deepcopy(start)
    found = merged(start, {"training": {"batch": 4}}, {"average": 0.5, "optimizers": {"units": {"tau": 0.1}}})
    assert found == {"training": {"batch": 4, "length": 64}, "average": 0.5, "optimizers": {"units": {"tau": 0.1}}}
    found["training"]["length"] = 1
    assert start == before
