"""What a demo came to: measured at its end, shown as a table or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from server.demo import intents
from server.demo.fleet import Fleet
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
    """Bytes a round."""
    down: float
    """Likewise; without the bundle, which comes once."""
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
    """Judge the weights, on the CPU that the devices have left free, and ask the server for the rest."""
    everybodys = intents.common_test(plan.test)
    alone: list[float] = []
    own: list[Own] = []
    with Judge(folder.bundle, fleet.devices[0].runtime, plan.training) as judge:
        after = judge.adapter(folder.adapter)
        for device in fleet.devices:
            screen.doing(f"each device alone, for comparison: {device.name} ({device.number + 1} of {plan.clients})")
            rows = intents.slice_of(device.number, plan.heard)
            lonely = judge.trained(judge.initial, Local(rows, steps, device.number))
            personal = judge.trained(after, Local(rows, plan.steps_in_a_pass, device.number))
            habits = intents.own_test(device.number, plan.own_test)
            own.append(Own(*judge.accuracy(habits, judge.initial, after, personal, lonely)))
            alone += judge.accuracy(everybodys, lonely)
        before, at_the_end = judge.accuracy(everybodys, judge.initial, after)
    means = Own(*(fmean(getattr(one, field.name) for one in own) for field in fields(Own)))
    return Accuracy(before, at_the_end, fmean(alone), means), _devices(fleet, alone, own)


def _devices(fleet: Fleet, alone: list[float], own: list[Own]) -> list[DeviceResult]:
    traffic, step_seconds = fleet.bytes_a_round(), fleet.step_seconds()
    return [
        DeviceResult(
            name=device.name,
            runtime=device.runtime,
            peak_bytes=device.process.peak,
            seconds_per_step=step_seconds.get(device.name),
            up=traffic[device.name].up,
            down=traffic[device.name].down,
            alone=alone[device.number],
            own=own[device.number],
        )
        for device in fleet.devices
    ]


def as_json(result: Result) -> dict[str, Any]:
    return asdict(result)


def show(result: Result, plan: Plan, console: Console) -> None:
    accuracy = result.accuracy
    console.print()
    console.print(_accuracies(accuracy))
    console.print()
    console.print(_per_device(result.devices))
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


def _per_device(devices: list[DeviceResult]) -> Table:
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
