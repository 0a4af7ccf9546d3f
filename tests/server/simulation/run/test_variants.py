"""Test how a simulated fleet's clients train, by what they can hold and what a step may cost."""

import pytest

from edge_client.bundle.folder import Bundle
from server.policy.assignment import RoundSlot
from server.simulation.plan import plan_for
from server.simulation.run.variants import variants_in

GIVEN = {"method": "spry", "preset": None, "model": "tiny", "data": "news", "seed": 0, "adapter": {}}


@pytest.mark.parametrize(
    ("able", "passes", "depths", "units"),
    [
        (1.0, None, (2, 2), (0,)),  # no budget: as deep as they can, and estimates before that
        (0.5, None, (2, 1), (0,)),
        (1.0, 2.0, (1, 1), ()),
        (0.5, 2.0, (1, 1), ()),  # half through both blocks would be 2.5
        (0.5, 2.5, (2, 1), ()),
    ],
)
def test_clients_train_as_a_server_would_have_them(bundle, able, passes, depths, units):
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    plan = plan_for(settings={"training": {"batch": 2, "length": 8}, "passes": passes}, able=able, **GIVEN)
    variants = variants_in(plan, plan.settings, manifest, clients=8)
    assert (variants.of(0).exact_blocks, variants.of(7).exact_blocks) == depths
    assert variants.of(3) == variants.of(0)
    assert variants.slot(RoundSlot(0, (0,))).units == units


@pytest.mark.parametrize(("others", "depth"), [("block", 1), ("forward", 0), ("absent", 1)])
def test_the_others_go_back_through_a_block_or_not_at_all(bundle, others, depth):
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    settings = {"training": {"batch": 2, "length": 8}, "per_round": 2}
    plan = plan_for(settings=settings, able=0.5, others=others, clients=8, **GIVEN)
    assert plan.present == (4 if others == "absent" else 8)
    assert variants_in(plan, plan.settings, manifest, clients=8).of(7).exact_blocks == depth


def test_who_has_no_choice_keeps_to_the_settings(bundle):
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    plan = plan_for(settings={"training": {"estimator": "forward"}}, **GIVEN)
    variants = variants_in(plan, plan.settings, manifest, clients=8)
    assert variants.of(0) == variants.of(7) == plan.settings.training
    assert variants.slot(RoundSlot(0, (0, 1))).units == (0, 1)


def test_a_step_has_the_budget_that_jobs_start_from():
    assert plan_for(settings={}, **GIVEN).settings.passes == 2.0
    assert plan_for(settings={"passes": 3}, **GIVEN).settings.passes == 3.0
    assert plan_for(settings={}, few=True, **GIVEN).settings.passes is None
    assert plan_for(settings={}, task="causal-lm", **GIVEN).settings.passes is None
