"""Bytes that devices send and fetch, counted as they are on the wire."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from edge_client.bundle.manifest import FILE_NAME
from edge_client.wire.scalars import encode_report
from server.storage.work.traffic import Traffic
from tests.server.rounds.test_iterations import SHAPE, scalars, send
from tests.server.rounds.test_rounds import AVERAGE


def traffic(server, job: str = "job") -> dict[tuple[int, str], tuple[int, int]]:
    found = server.call("GET", f"/v1/jobs/{job}/traffic").json()
    return {(row["round"], row["device"]): (row["up"], row["down"]) for row in found}


def test_updates_and_weights_belong_to_their_round(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1, optimizers=AVERAGE)
    device = server.device()
    expected = {}
    for number in (1, 2):
        server.advance()
        task = device.task()
        weights = device.call("GET", "/v1/jobs/job/weights").content
        update = device.update(task)  # fetches the weights once more
        device.send(task, update)
        expected[number, device.id] = len(update), 2 * len(weights)
    assert traffic(server) == expected
    job = server.job()
    assert job["up"] == sum(up for up, _ in expected.values())
    assert job["down"] == sum(down for _, down in expected.values())
    text = server.call("GET", "/metrics").text
    assert f'spry_bytes_total{{direction="up"}} {float(job["up"])}' in text
    assert f'spry_bytes_total{{direction="down"}} {float(job["down"])}' in text


def test_a_refused_or_repeated_update_travelled_too(server, bundle_name):
    server.create_job(bundle_name, per_round=2)
    server.advance()
    device = server.device()
    task = device.task()
    update = device.update(task)
    assert device.send(task, b"nonsense", 422)["code"] == "invalid"
    assert device.send(task, update, 409)["code"] == "late"
    assert traffic(server)[1, device.id][0] == len(update) + len(b"nonsense")


def test_scalars_and_steps_belong_to_their_round(server, bundle_name):
    training = {"mode": "iteration", "iterations": 2, **SHAPE}
    server.create_job(bundle_name, training=training, per_round=1, over_selection=1, rounds=1)
    server.advance()
    device = server.device()
    task = device.task()
    up = down = 0
    for iteration in range(2):
        report = scalars(np.random.default_rng(iteration))
        send(device, task, iteration, report)
        up += len(encode_report(report))
        server.advance()
        down += len(device.call("GET", "/v1/jobs/job/steps", params={"since": iteration}).content)
    assert traffic(server) == {(1, device.id): (up, down)}


def test_a_bundle_belongs_to_the_job_and_no_round(server, bundle_name):
    server.create_job(bundle_name)
    device = server.device()
    path = f"/v1/bundles/{bundle_name}/{FILE_NAME}"
    whole = len(device.call("GET", path).content)
    assert traffic(server) == {}  # the device had no task
    server.advance()
    device.task()
    rest = server.call("GET", path, 206, headers={**device.headers, "Range": "bytes=100-"}).content
    assert len(rest) == whole - 100
    server.call("GET", path)  # an administrator's
    assert traffic(server) == {(0, device.id): (0, whole - 100)}
    (view,) = server.call("GET", "/v1/devices").json()
    assert (view["up"], view["down"]) == (0, 2 * whole - 100)


def test_what_was_counted_is_kept_at_the_end(serving, bundle):
    with serving() as server:
        server.create_job(server.upload(bundle), per_round=2)
        server.advance()
        device = server.device()
        task = device.task()
        update = device.update(task)
        device.send(task, update)
    with serving() as server:
        assert server.job()["up"] == len(update)
        (view,) = server.call("GET", "/v1/devices").json()
        assert view["profile"]["runtimes"] == ["onnx"]


def test_workers_add_to_one_another(serving, database):
    """Many threads of two processes' worth, all on the same rows."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(**database)) for _ in range(2)]
        counters = [Traffic(server.store.database) for server in servers]
        gate = threading.Barrier(8)

        def count(number):
            gate.wait()
            for turn in range(20):
                counters[number % 2].add(("job", turn % 3), f"d-{turn % 4}", up=1, down=10)
                counters[number % 2].save()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(count, range(8)))
        with servers[0].store.database.read() as connection:
            from server.storage.schema.tables import traffic as table

            rows = connection.execute(table.select()).all()
    assert (sum(row.up for row in rows), sum(row.down for row in rows)) == (8 * 20, 8 * 200)
    assert len(rows) == 12


def test_what_could_not_be_written_is_written_later(server, monkeypatch):
    counter = server.store.traffic
    counter.add(("", 0), "d-1", up=5)

    def broken():
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(server.store.database, "write", broken)
        with pytest.raises(OSError, match="No space"):
            counter.save()
    counter.add(("", 0), "d-1", up=2)
    counter.save()
    from server.control.devices import device_totals

    assert device_totals(server.store) == {"d-1": (7, 0)}
