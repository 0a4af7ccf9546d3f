"""Rounds of a language model on a real server, its short rows packed: the Android library's client beside Python's."""

import random

import numpy as np
import pytest

from edge_client.bundle.folder import Bundle
from tests import chats
from tests.speaking import exported
from tests.test_android import Desk, assert_same, ended, events, fleet, moved

TEXTS = ["the ice is on the lake", "it is a train", "größer als 3 €", "no ice, no train!", "氷 🚆"]


@pytest.fixture(scope="module")
def desk(exporting, classes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    bundle = exported(exporting, tmp_path_factory.mktemp("speaking"), TEXTS)
    desk = Desk(folder, bundle, classes)
    desk.data = fleet.write_rows(folder / "said.jsonl", said())
    desk.shape = Bundle.open(bundle).manifest.shapes[0]
    yield desk
    desk.close()


def said() -> list[dict]:
    rng = random.Random(11)
    talks = [{"messages": chats.conversation(rng, turns=1)} for _ in range(6)]
    pairs = [{"prompt": rng.choice(TEXTS), "completion": " " + rng.choice(TEXTS)} for _ in range(8)]
    short = [{"prompt": rng.choice(["it", "no", "on"]), "completion": " is"} for _ in range(16)]
    return [*talks, *pairs, *({"text": text} for text in TEXTS), *short]


def test_packed_rows_are_learned_as_by_a_python_client(desk):
    batch, length = desk.shape
    training = {"batch": batch, "length": length, "epochs": 2, "learning_rate": 0.01, "pack": True}
    plain = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    settings = {"optimizers": plain, "measure_features": False, "training": training, "assignment": "all"}
    twins = [desk.job(f"packed-{kind}", **settings) for kind in ("jvm", "python")]
    apart = desk.job("apart", **settings | {"training": training | {"pack": False}})
    start = desk.adapter(twins[0])
    running = [
        desk.jvm(twins[0], "--rounds", "2"),
        desk.python(twins[1], "--rounds", "2"),
        desk.jvm(apart, "--rounds", "2"),
    ]
    for process in running:
        ended(process)
    ours, theirs = (desk.adapter(name) for name in twins)
    assert moved(theirs, start) > 1e-3
    assert_same(ours, theirs)
    losses, expected, unpacked = (
        [event["loss"] for event in events(process) if event["event"] == "progress"] for process in running
    )
    np.testing.assert_allclose(losses, expected, atol=1e-4)
    assert len(losses) < len(unpacked)
    assert desk.shown(twins[0])["refused"] == {}
