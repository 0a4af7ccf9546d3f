"""The choices of a new job: presets with their costs, settings with their help."""

import pytest

from edge_client.bundle.folder import Bundle
from server.jobs.choices.described import described
from server.jobs.choices.starts import cost_of, planned, presets_of
from server.jobs.completion import complete
from server.jobs.presets import ABOUT, PRESETS
from server.jobs.settings import JobSettings


@pytest.fixture(scope="module")
def manifest(bundle):
    return Bundle.open(bundle).manifest


def leaves(values: dict, before: str = "") -> dict:
    found = {}
    for name, value in values.items():
        found |= leaves(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found


def test_every_setting_is_described_once():
    known = [setting for group in described() for setting in group.settings]
    names = [setting.name for setting in known]
    expected = leaves(JobSettings().model_dump(mode="json"))
    del expected["held_out"]  # a file
    assert sorted(names) == sorted(expected)
    assert {one.name: one.default for one in known} == expected
    assert [one.name for one in known if not one.help] == []
    assert {one.name for one in known if one.kind == "choice"} >= {"aggregation", "training.mode", "training.estimator"}
    assert all(bool(one.choices) == (one.kind == "choice") for one in known)


def test_a_setting_is_helped_as_the_command_does_and_stands_in_its_group():
    groups = {group.title: {one.name: one for one in group.settings} for group in described()}
    assert "Use agreeing if some devices may lie" in groups["Aggregation"]["aggregation"].help
    assert (
        groups["The server's step"]["optimizers.units.learning_rate"].help
        == "The server's learning rate for the units."
    )
    assert (groups["Rounds"]["rounds"].kind, groups["Rounds"]["rounds"].least) == ("integer", 1)
    assert groups["Differential privacy"].keys() >= {"privacy_epsilon", "privacy_times"}
    assert "keep" in groups["Other"], "no group names it"


def test_presets_say_what_they_are_and_cost(manifest):
    assert ABOUT.keys() == PRESETS.keys()
    known = {preset.name: preset for preset in presets_of(manifest)}
    assert [name for name, preset in known.items() if preset.fits] == [next(iter(known))] == ["auto"]
    assert "bottleneck" not in known, "it is for adapters of that name"
    auto, forward = known["auto"].cost, known["default"].cost
    assert (auto.passes, auto.sent, auto.fetched) == (2.0, auto.sent, auto.sent), "all go back through the same half"
    assert forward.sent < auto.sent < forward.fetched, "a unit of all that there are"
    assert forward.fetched == 4 * sum(parameter.size for parameter in manifest.trained)
    assert min(auto.memory, forward.memory) > 0


def test_what_is_sent_in_secret_takes_twice_the_bytes(manifest):
    def sent(**settings):
        asked = {"training": {"batch": 2, "length": 8}, "per_round": 3, "over_selection": 1} | settings
        return cost_of(manifest, complete(JobSettings.model_validate(asked), manifest)).sent

    assert sent(units_per_client=0, secure_aggregation=True) == 2 * sent(units_per_client=0)
    scalars = sent(training={"batch": 2, "length": 8, "mode": "iteration", "iterations": 5})
    assert scalars < 5 * 4 * manifest.head_size, "no weights, no gradient of the head"


def test_a_plan_starts_as_the_command_does(manifest):
    assert planned(manifest, {}).preset == "auto"
    by_scalars = planned(manifest, {"training": {"mode": "iteration"}})
    assert (by_scalars.preset, by_scalars.settings.training.head) == ("scalars", "exact")
    private = planned(manifest, {"privacy_epsilon": 8.0, "rounds": 7}, "auto").settings
    assert (private.rounds, private.average, private.training.learning_rate) == (7, 0.8, 0.3)
