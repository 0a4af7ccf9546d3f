"""A server that answers whatever it likes: a client does its work, or ends with an error that one can act on."""

import copy
import json
import math
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256

import httpx
import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME, LARGEST
from edge_client.client.client import Client
from edge_client.errors import BadAnswer, SpryError
from edge_client.events import Event
from edge_client.format import CONTROLS
from edge_client.keys import make
from edge_client.rounds.versions import applied, largest, merged
from edge_client.secagg.member import About, Kept, Member
from edge_client.secagg.messages import Survivors, View
from edge_client.store.job import KeptWeights
from edge_client.wire.answers import Tensors
from edge_client.wire.protocol import (
    CheckedIn,
    CheckIn,
    DeviceKey,
    Enrolled,
    Enrolment,
    EvaluationReport,
    OpenJob,
    Receipt,
)
from edge_client.wire.scalars import decode_records
from edge_client.wire.server import Server

ROWS = [{"text": "it is bright", "label": 0}, {"text": "it was dark", "label": 1}] * 3
CALM = settings(max_examples=60, deadline=None, derandomize=True,
                suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
NESTED = b"[" * 100_000
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\u200f\x9b1m\n"
WILD = st.one_of(
    st.sampled_from([None, True, False, -1, 0, 10**9, 2**63, 10**30, 1e300, -1e300, 0.5, "", ESCAPES, [], {}]),
    st.sampled_from(["x" * 3000, [0] * 100_000]),
    st.integers(), st.text(max_size=20), st.lists(st.integers(), max_size=5),
)  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from(["Retry-After", "X-Spry-Version", "Content-Type", "Content-Encoding", "Set-Cookie", "Location"]),
    st.sampled_from([
        "nan", "inf", "-1", "1e300", "9" * 5000, "Mon, 01 Jan 0001 00:00:00 GMT", "\u0663", "gzip", "br",
        "application/problem+json", "application/vnd.safetensors", "a=b; Max-Age=1", "http://[::1", "",
    ]), max_size=3,
)  # fmt: skip


def spoiled(draw, value):
    """JSON with one of its values replaced, taken out or doubled."""
    value = copy.deepcopy(value)
    at, holder = value, None
    while isinstance(at, dict | list) and at and (holder is None or draw(st.integers(0, 3))):
        holder, key = at, draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        at = at[key]
    if holder is None:
        return draw(WILD)
    if isinstance(holder, dict) and draw(st.integers(0, 9)) == 0:
        del holder[key]
    else:
        holder[key] = draw(WILD)
    return value


@st.composite
def answers(draw, value):
    """Status, headers and body in the place of an answer."""
    status = draw(st.sampled_from([200] * 6 + [201, 204, 206, 302, 400, 401, 404, 409, 416, 429, 500, 599]))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        body = draw(st.one_of(st.binary(max_size=50), st.sampled_from([NESTED, b'{"task":' + NESTED, b"1" * 5000])))
    elif kind == 1:
        problem = {"title": ESCAPES, "status": status, "detail": ESCAPES * 500, "code": "late"}
        body = json.dumps(spoiled(draw, problem)).encode()
    else:
        body = json.dumps(spoiled(draw, value)).encode()
    return httpx.Response(status, headers={k: v.encode() for k, v in draw(HEADERS).items()}, stream=Body(body))


class Body(httpx.SyncByteStream):
    def __init__(self, content: bytes) -> None:
        self.content = content

    def __iter__(self):
        yield self.content


def told(error: SpryError) -> None:
    assert getattr(error, "retry_after", None) is None or error.retry_after >= 0
    assert len(str(error)) < 5000
    assert not CONTROLS.search(str(error)), str(error)


def plain(value: object) -> None:
    """Nothing in a message steers a terminal."""
    waiting = [msgspec.to_builtins(value)]
    while waiting:
        one = waiting.pop()
        waiting += [*one.keys(), *one.values()] if isinstance(one, dict) else one if isinstance(one, list) else []
        assert not isinstance(one, str) or not CONTROLS.search(one), one


ENROLLED, RECEIPT = {"device": "d-0", "secret": "s"}, {"wait": 1.0, "repeated": False}
WAITING = {"wait": 3.0, "reason": "no"}
JOBS = [{"job": "j", "job_name": "topics", "task": "classification", "labels": ["a", "b"]}]
CALLS = {
    "enrol": (ENROLLED, lambda server: server.enrol(Enrolment("t", "n"))),
    "key": (ENROLLED, lambda server: server.send_key(DeviceKey("k" * 43))),
    "check-in": (WAITING, lambda server: server.check_in(CheckIn(["onnx"]))),
    "jobs": (JOBS, lambda server: server.open_jobs()),
    "update": (RECEIPT, lambda server: server.send_update("t", b"")),
    "derivatives": (RECEIPT, lambda server: server.send_jvps("t", 0, b"")),
    "message": (RECEIPT, lambda server: server.send_message("t", "card", b"")),
    "judgement": (RECEIPT, lambda server: server.send_evaluation("t", EvaluationReport())),
    "failure": (RECEIPT, lambda server: server.send_failure("t", "no")),
    "weights": (RECEIPT, lambda server: server.weights("j", 0, 1000)),
    "steps": (RECEIPT, lambda server: server.steps("j", 0, 1000)),
    "sum": (RECEIPT, lambda server: View.decoded(server.sum("t"))),
}


@pytest.mark.parametrize("call", CALLS)
@CALM
@given(st.data())
def test_any_answer_to_a_request(call, data):
    value, ask = CALLS[call]
    events: list[Event] = []
    answered = data.draw(answers(value))
    handler = httpx.MockTransport(lambda _: answered)
    server = Server("http://x", transport=handler, patience=-1, pause=lambda _: None, tell=events.append)
    try:
        answer = ask(server)
    except SpryError as error:
        told(error)
    else:
        if isinstance(answer, Enrolled | CheckedIn | Receipt | OpenJob):
            plain(answer)
        if isinstance(answer, CheckedIn | Receipt):
            assert 0 <= answer.wait <= 1e6
    assert not list(server._client.cookies.jar)
    for event in events:
        plain(event.message)


def task_of(bundle, task) -> dict:
    fields = asdict(replace(task, bundle=bundle, units=[0, 1], training=replace(task.training, epochs=1)))
    return fields | {"seed": 5}


@settings(CALM, max_examples=25)
@given(st.data())
def test_any_task(tmp_path_factory, trainable, task, data):
    manifest = (trainable / FILE_NAME).read_bytes()
    given = spoiled(data.draw, task_of(sha256(manifest).hexdigest(), task))
    with suppress(SpryError):
        take_part(tmp_path_factory.mktemp("home"), trainable, manifest, given)


@settings(CALM, max_examples=60)
@given(st.data())
def test_any_bundle(tmp_path_factory, trainable, task, data):
    """Whose programs are not what its manifest says: the task goes back with one line that says why."""
    written = json.loads((trainable / FILE_NAME).read_bytes())
    for one in written["runtimes"].values():
        one["trials"] = []  # they would find what is found without them
    for _ in range(data.draw(st.integers(1, 3))):
        misstate(data.draw, written, words_in(written))
    manifest = json.dumps(written).encode()
    home = tmp_path_factory.mktemp("home")
    reasons = take_part(home, trainable, manifest, task_of(sha256(manifest).hexdigest(), task))
    assert all(len(reason) <= 500 for reason in reasons)
    hypothesis.event(reasons[0][:60] if reasons else "done")


def words_in(value) -> list[str]:
    """All texts of a message."""
    if isinstance(value, dict | list):
        return [word for one in (value.values() if isinstance(value, dict) else value) for word in words_in(one)]
    return [value] if isinstance(value, str) else []


def misstate(draw, value, words) -> None:
    """Put another value of its type in the place of one of a message's."""
    at, holder, key = value, value, None
    while isinstance(at, dict | list) and at and (key is None or draw(st.integers(0, 7))):
        holder, key = at, draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        at = at[key]
    if isinstance(at, list):
        holder[key] = draw(st.sampled_from([[], at[::-1], at[:-1], at * 2]))
    elif isinstance(at, bool):
        holder[key] = not at
    elif isinstance(at, int | float):
        holder[key] = draw(st.sampled_from([0, 1, 2, 3, 5, -1, 2**20, 2**40]))
    elif isinstance(at, str):
        holder[key] = draw(st.sampled_from(words))


def test_a_program_that_gives_something_else(tmp_path, trainable, task):
    """Where a block of the model is another program, which takes the same and whose result has another shape."""
    manifest = json.loads((trainable / FILE_NAME).read_bytes())
    for one in manifest["runtimes"].values():
        one["trials"] = []
        for program in one["programs"]:
            for output in program["outputs"]:
                output["shape"] = [*output["shape"], 1]
    written = json.dumps(manifest).encode()
    (reason,) = take_part(tmp_path, trainable, written, task_of(sha256(written).hexdigest(), task))
    assert "where its manifest says float32 [" in reason


def take_part(home, bundle, manifest: bytes, task: dict) -> list[str]:
    """One look of a client at a server with a task of this bundle; the reasons for which it gave the task back."""
    reasons: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.startswith("/v1/bundles/"):
            file = bundle / path.split("/", 4)[4]
            if file.name == FILE_NAME:
                return httpx.Response(200, content=manifest)
            return httpx.Response(200, content=file.read_bytes()) if file.is_file() else httpx.Response(404)
        if path == "/v1/check-in":
            return httpx.Response(200, json={"task": task})
        if path == "/v1/open-jobs":
            return httpx.Response(200, json=JOBS)
        if path.endswith("/failure"):
            reasons.append(json.loads(request.content)["reason"])
        if path.endswith("/weights"):
            return httpx.Response(200, headers={"X-Spry-Version": "1"}, content=b"\x00" * 9)
        return httpx.Response(201, json=ENROLLED | RECEIPT)

    client = Client(
        "http://x", "t", ROWS, home=home, transport=httpx.MockTransport(answer), patience=0, pause=lambda _: None,
        threads=1, on_event=lambda event: plain([event.message, event.details]),
    )  # fmt: skip
    try:
        client.run(once=True)
    finally:
        client.close()
    return reasons


@CALM
@given(st.data())
def test_any_weights(trainable, data):
    from safetensors.numpy import save

    bundle = Bundle.open(trainable)
    kept = KeptWeights(0, bundle.initial_adapter())
    name, value = min(kept.weights.items(), key=lambda one: one[0])
    sent = bytearray(save({name: value}))
    assert len(save(kept.weights)) < largest(bundle.manifest)
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, min(len(sent) - 1, 150)))] = data.draw(st.integers(0, 255))
    with suppress(BadAnswer):
        merged(kept, Tensors(1, bytes(sent[: data.draw(st.integers(0, len(sent)))])), bundle.manifest)


@CALM
@given(st.data())
def test_any_step(trainable, changed, data):
    from edge_client.wire.scalars import Participant, ScalarReport, StepRecord, encode_record

    task = changed(mode="iteration", directions=1)
    bundle = Bundle.open(trainable)
    manifest, kept = bundle.manifest, KeptWeights(0, bundle.initial_adapter())
    report = ScalarReport(0.5, 4, np.ones((1, 4), np.float32))
    record = StepRecord(1, 1, 0, (Participant(7, (0, 1), report),), np.ones(manifest.head_size, np.float32))
    sent = bytearray(encode_record(record, manifest, task.training))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, 80))] = data.draw(st.integers(0, 255))
    with suppress(SpryError):
        for one in decode_records(bytes(sent)):
            applied(one, kept, manifest, task)


@CALM
@given(st.binary(max_size=120), st.binary(max_size=300))
def test_any_word_about_a_sum(first, second):
    member = Member(About("j", 1, 0, (0,), 3), make(), Kept(), lambda kept: None)
    for work in (View.decoded, Survivors.decoded, member.shares, member.vow, member.opening):
        with suppress(SpryError):
            work(first + second)
    with suppress(SpryError):
        member.update(second, lambda count, cap: {})


def test_much_is_not_read():
    """An answer that is longer than its use is left after as much."""
    read = 0

    class Endless(httpx.SyncByteStream):
        def __iter__(self):
            nonlocal read
            while True:
                read += 1 << 16
                yield b" " * (1 << 16)

    handler = httpx.MockTransport(lambda _: httpx.Response(200, headers={"X-Spry-Version": "1"}, stream=Endless()))
    server = Server("http://x", transport=handler, patience=0)
    for ask, most in (
        (Server.open_jobs, 4 << 20), (lambda one: one.check_in(CheckIn([])), 1 << 20),
        (lambda one: one.weights("j", 0, 5000), 5000), (lambda one: one.steps("j", 0, 5000), 5000),
    ):  # fmt: skip
        read = 0
        with pytest.raises(BadAnswer, match="more than"):
            ask(server)
        assert read <= most + (2 << 16)
    assert math.log2(LARGEST) < 30
