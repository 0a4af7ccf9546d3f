"""Show a demo's result in tables."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from edge_client.format import size
from server.demo import intents
from server.demo.folder import DemoFolder
from server.demo.plan import DemoPlan
from server.demo.result import Accuracy, DemoResult, DeviceResult


def show(result: DemoResult, plan: DemoPlan, console: Console) -> None:
    console.print()
    console.print(_accuracies(result.accuracy))
    console.print()
    console.print(_per_device(result.devices))
    console.print("[dim]up, down: bytes a round; the last three: accuracy on the device's own habits[/dim]")
    how = f"{result.rounds} rounds of {plan.clients} devices, {result.steps} steps each, mode {plan.training.mode}"
    console.print(f"\n{how}; {result.seconds:.0f} s in all")
    console.print(f"The PEFT adapter: [bold]{result.adapter}[/bold]\n", soft_wrap=True)


def _accuracies(accuracy: Accuracy) -> Table:
    own = accuracy.own
    table = Table(
        title="Accuracy on phrasings that no device has heard", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("")
    for column in ("of all intents", "of each device's own habits"):
        table.add_column(column, justify="right", style="cyan")
    table.add_row("before", f"{accuracy.before:.2f}", f"{own.before:.2f}")
    table.add_row("each device alone", f"{accuracy.alone:.2f}", f"{own.alone:.2f}")
    table.add_row("[bold]together (global)", f"[bold]{accuracy.after:.2f}", f"[bold]{own.together:.2f}")
    table.add_row("together, then alone (personal)", "", f"{own.personal:.2f}")
    return table


def _per_device(devices: list[DeviceResult]) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for column in ("device", "runtime", "memory", "s/step", "up", "down", "alone", "global", "personal"):
        table.add_column(column, justify="left" if column in ("device", "runtime") else "right", no_wrap=True)
    for device in devices:
        step = "" if device.seconds_per_step is None else f"{device.seconds_per_step:.3f}"
        own = (f"{value:.2f}" for value in (device.own.alone, device.own.together, device.own.personal))
        amounts = size(device.up), size(device.down)
        table.add_row(device.name, device.runtime, size(device.peak_bytes), step, *amounts, *own)
    return table


def next_steps(plan: DemoPlan, folder: DemoFolder, home: Path, *, keep_serving: bool) -> str:
    """Commands that work as they are printed."""
    merge = f"spry merge {folder.adapter} {plan.model} --labels {len(intents.LABELS)} --out {plan.out}/merged"
    commands = [
        ("predict on a device, by its own weights", f'spry predict "I am cold in the attic" --home {home} --personal'),
        ("a plain model with the adapter in it", merge),
        ("after every step, a few numbers for the adapter and the head's gradient", "spry demo --mode iteration"),
    ]
    if not keep_serving:
        commands.append(("leave the dashboard and the devices up", "spry demo --keep-serving"))
    return "What to try next:\n" + "\n".join(f"  # {what}\n  {command}" for what, command in commands)
