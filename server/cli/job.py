"""`spry job`: make, follow and steer jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edge_client.bundle.folder import Bundle
from edge_client.commands.options.groups import OptionGroup, command_group, grouped
from edge_client.commands.options.panels import PanelCommand
from edge_client.commands.options.retired import refuse
from edge_client.format import size
from server.cli.common import (
    DataOption,
    JsonOption,
    NameArgument,
    ServerOptions,
    ago,
    say,
    say_away,
    show_json,
    show_table,
    transfer,
)
from server.cli.connection import AdminError, Administrator, part
from server.cli.curves import export
from server.cli.job_lines import (
    began_in,
    job_line,
    outliers_in,
    privacy_of,
    row_of,
    scores_of,
    shown,
    steps_in,
    to_beat,
    value_of,
)
from server.jobs.options import PresetOption, RoundOptions, SettingsOptions, TrainingOptions
from server.jobs.presets import PRESETS

_REFUSALS = 5
"""The number of newest refusals that `spry job show` prints."""

app = command_group("Create, show and control jobs: a bundle to train, how, and when to stop.")
app.command()(export)


@dataclass(frozen=True)
class EndOptions(OptionGroup):
    """Options for when a round or a job ends, beside its number of rounds."""

    title = RoundOptions.title

    deadline: Annotated[float | None, typer.Option(help="The longest time of a round, in seconds; by default 600.")] = (
        None
    )
    target: Annotated[float | None, typer.Option(help="Stop at this accuracy.")] = None
    patience: Annotated[int | None, typer.Option(help="Stop after so many evaluations without a better one.")] = None


@app.command(cls=PanelCommand)
@grouped
def create(
    name: Annotated[str, typer.Argument(help="The job's name.")],
    bundle: Annotated[Path, typer.Option(help="The bundle to train: a folder or .zip of `spry export`.")],
    rounds: RoundOptions,
    ending: EndOptions,
    training: TrainingOptions,
    settings: SettingsOptions,
    held_out: Annotated[Path | None, typer.Option(help="Examples (JSONL) to evaluate on, kept at the server.")] = None,
    preset: PresetOption = None,
    bundle_name: Annotated[str | None, typer.Option(help="The bundle's name on the dashboard.")] = None,
    *,
    server: ServerOptions,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upload a bundle, if the server lacks it, and start a job on it.

    Example: spry job create news --bundle bundle/ --rounds 50 --per-round 8 --held-out test.jsonl
    """
    given = settings.under({**rounds.asked(), **asdict(ending), **training.asked()})
    Bundle.open(bundle, verify=False)  # what is wrong with it is said before anything about the server
    with server.connect(data) as administrator:
        made = create_job(administrator, name, bundle, given, preset, held_out)
        if bundle_name is not None:
            administrator.patch(f"/v1/bundles/{made.told['bundle']}", {"name": bundle_name})
    if as_json:
        show_json(made.told)
    else:
        fitting = "" if preset or made.start == "default" else f" with --preset {made.start}, which fits its adapter"
        for line in privacy_of(made.told):
            typer.echo(line)
        typer.echo(
            f"job {name} ({made.told['id']}) is running{fitting}; follow it with `spry job show {name} --follow`"
        )


class Made(NamedTuple):
    """A new job."""

    told: dict[str, Any]
    """The server's answer about it."""
    start: str
    """The preset that its settings started from."""


def create_job(
    administrator: Administrator,
    name: str,
    bundle: Path,
    given: Mapping[str, Any],
    preset: str | None,
    held_out: Path | None,
    rows: int | None = None,
) -> Made:
    """Upload what the server lacks, and start a job; `given` are settings over those of the preset.

    The default looks at how many `rows` there are to learn from: where nobody says, those of the devices that are here.
    """
    if preset is not None and preset not in PRESETS:
        refuse(f"--preset {preset}")
        raise AdminError(f"--preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    wanted = dict(given)
    if held_out is not None:
        wanted["held_out"] = administrator.upload_held_out(held_out)
    with transfer("uploading") as advance:
        uploaded = administrator.upload_bundle(bundle, advance)
    wish = {"preset": preset or "", "settings": wanted, "rows": rows}
    plan = administrator.post(f"/v1/bundles/{uploaded}/plan", wish)
    made = administrator.post("/v1/jobs", {"name": name, "bundle": uploaded, "settings": plan["settings"]})
    return Made(made, plan["preset"])


@app.command(name="list")
@grouped
def list_(server: ServerOptions, as_json: JsonOption = False) -> None:
    """Show all jobs.

    Example: spry job list
    """
    with server.connect() as administrator:
        jobs = administrator.get("/v1/jobs")
    if as_json:
        show_json(jobs)
        return
    rows = [
        (job["name"], job["id"], job["state"], f"{job['done']} of {job['settings']['rounds']}",
         shown(job, job["score"]), ago(job["created"]))
        for job in jobs
    ]  # fmt: skip
    columns = ("name", "id", "state", "rounds", "score", "created")
    show_table(columns, rows, "no jobs; start one with `spry job create NAME --bundle FOLDER`")


@app.command()
@grouped
def show(
    job: NameArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Print a line at every change until the job ends.")] = False,
    *,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Show a job's state.

    Example: spry job show news --follow
    """
    with server.connect() as administrator:
        if follow:
            _follow(administrator, job, as_json=as_json)
            return
        standing = administrator.get(f"/v1/jobs/{part(job)}")
        if as_json:
            show_json(standing)
            return
        rounds = administrator.get(f"/v1/jobs/{part(job)}/rounds", limit=10)
        refusals = administrator.get(f"/v1/jobs/{part(job)}/refusals", limit=_REFUSALS)
        assignment = administrator.get(f"/v1/jobs/{part(job)}/assignment")
        advice = administrator.get(f"/v1/jobs/{part(job)}/advice")
    say(job_line(standing))
    if standing["state"] == "ended":
        say(f"ended: {standing['reason']}")
    if standing["refused"]:
        typer.echo("refused: " + ", ".join(f"{count} {code}" for code, count in sorted(standing["refused"].items())))
        for one in refusals:
            say(f"  round {one['round']}, {one['device']}, {ago(one['time'])}: {one['code']}: {one['detail']}")
    for line in (*to_beat(standing), *privacy_of(standing), *outliers_in(rounds), *began_in(rounds)):
        say(line)
    for line in advice:
        say(line)
    typer.echo(f"the server sees {standing['sees']}")
    if standing["up"] or standing["down"]:
        typer.echo(f"devices sent {size(standing['up'])} and fetched {size(standing['down'])}")
    if assignment:
        say(steps_in(assignment))
    typer.echo()
    scores = [name for name in scores_of(standing) if value_of(standing["metrics"], name) is not None]
    scores = scores or [standing["score"]]
    columns = ("round", "state", "reports", "loss", *(name.replace("_", " ") for name in scores), "seconds")
    show_table(columns, (row_of(row, scores) for row in rounds), "no rounds yet")


def _follow(administrator: Administrator, job: str, *, as_json: bool) -> None:
    told, reason = "", ""
    for standing in administrator.followed(job, say_away):
        line, reason = json.dumps(standing) if as_json else job_line(standing), standing["reason"]
        if not as_json and (lacks := (standing["progress"] or {}).get("lacks")):
            line = f"{line}; {lacks}"
        if line != told:
            say(line)
            told = line
    if not as_json:
        say(f"ended: {reason}")


@app.command()
@grouped
def pause(job: NameArgument, server: ServerOptions) -> None:
    """Give out no more tasks; devices may finish those that they have.

    Example: spry job pause news
    """
    _steer(job, "pause", server)


@app.command()
@grouped
def resume(job: NameArgument, server: ServerOptions) -> None:
    """Continue a job that was paused, or set aside because of an error.

    Example: spry job resume news
    """
    _steer(job, "resume", server)


@app.command()
@grouped
def stop(job: NameArgument, server: ServerOptions) -> None:
    """End a job for good; its weights stay.

    Example: spry job stop news
    """
    _steer(job, "stop", server)


def _steer(job: str, where: str, server: ServerOptions) -> None:
    with server.connect() as administrator:
        standing = administrator.post(f"/v1/jobs/{part(job)}/{where}")
    say(f"job {standing['name']} is {standing['state']}")
