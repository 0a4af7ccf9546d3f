"""The paper's theorem of the estimated global gradient, on a round as clients and server really do it.

A unit has few holders, and its estimate is of their data. Where all have the same mix of classes it is, on average, the
gradient over everybody's data; where not, it is off by the sum of (p_holder(c) - p(c)) g_c over classes c, with g_c the
gradient of a class and p its share.
"""

import numpy as np
import pytest

from edge_client.bundle.folder import Bundle
from edge_client.data.examples import Example
from edge_client.estimators.registry import estimator_for
from edge_client.runtimes.runtime import open_runtime
from edge_client.training.epoch import TrainingState, train, update
from server.strategy.mean import Mean
from tests.edge_client.bench import Bench

TEXTS = "it is a train", "the ice is on the lake"
"""One of each class: whoever has it has the class's gradient."""
CLASSES, BATCH, ROUNDS = (0, 2), 4, 150
HOLDINGS = {"units": [0, 1], "cut": 1}, {"units": [2, 3], "cut": 2}


@pytest.fixture(scope="module")
def bench(trainable):
    bundle = Bundle.open(trainable)
    with open_runtime("onnx", bundle.folder, threads=1) as runtime:
        yield Bench(bundle, runtime)


def mixed(first: int) -> list[Example]:
    """So many of the first class in a batch, the rest of the other."""
    return [Example(TEXTS[place >= first], None, CLASSES[place >= first]) for place in range(BATCH)]


@pytest.fixture
def trained(bench, changed):
    """Return what a client sends after one step at rate 1."""

    def run(examples, **asked):
        own = changed(epochs=1, learning_rate=1.0, **asked)
        estimator = estimator_for(bench.manifest, own, bench.passes(own))
        *_, state = train(own, bench.manifest, estimator, bench.batches(own, examples), TrainingState(bench.weights))
        return update(own, bench.manifest, state)

    return run


@pytest.fixture
def by_class(bench, trained):
    """The true gradients of both classes."""

    def of(first: int) -> dict[str, np.ndarray]:
        sent = trained(mixed(first), estimator="exact", units=[0, 1, 2, 3], cut=1)
        return {name: bench.weights[name] - value for name, value in sent.items()}

    return of(BATCH), of(0)


@pytest.mark.parametrize("first", [2, 3, 4])
def test_the_estimate_is_off_by_what_the_holders_data_differ(bench, trained, by_class, first):
    """Two clients, each with half of the units, of whom one has as many of one class as the other has of the other."""
    mixes = first, BATCH - first
    random = np.random.default_rng()
    names = {
        parameter.name: holder
        for holder, holding in enumerate(HOLDINGS)
        for unit in holding["units"]
        for parameter in bench.manifest.units[unit].parameters
    }
    rounds: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        mean = Mean(bench.weights)
        for count, holding in zip(mixes, HOLDINGS, strict=True):
            mean.add(trained(mixed(count), seed=int(random.integers(2**62)), **holding), BATCH)
        change = mean.changes()
        for name in names:
            rounds[name].append(-change[name])
        for parameter in bench.manifest.head:  # held by both: its gradient is over everybody's data
            everybody = (by_class[0][parameter.name] + by_class[1][parameter.name]) / 2
            np.testing.assert_allclose(-change[parameter.name], everybody, atol=1e-5)

    expected, found = 0.0, 0.0
    for name, holder in names.items():
        one, other = (gradients[name].astype(np.float64) for gradients in by_class)
        bias = (mixes[holder] / BATCH - 1 / 2) * (one - other)
        estimates = np.stack(rounds[name]).astype(np.float64)
        off = estimates.mean(0) - (one + other) / 2
        error = np.sqrt(estimates.var(0, ddof=1).sum() / ROUNDS)
        assert np.linalg.norm(off - bias) < 2.5 * error, name  # of a sum of many numbers: three are next to never
        expected, found = expected + float((bias**2).sum()), found + float((off * bias).sum())
    if first == BATCH // 2:
        assert expected == 0.0
    else:
        assert found / expected == pytest.approx(1.0, abs=0.5)
