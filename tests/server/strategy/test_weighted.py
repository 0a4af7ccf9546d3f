"""Test the default strategy's mean."""

import numpy as np

from edge_client.bundle.folder import Bundle
from edge_client.wire.protocol import Report, Training
from server.jobs.settings import JobSettings
from server.strategy.moments import MOST_TIMES
from server.strategy.outliers import norms
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution
from server.strategy.weighted import WeightedMean


def test_one_device_moves_the_heads_bias_no_further_than_twice_the_median(bundle):
    opened = Bundle.open(bundle)
    manifest, start = opened.manifest, opened.initial_adapter()
    bias = manifest.features.bias
    moves = [1.0] * 4 + [-20.0]

    def update(move):
        changed = {name: start[name] for name in manifest.head_names} | {bias: start[bias] + np.float32(move)}
        return Contribution(
            str(move), (), Training(), norms(changed, start, manifest.head_names),
            Report(examples=4, steps=1, loss=1.0), lambda: changed,
        )  # fmt: skip

    context = RoundContext(JobSettings(measure_features=False), manifest)
    combined = WeightedMean().combine(ServerState(0, start), [update(move) for move in moves], context)
    np.testing.assert_allclose(combined.change[bias], (4 * 1.0 - MOST_TIMES) / 5, atol=1e-6)
