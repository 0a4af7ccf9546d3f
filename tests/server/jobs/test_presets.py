"""Test where settings of jobs and simulations start from."""

from copy import deepcopy
from typing import get_args

import pytest
from msgspec.structs import replace as replace_manifest
from pydantic import ValidationError

from edge_client.bundle.folder import Bundle
from server.errors import Refusal
from server.jobs.completion import complete
from server.jobs.presets import PRESETS, Preset, has_few_rows, merged, preset_for, private_start, start_of
from server.jobs.settings import JobSettings
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


@pytest.mark.parametrize(
    ("estimator", "adapter", "taken"),
    [("forward", {}, ("bottleneck", 16)), ("forward", {"last_blocks": 1}, ("bottleneck", 16)),
     ("forward", {"rank": 2}, ("bottleneck", 2)), ("forward", {"method": "lora"}, ("lora", 4)),
     ("forward", {"alpha": 8.0}, ("lora", 4)), ("auto", {}, ("lora", 4))],
)  # fmt: skip
def test_a_forward_fleet_has_bottlenecks_unless_an_adapter_is_named(estimator, adapter, taken):
    settings = {"training": {"estimator": estimator}}
    plan = plan_for(method="spry", preset=None, model="m", data="notes", seed=0, adapter=adapter, settings=settings)
    assert (plan.adapter.method, plan.adapter.rank) == taken


def test_a_privacy_budget_brings_optimizers_that_noise_wants():
    """Steps of a length of their own, however short the clip; what is named goes over them."""
    asked = {"privacy_epsilon": 8.0, "training": {"learning_rate": 0.7}}
    options = {"method": "spry", "preset": "auto", "model": "tiny", "data": "notes", "seed": 0, "adapter": {}}
    settings = plan_for(**options, settings=asked).settings
    assert settings.optimizers.head.kind == settings.optimizers.units.kind == "fedyogi"
    assert (settings.training.learning_rate, settings.training.head_learning_rate) == (0.7, 0.03)
    assert private_start({"rounds": 3, "privacy_noise": None}) == {}
    assert plan_for(**options, settings={}).settings.optimizers.head.kind == "fedavg"


def test_a_privacy_budget_takes_the_walk_from_devices():
    """Steps by AdamW would all be as long as the clip, at rates that are meant for gradients."""
    options = {"method": "spry", "preset": "auto", "model": "tiny", "data": "notes", "seed": 0, "adapter": {}}
    options["few"] = True
    plain = plan_for(**options, settings={}).settings
    assert (plain.training.optimizer, plain.optimizers.units.kind) == ("adamw", "fedavg")
    private = plan_for(**options, settings={"privacy_epsilon": 8.0}).settings
    assert (private.training.optimizer, private.training.learning_rate) == ("sgd", 0.3)
    assert private.optimizers.units.kind == private.optimizers.head.kind == "fedyogi"


def test_devices_that_walk_themselves_measure_no_features(bundle):
    """The head's changes are then no sums of gradients, and its rate is named."""
    manifest = Bundle.open(bundle).manifest
    settings = complete(JobSettings.model_validate(start_of(manifest, "auto", rows=60)), manifest)
    assert not settings.measures(manifest)
    assert settings.training.head_learning_rate == settings.training.learning_rate


def test_directions_that_are_left_open_are_counted_by_the_largest_share(bundle):
    manifest = Bundle.open(bundle).manifest
    (size,) = {unit.size for unit in manifest.units}
    shape = {"batch": 2, "length": 8, "directions": 0}
    for units in (1, 2, 4):
        settings = JobSettings.model_validate({"training": shape, "units_per_client": units})
        assert complete(settings, manifest).training.directions == units * size
    mixed = JobSettings.model_validate({"assignment": "all", "training": {**shape, "estimator": "mixed"}})
    assert complete(mixed, manifest).training.directions == 2 * size, "those of the last block take none"


def test_settings_of_earlier_versions_are_answered_by_what_happens_instead():
    for name in ("units_apart", "prefix_cache"):
        with pytest.raises(ValidationError, match=f"training.{name} is gone: "):
            JobSettings.model_validate({"training": {name: True}})


def test_more_directions_than_a_report_holds_are_refused(bundle):
    many = {"mode": "iteration", "batch": 2, "length": 8, "directions": 1 << 14}
    with pytest.raises(Refusal, match=r"at most \d+ derivatives a step .*, not 32768: take fewer, or training.per_ex"):
        complete(JobSettings.model_validate({"training": many}), Bundle.open(bundle).manifest)


@pytest.mark.parametrize(
    ("adapter", "asked", "preset"),
    [("bottleneck", {}, "bottleneck"), ("bottleneck", {"estimator": "auto"}, "bottleneck"),
     ("bottleneck", {"estimator": "forward"}, "forward"), ("bottleneck", {"estimator": "exact"}, "default"),
     ("lora", {}, "auto"), ("ia3", {"estimator": "mixed"}, "auto"), ("lora", {"estimator": "forward"}, "forward"),
     ("lora", {"estimator": "forward", "mode": "iteration"}, "scalars"), ("lora", {"mode": "iteration"}, "scalars"),
     ("lora", {"mode": "iteration", "head": "apart"}, "default"),
     ("lora", {"mode": "iteration", "estimator": "central"}, "default"),
     ("lora", {"estimator": "exact"}, "default"), ("classifier", {}, "default")],
)  # fmt: skip
def test_the_preset_that_fits(adapter, asked, preset):
    assert preset_for(adapter, asked) == preset


@pytest.mark.parametrize(
    ("offered", "taken"), [((1,), 1), ((1, 4), 4), ((4, 1), 4), ((1, 4, 16), 4), ((16,), 16), ((8, 16), 8)]
)
def test_a_job_takes_as_many_directions_as_cost_little(bundle, offered, taken):
    """Of two blocks with two units each K directions take 1 + 3 K / 4 forward passes, a mean over the units."""
    manifest = replace_manifest(Bundle.open(bundle).manifest, directions=offered)
    assert start_of(manifest, "default")["training"]["directions"] == taken


@pytest.mark.parametrize(
    ("task", "classes", "rows", "few"),
    [("seq-cls", 3, 1000, True), ("seq-cls", 3, 1001, False), ("seq-cls", 10, 60, False), ("seq-cls", 3, None, False),
     ("qa", 0, 60, False), ("causal-lm", 0, 60, False)],
)  # fmt: skip
def test_the_default_looks_at_how_many_rows_there_are(task, classes, rows, few):
    assert has_few_rows(task, classes, rows) == few


def test_a_start_with_few_rows_lets_devices_walk(bundle):
    manifest = Bundle.open(bundle).manifest
    many, few = (JobSettings.model_validate(start_of(manifest, "auto", rows)) for rows in (None, 60))
    assert (many.training.optimizer, many.optimizers.units.kind, many.passes) == ("sgd", "fedsnr", 2.0)
    assert (few.training.optimizer, few.optimizers.units.kind, few.passes) == ("adamw", "fedavg", None)
    assert (few.training.estimator, few.average) == (many.training.estimator, many.average) == ("auto", 0.9)
    assert start_of(manifest, "default", 60) == start_of(manifest, "default")


@pytest.mark.parametrize("adapter", ["lora", "bottleneck"])
@pytest.mark.parametrize("asked", [{"mode": "iteration", "head": "apart"}, {"head": "joint"}])
def test_nothing_goes_back_where_it_cannot_be_told(adapter, asked):
    assert preset_for(adapter, asked) == "default"


def test_later_changes_win_and_none_is_altered():
    start = {"training": {"batch": 8, "length": 64}, "average": 0.9}
    before = deepcopy(start)
    found = merged(start, {"training": {"batch": 4}}, {"average": 0.5, "optimizers": {"units": {"tau": 0.1}}})
    assert found == {"training": {"batch": 4, "length": 64}, "average": 0.5, "optimizers": {"units": {"tau": 0.1}}}
    found["training"]["length"] = 1
    assert start == before


def test_packing_is_of_language_models(tiny):
    packed = {"batch": 2, "length": 8, "pack": True}
    with pytest.raises(Refusal, match="language models into one sequence, and the job is seq-cls"):
        complete(JobSettings.model_validate({"training": packed}), Bundle.open(tiny).manifest)
