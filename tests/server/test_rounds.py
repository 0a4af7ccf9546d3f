"""Rounds from check-in to weights, through the real application."""

import numpy as np
import pytest


def play(server, devices, changes, examples=None):
    """Each device takes a task, all report."""
    tasks = [device.task() for device in devices]
    for device, task, change, count in zip(devices, tasks, changes, examples or [8] * len(devices), strict=True):
        device.send(task, device.update(task, change, count))
    server.advance()
    return tasks


def test_a_round_averages_by_examples_over_holders(server, bundle_name):
    server.create_job(
        bundle_name, per_round=3, over_selection=1, optimizers={"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
    )
    server.advance()
    devices = [server.device() for _ in range(3)]
    before = devices[0].weights("job")
    tasks = play(server, devices, [0.1, 0.2, 0.4], [1, 2, 5])
    manifest = server.store.bundles.manifest(bundle_name)
    after = devices[0].weights("job")
    head = manifest.head[0].name
    np.testing.assert_allclose(after[head] - before[head], (0.1 + 0.4 + 2.0) / 8, atol=1e-6)
    for task, change in zip(tasks, [0.1, 0.2, 0.4], strict=True):
        for unit in task["units"]:
            for parameter in manifest.units[unit].parameters:
                np.testing.assert_allclose(after[parameter.name] - before[parameter.name], change, atol=1e-6)
    job = server.job()
    assert (job["version"], job["done"], job["progress"]["number"]) == (1, 1, 2)
    assert job["metrics"]["reports"] == 3
