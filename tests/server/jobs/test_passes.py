"""What a step costs, in forward passes: counted by hand for two blocks with two units each."""

import pytest

from edge_client.bundle import manifest as manifests
from edge_client.estimators.central import Central
from edge_client.estimators.exact import ExactGradient
from edge_client.estimators.forward import Forward
from edge_client.estimators.mixed import Mixed
from edge_client.wire.protocol import Training
from server.jobs.passes import behind, passes
from server.simulation.methods.fwdllm import ClosestDirection


@pytest.fixture(scope="module")
def manifest(bundle):
    return manifests.read(bundle / "manifest.json")


def test_passes(manifest):
    def counted(estimator, units=(2, 3), **training):
        return passes(estimator, Training(directions=3, **training), manifest, units)

    assert counted(Forward) == pytest.approx(1 + 3 * 0.5)
    assert counted(Forward, [0, 3]) == pytest.approx(1 + 3 * 1)
    assert counted(Forward, []) == 1
    assert counted(ExactGradient) == pytest.approx(1 + 2 * 0.5)
    assert counted(Central) == 6
    assert counted(ClosestDirection) == 2
    assert counted(Mixed) == pytest.approx(1 + 2 * 0.5)
    assert counted(Mixed, [0, 3]) == counted(Mixed, [0]) == pytest.approx(1 + 3 * 0.5 + 2 * 0.5)
    assert counted(Mixed, [0, 3], exact_blocks=0) == pytest.approx(1 + 3 * 1)
    assert counted(Mixed, [0, 3], exact_blocks=2) == pytest.approx(1 + 2 * 1)
    assert counted(Mixed, []) == counted(Mixed, [], exact_blocks=0) == 1


def test_what_lies_behind_the_first_of_some_units(manifest):
    assert [behind(manifest, [unit]) for unit in range(4)] == [1, 1, 0.5, 0.5]
    assert behind(manifest, [3, 0]) == 1
    assert behind(manifest, []) == 0
