"""Test how far an update's bias is believed to move."""

import numpy as np
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from edge_client.training.features import MEAN, moments_of
from edge_client.wire.protocol import Report, Training
from server.strategy import features
from server.strategy.bias import BiasBound
from server.strategy.moments import MOST_TIMES
from server.strategy.outliers import kind_in_head, norms
from server.strategy.state import ServerState
from server.strategy.updates import Contribution


class Fleet:
    """A head of zeros, and devices whose texts have features with a mean beside which their spread is little."""

    def __init__(self, manifest):
        self.manifest, self.spec, self.rng = manifest, manifest.features, np.random.default_rng()
        self.start = {one.name: np.zeros(one.shape, np.float32) for one in manifest.head}
        self.classes, self.width = self.start[self.spec.weight].shape

    def rows(self):
        return (self.rng.normal(size=(60, self.width)) + 3).astype(np.float32)

    def sent(self, lie=1.0, measured=True):
        """A true gradient, of which the bias goes so many times as far."""
        rows = self.rows()
        errors = self.rng.normal(size=(len(rows), self.classes)) / len(rows)
        errors += self.rng.normal(size=self.classes) / len(rows)  # it has more texts of some classes than of others
        weight, bias = errors.T @ rows, lie * errors.sum(0)
        own = {self.spec.weight: weight.astype(np.float32), self.spec.bias: bias.astype(np.float32)}
        return own | (moments_of(rows).tensors if measured else {})

    def read(self, tensors, known=True, usual=None):
        """Read an update, by the features' moments of other devices or of none."""
        state = ServerState(0, self.start, features=features.joined({}, [moments_of(self.rows())]) if known else {})
        head = {name: tensors[name] for name in self.start}
        far = norms(head, self.start, self.manifest.head_names)
        kind = kind_in_head(self.spec.bias)
        lengths = {kind: far[kind] if usual is None else usual}
        report = Report(examples=60, steps=1, loss=1.0, measured=60 if MEAN in tensors else 0)
        told = Contribution("one", (), Training(), far, report, lambda: tensors)
        return BiasBound(state, self.manifest, lengths).read(told)


@pytest.fixture
def fleet(bundle):
    return Fleet(manifests.read(bundle / FILE_NAME))


@pytest.mark.parametrize("known", [True, False])
def test_true_gradients_stay_as_they_are(fleet, known):
    for _ in range(20):
        sent = fleet.sent()
        assert fleet.read(sent, known) is sent


@pytest.mark.parametrize("known", [True, False])
def test_a_bias_that_its_weights_contradict_is_what_they_say(fleet, known):
    """The weights stay as they are; in the first round the device's own features say what their mean is."""
    for lie in (-20.0, 20.0):
        sent = fleet.sent(lie)
        true = sent[fleet.spec.bias] / np.float32(lie)
        found = fleet.read(sent, known, usual=float(np.sqrt(np.mean(np.square(true)))))
        np.testing.assert_array_equal(found[fleet.spec.weight], sent[fleet.spec.weight])
        assert np.linalg.norm(found[fleet.spec.bias] - true) < 0.3 * np.linalg.norm(true)


def test_where_nothing_is_known_of_the_mean_the_bias_has_a_bound_alone(fleet):
    sent = fleet.sent(-20.0, measured=False)
    own = float(np.sqrt(np.mean(np.square(sent[fleet.spec.bias]))))
    found = fleet.read(sent, known=False, usual=own / 20)
    np.testing.assert_allclose(found[fleet.spec.bias], MOST_TIMES / 20 * sent[fleet.spec.bias], rtol=1e-5)
    assert fleet.read(sent, usual=0.0) is sent


def test_a_mean_that_is_short_says_nothing_of_the_bias(fleet):
    weight, width = np.ones((3, fleet.width)), fleet.width
    unit = np.ones(width, np.float32)
    assert features.bias_by_weights(weight, np.full(width, (3.9 / width) ** 0.5), unit) is None
    mean = np.full(width, 2.0)
    np.testing.assert_allclose(features.bias_by_weights(weight, mean, unit), width * 2 / (width * 4))
