"""What a demo came to: measured at its end, shown as a table or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from server.demo import intents
from server.demo.fleet import HEARD, JOB, Fleet
from server.demo.folder import Folder
from server.demo.judge import Judge, Local
from server.demo.plan import Plan
from server.demo.screen import Screen


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
    """What the demo asked of one device, and what that device has of it."""

    name: str
    runtime: str
    peak_bytes: int
    """Of the whole process, resident."""
    seconds_per_step: float | None
    up: float
    down: float
    """Bytes a round; the bundle, which comes once, not counted."""
    alone: float
    """Its accuracy on what everybody says, had it trained alone."""
    own: Own


@dataclass(frozen=True)
class Accuracy:
    """On held-out phrases of all intents; `own` on each device's habits, as a mean over the devices."""

    before: float
    after: float
    alone: float
    own: Own


@dataclass(frozen=True)
class Result:
    """Everything that `--json` prints."""

    accuracy: Accuracy
    rounds: int
    steps: int
    """Of a device, in all rounds together."""
    seconds: float
    devices: list[DeviceResult]
    adapter: str
    dashboard: str


def measured(
    plan: Plan, folder: Folder, fleet: Fleet, screen: Screen, steps: int
) -> tuple[Accuracy, list[DeviceResult]]:
    """Judge the weights, on the CPU that the devices have left free."""
    test = intents.common_test(plan.test)
    traffic = _traffic(fleet)
    profiles = {device["name"]: device["profile"] or {} for device in fleet.admin.get("/v1/devices")}
    found: list[DeviceResult] = []
    with Judge(folder.bundle, fleet.devices[0].runtime, plan.training) as judge:
        after = judge.adapter(folder.adapter)
        pass_ = -(-HEARD // plan.training.batch)
        for device in fleet.devices:
            screen.doing(f"each device alone, for comparison: {device.name} ({device.number + 1} of {plan.clients})")
            rows = intents.slice_of(device.number, HEARD)
            alone = judge.trained(judge.initial, Local(rows, steps, device.number))
            personal = judge.trained(after, Local(rows, pass_, device.number))
            own = judge.accuracy(intents.own_test(device.number, plan.own_test), judge.initial, after, personal, alone)
            up, down = traffic.get(device.name, (0, 0))
            found.append(
                DeviceResult(
                    name=device.name,
                    runtime=device.runtime,
                    peak_bytes=device.process.peak,
                    seconds_per_step=profiles.get(device.name, {}).get("step_seconds"),
                    up=up / plan.rounds,
                    down=down / plan.rounds,
                    alone=judge.accuracy(test, alone)[0],
                    own=Own(*own),
                )
            )
        before, at_the_end = judge.accuracy(test, judge.initial, after)
    means = (fmean(getattr(device.own, name) for device in found) for name in Own.__dataclass_fields__)
    return Accuracy(before, at_the_end, fmean(device.alone for device in found), Own(*means)), found


def _traffic(fleet: Fleet) -> dict[str, tuple[int, int]]:
    """Bytes up and down by device, over all rounds."""
    names = {device["id"]: device["name"] for device in fleet.admin.get("/v1/devices")}
    total: dict[str, tuple[int, int]] = {}
    for row in fleet.admin.get(f"/v1/jobs/{JOB}/traffic"):
        if row["round"]:
            up, down = total.get(names[row["device"]], (0, 0))
            total[names[row["device"]]] = up + row["up"], down + row["down"]
    return total


def as_json(result: Result) -> dict[str, Any]:
    return asdict(result)


def show(result: Result, plan: Plan, console: Console) -> None:
    accuracy = result.accuracy
    console.print()
    console.print(_accuracies(accuracy))
    console.print()
    console.print(_devices(result.devices))
    console.print(
        f"\n{result.rounds} rounds of {plan.clients} devices, {result.steps} steps each, mode "
        f"{plan.training.mode}; {result.seconds:.0f} s in all. The adapter: [bold]{result.adapter}[/bold]\n"
    )


def _accuracies(accuracy: Accuracy) -> Table:
    own = accuracy.own
    table = Table(title="accuracy on phrases that no device has heard", title_justify="left", box=None, pad_edge=False)
    for column, style in (("", None), ("of all intents", "cyan"), ("of the device's own habits", "cyan")):
        table.add_column(column, justify="left" if not column else "right", style=style)
    table.add_row("before", f"{accuracy.before:.2f}", f"{own.before:.2f}")
    table.add_row("each device alone", f"{accuracy.alone:.2f}", f"{own.alone:.2f}")
    table.add_row("[bold]together (the global model)", f"[bold]{accuracy.after:.2f}", f"[bold]{own.together:.2f}")
    table.add_row("together, then one pass alone (personal)", "", f"{own.personal:.2f}")
    return table


def _devices(devices: list[DeviceResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    columns = ("device", "runtime", "peak memory", "s/step", "up/round", "down/round", "alone", "together", "personal")
    for column in columns:
        table.add_column(column, justify="left" if column in ("device", "runtime") else "right", no_wrap=True)
    for device in devices:
        step = "" if device.seconds_per_step is None else f"{device.seconds_per_step:.3f}"
        own = (f"{value:.2f}" for value in (device.own.alone, device.own.together, device.own.personal))
        table.add_row(
            device.name, device.runtime, f"{device.peak_bytes / 1e6:.0f} MB", step, size(device.up), size(device.down),
            *own,
        )  # fmt: skip
    return table


def size(count: float) -> str:
    for unit, name in ((1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def next_steps(plan: Plan, folder: Folder, home: Path, keep_serving: bool) -> str:
    out = plan.out
    lines = [
        f'spry predict "it is freezing in the attic" --home {home}     # on a device, by its own weights',
        f"spry merge {folder.adapter} {plan.model} --labels {len(intents.LABELS)} --out {out}/merged",
        "spry demo --mode iteration                          # scalars instead of weights",
    ]
    if not keep_serving:
        lines.append("spry demo --keep-serving                            # leaves the dashboard and the devices up")
    return "What to try next:\n" + "\n".join(f"  {line}" for line in lines)
