"""The same rounds on PostgreSQL, and several workers on one database."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from sqlalchemy import func, inspect, select

from server.errors import ServerConfigError
from server.rounds.rounds import advance
from server.rounds.selection.offers import Offers
from server.storage.schema.tables import SCHEMA, about, rounds, tasks, versions
from server.web.routes.events import Feed
from tests.server.rounds.test_iterations import SHAPE, scalars, send
from tests.server.rounds.test_rounds import AVERAGE


def test_rounds_in_both_modes(serving, bundle, database):
    import numpy as np

    with serving(**database) as server:
        name = server.upload(bundle)
        server.create_job(name, "epoch", per_round=2, over_selection=1, rounds=2, optimizers=AVERAGE)
        training = {"mode": "iteration", "iterations": 2, **SHAPE}
        server.create_job(name, "iteration", training=training, per_round=2, over_selection=1, rounds=1)
        server.advance()
        devices = [server.device() for _ in range(2)]
        for _ in range(2):
            work = [device.task(job="epoch") for device in devices]
            for device, task in zip(devices, work, strict=True):
                device.send(task, device.update(task))
                assert device.send(task, device.update(task))["repeated"]
            server.advance()
        work = [device.task(job="iteration") for device in devices]
        for iteration in range(2):
            for device, task in zip(devices, work, strict=True):
                send(device, task, iteration, scalars(np.random.default_rng()))
            server.advance()
        assert [server.job(job)["state"] for job in ("epoch", "iteration")] == ["ended", "ended"]
        assert server.job("iteration")["version"] == 2
        assert b"spry_jobs" in server.call("GET", "/metrics").content
        for job in server.call("GET", "/v1/jobs").json():
            assert {row["round"] for row in server.call("GET", f"/v1/jobs/{job['id']}/traffic").json()} >= {1}
            (told,) = [event for event in Feed(server.store, job["id"]).news().events if event.name == "traffic"]
            assert json.loads(told.data)[-1]["up"] > 0
            assert server.job(job["id"])["up"] > 0
        assert all(device["up"] > 0 for device in server.call("GET", "/v1/devices").json())
        server.call("GET", "/v1/jobs/epoch/adapter")


def test_a_restart_goes_on_with_the_open_round(serving, bundle, database):
    with serving(**database) as server:
        server.create_job(server.upload(bundle), per_round=2, over_selection=1)
        server.advance()
        first, second = server.device(), server.device()
        task, other = first.task(), second.task()
        first.send(task, first.update(task))
    with serving(**database) as server:
        first.server = second.server = server
        assert second.task()["id"] == other["id"]
        second.send(other, second.update(other))
        server.advance()
        assert server.job()["metrics"]["reports"] == 2


def test_several_workers_hand_out_each_place_once_and_close_each_round_once(serving, bundle, database):
    """Two applications on one database, both asked at once by many threads."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(**database)) for _ in range(2)]
        job = servers[0].create_job(servers[0].upload(bundle), per_round=6, over_selection=1, optimizers=AVERAGE)
        servers[0].advance()
        devices = [servers[0].device() for _ in range(12)]
        barrier = threading.Barrier(12)

        def join(number):
            device = devices[number]
            device.server = servers[number % 2]
            barrier.wait()
            return device.check_in()["task"]

        with ThreadPoolExecutor(12) as pool:
            given = list(pool.map(join, range(12)))
        taken = [(device, task) for device, task in zip(devices, given, strict=True) if task]
        assert len(taken) == 6
        assert len({task["seed"] for _, task in taken}) == 6
        for device, task in taken:
            device.send(task, device.update(task))
        gate = threading.Barrier(6)

        def close(number):
            gate.wait()
            return advance(servers[number % 2].store, job["id"])

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(close, range(6)))
        servers[0].advance()
        with servers[1].store.database.read() as connection:
            assert connection.scalar(select(func.count()).select_from(versions)) == 1
            assert connection.scalar(select(func.count()).where(rounds.c.state == "open")) == 1
            accepted = select(func.count()).where(tasks.c.state == "accepted")
            assert connection.scalar(accepted) == 6
        assert servers[1].job()["metrics"]["reports"] == 6


def test_one_device_has_one_task_whoever_it_asks(serving, bundle, database):
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(**database)) for _ in range(2)]
        servers[0].create_job(servers[0].upload(bundle), per_round=6)
        servers[0].advance()
        device = servers[0].device()
        barrier = threading.Barrier(4)

        def ask(number):
            from edge_client.wire.protocol import CheckIn
            from server.control.credentials import authenticate

            store = servers[number % 2].store
            known = authenticate(store, device.headers["Authorization"].removeprefix("Bearer "))
            offers = Offers(store)
            barrier.wait()
            return offers.answer(known, CheckIn(["onnx"])).task.id

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(ask, range(4)))) == 1


def test_a_database_of_a_newer_server_is_refused(serving, tmp_path):
    from sqlalchemy import update

    from server.errors import ServerConfigError
    from server.settings import Settings
    from server.storage.schema.tables import about
    from server.storage.store import Store

    with serving() as server, server.store.database.write() as connection:
        connection.execute(update(about).values(value="99"))
    with pytest.raises(ServerConfigError, match="upgrade spry"):
        Store(Settings(data_dir=tmp_path / "data"))


def test_a_database_that_does_not_answer_is_told_of(tmp_path):
    from server.errors import ServerConfigError
    from server.settings import Settings
    from server.storage.store import Store

    url = "postgresql://nobody@127.0.0.1:1/none"
    with pytest.raises(ServerConfigError, match="SPRY_DATABASE_URL"):
        Store(Settings(data_dir=tmp_path / "data", database_url=url))


def test_a_database_of_an_earlier_version_is_given_what_came_since(serving, bundle, database):
    with serving(**database) as server:
        server.create_job(server.upload(bundle))
        server.advance()
        with server.store.database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE rounds DROP COLUMN fence")
            connection.exec_driver_sql("DROP INDEX open_rounds")
            connection.exec_driver_sql("UPDATE about SET value = '1' WHERE key = 'schema'")
    with serving(**database) as server, server.store.database.read() as connection:
        assert connection.execute(select(rounds.c.job, rounds.c.fence)).all() == [(server.job()["id"], 0)]
        assert "open_rounds" in {index["name"] for index in inspect(connection).get_indexes("rounds")}
        assert connection.scalar(select(about.c.value).where(about.c.key == "schema")) == str(SCHEMA)


def test_a_database_of_a_later_version_is_refused(serving, database):
    with serving(**database) as server, server.store.database.write() as connection:
        connection.exec_driver_sql("UPDATE about SET value = '1000' WHERE key = 'schema'")
    with pytest.raises(ServerConfigError, match=f"has schema 1000, this server knows {SCHEMA}: upgrade spry"):
        serving(**database).__enter__()


def test_a_database_that_is_gone_is_no_fresh_start(serving, bundle, tmp_path):
    data = tmp_path / "data"
    with serving() as server:
        server.upload(bundle)
    for path in data.glob("spry.sqlite*"):
        path.unlink()
    for _ in range(2):  # the second start finds what the first one left
        with pytest.raises(ServerConfigError, match="bundles holds files, but the database is empty or gone: restore"):
            serving().__enter__()


def test_an_empty_database_beside_blobs_is_no_fresh_start(serving, database, tmp_path):
    blob = tmp_path / "data" / "blobs" / "ab" / ("ab" * 32)
    blob.parent.mkdir(parents=True)
    blob.touch()
    with pytest.raises(ServerConfigError, match="blobs holds files"):
        serving(**database).__enter__()
    blob.unlink()
    with serving(**database) as server:
        assert server.call("GET", "/v1/jobs").json() == []


def test_an_update_that_comes_while_the_database_is_away_is_sent_again(serving, bundle, postgres, tmp_path):
    name = f"away_{abs(hash(tmp_path)):x}"
    postgres.psql(f"CREATE DATABASE {name}")
    with serving(database_url=postgres.get_uri(name)) as server:
        server.create_job(server.upload(bundle), per_round=1, over_selection=1, rounds=1)
        server.advance()
        device = server.device()
        task = device.task()
        content = device.update(task)
        postgres.psql(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        postgres.psql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        answer = device.call("PUT", f"/v1/tasks/{task['id']}/update", 503, content=content)
        assert int(answer.headers["Retry-After"]) > 0
        postgres.psql(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
        assert not device.send(task, content)["repeated"]
        assert device.send(task, content)["repeated"]
        server.advance()
        assert server.job()["version"] == 1


def test_a_server_goes_on_while_a_newer_one_adds_to_its_tables(serving, bundle, database):
    """As in an upgrade of one server after the other."""
    with serving(**database) as server:
        server.create_job(server.upload(bundle), per_round=1, over_selection=1, rounds=1)
        with server.store.database.write() as connection:
            for table in ("jobs", "rounds", "tasks", "devices"):
                connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN later INTEGER NOT NULL DEFAULT 0")
            connection.exec_driver_sql(f"UPDATE about SET value = '{SCHEMA + 1}' WHERE key = 'schema'")
        server.advance()
        device = server.device()
        device.send(task := device.task(), device.update(task))
        server.advance()
        assert server.job()["version"] == 1
