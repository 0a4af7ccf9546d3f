"""Somebody else's strategy: the class of the recipe, from an entry point to the weights of a simulated round."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_client import plugins
from edge_client.bundle.folder import Bundle
from edge_client.training.optimizers import server_step
from edge_client.wire.protocol import Report, Training
from server.jobs.settings import JobSettings
from server.strategy.private import PrivateMean
from server.strategy.registry import STRATEGIES, strategy_of
from server.strategy.robust import RobustMean
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution
from server.strategy.weighted import WeightedMean

RECIPES = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAME, IN_TURN = "clipped-fedadam", "in-turn"
ONE_UNIT_A_ROUND = """
from server.policy.assignment import RoundSlot

class InTurn(ClippedFedAdam):
    def configure(self, number, places, context):
        return [RoundSlot(place, (number % len(context.manifest.units),)) for place in range(places)]
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The recipe's class, as a distribution adds it."""
    (source,) = re.findall(r"### A strategy\n.*?```python\n(.*?)```", RECIPES, re.DOTALL)
    (tmp_path / "their_strategy.py").write_text(source + ONE_UNIT_A_ROUND)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[spry.strategies]\n{NAME} = their_strategy:ClippedFedAdam\n{IN_TURN} = their_strategy:InTurn\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins.added.cache_clear()
    yield
    sys.modules.pop("their_strategy", None)
    monkeypatch.undo()
    plugins.added.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_strategy_of_another_distribution_makes_the_next_weights(bundle):
    """Against FedAdam of the mean, worked out here, of which the long update has no more than the median's length."""
    opened = Bundle.open(bundle)
    manifest, start = opened.manifest, opened.initial_adapter()
    settings = JobSettings(strategy=NAME)
    rng = np.random.default_rng(0)
    changes = [{name: rng.standard_normal(value.shape, np.float32) for name, value in start.items()} for _ in range(3)]
    changes[2] = {name: 100 * value for name, value in changes[2].items()}
    lengths = [np.sqrt(sum(np.square(part).sum() for part in change.values())) for change in changes]
    most = sorted(lengths)[1]
    updates = [
        Contribution(
            str(number), (), Training(), {}, Report(examples=number + 1, steps=1, loss=1.0),
            lambda change=change: {name: start[name] + part for name, part in change.items()},
        )
        for number, change in enumerate(changes)
    ]  # fmt: skip
    found = strategy_of(settings).aggregate(ServerState(0, start), updates, RoundContext(settings, manifest))
    shares = [min(1.0, most / length) for length in lengths]
    mean = {name: np.float32(sum((n + 1) * shares[n] * changes[n][name] for n in range(3)) / 6) for name in start}
    expected, adam = dict(start), sys.modules["their_strategy"].ADAM
    server_step(expected, mean, {}, adam, manifest.head_names)
    assert found.model.version == 1
    for name, value in expected.items():
        np.testing.assert_allclose(found.model.weights[name], value, atol=1e-6)
    assert [report.examples for report in found.reports] == [1, 2, 3]


@pytest.mark.usefixtures("installed")
def test_a_strategy_says_who_trains_what(server, bundle_name):
    server.create_job(bundle_name, per_round=2, over_selection=1, strategy=IN_TURN)
    devices = [server.device() for _ in range(2)]
    for number in (1, 2):
        server.advance()
        tasks = [device.task() for device in devices]
        assert [task["units"] for task in tasks] == [[number], [number]]
        for device, task in zip(devices, tasks, strict=True):
            device.send(task, device.update(task))
        server.advance()


@pytest.mark.usefixtures("installed")
def test_its_name_is_known_and_what_it_does_not_go_with_is_said_at_once():
    assert list(STRATEGIES) == ["spry", NAME, IN_TURN]
    with pytest.raises(ValueError, match=r"works with neither secure_aggregation nor a privacy budget; also, .* leave"):
        JobSettings(strategy=NAME, secure_aggregation=True, aggregation="median")


def test_this_projects_own_goes_by_what_else_a_job_asks_for():
    kinds = {
        WeightedMean: JobSettings(),
        RobustMean: JobSettings(aggregation="median"),
        PrivateMean: JobSettings(privacy_noise=1.0),
    }
    assert all(type(strategy_of(settings)) is kind for kind, settings in kinds.items())


def test_a_strategy_that_nobody_installed_is_named():
    with pytest.raises(plugins.PluginError, match="has no strategy 'nobody'; it has spry"):
        strategy_of(JobSettings(strategy="nobody"))
