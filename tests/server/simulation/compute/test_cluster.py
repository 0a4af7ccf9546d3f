"""Ray's actors compute what one process computes: on two nodes of a local cluster, found as a user's would be."""

import os
import signal
import sys

import pytest

from edge_client.errors import DataError, RuntimeMissing
from server.errors import SimulationError
from server.simulation.compute.cluster import Cluster
from tests.server.simulation.runs import bits, done, first_round, small


@pytest.fixture(scope="module")
def nodes():
    """The address of two nodes with a CPU each; processes of their own, on one machine."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as Nodes

    with pytest.MonkeyPatch.context() as patch:
        # To measure coverage in each of Ray's own processes takes minutes; an actor runs what other workers run too.
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        cluster = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster.address
    cluster.shutdown()


@pytest.fixture
def data(writing):
    return writing(rows=120)


@pytest.fixture(autouse=True)
def _closed():
    """Check the signal's handler and the connection after each test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before
    ray = sys.modules.get("ray")
    assert ray is None or not ray.is_initialized()


def test_two_nodes_leave_the_same_bits_as_one_process(model_folder, data, tmp_path, nodes):
    plan = small(model_folder, data, rounds=2)
    assert bits(done(plan, tmp_path / "two", workers=2, engine="ray")) == bits(done(plan, tmp_path / "one"))


def test_more_workers_than_places_are_refused(model_folder, data, nodes):
    with pytest.raises(SimulationError, match="has places for 2 workers, each with CPU, not for 3: use fewer"):
        Cluster(small(model_folder, data), 3)


def test_what_an_actor_refuses_is_told_and_what_kills_it_too(model_folder, data, nodes):
    import ray

    plan = small(model_folder, data)
    crew = Cluster(plan, 1)
    try:
        rows = (data / "train.jsonl").read_text().splitlines()
        (data / "train.jsonl").write_text("\n".join(reversed(rows)))
        with pytest.raises(DataError, match="changed while it was in use"):
            first_round(plan, crew)
        (worker,) = crew._workers
        os.kill(ray.get(worker.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        with pytest.raises(SimulationError, match="a worker of the Ray cluster died") as caught:
            crew.call("score", [({}, 0, 1)])
        assert "\n" not in str(caught.value)
    finally:
        crew.close()


def test_a_cluster_that_is_not_there_is_told(model_folder, data, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(SimulationError, match=r"the Ray cluster at 127\.0\.0\.1:9 does not answer"):
        Cluster(small(model_folder, data), 1)


def test_the_extra_is_named_where_ray_is_missing(model_folder, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeMissing, match="needs the extra 'ray' ") as caught:
        Cluster(small(model_folder, data), 1)
    assert caught.value.extra == "ray"
