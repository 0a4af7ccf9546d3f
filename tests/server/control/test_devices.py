"""What people see of one device, and write about it."""

from tests.server.rounds.places.test_fleet import here
from tests.server.rounds.test_rounds import AVERAGE


def test_a_device_has_a_history(serving, bundle, database):
    with serving(**database) as server:
        name = server.upload(bundle)
        server.create_job(name, "first", per_round=1, over_selection=1, rounds=1, optimizers=AVERAGE)
        server.create_job(name, "second", per_round=1, over_selection=1, optimizers=AVERAGE)
        server.advance()
        device, other = server.device("pi 3"), server.device("pi 4")
        task = device.task(job="first")
        device.send(task, device.update(task, examples=6, loss=1.5, seconds=2.5, peak_bytes=123_456))
        other.call("PUT", f"/v1/tasks/{task['id']}/update", 403, content=b"x")
        server.advance()
        given_back = device.task(job="second")
        device.call("POST", f"/v1/tasks/{given_back['id']}/failure", json={"reason": "the battery is low"})

        found = server.call("GET", f"/v1/devices/{device.id}").json()
        assert (found["name"], found["state"], found["job"], found["signs"]) == ("pi 3", "waiting", None, False)
        assert found["counts"] == {"accepted": 1, "failed": 1}
        second, first = found["parts"]
        assert (second["job"], second["round"], second["state"]) == ("second", 1, "failed")
        assert (second["reason"], second["seconds"], second["loss"]) == ("the battery is low", None, None)
        assert (first["job"], first["state"], first["runtime"]) == ("first", "accepted", "onnx")
        assert (first["seconds"], first["peak_bytes"], first["examples"], first["loss"]) == (2.5, 123_456, 6, 1.5)
        assert first["ended"] >= first["created"]
        (refused,) = found["refusals"]
        assert (refused["job"], refused["code"], refused["detail"]) == ("second", "failed", "the battery is low")
        assert server.call("GET", f"/v1/devices/{device.id}?limit=1").json()["parts"] == [second]
        assert server.call("GET", f"/v1/devices/{other.id}").json()["refusals"][0]["code"] == "foreign"


def test_a_device_of_mode_iteration_has_rounds_without_a_report(server, bundle_name):
    server.create_job(bundle_name, training={"mode": "iteration", "iterations": 2}, per_round=1)
    server.advance()
    device = server.device()
    device.task()
    (part,) = server.call("GET", f"/v1/devices/{device.id}").json()["parts"]
    assert (part["state"], part["loss"], part["ended"]) == ("open", None, None)


def test_why_a_device_waits(serving, bundle, database):
    with serving(**database) as server:
        device = server.device("pi 3")

        def waits(**said) -> list[str]:
            here(server, [device], **said)
            return server.call("GET", f"/v1/devices/{device.id}").json()["waits"]

        assert waits() == ["no job is running"]
        name = server.upload(bundle)
        server.create_job(name, "first", per_round=2, over_selection=1, optimizers=AVERAGE)
        server.create_job(name, "second", per_round=1, over_selection=1, optimizers=AVERAGE)
        server.call("POST", "/v1/jobs/second/pause")
        server.advance()
        assert waits(runtimes=["executorch"]) == ["job first needs one of the runtimes onnx", "job second is paused"]
        assert waits(runtimes=["onnx"], job="second") == [
            "job first: it asks for tasks of second alone (--job)", "job second is paused",
        ]  # fmt: skip
        task = device.task(job="first")
        assert waits(job="first") == []  # it has a part
        device.send(task, device.update(task))
        assert waits(job="first") == [
            "job first: it has done its part of round 1, which waits for others", "job second is paused",
        ]  # fmt: skip


def test_a_note_is_kept_and_stands_in_the_audit_log(serving, bundle, database):
    with serving(**database) as server:
        device = server.device()
        path = f"/v1/devices/{device.id}/note"
        assert server.call("GET", f"/v1/devices/{device.id}").json()["note"] == ""
        server.call("PUT", path, 204, json={"note": "in the cellar, slow network"})
        assert server.call("GET", "/v1/devices").json()[0]["note"] == "in the cellar, slow network"
        deed = server.call("GET", "/v1/audit").json()[0]
        assert (deed["actor"], deed["action"], deed["subject"]) == ("admin", "device-note", device.id)
        server.call("PUT", path, 204, json={"note": ""})
        assert server.call("GET", f"/v1/devices/{device.id}").json()["note"] == ""
        server.call("PUT", path, 422, json={"note": "x" * 301})
        server.call("PUT", path, 422, json={"note": "two\nlines"})


def test_a_device_that_is_not_there(server):
    assert "GET /v1/devices lists them" in server.call("GET", "/v1/devices/d-none", 404).json()["detail"]
    server.call("PUT", "/v1/devices/d-none/note", 404, json={"note": "x"})
