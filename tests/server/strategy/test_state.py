import numpy as np

from edge_client.bundle.names import CLIP, FEATURES, FIRST, SECOND
from server.strategy.state import ServerState


def test_a_state_is_read_as_it_was_put_together():
    rng = np.random.default_rng()

    def arrays(*names):
        return {name: rng.normal(size=3).astype(np.float32) for name in names}

    state = ServerState(
        7,
        arrays("weight", "head"),
        moments=arrays(FIRST + "weight", SECOND + "weight", "x:weight"),
        average=arrays("weight", "head"),
        features=arrays(FEATURES + "mean"),
        class_correction=arrays("weight"),
        unit_sizes=arrays("unit"),
        fingerprints=arrays("a device"),
        clip=0.25,
        own=arrays("velocity"),
    )
    stored = state.arrays()
    assert stored[CLIP] == np.float32(0.25)
    assert ServerState.read(7, state.weights, stored) == state
    assert len(stored) == 3 + 2 + 5 + 1


def test_devices_get_the_moments_that_they_repeat_and_no_more():
    moments = {FIRST + "weight": np.ones(1), "x:weight": np.ones(1)}
    state = ServerState(1, {"weight": np.zeros(1)}, moments, average={"weight": np.full(1, 2.0)})
    assert state.repeatable.keys() == {"weight", FIRST + "weight"}
    assert state.result["weight"] == 2
    assert ServerState(0, state.weights).arrays() == {}
