"""Test that vectors for clients in other languages are what this one computes."""

import base64
import json

import numpy as np
import pytest
from safetensors.numpy import load

from tests.vectors import make_answers
from tests.vectors.make_training import PATH, vectors


def check(found, expected, where="vectors"):
    """Numbers within a few roundings: sums are taken in another order on another processor."""
    assert type(found) is type(expected), where
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), where
        for name in found:
            check(found[name], expected[name], f"{where}.{name}")
    elif isinstance(found, list):
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            check(one, other, f"{where}[{i}]")
    elif isinstance(found, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), where
    else:
        assert found == expected, where


def test_training_vectors_are_up_to_date():
    written = json.loads(PATH.read_text())
    now = json.loads(json.dumps(vectors()))
    parts = [found.pop("safetensors") for found in (now, written)]
    check(now, written)
    found, kept = (load(base64.b64decode(part["data"])) for part in parts)
    assert found.keys() == kept.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(kept[name], value)


def test_vectors_of_answers_are_up_to_date():
    """Other clients take of a server what this one does."""
    found = json.loads(json.dumps(make_answers.vectors()))
    assert json.loads(make_answers.PATH.read_text()) == found
    assert {taken for *_, taken in found["cases"]} == {True, False}
