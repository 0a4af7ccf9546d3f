"""Test that class correction removes what the draw of classes explains of updates."""

import msgspec
import numpy as np
import pytest

from edge_client.bundle.folder import Bundle
from edge_client.wire.protocol import ServerOptimizer, ServerOptimizers, Training
from server.jobs.settings import JobSettings
from server.strategy.class_correction import KEPT, MOST_CLASSES, RIDGE, ClassCorrection
from server.strategy.mean import Mean
from server.strategy.outliers import HEAD_NORM, kind_of_unit
from server.strategy.state import ServerState

MEASURED = JobSettings(
    training=Training(estimator="exact"), optimizers=ServerOptimizers(head=ServerOptimizer(kind="fedavg"))
)


@pytest.fixture
def manifest(bundle):
    return Bundle.open(bundle).manifest


@pytest.fixture
def fleet(manifest):
    return Fleet(manifest, np.random.default_rng())


class Fleet:
    """Clients whose units go where the task wants, and besides for each error along a direction of its own."""

    def __init__(self, manifest, generator):
        self.manifest, self.generator = manifest, generator
        self.bias = manifest.features.bias
        self.shapes = {one.name: one.shape for one in manifest.trained}
        self.names = [one.name for one in manifest.units[0].parameters]
        self.classes = self.shapes[self.bias][0]
        self.start = {name: generator.normal(size=shape).astype(np.float32) for name, shape in self.shapes.items()}
        self.task = {name: generator.normal(size=self.shapes[name]) for name in self.names}
        self.slopes = {name: generator.normal(size=(self.classes, *self.shapes[name])) for name in self.names}

    def model(self, known=None):
        return ServerState(1, self.start, class_correction=known or {})

    def update(self, errors):
        far = {name: self.task[name] + np.tensordot(errors, self.slopes[name], 1) for name in self.names}
        return {name: (self.start[name] + way).astype(np.float32) for name, way in {**far, self.bias: errors}.items()}

    def errors(self, clients):
        """Few classes each."""
        return self.generator.dirichlet([0.1] * self.classes, clients) - 1 / self.classes

    def come(self, correction, errors, weights=None):
        """The mean's change of a round."""
        mean = Mean(self.start)
        for own, weight in zip(errors, np.ones(len(errors)) if weights is None else weights, strict=True):
            update = self.update(own)
            mean.add(correction.corrected(update, dict.fromkeys(update, float(weight))), float(weight))
        return mean.changes()


def test_what_goes_with_classes_is_left_to_the_bias(fleet):
    first = ClassCorrection(fleet.model(), MEASURED, fleet.manifest)
    fleet.come(first, fleet.errors(300))
    errors = np.repeat(np.eye(fleet.classes)[:1] - 1 / fleet.classes, 5, 0)  # texts of one class by chance
    later = fleet.come(ClassCorrection(fleet.model(first.state()), MEASURED, fleet.manifest), errors)
    plain = {name: fleet.task[name] + np.tensordot(errors.mean(0), fleet.slopes[name], 1) for name in fleet.names}
    for name, task in fleet.task.items():
        assert np.abs(later[name] - task).max() < 0.3 * np.abs(plain[name] - task).max()
    np.testing.assert_allclose(later[fleet.bias], errors.mean(0), atol=1e-5)


def test_a_rounds_own_chance_has_no_part_in_it(fleet):
    errors = fleet.errors(12)
    change = fleet.come(ClassCorrection(fleet.model(), MEASURED, fleet.manifest), errors)
    for name, task in fleet.task.items():
        wanted = task + np.tensordot(errors.mean(0), fleet.slopes[name], 1)
        np.testing.assert_allclose(change[name], wanted, atol=1e-5)


def test_it_is_a_regression_of_what_weighs(fleet):
    """By numpy's own least squares, eased by the ridge."""
    errors, weights = fleet.errors(20), fleet.generator.uniform(1, 4, 20)
    first = ClassCorrection(fleet.model(), MEASURED, fleet.manifest)
    fleet.come(first, errors, weights)
    told = fleet.errors(1)
    change = fleet.come(ClassCorrection(fleet.model(first.state()), MEASURED, fleet.manifest), told)
    name, roots = fleet.names[0], np.sqrt(weights / weights.sum())[:, None]
    far = np.tensordot(errors, fleet.slopes[name], 1).reshape(20, -1)
    ease = np.sqrt(RIDGE * np.square(roots * errors).sum() / fleet.classes) * np.eye(fleet.classes)
    apart = np.vstack(
        [roots * (far - np.average(far, axis=0, weights=weights)), np.zeros((fleet.classes, far.shape[1]))]
    )
    slope = np.linalg.lstsq(np.vstack([roots * errors, ease]), apart, rcond=None)[0]
    wanted = fleet.task[name].ravel() + told[0] @ (fleet.slopes[name].reshape(fleet.classes, -1) - slope)
    np.testing.assert_allclose(change[name].ravel(), wanted, atol=1e-3)


def test_what_all_lean_to_is_left_to_the_units(fleet):
    """Who are all alike say nothing of how moves go with errors, whatever rounding makes of it."""
    errors = np.repeat(fleet.errors(1), 12, 0)
    first = ClassCorrection(fleet.model(), MEASURED, fleet.manifest)
    wanted = fleet.come(first, errors)
    change = fleet.come(ClassCorrection(fleet.model(first.state()), MEASURED, fleet.manifest), errors)
    for name in fleet.names:
        np.testing.assert_allclose(change[name], wanted[name], atol=1e-5)


def test_older_rounds_fade(fleet):
    first = ClassCorrection(fleet.model(), MEASURED, fleet.manifest)
    fleet.come(first, fleet.errors(12))
    later = ClassCorrection(fleet.model(first.state()), MEASURED, fleet.manifest)
    fleet.come(later, np.zeros((12, fleet.classes)))  # who have classes as the model expects tell nothing
    name = fleet.names[0]
    np.testing.assert_allclose(later.state()[name], KEPT * first.state()[name], atol=1e-5)


@pytest.mark.parametrize("changed", [{"measure_features": False}, {"secure_aggregation": True}])
def test_where_no_errors_are_known_updates_stay(fleet, changed):
    settings = MEASURED.model_copy(update=changed)
    assert not nothing_taken(fleet, settings).state()


@pytest.mark.parametrize("classes", [0, MOST_CLASSES + 1])
def test_none_and_many_classes_explain_nothing(fleet, classes):
    """The layer of questions has none: it says where an answer begins and ends."""
    labels = tuple(str(number) for number in range(classes))
    model = msgspec.structs.replace(fleet.manifest.model, labels=labels)
    fleet.manifest = msgspec.structs.replace(fleet.manifest, model=model)
    assert not nothing_taken(fleet, MEASURED).state()


@pytest.mark.parametrize("size", [np.inf, 1e30])
def test_what_is_no_number_is_not_kept(fleet, size):
    """Be it that only the product is too large for one."""
    correction = ClassCorrection(fleet.model(), MEASURED, fleet.manifest)
    errors = fleet.errors(3)
    errors[1] = size
    with np.errstate(all="ignore"):
        fleet.come(correction, errors)
        assert not correction.state()


def nothing_taken(fleet, settings):
    size = fleet.start[fleet.names[0]].size
    known = {fleet.names[0]: np.ones((fleet.classes, size + fleet.classes), np.float32)}
    correction = ClassCorrection(fleet.model(known), settings, fleet.manifest)
    update = fleet.update(fleet.errors(1)[0])
    taken = correction.corrected(update, dict.fromkeys(update, 1.0))
    assert all(taken[name] is value for name, value in update.items())
    return correction


def test_no_more_is_taken_from_a_change_than_it_is_long(fleet):
    """Build the update of a client whose bias claims that its classes explain everything, many times over."""
    first = ClassCorrection(fleet.model(), MEASURED, fleet.manifest)
    fleet.come(first, fleet.errors(20))
    later = ClassCorrection(fleet.model(first.state()), MEASURED, fleet.manifest)
    update = fleet.update(fleet.errors(1)[0])
    update[fleet.bias] = (fleet.start[fleet.bias] + 1000 * fleet.errors(1)[0]).astype(np.float32)
    left = later.corrected(update, dict.fromkeys(fleet.names, 1.0))
    for name in fleet.names:
        own = np.linalg.norm(update[name] - fleet.start[name])
        taken = np.linalg.norm(update[name] - left[name])
        np.testing.assert_allclose(taken, own, rtol=1e-4)


def test_a_client_tells_later_rounds_as_much_as_the_median_one(fleet):
    """Whoever goes ten times as far counts as one that goes as far as others."""
    unit = kind_of_unit(fleet.manifest.units[0])
    one, other = (fleet.update(errors) for errors in fleet.errors(2))
    states = []
    for times in (1, 10):
        correction = ClassCorrection(fleet.model(), MEASURED, fleet.manifest, {HEAD_NORM: 1.0, unit: 1.0})
        sent = {name: fleet.start[name] + times * (value - fleet.start[name]) for name, value in other.items()}
        correction.corrected(one, dict.fromkeys(fleet.names, 1.0), {HEAD_NORM: 1.0, unit: 1.0})
        correction.corrected(sent, dict.fromkeys(fleet.names, 1.0), {HEAD_NORM: times, unit: times})
        states.append(correction.state())
    for name, known in states[0].items():
        np.testing.assert_allclose(states[1][name], known, rtol=1e-3, atol=1e-4)
