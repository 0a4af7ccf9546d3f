"""Numbers of a device's own choosing: held to what it declared and to what its task could have processed."""

import numpy as np
import pytest

from edge_client.wire.protocol import Report, Training
from server.errors import Refusal
from server.strategy.counts import held_to
from tests.server.rounds.test_rounds import AVERAGE, play


@pytest.fixture
def manifest(server, bundle_name):
    return server.store.bundles.manifest(bundle_name)


@pytest.mark.parametrize(
    ("declared", "steps", "iterations", "counts"),
    [(None, 10, 0, 80), (50, 10, 0, 50), (None, 2, 0, 16), (None, 1000, 3, 24), (500, 1000, 0, 100)],
)
def test_examples_are_those_there_can_be(manifest, declared, steps, iterations, counts):
    training = Training(batch=8, iterations=iterations)
    report = Report(100 if steps > 10 else 2**40, steps, 1.0)
    assert held_to(report, declared, training, manifest).examples == counts


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (Report(8, 1, 1.0, held_back=1, right_global=2**40), "counts 1099511627776 right of 1 held back"),
        (Report(8, 1, 1.0, held_back=1, right_personal=2), "counts 2 right of 1"),
        (Report(8, 1, 1.0, held_back=99), "counts 99 held back, the device declared 10 examples"),
    ],
)
def test_what_cannot_be_is_refused(manifest, report, told):
    with pytest.raises(Refusal, match=told):
        held_to(report, 10, Training(), manifest)


def test_no_device_owns_the_mean(server, bundle_name):
    server.create_job(bundle_name, per_round=10, over_selection=1, optimizers=AVERAGE)
    server.advance()
    devices = [server.device() for _ in range(10)]
    tasks = [device.task(examples=2**40 if device is devices[0] else 8) for device in devices]
    before = devices[0].weights("job")
    for device, task in zip(devices, tasks, strict=True):
        bends = device is devices[0]
        examples = 2**40 if bends else 8
        device.send(task, device.update(task, -0.1 if bends else 0.1, examples, steps=2**31))
    server.advance()
    head = server.store.bundles.manifest(bundle_name).head[0].name
    moved = devices[0].weights("job")[head] - before[head]
    np.testing.assert_allclose(moved, (9 * 0.1 - 0.1) / 10, atol=1e-6)


def test_a_declared_number_bounds_the_weight(server, bundle_name):
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    device = server.device()
    task = device.task(examples=8)
    device.send(task, device.update(task, examples=2**40, steps=2**31))
    server.advance()
    assert server.job()["metrics"]["examples"] == 8


def test_a_device_does_not_end_a_job(server, bundle_name):
    server.create_job(bundle_name, per_round=4, over_selection=1, device_evaluation=1, target=0.9)
    server.advance()
    devices = [server.device() for _ in range(4)]
    play(server, devices, [0.1] * 4)  # no model to measure before the first
    tasks = [device.task(examples=100) for device in devices]
    for device, task in zip(devices, tasks, strict=True):
        measured = {"held_back": 9, "right_global": 9, "right_personal": 9} if device is devices[0] else {}
        device.send(task, device.update(task, **measured))
    server.advance()
    job = server.job()
    assert (job["metrics"]["accuracy_global"], job["state"]) == (1.0, "running")
    tasks = [device.task(examples=100) for device in devices]
    for device, task in zip(devices, tasks, strict=True):
        right = 0 if device is devices[0] else 10
        held_back = 100 if device is devices[0] else 10
        device.send(task, device.update(task, held_back=held_back, right_global=right, right_personal=right))
    server.advance()
    assert server.job()["metrics"]["accuracy_global"] == pytest.approx(30 / 40)  # 100 weigh as 10
    tasks = [device.task(examples=100) for device in devices]
    for device, task in zip(devices[:4], tasks, strict=True):
        device.send(task, device.update(task, held_back=10, right_global=10, right_personal=10))
    server.advance()
    assert server.job()["reason"] == "the accuracy of 1.0000 reaches the target 0.9"
