"""The plan of a forward device: two blocks, each of two units with 64 numbers, the last of one token."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as changed

from edge_client.bundle.folder import Bundle
from edge_client.estimators.registry import kind_of
from edge_client.gradient.drawing import numbers_moved
from edge_client.wire.protocol import Training
from server.jobs.completion import complete
from server.jobs.presets import merged, preset_for, start_of
from server.jobs.settings import JobSettings
from server.policy.depths import common_units
from server.policy.directions import MOST, TEXTS, ForwardPlan, forward_plan
from server.policy.passes import ONE_TOKEN, passes

OPEN = Training(batch=2, length=8, directions=0)
LAST, ALL = (2, 3), (0, 1, 2, 3)


@pytest.fixture
def manifest(bundle):
    return Bundle.open(bundle).manifest


def offering(manifest, *directions, one_token=True):
    segments = tuple(changed(segment, one_token=segment.one_token and one_token) for segment in manifest.segments)
    return changed(manifest, directions=directions, segments=segments)


@pytest.mark.parametrize(
    ("offered", "most", "expected"),
    [
        ((1,), 2.0, ForwardPlan(LAST, 3)),  # 1 + 3 x .08, and a quarter for each further turn; a fourth is too much
        ((8,), 2.0, ForwardPlan(LAST, 8)),  # 1 + 16 x .08 is too much
        ((1, 8), 2.0, ForwardPlan(LAST, 8)),
        ((), 2.0, ForwardPlan(LAST, 8)),  # a simulated model has programs for 1, 2, 4 … 32
        ((), 3.0, ForwardPlan(LAST, 16)),
        ((), 4.0, ForwardPlan(LAST, 32)),  # along 4 of all units it would be the noise of 256 numbers
        ((), 100.0, ForwardPlan(ALL, MOST)),  # where passes are no matter all units learn
        ((4,), 1.0, ForwardPlan(LAST, 4)),  # the cheapest that there is
    ],
)
def test_the_plan_that_tells_most_for_its_passes(manifest, offered, most, expected):
    assert forward_plan(offering(manifest, *offered), OPEN, most) == expected


def test_whole_blocks_are_dear_for_every_direction(manifest):
    whole = offering(manifest, one_token=False)
    assert forward_plan(whole, OPEN, 2.0) == ForwardPlan(LAST, 2)


def test_no_plan_within_the_budget_is_worth_more_than_the_one_that_is_made(manifest):
    """Fresh budgets, against all cuts and numbers of directions."""
    rng, simulated = np.random.default_rng(), offering(manifest)
    numbers = numbers_moved(manifest.units[0], OPEN)

    def worth(units, count):
        return len(units) / (1 + len(units) * numbers / (count * TEXTS))

    def cost(units, count):
        training = Training(batch=2, length=8, directions=count)
        return passes(kind_of(training), training, simulated, units)

    for most in rng.uniform(1.1, 40, 20):
        made = forward_plan(simulated, OPEN, float(most))
        assert cost(*made) <= most + 0.005
        others = [(units, 1 << power) for units in (LAST, ALL) for power in range(6)]
        assert worth(*made) >= max(worth(*other) for other in others if cost(*other) <= most) - 1e-9


def test_directions_that_a_job_names_are_kept(manifest):
    named = Training(batch=2, length=8, directions=1)
    assert forward_plan(manifest, named, 2.0).directions == 1
    assert common_units(manifest, named, 2.0) == forward_plan(manifest, named, 2.0).units


def test_a_forward_job_is_planned_with_nothing_else_named(manifest):
    offered = offering(manifest, 1, 8)
    start = start_of(offered, preset_for("lora", {"estimator": "forward"}))
    settings = complete(JobSettings.model_validate({**start, "per_round": 3, "over_selection": 1}), manifest)
    assert settings.training.directions == forward_plan(manifest, OPEN, 2.0).directions
    assert [slot.units for slot in settings.slots(manifest, 3)] == [LAST] * 3
    assert ONE_TOKEN < passes(kind_of(settings.training), settings.training, manifest, LAST) <= 2.0


@pytest.mark.parametrize("mode", ["epoch", "iteration"])
def test_language_models_keep_the_plain_start(mode):
    assert preset_for("lora", {"estimator": "forward", "mode": mode}, has_head=False) == "default"


def test_a_job_of_numbers_alone_is_planned_as_one_of_weights(manifest):
    asked = {"mode": "iteration"}
    start = start_of(offering(manifest, 1, 8), preset_for("lora", asked))
    settings = complete(JobSettings.model_validate(merged(start, {"training": asked})), manifest)
    assert settings.training.directions == forward_plan(manifest, replace(OPEN, per_example=False), 2.0).directions
    assert (settings.training.head, settings.training.rows) == ("exact", 1)
