"""A device's own task layer: the fit beside an optimizer that knows nothing of ours, and when it stays what it was."""

import numpy as np
import pytest
import torch

from edge_client.bundle.manifest import FeatureSpec
from edge_client.training.personal import PARTS, PULLS, FeatureRows, chosen_pull, fitted, moved

SPEC = FeatureSpec("head.weight", "head.bias", 1.0)
CLASSES, WIDTH = 3, 6


@pytest.fixture
def generator():
    return np.random.default_rng()


def rows_of(generator, count=60):
    features = generator.standard_normal((count, WIDTH)) / np.sqrt(WIDTH)
    return FeatureRows(features, generator.standard_normal((count, CLASSES)), generator.integers(0, CLASSES, count))


def everybodys(generator):
    return {
        "head.weight": generator.standard_normal((CLASSES, WIDTH)).astype(np.float32),
        "head.bias": generator.standard_normal(CLASSES).astype(np.float32),
        "unit": np.ones(2, np.float32),
    }


def right(weights, features, labels):
    return np.mean((features @ weights["head.weight"].T + weights["head.bias"]).argmax(1) == labels)


@pytest.mark.parametrize("pull", PULLS)
def test_the_fit_is_the_least_of_its_loss(generator, pull):
    rows = rows_of(generator)
    found = torch.zeros(CLASSES, WIDTH, dtype=torch.float64, requires_grad=True)
    features, logits, labels = (torch.from_numpy(part) for part in rows)

    def loss(move):
        return torch.nn.functional.cross_entropy(logits + features @ move.T, labels) + pull / 2 * move.square().sum()

    search = torch.optim.LBFGS([found], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure():
        search.zero_grad()
        value = loss(found)
        value.backward()
        return value

    search.step(closure)
    least, own = loss(found.detach()), loss(torch.from_numpy(moved(rows, pull)))
    assert own - least < 1e-3 * (loss(torch.zeros(CLASSES, WIDTH, dtype=torch.float64)) - least)


def test_the_pull_is_the_one_whose_fits_do_best_on_what_they_have_not_seen(generator):
    """Each fit by itself; labels follow features a little, so that all five answers come up."""
    rows = rows_of(generator, int(generator.integers(7, 60)))
    leaning = rows.logits + generator.choice([0, 1, 4, 16]) * rows.features @ generator.standard_normal(
        (WIDTH, CLASSES)
    )
    rows = rows._replace(labels=leaning.argmax(1))
    part = np.arange(len(rows.labels)) % PARTS
    unseen = {None: loss_of(rows.logits, rows.labels)}
    for pull in PULLS:
        unseen[pull] = 0.0
        for number in range(PARTS):
            seen, left = (FeatureRows(*(value[of] for value in rows)) for of in (part != number, part == number))
            unseen[pull] += loss_of(left.logits + left.features @ moved(seen, pull).T, left.labels)
    assert chosen_pull(rows) == min(unseen, key=unseen.get)


def loss_of(logits, labels):
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), reduction="sum"))


def test_a_device_with_answers_of_its_own_is_served_better(generator):
    """The same features, one class missing: what everybody's layer cannot know."""
    start = everybodys(generator)
    features = generator.standard_normal((400, WIDTH)).astype(np.float32) + 2
    truth = features @ generator.standard_normal((WIDTH, CLASSES))
    truth[:, 0] = -np.inf
    labels = truth.argmax(1)
    own = fitted(start, SPEC, features[:200], labels[:200])
    losses = [loss_of(features[200:] @ one["head.weight"].T + one["head.bias"], labels[200:]) for one in (own, start)]
    assert losses[0] < losses[1]
    assert right(own, features[200:], labels[200:]) > 0.8
    assert own["unit"] is start["unit"]
    assert own["head.weight"].dtype == own["head.bias"].dtype == np.float32


def test_a_layer_without_bias_has_none(generator):
    start = {"head.weight": np.zeros((CLASSES, WIDTH), np.float32)}
    features = generator.standard_normal((90, WIDTH)).astype(np.float32)
    labels = (features @ generator.standard_normal((WIDTH, CLASSES))).argmax(1)
    own = fitted(start, FeatureSpec("head.weight", "", 1.0), features, labels)
    assert set(own) == {"head.weight"}
    assert np.mean((features @ own["head.weight"].T).argmax(1) == labels) > 0.8


def test_labels_that_say_nothing_leave_the_layer_as_it_is(generator):
    """Everybody's layer is sure and right on what the device has, up to noise that no fit can learn."""
    start = everybodys(generator)
    start["head.weight"] *= 100
    features = generator.standard_normal((100, WIDTH)).astype(np.float32)
    labels = (features @ start["head.weight"].T + start["head.bias"]).argmax(1)
    own = fitted(start, SPEC, features, labels)
    assert right(own, features, labels) == 1


def test_few_examples_decide_nothing(generator):
    assert chosen_pull(rows_of(generator, 4)) is None
    start = everybodys(generator)
    assert fitted(start, SPEC, np.ones((4, WIDTH), np.float32), np.zeros(4, int)) is start


def test_a_device_of_one_example_again_and_again(generator):
    """Features without any spread are no division by nothing."""
    own = fitted(everybodys(generator), SPEC, np.ones((20, WIDTH), np.float32), np.zeros(20, int))
    assert all(np.isfinite(value).all() for value in own.values())
