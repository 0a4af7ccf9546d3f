"""The head's step by measured features: what it comes to, what it does not depend on, and what it refuses."""

import numpy as np
import pytest

from edge_client.bundle.manifest import FeatureSpec
from edge_client.training.features import MEAN, PRODUCTS, Moments, moments_of
from edge_client.wire.protocol import Training
from server.storage.jobs import find_job
from server.strategy.features import (
    BIAS_MOST_OF_WAY,
    BIAS_SHARE_OF_STEP,
    COUNT,
    KEPT,
    MOST_ASKED,
    RIDGE,
    SHARE_OF_STEP,
    SHARES,
    LocalSteps,
    is_asked,
    joined,
    shares_of,
    stepped,
    unlikely,
)
from tests.server.conftest import encode

SPEC = FeatureSpec("head.weight", "head.bias", 1.0)
PLAIN = FeatureSpec("head.weight", "", 1.0)
RATE, STEPS, CLASSES, WIDTH = 0.05, 4, 3, 5
TRAINING = Training(head_learning_rate=RATE)


@pytest.fixture
def generator():
    return np.random.default_rng()


def features(generator, rows=200):
    mixed = generator.standard_normal((WIDTH, WIDTH)) + 3 * np.eye(WIDTH)
    return (generator.standard_normal((rows, WIDTH)) @ mixed + 3).astype(np.float32)


def summed(rows, errors):
    """Return what a client's steps add up to, for a mean gradient of these errors."""
    scale = -RATE * STEPS / len(rows)
    change = {"head.weight": scale * errors.T @ rows, "head.bias": scale * errors.sum(0)}
    return {name: value.astype(np.float32) for name, value in change.items()}


def moved_logits(rows, errors):
    """Return how logits of the rows move by the step."""
    change = stepped(summed(rows, errors), joined({}, [moments_of(rows)]), SPEC, LocalSteps(TRAINING, STEPS))
    return rows @ change["head.weight"].T + change["head.bias"]


def test_the_step_is_newtons_about_the_mean(generator):
    rows, errors = features(generator), generator.standard_normal((200, CLASSES)).astype(np.float32)
    centred = rows.astype(np.float64) - rows.mean(0)
    spread = centred.std(0)
    each = centred / spread
    inverse = np.linalg.inv(each.T @ each / len(rows) + RIDGE * np.eye(WIDTH))
    slope, lean = errors.T @ each / len(rows), errors.mean(0)
    wanted = -STEPS * (SHARE_OF_STEP * each @ inverse @ slope.T + BIAS_SHARE_OF_STEP * lean)
    np.testing.assert_allclose(moved_logits(rows, errors), wanted, atol=2e-3 * np.abs(wanted).max())


def test_it_does_not_depend_on_how_features_are_counted(generator):
    """Each in its own unit, from its own zero."""
    rows, errors = features(generator), generator.standard_normal((200, CLASSES)).astype(np.float32)
    scale, shift = generator.uniform(0.7, 1.5, WIDTH), 0.5 * generator.standard_normal(WIDTH)
    others = (rows * scale + shift).astype(np.float32)
    wanted = moved_logits(rows, errors)
    np.testing.assert_allclose(moved_logits(others, errors), wanted, atol=5e-3 * np.abs(wanted).max())


def test_a_layer_without_bias_is_not_centred(generator):
    rows, errors = features(generator), generator.standard_normal((200, CLASSES)).astype(np.float32)
    change = summed(rows, errors)
    state = joined({}, [moments_of(rows)])
    moved = stepped({"head.weight": change["head.weight"]}, state, PLAIN, LocalSteps(TRAINING, STEPS))
    assert set(moved) == {"head.weight"}
    assert (moved["head.weight"] * change["head.weight"]).sum() > 0, "against the gradient"


def test_what_hardly_varies_does_not_decide(generator):
    """An adapter may move a feature that was measured to be still by far more than its spread."""
    rows = features(generator)
    rows[:, 0] = 3 + 1e-4 * rows[:, 0]
    errors = generator.standard_normal((200, CLASSES)).astype(np.float32)
    change = stepped(summed(rows, errors), joined({}, [moments_of(rows)]), SPEC, LocalSteps(TRAINING, STEPS))
    moved = np.abs(change["head.weight"])
    assert moved[:, 0].max() < moved[:, 1:].max()


def test_many_steps_go_no_further_than_the_way():
    state = joined({}, [moments_of(np.random.default_rng(1).standard_normal((64, WIDTH)).astype(np.float32))])
    far, further = (
        stepped(
            {"head.weight": np.full((CLASSES, WIDTH), steps * RATE, np.float32)},
            state,
            PLAIN,
            LocalSteps(TRAINING, steps),
        )
        for steps in (10, 1000)
    )
    np.testing.assert_allclose(far["head.weight"], further["head.weight"], rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_the_bias_alone_steps_as_far_as_the_errors_curvature_lets_it(generator, steps):
    """Of two classes Newton's step is twice the error of how many examples each has."""
    rows, lean = features(generator), np.array([0.2, -0.2], np.float32)
    errors = np.tile(lean, (len(rows), 1))
    change = {name: steps / STEPS * value for name, value in summed(rows, errors).items()}
    moved = stepped(change, joined({}, [moments_of(rows)]), SPEC, LocalSteps(TRAINING, steps))
    logits = (rows @ moved["head.weight"].T + moved["head.bias"]).mean(0)
    np.testing.assert_allclose(logits, -min(BIAS_SHARE_OF_STEP * steps, BIAS_MOST_OF_WAY) * lean, atol=1e-2)


def test_a_class_of_few_rows_steps_as_far_as_its_errors_curvature_lets_it(generator):
    """Each of many classes has few errors, and their curvature is its share of the rows."""
    rows, classes = features(generator), 20
    errors = generator.standard_normal((len(rows), classes)).astype(np.float32) / classes
    change, state = summed(rows, errors), joined({}, [moments_of(rows)])
    even = {**state, SHARES: np.full(classes, 1 / classes, np.float32)}
    most = {**state, SHARES: np.array([0.5, *[0.5 / (classes - 1)] * (classes - 1)], np.float32)}
    by_bound, by_shares, lopsided = (
        stepped(change, known, SPEC, LocalSteps(TRAINING, STEPS, len(rows)))["head.weight"]
        for known in (state, even, most)
    )
    errors_seen = np.abs(summed(rows, errors)["head.bias"] / (RATE * STEPS)).max()
    assert errors_seen < 1 / classes, "a class is no more frequent than before"
    np.testing.assert_allclose(by_shares, classes / 2 * by_bound, rtol=1e-4)
    np.testing.assert_allclose(lopsided[0], by_bound[0], rtol=1e-4)
    np.testing.assert_allclose(lopsided[1:], by_shares[1:], rtol=1e-4)


def test_fewer_rows_of_a_class_lean_less_on_directions_that_hardly_vary(generator):
    rows = features(generator)
    errors = generator.standard_normal((len(rows), CLASSES)).astype(np.float32)
    change, state = summed(rows, errors), joined({}, [moments_of(rows)])
    lengths = [
        np.linalg.norm(stepped(change, state, SPEC, LocalSteps(TRAINING, STEPS, count))["head.weight"])
        for count in (2, 5, 10**6)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[1]
    plain = stepped(change, state, SPEC, LocalSteps(TRAINING, STEPS))["head.weight"]
    np.testing.assert_allclose(lengths[2], np.linalg.norm(plain), rtol=1e-5)


def test_shares_of_classes_are_known_by_the_first_step_of_the_bias():
    lean = np.array([0.5, 0.2, 0.3])
    change = {"head.bias": (RATE * STEPS * (lean - 1 / 3)).astype(np.float32)}
    np.testing.assert_allclose(shares_of(change, SPEC, LocalSteps(TRAINING, STEPS))[SHARES], lean, rtol=1e-5)
    assert shares_of({"head.weight": np.ones((3, 2), np.float32)}, PLAIN, LocalSteps(TRAINING, STEPS)) == {}


def test_devices_moments_add_up_to_those_of_all_rows(generator):
    rows = features(generator)
    state = joined({}, [moments_of(rows[:30]), moments_of(rows[30:150]), moments_of(rows[150:])])
    whole = moments_of(rows)
    assert state[COUNT] == 200
    np.testing.assert_allclose(state[MEAN], whole.mean, rtol=1e-5)
    np.testing.assert_allclose(state[PRODUCTS], whole.products, rtol=1e-4)


def test_what_was_told_before_counts_for_less(generator):
    """As if there were fewer such rows; while nobody tells anything it stays as it is."""
    rows = features(generator, 300)
    old, new = rows[:200], rows[200:]
    state = joined({}, [moments_of(old)])
    assert joined(state, []) == state
    after = joined(state, [moments_of(new)])
    assert after[COUNT] == pytest.approx(KEPT * 200 + 100)
    shares = np.repeat([KEPT, 1.0], [200, 100]) / float(after[COUNT][0])
    mean = shares @ rows
    np.testing.assert_allclose(after[MEAN], mean, rtol=1e-4)
    wanted = ((rows - mean).T * shares) @ (rows - mean)
    np.testing.assert_allclose(after[PRODUCTS], wanted[np.triu_indices(WIDTH)], rtol=1e-3, atol=1e-3)


def test_moments_follow_features_that_grow(generator):
    """However many rows were told when they were small."""
    state, grown = joined({}, [moments_of(features(generator, 1000))]), moments_of(3 * features(generator, 64))
    for _ in range(60):
        state = joined(state, [grown])
    np.testing.assert_allclose(state[MEAN], grown.mean, rtol=0.02)


def test_all_clients_of_the_first_round_are_asked_and_then_a_few():
    assert all(is_asked(0, slot, 24) for slot in range(24))
    assert [slot for slot in range(24) if is_asked(1, slot, 24)] == [3, 4, 5]
    assert [slot for slot in range(24) if is_asked(8, slot, 24)] == [0, 1, 2]
    assert [slot for slot in range(100) if is_asked(1, slot, 100)] == list(range(8, 16))
    assert [slot for slot in range(3) if is_asked(7, slot, 3)] == [0, 1, 2]
    assert sum(is_asked(0, slot, 1000) for slot in range(1000)) == MOST_ASKED


def test_of_many_features_the_squares_alone_count(generator):
    rows = generator.standard_normal((40, 1100)).astype(np.float32)
    told = moments_of(rows)
    assert told.products.shape == told.mean.shape
    change = {"head.weight": np.ones((CLASSES, 1100), np.float32)}
    moved = stepped(change, joined({}, [told]), PLAIN, LocalSteps(TRAINING, STEPS))
    variances = np.square(rows).mean(0)  # about zero, as there is no bias
    wanted = SHARE_OF_STEP / RATE / variances / (1 + RIDGE)
    np.testing.assert_allclose(moved["head.weight"][0], wanted, rtol=1e-3)


def test_what_is_no_covariance_gives_a_step_all_the_same():
    told = Moments(64, np.zeros(2, np.float32), np.array([1.0, 9.0, 1.0], np.float32))  # a correlation of nine
    moved = stepped(
        {"head.weight": np.ones((2, 2), np.float32)}, joined({}, [told]), PLAIN, LocalSteps(TRAINING, STEPS)
    )
    assert np.abs(moved["head.weight"]).max() < 10 / RATE


def test_moments_that_no_features_have_are_told():
    mean = np.array([2.0, 0.0], np.float32)
    assert "less than nothing" in (unlikely(Moments(8, mean, np.array([1.0, 0.0, -1.0], np.float32)), SPEC) or "")
    large = np.array([900.0, 0.0, 1.0], np.float32)
    assert "901 times the usual" in (unlikely(Moments(8, 0 * mean, large), SPEC) or "")
    assert unlikely(Moments(8, 0 * mean, np.array([2.0, 0.3, 1.0], np.float32)), SPEC) is None
    assert unlikely(Moments(8, 0 * mean, np.array([1.0, 1.0, 1.0], np.float32)), SPEC) is None, "one is the other"


@pytest.mark.parametrize("together", [1.01, -1.01, 3.4e38, -3.4e38])
def test_features_vary_together_no_more_than_each_by_itself(together):
    told = Moments(8, np.zeros(2, np.float32), np.array([1.0, together, 1.0], np.float32))
    assert "no covariance" in (unlikely(told, SPEC) or "")


def test_products_that_no_rows_have_are_no_covariance():
    """Three features of which each two go against each other by .6: the sum of all would vary by less than nothing."""
    told = Moments(8, np.zeros(3, np.float32), np.array([1.0, -0.6, -0.6, 1.0, -0.6, 1.0], np.float32))
    assert "no covariance" in (unlikely(told, FeatureSpec("head.weight", "head.bias", 3.0)) or "")


# --- through the real application ------------------------------------------------------------------------------------


def told_by(device, task, moments, **report):
    """An update with moments beside it."""
    from safetensors.numpy import load

    tensors = load(device.update(task))
    return encode(tensors | moments.tensors, examples=8, measured=moments.rows, **report)


@pytest.fixture
def moments(server, bundle_name, generator):
    spec = server.store.bundles.manifest(bundle_name).features
    rows = generator.standard_normal((16, 32)).astype(np.float32) * np.float32((spec.square / 32) ** 0.5)
    return moments_of(rows)


def test_devices_are_asked_by_their_places(server, bundle_name, moments):
    """All of the first round; three places of the next, which take turns."""
    server.create_job(bundle_name, per_round=4, over_selection=1, optimizers={"units": {"kind": "fedavg"}})
    server.advance()
    devices = [server.device() for _ in range(4)]
    start = devices[0].weights("job")
    tasks = [device.task() for device in devices]
    assert all(task["measure"] for task in tasks)
    for device, task in zip(devices, tasks, strict=True):
        device.send(task, told_by(device, task, moments))
    server.advance()
    spec = server.store.bundles.manifest(bundle_name).features
    step = devices[0].weights("job")[spec.weight] - start[spec.weight]
    assert np.abs(step - 0.1).max() > 0.01, "the head's step is not the plain mean"
    assert [device.task()["measure"] for device in reversed(devices)] == [True, True, False, True]


def test_what_is_told_unasked_does_not_count(server, bundle_name, moments):
    """Nor more rows than a device has examples: nobody's features decide by being told often, or as many."""
    server.create_job(bundle_name, per_round=4, over_selection=1)
    server.advance()
    devices = [server.device() for _ in range(4)]
    for one in devices:
        task = one.task(examples=8)
        one.send(task, told_by(one, task, moments))
    server.advance()
    state = server.store.models.load(find_job(server.store, "job"), 1).features
    assert state[COUNT] == 4 * 8, "each claims moments of 16 rows"
    for one in devices:
        task = one.task(examples=8)
        one.send(task, one.update(task) if task["measure"] else told_by(one, task, moments))
    server.advance()
    after = server.store.models.load(find_job(server.store, "job"), 2).features
    assert after[COUNT] == 4 * 8
    np.testing.assert_array_equal(after[MEAN], state[MEAN])


def test_a_job_may_do_without(server, bundle_name, moments):
    server.create_job(bundle_name, per_round=1, over_selection=1, measure_features=False)
    server.advance()
    device = server.device()
    start, task = device.weights("job"), device.task()
    assert not task["measure"]
    device.send(task, told_by(device, task, moments))
    server.advance()
    spec = server.store.bundles.manifest(bundle_name).features
    np.testing.assert_allclose(device.weights("job")[spec.weight] - start[spec.weight], 0.1, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told._replace(products=told.products * np.float32(1e5)), "times the usual"),
        (lambda told: told._replace(products=told.products[:-1]), "has shape"),
        (lambda told: told._replace(mean=told.mean * np.float32(np.nan)), "not finite"),
    ],
)
def test_moments_are_a_claim(server, bundle_name, moments, change, words):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    task = device.task()
    assert words in device.send(task, told_by(device, task, change(moments)), status=422)["detail"]
