"""A value in a device's message is of the type that the protocol names, and of no other."""

import json

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from edge_client.wire.protocol import CheckIn, DeviceKey, Enrolment, EvaluationReport, Failure, Report
from server.web.bodies import strict_for

MESSAGES = {
    Enrolment: {"token": "t", "name": "n", "version": "1", "public_key": "", "proof": ""},
    DeviceKey: {"public_key": "k" * 43, "proof": ""},
    CheckIn: {
        "runtimes": ["onnx"], "examples": 9, "memory_bytes": 5, "power": "mains", "metered": True, "job": "j",
        "step_seconds": 0.5, "resident_bytes": 7, "low_memory": False, "unfit": {"j": "no"}, "sums": True,
        "only_sums": False, "adds_noise": True,
    },
    EvaluationReport: {
        "held_back": 4, "right_global": 3, "right_personal": 2, "sums_global": {"loss": 0.5}, "sums_personal": {},
    },
    Failure: {"reason": "why"},
    Report: {"examples": 9, "steps": 2, "loss": 0.5, "seconds": 1.0, "peak_bytes": 5, "measured": 3},
}  # fmt: skip
OTHERS = ["9", "0.5", "true", True, 9, 9.5, [], {}, ["9"], [9], {"loss": "0.5"}, {"j": 5}]
CASES = [(kind, name) for kind, message in MESSAGES.items() for name in message]


def fits(value, like) -> bool:
    """Whether JSON's value is of the type of one that is right, where a whole number is a real one too."""
    if isinstance(like, dict | list):
        inner = [*like.values()] if isinstance(like, dict) else like
        own = [*value.values()] if isinstance(value, dict) else value
        return type(value) is type(like) and all(fits(one, (inner or [0.5])[0]) for one in own)
    return type(value) is type(like) or (type(like) is float and type(value) is int)


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind.__name__}-{name}" for kind, name in CASES])
def test_a_value_of_another_type_is_refused(kind, name):
    strict, message = strict_for(kind), MESSAGES[kind]
    assert strict.read(json.dumps(message)) == kind(**message)
    for other in OTHERS:
        if not fits(other, message[name]):
            with pytest.raises(ValidationError) as caught:
                strict.read(json.dumps(message | {name: other}))
            assert caught.value.errors()[0]["loc"][0] == name


def test_what_people_write_may_stand_in_texts():
    from server.web.routes.devices import NewToken

    assert strict_for(NewToken) is None


def test_a_refusal_names_the_place_in_the_body():
    with pytest.raises(RequestValidationError) as caught:
        strict_for(CheckIn).check(b'{"runtimes": ["onnx"], "examples": "9"}')
    assert [one["loc"] for one in caught.value.errors()] == [("body", "examples")]


def test_every_way_in_refuses_it(server):
    """The one that answers at once, too, which hands on to the route what does not fit."""
    device = server.device()
    assert device.call("POST", "/v1/check-in", json={"runtimes": ["onnx"], "examples": 9}).json()["task"] is None
    for examples in ("9", True, 9.0):
        refused = device.call("POST", "/v1/check-in", 422, json={"runtimes": ["onnx"], "examples": examples}).json()
        assert refused["code"] == "invalid"
        assert refused["detail"].startswith("the request does not fit: body.examples: ")
