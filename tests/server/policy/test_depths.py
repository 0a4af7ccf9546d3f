"""Test the depth of devices for so many passes in their mean: two blocks, each of two units, a pass each way back."""

import numpy as np
import pytest
from msgspec.structs import replace

from edge_client.bundle.folder import Bundle
from edge_client.wire.protocol import Training
from server.jobs.completion import complete
from server.jobs.presets import start_of
from server.jobs.settings import JobSettings
from server.policy.assignment import Needs, RoundSlot, choose
from server.policy.depths import Depth, common_units, common_variant, depth_for

AUTO = Training(batch=2, length=8, estimator="auto")


@pytest.fixture
def manifest(bundle):
    return Bundle.open(bundle).manifest


@pytest.mark.parametrize(
    ("most", "limits", "expected"),
    [
        (None, [2, 0], Depth(2)),  # no budget: as deep as each can
        (2.0, [2] * 8, Depth(1, estimates=False)),  # one block and its way back, for all
        (3.0, [2] * 8, Depth(2, estimates=False)),
        (2.0, [2, 0], Depth(2, estimates=False)),  # (3 + 1) / 2
        (2.0, [2, 1], Depth(1, estimates=False)),  # (3 + 2) / 2 is too much
        (2.5, [2, 1], Depth(2, estimates=False)),
        (2.0, [0] * 8, Depth(1)),  # nobody reaches the last block: they estimate it
        (2.0, [2] + [0] * 7, Depth(1)),  # too few do
        (2.0, [2, 2] + [0] * 6, Depth(2, estimates=False)),
        (2.0, [], Depth(1)),
        (1.0, [2] * 8, Depth(1, estimates=False)),  # the cheapest way back that there is
    ],
)
def test_a_fleet_goes_as_deep_as_its_budget_pays_for(manifest, most, limits, expected):
    assert depth_for(manifest, AUTO, most, limits) == expected


def test_no_fleet_spends_more_than_its_budget_in_the_mean(manifest):
    rng = np.random.default_rng()
    for _ in range(50):
        most, limits = float(rng.uniform(2, 3)), rng.integers(0, 3, rng.integers(1, 20)).tolist()
        depth = depth_for(manifest, AUTO, most, limits)
        assert np.mean([1 + min(limit, depth.blocks) for limit in limits]) <= most + 0.01


def test_a_job_deals_out_what_all_could_reach_for_its_budget(manifest):
    assert common_units(manifest, AUTO, None) == (0, 1, 2, 3)
    assert common_units(manifest, AUTO, 2.0) == (2, 3)
    assert common_units(manifest, AUTO, 1.0) == (2, 3)
    assert common_units(manifest, Training(batch=2, length=8), 2.0) == (0, 1, 2, 3)  # has no choice
    assert [common_variant(manifest, AUTO, most).exact_blocks for most in (None, 2.0, 1.5)] == [2, 1, 1]
    settings = JobSettings(training=AUTO, passes=2.0, per_round=3, over_selection=1)
    assert [slot.units for slot in settings.slots(manifest, 3)] == [(2,), (3,), (2,)]


def test_by_default_a_step_costs_what_half_of_the_blocks_do(manifest):
    assert start_of(manifest, "auto")["passes"] == 2.0
    assert "passes" not in start_of(manifest, "auto", rows=60)


@pytest.mark.parametrize("more", [{"secure_aggregation": True, "per_round": 8}, {"privacy_noise": 1.0}])
def test_who_trains_what_in_secret_hangs_on_no_device(manifest, more):
    settings = JobSettings.model_validate(
        {"training": {"batch": 2, "length": 8, "estimator": "auto"}, "passes": 2.0, **more}
    )
    assert settings.depth(manifest, [2, 0]) == settings.depth(manifest, [2, 2]) == Depth(1)


def test_a_device_takes_no_more_than_its_rounds_depth(manifest):
    needs, slot = Needs(manifest, AUTO), RoundSlot(0, (0,))
    whole = needs.fit(slot, ["onnx"], None)
    assert needs.limit(["onnx"], None) == 2
    assert needs.limit(["onnx"], 1) is None
    shallow = needs.fit(slot, ["onnx"], None, depth=Depth(1))
    assert (whole.training.exact_blocks, whole.units) == (2, (0, 1, 2, 3))
    assert (shallow.training.exact_blocks, shallow.units) == (1, (0, 2, 3))
    told = needs.fit(slot, ["onnx"], None, depth=Depth(1, estimates=False))
    assert (told.training.exact_blocks, told.units) == (1, (2, 3))
    chosen = choose("cyclic", [slot], needs, ["onnx"], None, depth=Depth(0, estimates=False))
    assert chosen is not None
    assert chosen[1].units == ()
    assert chosen[1].training.exact_blocks == 0


def test_where_all_learns_by_the_units_nobody_has_nothing_to_do(talker):
    opened = Bundle.open(talker)
    manifest = opened.manifest
    (batch, length), *_ = manifest.shapes
    training = {"batch": batch, "length": length, "estimator": "auto"}
    settings = complete(JobSettings.model_validate({"training": training, "passes": 2}), manifest)
    assert settings.depth(
        manifest, [manifest.model.blocks, 0]
    ).estimates  # who reaches nothing would have nothing to do
    assert start_of(manifest, "auto").get("passes") is None


def test_blocks_that_share_their_weights_are_gone_through_whole(manifest):
    everywhere = [segment.name for segment in manifest.segments[1:-1]]
    shared = replace(manifest, units=tuple(replace(unit, segments=everywhere) for unit in manifest.units))
    assert common_variant(shared, AUTO, 2.0).exact_blocks == 2
    assert common_units(shared, AUTO, 2.0) == (0, 1, 2, 3)
    assert depth_for(shared, AUTO, 2.0, [2] * 4) == Depth(2, estimates=False)
