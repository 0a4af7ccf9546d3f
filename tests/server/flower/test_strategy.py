"""A round over Flower on the server's side: by messages as a grid delivers them."""

import hashlib
import logging

import msgspec
import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is in an environment of its own: `make flower`")

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from safetensors.numpy import load_file, save

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import FILE_NAME, FileSpec
from edge_client.training.features import without_moments
from edge_client.wire.protocol import CheckIn, Report
from server.flower.fleet import NodeOffer
from server.flower.messages import (
    NodeUpdate,
    offer_content,
    offer_in,
    record_of,
    refusal_content,
    task_in,
    update_content,
)
from server.flower.strategy import SpryStrategy
from server.jobs.settings import JobSettings
from server.strategy.outliers import norms, usual
from server.strategy.registry import strategy_of
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution
from tests.edge_client.toy import B, K, T, Toy

NODES = 101, 202, 303
SETTINGS = {"per_round": 3, "minimum": 2, "seed": 5, "training": {"batch": B, "length": T, "directions": K}}


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch):
    """Messages are of a run, which newer versions of Flower keep in the process."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ModuleNotFoundError:
        return
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def bundle(tmp_path):
    """The folder of a bundle whose programs nobody runs here."""
    folder, toy = tmp_path / "bundle", Toy()
    folder.mkdir()
    contents = {"adapter.safetensors": save(toy.weights), "toy": b""}
    specs = (FileSpec(name, hashlib.sha256(data).hexdigest(), len(data)) for name, data in contents.items())
    manifest = msgspec.structs.replace(toy.manifest(), files=tuple(specs))
    for name, data in {**contents, FILE_NAME: manifests.write(manifest)}.items():
        (folder / name).write_bytes(data)
    return folder


class Nodes(Grid):
    """Nodes that answer at once, in an order of their own."""

    def __init__(self, answers, come=()):
        self.answers = answers
        self.come = list(come)
        self.asked = []

    def get_node_ids(self):
        return self.come.pop(0) if self.come else list(self.answers)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.asked.append((message.metadata.message_type, message.metadata.dst_node_id))
            replies.append(replied(message, self.answers[message.metadata.dst_node_id](message)))
        return replies[::-1]

    def run(self):
        raise NotImplementedError

    set_run = create_message = push_messages = pull_messages = run


def replied(message, answer):
    return Message(error=answer, reply_to=message) if isinstance(answer, Error) else Message(answer, reply_to=message)


@pytest.fixture
def named(bundle):
    return hashlib.sha256((bundle / FILE_NAME).read_bytes()).hexdigest()


@pytest.fixture
def node(named):
    """Makes nodes that move each of their weights by some amount."""

    def made(position, moves=0.01, examples=10, memory=None, bundle=named, **evaluated):
        def answer(message):
            if message.metadata.message_type == MessageType.QUERY:
                return offer_content(NodeOffer(CheckIn(["numpy"], examples, memory), bundle, position))
            task, weights = task_in(message.content)
            manifest = Toy().manifest()
            own = [parameter.name for parameter in manifest.trained_with(task.units)]
            tensors = {name: weights[name] + np.float32(moves) for name in own}
            return update_content(
                NodeUpdate(tensors, Report(examples=examples, steps=-(-examples // B), loss=moves, **evaluated))
            )

        return answer

    return made


def round_of(strategy, grid, number=1):
    messages = strategy.configure_train(number, strategy.arrays, ConfigRecord(), grid)
    return strategy.aggregate_train(number, grid.send_and_receive(messages))


def strategy_for(bundle, **settings):
    return SpryStrategy(bundle, JobSettings.model_validate({**SETTINGS, **settings}))


def test_replies_with_different_keys_come_to_what_the_servers_strategy_makes_of_them(bundle, node):
    strategy = strategy_for(bundle)
    moves = {number: 0.01 * (place + 1) for place, number in enumerate(NODES)}
    grid = Nodes({number: node(place, moves[number], 10 + place) for place, number in enumerate(NODES)})
    messages = list(strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid))
    arrays, figures = strategy.aggregate_train(1, grid.send_and_receive(messages))

    manifest, settings, start = Toy().manifest(), strategy.settings, ServerState(0, Toy().weights)
    updates = []
    for message in messages:
        task, weights = task_in(message.content)
        own, place = message.metadata.dst_node_id, NODES.index(message.metadata.dst_node_id)
        tensors = {one.name: weights[one.name] + np.float32(moves[own]) for one in manifest.trained_with(task.units)}
        lengths = norms(without_moments(tensors), start.weights, manifest.head_names, manifest.units)
        report = Report(examples=10 + place, steps=-(-(10 + place) // B), loss=moves[own])
        updates.append(Contribution(task.id, tuple(task.units), task.training, lengths, report, lambda t=tensors: t))
    assert len({update.units for update in updates}) > 1
    context = RoundContext(settings, manifest, usual([update.norms for update in updates]))
    expected = strategy_of(settings).aggregate(start, updates, context).model
    for name, value in expected.weights.items():
        assert arrays[name].numpy().tobytes() == value.tobytes()
    assert figures["clients"] == 3
    assert figures["examples"] == 33


def test_accuracies_of_nodes_are_combined_by_the_jobs_rule(bundle, node):
    """One that claims a thousand times the examples of others weighs no more than they do."""
    honest = {"held_back": 10, "right_global": 5, "right_personal": 8}
    claims = {"examples": 10_000, "held_back": 10_000, "right_global": 10_000, "right_personal": 0}
    told = [honest, honest, claims]
    strategy = strategy_for(bundle)
    grid = Nodes({number: node(place, **told[place]) for place, number in enumerate(NODES)})
    _, first = round_of(strategy, grid)
    _, second = round_of(strategy, grid, 2)
    assert "accuracy_global" not in first  # nobody has trained the task layer yet
    assert second["accuracy_global"] == pytest.approx((0.5 + 0.5 + 1.0) / 3)
    assert second["accuracy_personal"] == pytest.approx((0.8 + 0.8 + 0.0) / 3)
    assert second["evaluated"] == 3


def test_a_node_that_counts_more_than_there_can_be_is_left_out(bundle, node, caplog):
    grid = Nodes({number: node(place) for place, number in enumerate(NODES)})
    grid.answers[NODES[2]] = node(2, held_back=5, right_global=6)
    with caplog.at_level(logging.WARNING, "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        _, figures = round_of(strategy_for(bundle), grid)
    assert figures["clients"] == 2
    assert "node 303 is left out: the update is refused: its report counts 6 right of 5 held back" in caplog.text


def test_a_node_is_asked_once_and_trains_in_each_round(bundle, node):
    strategy, grid = strategy_for(bundle), Nodes({number: node(place) for place, number in enumerate(NODES)})
    for number in (1, 2):
        assert round_of(strategy, grid, number)[0] is not None
    kinds = [kind for kind, _ in grid.asked]
    assert kinds == [MessageType.QUERY] * 3 + [MessageType.TRAIN] * 6


def test_a_round_waits_for_its_nodes(bundle, node, monkeypatch):
    monkeypatch.setattr("server.flower.strategy._LOOKS_AGAIN", 0.0)
    answers = {number: node(place) for place, number in enumerate(NODES)}
    grid = Nodes(answers, come=[[], NODES[:1], NODES[:2]])
    assert round_of(strategy_for(bundle), grid)[1]["clients"] == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refusal_content("its rows are gone"), "node 303 is left out: its rows are gone"),
        (Error(code=3, reason="it died"), "node 303 failed: it died"),
        (RecordDict(), "node 303 is left out: the message is not valid: a report"),
    ],
)
def test_a_node_that_fails_is_told_of_and_the_others_count(bundle, node, answer, told, caplog):
    whole = node(2)

    def failing(message):
        return whole(message) if message.metadata.message_type == MessageType.QUERY else answer

    grid = Nodes({NODES[0]: node(0), NODES[1]: node(1), NODES[2]: failing})
    with caplog.at_level(logging.WARNING, "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        _, figures = round_of(strategy_for(bundle), grid)
    assert figures["clients"] == 2
    assert told in caplog.text


def test_too_few_updates_leave_the_weights_as_they_are(bundle, node):
    def failing(message):
        return node(0)(message) if message.metadata.message_type == MessageType.QUERY else RecordDict()

    strategy = strategy_for(bundle)
    before = strategy.result
    assert round_of(strategy, Nodes({NODES[0]: node(0), NODES[1]: failing, NODES[2]: failing})) == (None, None)
    assert all(np.array_equal(strategy.result[name], value) for name, value in before.items())


def test_a_node_with_another_bundle_takes_no_part(bundle, node):
    grid = Nodes({NODES[0]: node(0), NODES[1]: node(1), NODES[2]: node(2, bundle="c" * 64)})
    assert round_of(strategy_for(bundle), grid)[1]["clients"] == 2
    assert (MessageType.TRAIN, NODES[2]) not in grid.asked


def test_an_update_of_a_node_that_was_given_nothing_does_not_count(bundle, node):
    strategy, grid = strategy_for(bundle), Nodes({number: node(place) for place, number in enumerate(NODES)})
    messages = list(strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    stranger = Message(messages[0].content, dst_node_id=404, message_type=MessageType.TRAIN)
    replies[0] = replied(stranger, replies[0].content)
    assert strategy.aggregate_train(1, replies)[1]["clients"] == 2


def test_the_weights_that_flower_gives_are_those_that_nodes_start_from(bundle, node):
    strategy, grid = strategy_for(bundle), Nodes({number: node(place) for place, number in enumerate(NODES)})
    given = {name: value + np.float32(1) for name, value in Toy().weights.items()}
    for message in strategy.configure_train(1, record_of(given), ConfigRecord(), grid):
        weights = task_in(message.content)[1]
        assert all(np.array_equal(weights[name], value) for name, value in given.items())


def test_an_adapter_is_written_for_peft(bundle, node, tmp_path):
    strategy, grid = strategy_for(bundle), Nodes({number: node(place) for place, number in enumerate(NODES)})
    round_of(strategy, grid)
    strategy.save(tmp_path / "out")
    found = load_file(tmp_path / "out" / "adapter.safetensors")
    assert all(np.array_equal(found[name], value) for name, value in strategy.result.items())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "adapter.safetensors", "adapter_config.json", "spry.json",
    }  # fmt: skip


def test_an_answer_is_read_as_it_was_told(named, node):
    message = Message(RecordDict(), dst_node_id=1, message_type=MessageType.QUERY)
    assert offer_in(node(4)(message)).position == 4
