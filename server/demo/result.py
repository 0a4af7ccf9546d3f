"""Measure a demo's result at its end."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from statistics import fmean
from typing import NamedTuple

from server.demo import intents
from server.demo.fleet import DemoDevice, DemoFleet
from server.demo.folder import DemoFolder
from server.demo.judge import Judge, Local
from server.demo.plan import DemoPlan
from server.screen import Screen


@dataclass(frozen=True)
class Own:
    """A device's accuracy on what its own household says, by weights that came about in different ways."""

    before: float
    together: float
    personal: float
    """The global model after one more pass over the device's own data."""
    alone: float
    """The same data and as many steps, and no other device."""


@dataclass(frozen=True)
class DeviceResult:
    """The work of one device in the demo, and its results."""

    name: str
    runtime: str
    peak_bytes: int
    """The resident memory of the whole process."""
    seconds_per_step: float | None
    up: float
    """Bytes a round."""
    down: float
    """Likewise; without the bundle, which comes once."""
    alone: float
    """The device's accuracy on the common test, had it trained alone."""
    own: Own


@dataclass(frozen=True)
class Accuracy:
    """The accuracy on held-out phrases of all intents; `own` on each device's habits, as a mean over the devices."""

    before: float
    after: float
    alone: float
    own: Own


@dataclass(frozen=True)
class DemoResult:
    """Everything that `--json` prints."""

    accuracy: Accuracy
    rounds: int
    steps: int
    """The steps of a device, in all rounds together."""
    seconds: float
    devices: list[DeviceResult]
    adapter: str
    dashboard: str


class Stopped(Exception):
    """Raised in a thread whose work nobody waits for any more."""


class Worth(NamedTuple):
    """The accuracies of one device's weights."""

    alone: float
    own: Own


def measured(
    plan: DemoPlan, folder: DemoFolder, fleet: DemoFleet, screen: Screen
) -> tuple[Accuracy, list[DeviceResult]]:
    """Judge the weights, on the CPU that the devices have left free, and ask the server for the rest."""
    judged = _judged(plan, folder, fleet, screen)
    with Judge(folder.bundle, fleet.devices[0].runtime, plan.training) as judge:
        before, after = judge.accuracy(intents.common_test(plan.test), judge.initial, judge.adapter(folder.adapter))
    means = Own(*(fmean(getattr(one.own, field.name) for one in judged) for field in fields(Own)))
    return Accuracy(before, after, fmean(one.alone for one in judged), means), _devices(fleet, judged)


def _judged(plan: DemoPlan, folder: DemoFolder, fleet: DemoFleet, screen: Screen) -> list[Worth]:
    """Evaluate devices by a thread for each core: the runtime leaves them alone while it works."""
    stopping = threading.Event()

    def check() -> None:
        if stopping.is_set():
            raise Stopped

    def judged(device: DemoDevice) -> Worth:
        with Judge(folder.bundle, fleet.devices[0].runtime, plan.training) as judge:
            after, rows = judge.adapter(folder.adapter), intents.slice_of(device.number, plan.heard)
            alone = judge.trained(judge.initial, Local(rows, plan.steps, device.number), check)
            personal = judge.trained(after, Local(rows, plan.steps_in_a_pass, device.number), check)
            habits = intents.own_test(device.number, plan.own_test)
            own = Own(*judge.accuracy(habits, judge.initial, after, personal, alone))
            (everybodys,) = judge.accuracy(intents.common_test(plan.test), alone)
            return Worth(everybodys, own)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        verdicts: list[Worth] = []
        try:
            for one in pool.map(judged, fleet.devices):
                verdicts.append(one)
                screen.doing(f"each device alone, for comparison: {len(verdicts)} of {plan.clients}")
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)
    return verdicts


def _devices(fleet: DemoFleet, judged: list[Worth]) -> list[DeviceResult]:
    traffic, step_seconds = fleet.bytes_a_round(), fleet.step_seconds()
    return [
        DeviceResult(
            name=device.name,
            runtime=device.runtime,
            peak_bytes=device.process.peak,
            seconds_per_step=step_seconds.get(device.name),
            up=traffic[device.name].up,
            down=traffic[device.name].down,
            alone=judged[device.number].alone,
            own=judged[device.number].own,
        )
        for device in fleet.devices
    ]
