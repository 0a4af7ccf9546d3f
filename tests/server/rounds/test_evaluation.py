"""Accuracy on held-out examples, against the bundle's programs run by hand."""

import hashlib
import json

import numpy as np
import pytest

from edge_client.bundle.folder import Bundle
from edge_client.data.encoder import TextEncoder
from edge_client.distribution import install_command
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.stepper import Stepper
from tests.conftest import LABELS

TEXTS = ["the ice is on the lake", "it is the train", "on it", "a train is on the ice", "lake", "is it the lake"]


def upload(server, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    name = hashlib.sha256(data).hexdigest()
    server.call("PUT", f"/v1/held-out/{name}", 204, content=data)
    return name


def predictions(bundle, weights):
    with Bundle.open(bundle) as opened, open_runtime("onnx", opened.folder) as runtime:
        encoder = TextEncoder(opened.tokenizer(), opened.manifest, 2, 8)
        stepper = Stepper(opened.manifest, runtime, "onnx", 2, 8)
        found = []
        for start in range(0, len(TEXTS), 2):
            encoded = encoder.encode(TEXTS[start : start + 2])
            found += stepper.forward(encoded.tokens, np.zeros(2, np.int64), weights).logits.argmax(-1).tolist()
    return found


def test_a_round_tells_the_accuracy_and_stops_at_the_target(server, bundle, bundle_name):
    device = server.device()
    server.create_job(bundle_name, "first", per_round=1, over_selection=1, seed=3)
    server.advance()
    task = device.task()
    content = device.update(task, 0.3)
    device.send(task, content)
    server.advance()
    labels = predictions(bundle, device.weights("first"))
    labels[0] = (labels[0] + 1) % 3  # one of six is wrong
    rows = [{"text": text, "label": LABELS[label]} for text, label in zip(TEXTS, labels, strict=True)]
    server.call("POST", "/v1/jobs/first/stop")
    server.create_job(
        bundle_name, "second", per_round=1, over_selection=1, seed=3, held_out=upload(server, rows), target=0.8
    )
    server.advance()
    task = device.task()
    device.send(task, content)
    server.advance()
    job = server.job("second")
    assert job["metrics"]["accuracy"] == pytest.approx(5 / 6)
    assert job["reason"] == "the accuracy of 0.8333 reaches the target 0.8"


def test_examples_that_nobody_could_evaluate_are_refused_with_the_line(server, bundle_name):
    name = upload(server, [{"text": "the ice", "label": "yes"}, {"text": "the lake", "label": "perhaps"}])
    body = {"name": "job", "bundle": bundle_name, "settings": {"training": {"batch": 2, "length": 8}, "held_out": name}}
    detail = server.call("POST", "/v1/jobs", 422, json=body).json()["detail"]
    assert "the held-out examples, line 2: unknown label 'perhaps'" in detail
    body["settings"]["held_out"] = "0" * 64
    assert "are not on the server" in server.call("POST", "/v1/jobs", 409, json=body).json()["detail"]


def test_a_body_that_is_not_what_its_name_says(server):
    assert "sha256" in server.call("PUT", f"/v1/held-out/{'0' * 64}", 422, content=b"x").json()["detail"]


def test_a_runtime_that_is_not_here_is_named(serving, bundle):
    with serving(evaluation_runtime="executorch") as server:
        body = {"name": "job", "bundle": server.upload(bundle),
                "settings": {"training": {"batch": 2, "length": 8},
                             "held_out": upload(server, [{"text": "the ice", "label": 0}])}}  # fmt: skip
        assert server.call("POST", "/v1/jobs", 422, json=body).json()["detail"].endswith(install_command("onnx"))
