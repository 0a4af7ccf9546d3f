"""Check-ins that are answered at once: the same words as the route's, and never to somebody who must not hear them."""

import time

import pytest

from edge_client import keys
from server.rounds.selection.standing import Standing
from server.storage.identities import roster
from tests.server.conftest import Device
from tests.server.control.test_proofs import HOUR, Signer
from tests.server.rounds.test_rounds import play


@pytest.fixture
def routed(server, monkeypatch):
    """Devices whose check-in went to the route."""
    offers, asked = server.http.app.state.services.offers, []
    answer = offers.answer

    def counted(device, check_in):
        asked.append(device.id)
        return answer(device, check_in)

    monkeypatch.setattr(offers, "answer", counted)
    return asked


@pytest.fixture
def full(server, bundle_name, routed):
    """A round without a place left, and a device that has heard of it."""
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    holder, waiting = server.device("holder"), server.device("waiting")
    holder.task()
    waiting.check_in()
    del routed[:]
    return holder, waiting


def test_who_waits_is_answered_without_the_database(server, full, routed):
    _, waiting = full
    answers = [waiting.call("POST", "/v1/check-in", json={"runtimes": ["onnx"]}) for _ in range(5)]
    assert routed == []
    assert all("no free slot" in answer.json()["reason"] for answer in answers)
    server.http.app.state.services.offers._standings._known = (0.0, -1, Standing())
    asked = waiting.call("POST", "/v1/check-in", json={"runtimes": ["onnx"]})
    assert routed == [waiting.id]
    assert asked.json().keys() == answers[0].json().keys()
    assert asked.headers["Content-Type"] == answers[0].headers["Content-Type"]


def test_a_device_that_signs_is_answered_at_once_too_and_its_body_must_be_its_own(server, full, routed):
    signer = Signer(server)
    signer.check_in()
    del routed[:]
    assert "no free slot" in signer.check_in()["reason"]
    assert routed == []
    assert "the body is not the one" in signer.check_in(401, signed=b"another")["detail"]
    assert "set its clock" in signer.check_in(401, late=HOUR)["detail"]
    assert "wrong key" in signer.check_in(401, key=keys.make())["detail"]


def test_a_check_in_that_was_answered_at_once_is_not_answered_again(serving, bundle, database):
    body, type_ = b'{"runtimes": ["onnx"]}', {"Content-Type": "application/json"}
    with serving(**database) as server, serving(**database) as other:
        server.create_job(server.upload(bundle), per_round=1, over_selection=1)
        server.advance()
        server.device().task()
        signer = Signer(server)
        signer.check_in()
        headers = type_ | signer.headers("POST", "/v1/check-in", body)
        server.http.post("/v1/check-in", headers=headers, content=body).raise_for_status()
        again = server.http.post("/v1/check-in", headers=headers, content=body)
        assert (again.status_code, again.json()["code"]) == (425, "replayed")
        server.http.app.state.services.offers.save_profiles()
        assert other.http.post("/v1/check-in", headers=headers, content=body).status_code == 425


def test_what_was_said_is_noted_all_the_same(server, full, routed):
    waiting = full[1]
    waiting.check_in(memory_bytes=77)
    assert routed == []
    server.http.app.state.services.offers.save_profiles()
    profiles = {one["id"]: one["profile"] for one in server.call("GET", "/v1/devices").json()}
    assert profiles[waiting.id]["memory_bytes"] == 77


def test_who_has_a_task_hears_of_it_again(server, full, routed):
    holder = full[0]
    assert holder.check_in()["task"] is not None
    assert routed == [holder.id]


def test_a_place_that_is_free_is_given_away(server, full, routed):
    holder, waiting = full
    task = holder.task()
    holder.send(task, holder.update(task))
    server.advance()
    assert waiting.check_in()["task"]["round"] == 2
    play(server, [waiting], [0.1])


def test_what_does_not_fit_is_refused_by_the_route(server, full):
    waiting = full[1]
    assert waiting.call("POST", "/v1/check-in", 422, json={"runtimes": 5}).json()["code"] == "invalid"
    assert waiting.call("POST", "/v1/check-in", 422, content=b"{").json()["code"] == "invalid"
    many = {"runtimes": ["onnx"], "more": "x" * 5000}
    assert "no free slot" in waiting.call("POST", "/v1/check-in", json=many).json()["reason"]
    wrong = Device(server, waiting.id, "wrong")
    assert "wrong secret" in wrong.call("POST", "/v1/check-in", 401, json={"runtimes": ["onnx"]}).json()["detail"]


def test_a_revoked_device_is_refused_at_once_and_by_other_workers_within_a_second(serving, bundle, tmp_path):
    with serving() as one, serving() as other:
        one.create_job(one.upload(bundle), per_round=1, over_selection=1)
        one.advance()
        one.device().task()
        revoked, stays = one.device("revoked"), one.device("stays")
        there = [Device(other, device.id, device.headers["Authorization"].split(".")[1]) for device in (revoked, stays)]
        for device in (revoked, stays, *there):
            device.check_in()
        one.call("DELETE", f"/v1/devices/{revoked.id}", 204)
        revoked.call("POST", "/v1/check-in", 401, json={"runtimes": ["onnx"]})
        time.sleep(roster.FRESH)
        for _ in range(2):
            there[0].call("POST", "/v1/check-in", 401, json={"runtimes": ["onnx"]})
            there[1].check_in()
