"""Test that extensions of another, real distribution are found, used and, where they cannot be, refused."""

import json
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import httpx
import numpy as np
import pytest

from edge_client import plugins
from edge_client.bundle import manifest as manifests
from edge_client.commands import cli
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.errors import PluginError
from edge_client.estimators.registry import ESTIMATORS
from edge_client.runtimes.runtime import RUNTIMES, available, open_runtime
from edge_client.store.jobs import DeviceStore
from edge_client.training.server_optimizers import SERVER_OPTIMIZERS
from export.adapt.adapter import ADAPTERS
from server.aggregation.registry import AGGREGATION_RULES
from server.storage.jobs import find_job
from tests.edge_client.conftest import ADMIN, ROWS

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
NAME = "more"
"""Of the other distribution, and of all that it adds."""
MODULES = {
    "listing": """
from edge_client.runtimes.runtime import Listing

LISTING = Listing("spry_more.engine:Engine", "spry_more", "", "spry-more", lowering="spry_more.engine:LOWERING")
""",
    "engine": """
from edge_client.runtimes.onnx import OnnxRuntime
from export.lower.onnx.lowering import LOWERING

class Engine(OnnxRuntime):
    pass
""",
    "adapter": """
from export.adapt.adapter import Adapter

def _config(options, targets, common):
    from peft import LoraConfig

    return LoraConfig(r=options.rank, target_modules=list(targets.names), **common)

ADAPTER = Adapter(_config, lambda found: found.value, options=("rank",), rank=5)
""",
    "aggregation": """
def half(name, weight, change, state, optimizer):
    return weight + change / 2
""",
    "mean": """
import numpy as np
from server.aggregation.rule import Rule

FIRST = Rule(lambda changes, weights: changes[0])
""",
    "estimator": """
from edge_client.estimators.estimator import Estimate
from edge_client.estimators.exact import ExactGradient

class Twice(ExactGradient):
    def gradient(self, batch, weights, iteration):
        found = super().gradient(batch, weights, iteration)
        return Estimate(found.loss, {name: 2 * value for name, value in found.gradients.items()})
""",
}
GROUPS = {
    "spry.runtimes": "spry_more.listing:LISTING",
    "spry.adapters": "spry_more.adapter:ADAPTER",
    "spry.server_optimizers": "spry_more.aggregation:half",
    "spry.estimators": "spry_more.estimator:Twice",
    "spry.aggregation_rules": "spry_more.mean:FIRST",
}


class Environment:
    """A place where distributions are installed and uninstalled while this process runs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch

    def install(self, distribution: str, groups: dict[str, str], modules: dict[str, str] | None = None) -> Path:
        folder = self.folder / distribution
        info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [line for group, value in groups.items() for line in (f"[{group}]", f"{NAME} = {value}")]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        package = folder / distribution.replace("-", "_")
        package.mkdir()
        for name, source in ({"__init__": ""} | (modules or {})).items():
            (package / f"{name}.py").write_text(source)
        self._patch.syspath_prepend(folder)
        plugins.added.cache_clear()
        return folder

    def uninstall_all(self) -> None:
        self._patch.setattr(sys, "path", [path for path in sys.path if not path.startswith(str(self.folder))])
        for name in [name for name in sys.modules if name.startswith("spry_")]:
            del sys.modules[name]
        plugins.added.cache_clear()


@pytest.fixture
def environment(tmp_path, monkeypatch):
    yield (made := Environment(tmp_path / "site", monkeypatch))
    made.uninstall_all()


@pytest.fixture
def more(environment) -> Path:
    return environment.install("spry-more", GROUPS, MODULES)


REGISTRIES = RUNTIMES, ADAPTERS, SERVER_OPTIMIZERS, ESTIMATORS, AGGREGATION_RULES


def test_names_cost_no_import(more):
    assert all(NAME in registry and NAME in list(registry) for registry in REGISTRIES)
    assert not [name for name in sys.modules if name.startswith("spry_more")]
    assert ADAPTERS[NAME].rank == 5
    assert [name for name in sys.modules if name.startswith("spry_more.")] == ["spry_more.adapter"]


def test_own_rows_come_first(more):
    for registry in (RUNTIMES, SERVER_OPTIMIZERS, ESTIMATORS, AGGREGATION_RULES):
        assert list(registry)[-1] == NAME
        assert len(registry) == len(list(registry)) > 1


def test_a_group_is_known_by_its_former_name(environment):
    environment.install("spry-old", {"spry.means": "spry_old.rule:FIRST"}, {"rule": MODULES["mean"]})
    assert AGGREGATION_RULES[NAME].limit is None


def test_a_name_that_two_distributions_add(environment, more, capsys):
    environment.install("spry-again", {"spry.commands": "spry_again:run", "spry.estimators": "spry_again:Other"})
    with pytest.raises(PluginError) as caught:
        list(ESTIMATORS)
    assert str(caught.value) == (
        "the estimator 'more' is there twice, from spry-again and from spry-more: uninstall one of them"
    )
    environment.install("spry-third", {"spry.commands": "spry_third:run"})
    assert cli.run(["doctor"]) == 2
    assert "the command 'more' is there twice, from spry-again and from spry-third" in capsys.readouterr().err


def test_a_name_of_this_projects_own(environment):
    environment.install("spry-other", {}, {})
    info = environment.folder / "spry-other" / "spry_other-1.0.dist-info" / "entry_points.txt"
    info.write_text("[spry.server_optimizers]\nfedavg = spry_other:mean\n")
    plugins.added.cache_clear()
    with pytest.raises(
        PluginError, match="the server optimizer 'fedavg' is there twice, from spry-edge and from spry-other"
    ):
        list(SERVER_OPTIMIZERS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("spry_poor.absent:Estimator", r"cannot be imported: No module named 'spry_poor.absent'; install it anew"),
        ("spry_poor.module:Absent", r"cannot be imported: .*Absent.*; install it anew, or uninstall it"),
        ("spry_poor.module:NUMBER", r"must be of edge_client.estimators.estimator.Estimator, spry_poor.module:NUMBER"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_distribution(environment, value, message):
    environment.install("spry-poor", {"spry.estimators": value}, {"module": "NUMBER = 1\n"})
    with pytest.raises(PluginError, match=f"the estimator 'more' of spry-poor {message}"):
        ESTIMATORS[NAME]


def test_a_runtime_that_does_not_load_names_its_distribution(environment, tmp_path):
    environment.install("spry-more", GROUPS, MODULES | {"engine": "import no_such_library"})
    with pytest.raises(Exception, match=r"the runtime more needs spry-more \(No module .*\): pip install spry-more"):
        open_runtime(NAME, tmp_path)


# --- from an export to the aggregated weights ---


def test_a_model_is_exported_trained_and_aggregated_by_what_was_added(environment, more, exporting, fleet, capsys):
    assert available()[-1] == NAME
    assert cli.run(["doctor", "--json"]) == 0
    assert {"runtime more"} < {found["name"] for found in json.loads(capsys.readouterr().out)["checks"]}
    folder = exporting(runtimes=(NAME,), adapter=AdapterOptions(NAME, rank=2), batches=(4,), cuts=1)
    manifest = manifests.read(folder / "manifest.json")
    assert (list(manifest.runtimes), manifest.adapter.method) == ([NAME], NAME)
    assert all("value" in parameter.name for unit in manifest.units for parameter in unit.parameters)

    moving = {"kind": NAME}
    bundle = fleet.upload(folder)
    optimizers = {"units": moving, "head": moving}
    made = fleet.job(bundle, rounds=1, training={"estimator": NAME}, optimizers=optimizers, aggregation=NAME)
    assert fleet.client().run(rounds=1).rounds == 1
    while fleet.state()["state"] == "running":
        fleet.pause(1)
    store = fleet.app.state.services.store
    start, end = (store.models.load(find_job(store, made["id"]), version).weights for version in (0, 1))
    own = DeviceStore(fleet.folder / "home", fleet.address).job(made["id"]).personal(bundle).weights
    moved = [name for name in end if (end[name] != start[name]).any()]
    assert all(any(part in name for name in moved) for part in (".value.lora_B", "classifier.weight"))
    for name in end:
        np.testing.assert_allclose(end[name], (start[name] + own[name]) / 2, atol=1e-6)


# --- where it is missing ---


def test_a_job_by_what_nobody_has(fleet, trainable):
    bundle = fleet.upload(trainable)

    def refused(**settings) -> str:
        job = {"name": "topics", "bundle": bundle, "settings": {"training": {"batch": 4, "length": 8}} | settings}
        answer = httpx.post(f"{fleet.address}/v1/jobs", headers=ADMIN, json=job)
        assert answer.status_code == 422
        return answer.json()["detail"]

    told = "upgrade spry, or install the package that adds it"
    assert refused(optimizers={"units": {"kind": "fedfoo"}}) == (
        f"this version of spry has no server optimizer 'fedfoo'; it has {', '.join(SERVER_OPTIMIZERS)}: {told}"
    )
    assert refused(aggregation="middle") == (
        f"this version of spry has no aggregation rule 'middle'; it has {', '.join(AGGREGATION_RULES)}: {told}"
    )
    for mode in ("epoch", "iteration"):
        assert refused(training={"estimator": "best", "mode": mode, "batch": 4, "length": 8}) == (
            f"this version of spry has no estimator 'best'; it has {', '.join(ESTIMATORS)}: {told}"
        )


def test_a_device_that_cannot_repeat_the_servers_steps_gives_the_task_back(more, fleet, trainable, tmp_path):
    fleet.job(fleet.upload(trainable), training={"mode": "iteration"}, optimizers={"units": {"kind": NAME}})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["--server", fleet.address, "--token", fleet.token(), "--data", str(tmp_path / "rows.jsonl"), "--once"]
    done = subprocess.run(  # a process without the other distribution
        [sys.executable, "-m", "edge_client", "join", *words, "--home", str(tmp_path / "home"), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (
        f"this version of spry has no server optimizer '{NAME}'; it has {', '.join([*SERVER_OPTIMIZERS][:-1])}"
        in done.stdout
    )


def test_a_server_that_lost_an_estimator_goes_on_with_its_other_jobs(environment, more, fleet, trainable):
    bundle = fleet.upload(trainable)
    fleet.job(bundle, "first", training={"estimator": NAME}, rounds=1)
    environment.uninstall_all()
    client = fleet.client()
    assert client.run(once=True).rounds == 0
    assert "first needs the estimator more, which the server has no more" in fleet.told("waiting")[-1].message
    fleet.job(bundle, "second", rounds=1)
    assert client.run(rounds=1).rounds == 1
    assert fleet.state("first")["state"] == "running"


def test_a_server_that_lost_an_aggregation_goes_on_with_its_other_jobs(environment, more, fleet, trainable):
    bundle = fleet.upload(trainable)
    fleet.job(bundle, "first", optimizers={"units": {"kind": NAME}}, rounds=1)
    environment.uninstall_all()
    client = fleet.client()
    assert client.run(rounds=1).rounds == 1, "a device of mode epoch needs none"
    fleet.job(bundle, "second", rounds=1)
    assert client.run(rounds=1).rounds == 1
    while fleet.state("second")["state"] == "running":
        fleet.pause(1)
    assert (fleet.state("first")["version"], fleet.state("second")["version"]) == (0, 1)


# --- the guide ---


def test_the_guide_has_every_group():
    table = CONTRIBUTING.split("### From another distribution")[1]
    rows = re.findall(r"^\| `(spry\.\w+)` \| `([\w.]+)` \|", table, re.MULTILINE)
    assert rows == [(group.name, group.type) for group in plugins.GROUPS]


@pytest.mark.parametrize("group", plugins.GROUPS, ids=lambda group: group.name)
def test_the_type_of_a_group_can_be_imported_and_is_described(group):
    module, _, name = group.type.rpartition(".")
    kind = resolve_name(f"{module}:{name}")
    assert isinstance(kind, type)
    assert kind.__doc__
    assert not name.startswith("_")
