"""`spry demo`: the whole system learning on this machine."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from edge_client.runtimes.runtime import available
from server.cli.adapter import save_adapter
from server.demo import intents
from server.demo.fleet import JOB, DemoFleet, started
from server.demo.folder import DemoFolder
from server.demo.plan import BATCH, LENGTH, MODEL, MOST_CLIENTS, DemoPlan, plan_for
from server.demo.result import DemoResult, measured
from server.demo.tables import next_steps, show
from server.processes import check_free
from server.screen import Screen


def demo(
    clients: Annotated[int, typer.Option(min=1, max=MOST_CLIENTS, help="Devices.")] = 8,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds; 10, or 6 in mode iteration.")] = None,
    mode: Annotated[
        str,
        typer.Option(help="Devices send weights after a round (epoch), or numbers after every step (iteration)."),
    ] = "epoch",
    out: Annotated[Path, typer.Option(help="The folder for all files.")] = Path("spry-demo"),
    model: Annotated[str, typer.Option(help="The encoder to train, as `spry export` takes it.")] = MODEL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The server's port; a free one.")] = 0,
    keep_serving: Annotated[
        bool, typer.Option("--keep-serving", help="Leave server and devices running until interrupted.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Export a model, start a server and devices on this machine, and let them learn together.

    Example: spry demo --clients 4 --rounds 6 --keep-serving
    """
    plan = plan_for(clients, rounds, mode, out, model, port)
    if port:
        check_free("127.0.0.1", port)  # before the minutes of an export
    folder, screen, begun = DemoFolder(plan.out), Screen(), time.monotonic()
    with screen.tells_an_interruption(), folder.taken():
        _exported(plan, folder, screen)
        with started(plan, folder) as fleet:
            result = _learned(plan, folder, fleet, screen, begun)
            if json_:
                typer.echo(json.dumps(asdict(result), indent=1))
                sys.stdout.flush()
            else:
                show(result, plan, Console())
                home = fleet.home(fleet.devices[0].name)
                typer.echo(next_steps(plan, folder, home, keep_serving=keep_serving))
            if keep_serving:
                screen.say(f"\nServing until you press Ctrl-C: [link]{fleet.dashboard}[/link]")
                fleet.serve()


def _exported(plan: DemoPlan, folder: DemoFolder, screen: Screen) -> None:
    recipe = [
        plan.model, "--labels", ",".join(intents.LABELS), "--quantize", "int8", "--target", ",".join(available()),
        "--batch", str(BATCH), "--seq", str(LENGTH), "--cuts", "3", *plan.recipe.adapter, "--no-measure",
    ]  # fmt: skip
    if folder.recipe.made(recipe):
        screen.say(f"[green]✓[/green] The bundle of an earlier run: {folder.bundle}")
        return
    doing = f"Exporting {plan.model} to int8 for {', '.join(available())} (about a minute, once)"
    folder.recipe.make(recipe, folder.logs / "export.log", screen, doing)


def _learned(plan: DemoPlan, folder: DemoFolder, fleet: DemoFleet, screen: Screen, begun: float) -> DemoResult:
    screen.say(f"[green]✓[/green] The server runs; its dashboard: [link]{fleet.dashboard}[/link]")
    with screen.stage(f"{plan.clients} devices learn {len(intents.LABELS)} intents", f"{plan.clients} devices learned"):
        fleet.start_job()
        fleet.start_devices()
        job = fleet.follow(screen)
    with screen.stage("Measuring", "Measured, with each device alone for comparison"):
        save_adapter(fleet.admin, JOB, folder.adapter)
        accuracy, devices = measured(plan, folder, fleet, screen)
    return DemoResult(
        accuracy=accuracy,
        rounds=job["done"],
        steps=plan.steps,
        seconds=round(time.monotonic() - begun, 1),
        devices=devices,
        adapter=str(folder.adapter),
        dashboard=fleet.dashboard,
    )
