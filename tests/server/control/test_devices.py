"""The list of devices, a single device, and notes about them."""

from edge_client import __version__
from server.control import credentials
from server.storage.identities import devices
from tests.server.rounds.selection.test_fleet import here
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
            "job first: it asks only for tasks of second (--job)", "job second is paused",
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


# --- all of them -----------------------------------------------------------------------------------------------------


def test_many_devices_are_searched_filtered_sorted_and_paged(serving, bundle, database):
    """With 120 of them in two groups: each answer is a page, whatever there is."""
    with serving(**database) as server:
        server.create_job(server.upload(bundle), per_round=1, over_selection=1, optimizers=AVERAGE)
        server.advance()
        first = server.device("board-1")
        here(server, [first, *(server.device(f"board-{number}") for number in range(2, 13))])
        token, _ = credentials.create_token(server.store, "the cellar", 1000, 3600.0, "admin")
        with server.store.database.write() as connection:
            for number in range(13, 121):
                devices.add(connection, f"d-{number}", "", f"board-{number}", token.id, server.store.now() - 1e6)
        task = first.task()

        def asked(**query) -> dict:
            return server.call("GET", "/v1/fleet", params=query).json()

        def names(**query) -> list[str]:
            return [device["name"] for device in asked(**query)["devices"]]

        whole = asked()
        assert (whole["total"], len(whole["devices"])) == (120, 50)
        assert whole["states"] == {"training": 1, "waiting": 11, "away": 108}
        assert len(whole["groups"]) == 13
        assert whole["groups"][0] == {"token": token.id, "label": "the cellar", "count": 108}
        assert whole["devices"][0]["name"] == "board-1", "who trains comes first"
        assert names(order="name", limit=12) == [f"board-{number}" for number in range(1, 13)], "as people count"
        assert names(order="name", offset=118) == ["board-119", "board-120"]
        assert names(order="name", descending=True, limit=2) == ["board-120", "board-119"]
        assert names(search="BOARD-11") == ["board-11", *(f"board-{number}" for number in range(110, 120))]
        assert names(search="%") == names(search="_") == [], "no patterns"
        found = asked(group=token.id, state="waiting")
        assert (found["total"], found["states"], found["devices"]) == (0, {"away": 108}, [])
        assert names(failed=True) == []
        first.call("POST", f"/v1/tasks/{task['id']}/failure", json={"reason": "the battery is low"})
        (failed,) = asked(failed=True)["devices"]
        assert (failed["name"], failed["failed"]["code"]) == ("board-1", "failed")
        assert failed["failed"]["detail"] == "the battery is low"
        assert names(order="failed", descending=True, limit=1) == ["board-1"]
        for wrong in ({"limit": 201}, {"order": "hash"}, {"offset": -1}, {"search": "x" * 101}):
            server.call("GET", "/v1/fleet", 422, params=wrong)


def test_the_version_of_a_devices_client_is_known(server):
    device = server.device("pi 3")
    says = {"User-Agent": f"spry/{__version__}"}
    server.call("POST", "/v1/check-in", headers=device.headers | says, json={"runtimes": ["onnx"]})
    here(server, [device])  # by a client that says nothing
    (listed,) = server.call("GET", "/v1/fleet", params={"search": __version__}).json()["devices"]
    assert (listed["name"], listed["version"]) == ("pi 3", __version__)
