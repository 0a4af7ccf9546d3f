"""Weights where mirrors show them: put there beside the rounds, told to devices, and removed with the server's own."""

import hashlib
import logging
import threading
import time

import pytest
from safetensors.numpy import load

from server.rounds import publisher as module
from server.rounds.publisher import WeightsPublisher
from server.storage.files.publication import open_target

MIRROR = "https://cdn.example.org/spry"
ALONE = {"per_round": 1, "over_selection": 1}


@pytest.fixture
def shown(tmp_path):
    return tmp_path / "shown"


@pytest.fixture
def server(serving, shown):
    with serving(publish_weights=str(shown), mirrors=MIRROR) as server:
        yield server


@pytest.fixture
def publish(server):
    """One pass of the thread."""
    target = open_target(server.store.settings.publish_weights)
    return WeightsPublisher(server.store, target, threading.Event()).publish


@pytest.fixture
def device(server):
    return server.device()


def play(server, device):
    """A whole round."""
    task = device.task()
    device.send(task, device.update(task, 0.1))
    server.advance()
    return task


def there(shown):
    return {path.name: path.read_bytes() for path in (shown / "weights").iterdir()}


def test_tasks_name_weights_that_mirrors_have(server, bundle_name, device, publish, shown):
    server.create_job(bundle_name, **ALONE)
    server.advance()
    assert play(server, device)["weights"] == ""  # they come with the bundle
    publish()
    task = play(server, device)
    ((name, content),) = there(shown).items()
    assert (task["version"], task["weights"], task["mirrors"]) == (1, name, [MIRROR])
    assert hashlib.sha256(content).hexdigest() == name
    assert device.task()["weights"] == ""  # version 2 is not there yet
    assert len(there(shown)) == 1


def test_they_are_those_that_the_server_gives(server, bundle_name, device, publish, shown):
    server.create_job(bundle_name, **ALONE)
    server.advance()
    play(server, device)
    publish()
    (content,) = there(shown).values()
    expected, found = device.weights("job"), load(content)
    assert found.keys() == expected.keys()
    assert all((found[name] == value).all() for name, value in expected.items())


def test_a_job_with_mirrors_of_its_own_has_its_weights_from_the_server(server, bundle_name, device, publish):
    server.create_job(bundle_name, **ALONE, mirrors="https://elsewhere.example.org")
    server.advance()
    play(server, device)
    publish()
    assert device.task()["weights"] == ""


def test_what_the_server_drops_is_removed(server, bundle_name, device, publish, shown):
    server.create_job(bundle_name, **ALONE, keep=1)
    server.advance()
    play(server, device)
    publish()
    first = set(there(shown))
    play(server, device)
    publish()
    assert len(there(shown)) == 1
    assert first.isdisjoint(there(shown))


def test_a_place_that_fails_costs_a_line_and_no_round(serving, bundle, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "_AFTER_A_FAILURE", 0.05)
    place = tmp_path / "a-file"
    place.write_text("")
    settings = {"publish_weights": str(place), "mirrors": MIRROR, "background": True, "tick_seconds": 0.01}
    with caplog.at_level(logging.WARNING, "spry.server"), serving(**settings) as server:
        server.create_job(server.upload(bundle), **ALONE)
        device = server.device()
        for version in range(2):
            task = wait_for(lambda: device.check_in()["task"])
            assert (task["version"], task["weights"]) == (version, "")
            device.send(task, device.update(task, 0.1))
        wait_for(lambda: server.job()["done"] == 2)
        wait_for(lambda: "weights for mirrors: [Errno" in caplog.text)
        place.unlink()  # a folder is made in its place
        wait_for(lambda: place.is_dir() and len(there(place)) == 1)


def wait_for(condition):
    until = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found
