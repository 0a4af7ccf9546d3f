"""Test what fingerprints of updates say: nothing of shares of classes, as much as steps do of each other's losses."""

import msgspec
import numpy as np
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME
from edge_client.training.features import moments_of
from server.strategy import features
from server.strategy.fingerprints import compared_heads, fingerprints, is_whole_head, pulls_of_heads


@pytest.fixture
def manifest(bundle):
    return manifests.read(bundle / FILE_NAME)


@pytest.fixture
def start(manifest):
    rng = np.random.default_rng(1)
    return {one.name: rng.normal(size=one.shape).astype(np.float32) for one in manifest.trained}


@pytest.fixture
def rows(start, manifest):
    """Features with a mean beside which their spread is little, and that vary far more along some than along others."""
    width = start[manifest.features.weight].shape[1]
    rng = np.random.default_rng()
    return (rng.normal(size=(400, width)) * np.geomspace(0.1, 3, width) + 5).astype(np.float32)


def sent(start, spec, weight, bias):
    own = {spec.weight: start[spec.weight] + weight.astype(np.float32)}
    return {**start, **own, spec.bias: start[spec.bias] + bias.astype(np.float32)}


def known(rows):
    return features.joined({}, [moments_of(rows)])


def test_how_many_examples_a_class_has_says_nothing(manifest, start, rows):
    """Errors that are the same for all texts: the gradient is a product with the features' mean."""
    spec, mean = manifest.features, rows.mean(0, dtype=np.float64)
    rng = np.random.default_rng()
    shape = start[spec.weight].shape
    change, errors = rng.normal(size=shape), rng.normal(size=shape[0])
    one = sent(start, spec, change, np.zeros(shape[0]))
    other = sent(start, spec, change + np.outer(errors, mean), errors)
    said = compared_heads(start, known(rows), [one, other], manifest)
    np.testing.assert_allclose(said[0], said[1], atol=1e-3 * np.abs(said).max())
    bare = msgspec.structs.replace(manifest, features=msgspec.structs.replace(spec, bias=""))
    said = compared_heads(start, known(rows), [one, other], bare)
    np.testing.assert_allclose(said[0], said[1], atol=1e-2 * np.abs(said).max())


@pytest.mark.parametrize("has_bias", [True, False])
def test_what_is_compared_and_what_it_leaves_out_are_the_whole_change(manifest, start, rows, has_bias):
    """Compare a change's two parts alone: the one that is left out is zero there, and the other is the whole."""
    spec, moments = manifest.features, known(rows)
    if not has_bias:
        only = [one for one in manifest.head if one.name == spec.weight]
        manifest = msgspec.structs.replace(manifest, head=only, features=msgspec.structs.replace(spec, bias=""))
    rng = np.random.default_rng()
    weight = rng.normal(size=start[spec.weight].shape)
    whole = sent(start, spec, weight, rng.normal(size=len(weight)))
    (pull,) = pulls_of_heads(start, moments, [whole], manifest)
    named, place = dict(start), 0
    for one in manifest.head:
        named[one.name] = start[one.name] + pull[place : place + one.size].reshape(one.shape)
        place += one.size
    rest = {name: start[name] + (whole[name] - named[name]) for name in start}
    said = compared_heads(start, moments, [whole, named, rest], manifest)
    largest = np.abs(said).max()
    np.testing.assert_allclose(said[1], 0, atol=1e-3 * largest)
    np.testing.assert_allclose(said[2], said[0], atol=1e-3 * largest)


def test_a_product_is_how_much_a_step_lowers_anothers_loss(manifest, start, rows):
    """The server's step by one device's gradient, times the gradient of another."""
    spec = manifest.features
    rng = np.random.default_rng()
    moments = known(rows)
    mean = moments[features.MEAN].astype(np.float64)
    updates, gradients = [], []
    for _ in range(2):
        errors = rng.normal(size=(len(rows), start[spec.weight].shape[0])) / len(rows)
        weight, bias = errors.T @ rows, errors.sum(0)
        gradients.append((weight, bias))
        updates.append(sent(start, spec, weight, bias))
    one, other = compared_heads(start, moments, updates, manifest)
    (weight, bias), (theirs, their_bias) = gradients
    step = features.solved(weight - np.outer(bias, mean), moments[features.PRODUCTS], mean)
    lowered = float((step * (theirs - np.outer(their_bias, mean))).sum())
    assert one @ other == pytest.approx(lowered, rel=1e-3, abs=1e-3 * float(np.sqrt((one @ one) * (other @ other))))


def test_variances_alone_are_enough(manifest, start, rows):
    spec = manifest.features
    moments = known(rows)
    variances = {**moments, features.PRODUCTS: features._diagonal(moments[features.PRODUCTS], rows.shape[1])}
    change = np.random.default_rng().normal(size=start[spec.weight].shape)
    (said,) = compared_heads(start, variances, [sent(start, spec, change, 0 * change[:, 0])], manifest)
    spread = np.sqrt(variances[features.PRODUCTS])
    usual = np.sqrt(np.mean(spread**2 + rows.mean(0) ** 2))
    expected = change / np.maximum(spread, features.LEAST_SPREAD * usual) / (1 + features.RIDGE) ** 0.5
    np.testing.assert_allclose(said, expected.ravel(), rtol=2e-3, atol=1e-4)


def test_without_features_units_speak_as_loud_as_each_other_and_only_of_what_they_hold(manifest, start):
    rng = np.random.default_rng()
    updates = []
    for units in ([0], [0, 1], [1]):
        scale = {0: 1.0, 1: 1000.0}
        own = {}
        for unit in units:
            moves = {one.name: rng.normal(size=one.shape) for one in manifest.units[unit].parameters}
            length = np.sqrt(sum(np.square(move).sum() for move in moves.values()))
            own |= {
                name: (start[name] + scale[unit] / length * move).astype(np.float32) for name, move in moves.items()
            }
        updates.append({**own, **{one.name: start[one.name] + 100 for one in manifest.head}})
    said = fingerprints(start, {}, updates, manifest, None).said
    products = said @ said.T
    assert products[0, 2] == pytest.approx(0, abs=1e-12)
    assert products[0, 0] == pytest.approx(products[2, 2], rel=1e-3)
    assert products[1, 1] == pytest.approx(products[0, 0] + products[2, 2], rel=1e-3)


def test_devices_with_other_shares_of_the_classes_go_as_far_in_what_is_compared(manifest, start, rows):
    """True gradients of a layer, of texts whose classes are dealt out unevenly, and of one device that goes on."""
    spec, rng = manifest.features, np.random.default_rng()
    labels = ((rows - rows.mean(0)) @ rng.normal(size=(rows.shape[1], start[spec.weight].shape[0]))).argmax(1)
    updates = []
    for number in range(6):
        chosen = rng.permutation(np.concatenate([np.flatnonzero(labels == number % 3)[:30], rng.choice(400, 10)]))
        errors = np.eye(3)[labels[chosen]] - 1 / 3
        step = 5.0 if number == 5 else 1.0
        weight, bias = (step * part / len(chosen) for part in (errors.T @ rows[chosen], errors.sum(0)))
        updates.append(sent(start, spec, weight, bias))
    sizes = np.linalg.norm(compared_heads(start, known(rows), updates, manifest), axis=1)
    assert sizes[:5].max() < 3 * np.median(sizes) < sizes[5]


def test_a_task_layer_with_more_than_is_measured_is_not_compared_by_that_alone(manifest):
    more = msgspec.structs.replace(manifest, head=[*manifest.head, manifest.units[0].parameters[0]])
    assert is_whole_head(manifest)
    assert not is_whole_head(more)
    assert not is_whole_head(msgspec.structs.replace(manifest, features=None))


def test_where_nothing_is_known_of_features_heads_are_not_compared(manifest, start, rows):
    assert compared_heads(start, {}, [start], manifest) is None
    assert compared_heads(start, known(rows), [], manifest) is None
    assert compared_heads(start, known(rows), [start], msgspec.structs.replace(manifest, features=None)) is None
