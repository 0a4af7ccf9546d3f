"""`spry up`, `spry status` and `spry down`: a project's server, job and trial devices."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from edge_client.wire.invitation import Invitation
from server.cli.common import say, show_json, span
from server.cli.connection import Access, Administrator, part
from server.cli.job_lines import job_line, to_beat
from server.control.invitations import as_lines
from server.errors import ProjectError
from server.project.export import Recipe
from server.project.folder import Project
from server.project.running import Running
from server.screen import Screen
from server.start.job import ensure_job, invitation, known_job
from server.start.local import SERVER, publisher, settle_port, start_devices, start_server

_LOOK = 0.5
_STANDS_STILL = 45.0
"""The seconds without another round after which people are shown what a job waits for."""
_BY_REGRESSION = " (both by logistic regression on the frozen encoder's features)"
FolderOption = Annotated[
    Path | None, typer.Option("--project", help="The project's folder; by default the current one.")
]


def up(
    trial: Annotated[
        int, typer.Option("--try", min=0, help="The number of devices on this machine, each with a part of the rows.")
    ] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the job; leave it running.")] = False,
    project: FolderOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON on standard output.")] = False,
) -> None:
    """Export the project's model, start its server and its job, and show how devices join.

    You can run it again at any time: it keeps finished parts, and makes the parts that changed in spry.toml anew.
    Ctrl-C ends only the display; `spry down` ends the rest.

    Example: spry up --try 4
    """
    home, screen = Project.here(project), Screen()
    with home.locked():
        trust = publisher(home)
        running = Running(home.kept / "running.json")
        if SERVER not in running.names:
            settle_port(home, write=False)  # what cannot be is said before an export is waited for
        _export(home, screen)
        _serve(home, running, screen)
        with _administrator(home) as administrator:
            job, new = ensure_job(home, administrator)
            token = invitation(home, administrator, trust)
        start_devices(home, running, trial, token)
    name = job["name"]
    screen.say(f"[green]✓[/green] Job {name} {'is running' if new else 'is ' + job['state']}")
    screen.say(f"\nTo join from a device, run\n  {join_line(home, token)}\n{escape(_reach(home))}")
    if home.is_reached and screen.console.is_terminal:
        screen.say(escape(as_lines(Invitation(home.outer_url, token))))
    try:
        if not detach and (trial or running.names != [SERVER]):
            job = _watched(home, name, screen)
    except KeyboardInterrupt:
        screen.say("The job continues: `spry status` shows its state, `spry down` ends it.")
        raise
    if as_json:
        show_json({"job": job, "token": token, "server": home.url, "running": running.names})
    elif job["state"] == "ended":
        for line in [*_learned(job), *_compared(home, job, screen)]:
            screen.say(escape(line))
        typer.echo(_next_steps(home, name))


def status(
    project: FolderOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON on standard output.")] = False,
) -> None:
    """Show a project's running processes, and its job's state. Ends with 1 if the server does not run.

    Example: spry status
    """
    home = Project.here(project)
    running, job = Running(home.kept / "running.json"), None
    devices, advice = list[dict[str, Any]](), list[str]()
    up_ = SERVER in running.names
    if up_ and (name := known_job(home)):
        with _administrator(home) as administrator:
            job = administrator.get(f"/v1/jobs/{part(name)}")
            advice = administrator.get(f"/v1/jobs/{part(name)}/advice")
            devices = administrator.get("/v1/devices")
    if as_json:
        show_json({"server": home.url if up_ else None, "running": running.names, "ended": running.ended, "job": job})
    else:
        say(f"server: {_dashboard(home)}" if up_ else "server: not running; start it with `spry up`")
        if job is not None:
            say(job_line(job))
            for line in advice:
                say(line)
            trial = len([one for one in running.names if one != SERVER])
            say(f"devices: {len(devices)} enrolled; {trial} trial device{'' if trial == 1 else 's'} on this machine")
        for line in _ended(home, running):
            say(line)
    if not up_:
        raise typer.Exit(1)


def down(project: FolderOption = None) -> None:
    """End a project's server and trial devices; the result stays, and `spry up` continues from it.

    Example: spry down
    """
    home = Project.here(project)
    with home.locked():
        stopped = Running(home.kept / "running.json").stop()
    say(f"ended: {', '.join(stopped)}" if stopped else "nothing was running")


def _serve(home: Project, running: Running, screen: Screen) -> None:
    """Start the server where it does not run, on another port where a new one's is taken."""
    asked = home.file.server.port
    if SERVER not in running.names:
        settle_port(home)
    started = start_server(home, running)
    if (port := home.file.server.port) != asked:
        screen.say(f"Port {asked} is another program's: spry.toml has {port} now")
    if started:
        screen.say(f"[green]✓[/green] The server runs; its dashboard: [link]{_dashboard(home)}[/link]")


def _export(home: Project, screen: Screen) -> None:
    model = home.file.model
    words = [
        model.source, "--task", model.task, "--quantize", model.quantize, "--target", ",".join(model.targets),
        "--batch", str(model.batch), "--seq", str(model.length), "--sign", str(home.publisher.absolute()),
        *(("--labels", json.dumps(model.labels)) if model.labels else ()), *model.options,
    ]  # fmt: skip
    recipe = Recipe(home.bundle, home.kept / "bundle.recipe")
    if recipe.made(words):
        screen.say(f"[green]✓[/green] The bundle as it was exported before: {home.bundle}")
    else:
        recipe.make(words, home.logs / "export.log", screen, f"Exporting {model.source}")


def _administrator(home: Project) -> Administrator:
    if not home.admin_token.is_file():
        raise ProjectError(f"{home.admin_token} is gone, so nobody can control the server; restore it from a backup")
    ca = home.path(home.file.server.tls_cert) if home.file.server.tls_cert else None
    return Administrator(Access(home.url, home.admin_token.read_text().strip(), ca))


def _dashboard(home: Project) -> str:
    return f"{home.url}/#token={home.admin_token.read_text().strip()}"


def join_line(home: Project, token: str) -> str:
    ca = f" --ca {Path(home.file.server.tls_cert).name}" if home.file.server.tls_cert else ""
    return f"spry join --server {home.outer_url} --token {token}{ca} --data my.jsonl"


def _reach(home: Project) -> str:
    if not home.is_reached:
        return "on this machine; for others set host, and tls_cert or plain_http, under [server] in spry.toml"
    return "on any machine that reaches it; the token is secret"


def _ended(home: Project, running: Running) -> list[str]:
    """List processes that ended though nobody asked them to, and why."""
    return [f"{one} ended: {why} (see {home.logs / one}.log)" for one, why in running.ended.items()]


def _watched(home: Project, name: str, screen: Screen) -> dict[str, Any]:
    """Watch a job until it has ended, and print each round as it is done."""
    told, since, troubles = 0, time.monotonic(), set[str]()
    running = Running(home.kept / "running.json")
    with _administrator(home) as administrator, screen.stage(f"{name} learns", f"{name} has learned"):
        while True:
            running.check(SERVER)
            job = administrator.get(f"/v1/jobs/{part(name)}")
            rounds = job["settings"]["rounds"]
            if job["done"] > told:
                rows = administrator.get(f"/v1/jobs/{part(name)}/rounds")
                done = [row for row in reversed(rows) if row["state"] == "done"]
                for row in done[told - len(done) or None :] if told < len(done) else []:
                    screen.round_done(row, rounds)
                if not told and done and rounds > 1:
                    screen.say(f"  {_how_long(job, done[0])}")
                told, since = job["done"], time.monotonic()
            if job["state"] in ("ended", "set-aside"):
                return job
            found = _ended(home, running)
            if time.monotonic() - since > _STANDS_STILL:
                found += administrator.get(f"/v1/jobs/{part(name)}/advice")
                since = time.monotonic()
            for line in found:
                kind = re.sub(r"\d+", "", line)  # of one round and the next
                if kind not in troubles:
                    screen.say(f"[yellow]![/yellow] {escape(line)}")
                troubles.add(kind)
            screen.round_open(job["progress"], rounds)
            time.sleep(_LOOK)


def _how_long(job: dict[str, Any], first: dict[str, Any]) -> str:
    """Say when a job ends, and about when that is at the pace of its first round."""
    rounds, patience = job["settings"]["rounds"], job["settings"]["patience"]
    about = span(rounds * first["result"]["seconds"])
    if patience is None:
        return f"{rounds} rounds: about {about} in all"
    return f"until held-out accuracy has not risen for {patience} rounds, {rounds} at most: about {about} in all"


def _learned(job: dict[str, Any]) -> list[str]:
    """Say what the held-out rows show of a job that has ended: of a language model, before and after."""
    known = job["metrics"]
    if "perplexity_before" not in known or "perplexity" not in known:
        return to_beat(job)
    before, after = known["perplexity_before"], known["perplexity"]
    losses = f"{math.log(before):.3f} before, {math.log(after):.3f} now"
    return [f"Held-out loss of a token: {losses} (perplexity {before:.2f}, {after:.2f})"]


def _compared(home: Project, job: dict[str, Any], screen: Screen) -> list[str]:
    """Compare with the same rows trained otherwise, where they are at hand and have classes."""
    from edge_client.tasks.registry import task_named
    from server.start.baseline import Files, baseline

    data = home.file.data
    accuracy = job["metrics"].get("accuracy")
    if accuracy is None or not data.held_out or not task_named(home.file.model.task).has_classes:
        return []
    files = Files(home.path(data.train), home.path(data.held_out), sorted(home.devices.glob("*/data.jsonl")))
    if not (files.train.is_file() and files.held_out.is_file()):
        return []
    doing = "Comparing with all rows in one place"
    with screen.stage(doing, "Compared with all rows in one place"):
        found = baseline(home.bundle, files, lambda line: screen.doing(f"{doing}: {line}"))
    if found is None:
        return []
    lines = [f"Accuracy on the held-out rows: together {accuracy:.3f}"]
    lines += [] if found.alone is None else [f"  each device alone {found.alone:.3f}"]
    return [*lines, f"  all rows in one place {found.in_one_place:.3f}{_BY_REGRESSION}"]


def _next_steps(home: Project, name: str) -> str:
    commands = [("what was learned, as a PEFT adapter", f"spry adapter download {name} --out adapter/")]
    devices = sorted(home.devices.glob("*/home"))
    if devices:
        speaks = home.file.model.task == "causal-lm"
        on_device = ("talk with it, on the first device", "chat") if speaks else ("predict", 'predict "your text"')
        commands.append((on_device[0], f"spry {on_device[1]}"))
    commands.append(("end the server and the trial devices", "spry down"))
    return "What to try next:\n" + "\n".join(f"  # {what}\n  {command}" for what, command in commands)
