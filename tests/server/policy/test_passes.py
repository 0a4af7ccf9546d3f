"""Test the forward passes of a step: counted by hand for two blocks with two units each, the last of one token."""

import pytest
from msgspec.structs import replace

from edge_client.bundle import manifest as manifests
from edge_client.estimators.central import Central
from edge_client.estimators.exact import ExactGradient
from edge_client.estimators.forward import Forward
from edge_client.estimators.mixed import Mixed
from edge_client.wire.protocol import Training
from server.policy.passes import ONE_TOKEN, carried, passes
from server.simulation.methods.fwdllm import ClosestDirection


@pytest.fixture(scope="module")
def manifest(bundle):
    return manifests.read(bundle / "manifest.json")


def test_passes(manifest):
    def counted(estimator, units=(2, 3), **training):
        return passes(estimator, Training(directions=3, **training), manifest, units)

    narrow = ONE_TOKEN / 2
    assert counted(Forward) == pytest.approx(1 + 3 * narrow)
    assert counted(Forward, [0, 3]) == pytest.approx(1 + 3 * (0.5 + narrow))
    assert counted(Forward, []) == 1
    assert counted(ExactGradient) == pytest.approx(1 + 2 * 0.5)
    assert counted(Central) == 6
    assert counted(ClosestDirection) == 2
    assert counted(Mixed) == pytest.approx(1 + 2 * 0.5)
    assert counted(Mixed, [0, 3]) == counted(Mixed, [0]) == pytest.approx(1 + 3 * 0.5 + 2 * 0.5)
    assert counted(Mixed, [0, 3], exact_blocks=0) == pytest.approx(1 + 3 * (0.5 + narrow))
    assert counted(Mixed, [0, 3], exact_blocks=2) == pytest.approx(1 + 2 * 1)
    assert counted(Mixed, []) == counted(Mixed, [], exact_blocks=0) == 1


def test_what_a_direction_goes_through(manifest):
    narrow = ONE_TOKEN / 2
    assert [carried(manifest, [unit]) for unit in range(4)] == pytest.approx([0.5 + narrow] * 2 + [narrow] * 2)
    assert carried(manifest, [3, 0]) == pytest.approx(0.5 + narrow)
    assert carried(manifest, []) == 0
    whole = tuple(replace(segment, one_token=False) for segment in manifest.segments)
    assert carried(replace(manifest, segments=whole), [3]) == 0.5
