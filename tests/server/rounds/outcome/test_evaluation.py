"""Accuracy on held-out examples, against the bundle's programs run by hand."""

import hashlib
import json
import random
import string
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from transformers import LlamaForCausalLM

from edge_client.bundle.folder import Bundle
from edge_client.data.batches import in_order
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.distribution import install_command
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.stepper import Stepper
from edge_client.tasks.registry import TASK_TYPES
from edge_client.wire.protocol import Report
from server.strategy.evaluations import on_devices
from tests import chats, shapes
from tests.conftest import LABELS
from tests.server.conftest import encode

TEXTS = ["the ice is on the lake", "it is the train", "on it", "a train is on the ice", "lake", "is it the lake"]


def upload(server, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    name = hashlib.sha256(data).hexdigest()
    server.call("PUT", f"/v1/held-out/{name}", 204, content=data)
    return name


def predictions(bundle, weights):
    opened = Bundle.open(bundle)
    with open_runtime("onnx", opened.folder) as runtime:
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


def test_a_job_that_waited_for_a_better_round_ends_with_the_last_of_the_best(server, bundle_name):
    """Its weights are published once more, and what it says of itself is theirs; more rounds go on from them."""
    device, rows = server.device(), [{"text": "the ice", "label": LABELS[1]}]
    settings = {"per_round": 1, "over_selection": 1, "held_out": upload(server, rows), "patience": 2}
    server.create_job(bundle_name, **settings)
    server.advance()
    best: dict = {}
    for label in (0, 1, 1, 2):
        task = device.task()
        sent = load(device.update(task, 0.0))
        bias = next(name for name in sent if name.endswith("classifier.bias"))
        sent[bias] = 100.0 * np.eye(3, dtype=np.float32)[label]
        device.send(task, encode(sent))
        server.advance()
        best = device.weights("job") if label == 1 else best
    job = server.job()
    assert (job["state"], job["done"], job["version"]) == ("ended", 4, 5)
    assert job["reason"] == "2 evaluations were no better than 1.0000; its result is round 3's, the best"
    assert job["metrics"]["accuracy"] == 1.0
    found = device.weights("job", since=4)
    assert found.keys() == best.keys()
    assert all((found[name] == value).all() for name, value in best.items())
    server.call("POST", "/v1/jobs/job/extend", json={"rounds": 200, "patience": 9})
    server.advance()
    assert device.task()["version"] == 5


def test_what_the_most_frequent_class_would_score_is_known_at_once(serving, bundle, database):
    with serving(**database) as server:
        labels = ["yes", "no", "yes", "maybe", "yes", "no", "yes"]
        held_out = upload(server, [{"text": "the ice", "label": label} for label in labels])
        server.create_job(server.upload(bundle), held_out=held_out)
        assert server.call("GET", "/v1/jobs/job/metrics").json() == [{"round": 0, "name": "majority", "value": 4 / 7}]


def test_the_task_layer_is_measured_without_the_units_too(server, bundle, bundle_name):
    """Against the programs run by hand, with the adapter that the bundle came with and the head of each version."""
    device = server.device()
    rows = [{"text": text, "label": LABELS[number % 3]} for number, text in enumerate(TEXTS)]
    server.create_job(bundle_name, per_round=1, over_selection=1, rounds=7, held_out=upload(server, rows))
    server.advance()
    opened = Bundle.open(bundle)
    initial, head = opened.initial_adapter(), opened.manifest.head_names
    expected, rng = {}, np.random.default_rng()
    for number in range(1, 8):
        task = device.task()
        start = device.weights("job")
        device.send(task, encode({name: start[name] + _noise(rng, start[name]) for name in load(device.update(task))}))
        server.advance()
        weights = device.weights("job")
        for name, used in (
            ("accuracy", weights), ("accuracy_head", initial | {name: weights[name] for name in head})
        ):  # fmt: skip
            expected[number, name] = np.mean(
                [LABELS.index(row["label"]) for row in rows] == np.array(predictions(bundle, used))
            )
    told = {(one["round"], one["name"]): one["value"] for one in server.call("GET", "/v1/jobs/job/metrics").json()}
    assert {number for number, name in told if name == "accuracy_head"} == {1, 2, 4, 7}
    assert {key: value for key, value in told.items() if key in expected} == pytest.approx(
        {key: value for key, value in expected.items() if key[1] == "accuracy" or key[0] in (1, 2, 4, 7)}, abs=1e-6
    )


def _noise(rng, like):
    return rng.normal(0, 1, like.shape).astype(np.float32)


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


# --- language models -------------------------------------------------------------------------------------------------


def losses_by_transformers(folder, conversations, length=32):
    """Return the loss of each token of an answer, by the model itself; and whether it would have been the likeliest."""
    marked = chats.tokenizer(chats.MARKED["chatml"])
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    losses, right = [], []
    for messages in conversations:
        found = marked.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        ids, learnt = found["input_ids"], found["assistant_masks"]
        assert len(ids) <= length
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        every = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        answers = torch.tensor(learnt[1:]) == 1
        losses += every[answers].tolist()
        right += (logits.argmax(-1) == torch.tensor(ids[1:]))[answers].tolist()
    return np.array(losses), np.array(right)


def short(count):
    rng = random.Random()
    said = (chats.conversation(rng, turns=1) for _ in range(1000))
    fitting = [messages for messages in said if sum(len(one["content"]) for one in messages) < 14]
    return fitting[:count]


def test_a_language_model_is_scored_on_answers_alone(server, talker, talker_folder):
    conversations = short(7)
    device = server.device()
    rows = [
        {"messages": conversations[0]},
        *map(shapes.talk, conversations[1:4]),
        *map(shapes.instruction, conversations[4:]),
    ]
    server.create_job(
        server.upload(talker), per_round=1, over_selection=1, held_out=upload(server, rows),
        training={"batch": 2, "length": 32},
    )  # fmt: skip
    server.advance()
    device.send(task := device.task(), device.update(task, 0.0))
    server.advance()
    losses, right = losses_by_transformers(talker_folder, conversations)
    metrics = server.job()["metrics"]
    assert metrics["test_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert metrics["perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(right.mean())
    assert metrics["test_loss_before"] == pytest.approx(metrics["test_loss"]), "an update of nothing changes nothing"
    assert server.job()["score"] == "accuracy"
    assert "accuracy_head" not in metrics, "no task layer learns beside its units"


def test_what_devices_measured_of_a_language_model(server, talker):
    name = server.upload(talker)
    server.create_job(name, per_round=2, over_selection=1, device_evaluation=1, weight_bound=1e6,
                      training={"batch": 2, "length": 32})  # fmt: skip
    devices = [server.device(), server.device()]
    told = [
        {"held_back": 10, "right_global": 2, "right_personal": 5, "sums_global": {"test_loss": 30.0},
         "sums_personal": {"test_loss": 10.0, "perplexity": 1e9, "other": 3.0}},
        {"held_back": 30, "right_global": 3, "right_personal": 6},
    ]  # fmt: skip
    for device in devices:
        device.check_in(examples=100)
    server.advance()
    for device, said in zip(devices, told, strict=True):
        device.send(task := device.task(examples=100), device.update(task, 0.0, **said))
    server.advance()
    metrics = server.job()["metrics"]
    assert metrics["accuracy_global"] == pytest.approx(5 / 40)
    assert metrics["accuracy_personal"] == pytest.approx(11 / 40)
    assert metrics["test_loss_global"] == pytest.approx(3.0)  # of the device that told
    assert metrics["perplexity_global"] == pytest.approx(np.exp(3.0), rel=1e-5)
    assert metrics["perplexity_personal"] == pytest.approx(np.e, rel=1e-5)
    assert "other_personal" not in metrics


def test_a_perplexity_beyond_all_numbers_is_left_out():
    reports = [Report(1, 1, 1.0, held_back=1, sums_global={"test_loss": 1e6})]
    known = on_devices(reports, 4.0, TASK_TYPES["causal-lm"])
    assert known["test_loss_global"] == 1e6
    assert "perplexity_global" not in known


# --- questions -------------------------------------------------------------------------------------------------------


def test_answers_are_scored_as_squad_does(server, exported_once):
    """Several right answers, other spellings of them, and questions without one; by the programs' own answers."""
    bundle = exported_once("asking", task="qa", labels=(), lengths=(16,))
    contexts = ["the ice is on the lake", "It is a train on the lake", "is it the lake, a train or the ice"]
    name = server.upload(bundle)
    device = server.device()
    settings = {"per_round": 1, "over_selection": 1, "seed": 3, "training": {"batch": 2, "length": 16}}
    server.create_job(name, "first", **settings)
    server.advance()
    device.send(task := device.task(), content := device.update(task, 0.0))
    server.advance()
    opened = Bundle.open(bundle)
    with open_runtime("onnx", opened.folder) as runtime:
        kind = TASK_TYPES["qa"]
        stepper = Stepper(opened.manifest, runtime, "onnx", 2, 16)
        encoder = TextEncoder(opened.tokenizer(), opened.manifest, 2, 16)
        parts = in_order([Example("on it", context) for context in contexts], encoder, kind.encode)
        weights = device.weights("first")
        said = [
            prediction.label
            for part in parts
            for prediction in kind.read(
                stepper.forward(part.batch.tokens, part.labels, weights).logits[: len(part.examples)], part, (), str
            )
        ]
    one, _, third = [answer or "lake" for answer in said]
    golds = [["on the", one], [], [third]]  # what the model says, beside another; and a question without an answer
    rows = []
    for context, texts in zip(contexts, golds, strict=True):
        answers = {"text": texts, "answer_start": [context.index(text) for text in texts]}
        rows.append({"question": "on it", "context": context, "answers": answers})
    server.call("POST", "/v1/jobs/first/stop")
    server.create_job(name, "second", held_out=upload(server, rows), **settings)
    server.advance()
    task = device.task()
    device.send(task, content)
    server.advance()
    metrics = server.job("second")["metrics"]
    pairs = list(zip(said, golds, strict=True))
    assert metrics["exact_match"] == pytest.approx(np.mean([squad(*pair)[0] for pair in pairs]))
    assert metrics["f1"] == pytest.approx(np.mean([squad(*pair)[1] for pair in pairs]))
    assert "accuracy" not in metrics
    assert server.job("second")["score"] == "f1"


def squad(said, golds):
    """The published rules, written anew: lower case, no punctuation, no articles, white space as one; of answers that
    are nothing else none counts."""

    def plain(text):
        kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return [word for word in kept.split() if word not in ("a", "an", "the")]

    said, tried = plain(said or ""), [words for gold in golds if (words := plain(gold))] or [[]]
    shared = [sum((Counter(said) & Counter(gold)).values()) for gold in tried]
    overlaps = [
        (2 * count / (len(said) + len(gold))) if said and gold else float(said == gold)
        for count, gold in zip(shared, tried, strict=True)
    ]
    return float(said in tried), max(overlaps)
