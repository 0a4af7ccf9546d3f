"""Logistic regression, which `spry up` compares with."""

import numpy as np

from server.start.baseline import logistic_regression


def test_it_is_where_the_penalized_loss_has_no_slope():
    generator = np.random.default_rng(3)
    features = generator.standard_normal((60, 5)) / np.sqrt(5) + 0.3
    labels = generator.integers(0, 3, 60)
    weight, bias = logistic_regression(features, labels, 3)
    logits = features @ weight.T + bias
    likely = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    errors = (likely - np.eye(3)[labels]) / 60
    np.testing.assert_allclose(errors.T @ features + 0.1 / 60 * weight, 0, atol=1e-4)
    np.testing.assert_allclose(errors.sum(0), 0, atol=1e-4)


def test_classes_apart_are_told_apart():
    centres = np.eye(12)
    labels = np.repeat(np.arange(12), 4)
    features = centres[labels] + 0.1 * np.random.default_rng(0).standard_normal((48, 12))
    weight, bias = logistic_regression(features, labels, 12)
    assert ((features @ weight.T + bias).argmax(1) == labels).all()
