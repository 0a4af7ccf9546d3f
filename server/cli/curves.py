"""`spry job export`: a job's curves where others look at theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import typer

from edge_client.commands.options.groups import grouped
from server.cli.common import JsonOption, NameArgument, ServerOptions, say, say_away, show_json
from server.cli.connection import Administrator, NoAnswer, part
from server.sinks.sink import SINKS, Curves, Point, Sink, open_sink, send

_PAGE = 1000
_ENDED = "ended"
_LATEST = 60.0
"""The seconds after a round's end within which devices report their evaluations of its weights."""
_LOOK = 1.0
_MEASURED = "_global", "_personal"
_EVALUATED = "evaluated"
"""The metric that counts the devices that reported."""
ToOption = Annotated[str, typer.Option(help=f"The destination: {', '.join(SINKS)}, with the place after a colon.")]


@grouped
def export(
    job: NameArgument,
    to: ToOption,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until the job ends.")] = False,
    *,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Send a job's metrics to TensorBoard or MLflow; metrics that are there already are not sent again.

    Devices' evaluations are sent when all of a round's have reported, or a minute after its end.

    Example: spry job export news --to tensorboard:runs/ --follow
    """
    with server.connect() as administrator:
        standing = administrator.get(f"/v1/jobs/{part(job)}")
        sink = open_sink(to, Curves(standing["id"], standing["name"], standing["settings"]))
        known = told(administrator, standing)
        sent = send(sink, known.points)
        if follow:
            for standing in administrator.followed(job, say_away):
                with suppress(NoAnswer):  # what is asked for in vain comes with the next event
                    known = told(administrator, standing, after=known.settled)
                    sent += send(sink, known.points)
            sent += _late(administrator, sink, standing)
        if standing["state"] == _ENDED:
            sink.end()
    if as_json:
        show_json({"to": to, "sent": sent, "state": standing["state"]})
    else:
        say(f"{sent} new points of {standing['name']} are in {to}")


class Told(NamedTuple):
    """The rounds and curves of a job, as its server reports them."""

    points: list[Point]
    is_all: bool
    """True if no device is still to report its evaluation."""
    settled: int
    """The last round of which, and of those before, there is no more to tell while the job runs; -1: none."""


def told(administrator: Administrator, job: Mapping[str, Any], *, latest: float = _LATEST, after: int = -1) -> Told:
    """Fetch a job's curves with the times at which their rounds were over; the first value has the job's creation.

    Of the rounds `after` one alone: what is settled of a long job is asked for once.
    A place keeps the first value that it is given: the means of what devices measured are left out while others may
    follow, so many seconds at the `latest`.
    """
    where = f"/v1/jobs/{part(job['id'])}"
    rounds = {row["number"]: row for row in _rounds(administrator, where, after)}
    metrics = administrator.get(f"{where}/metrics", after=after)
    evaluated = {row["round"]: row["value"] for row in metrics if row["name"] == _EVALUATED}
    waits = {row["number"] for row in rounds.values() if _waits(job, row, evaluated, latest)}
    points = list[Point]()
    for row in metrics:
        if row["round"] not in waits or not (row["name"] == _EVALUATED or row["name"].endswith(_MEASURED)):
            end = rounds[row["round"]]["closed"] if row["round"] in rounds else None
            points.append(Point(row["round"], row["name"], row["value"], job["created"] if end is None else end))
    unsettled = waits | {number for number, row in rounds.items() if row["closed"] is None}
    settled = min(unsettled, default=max(rounds, default=after) + 1) - 1
    return Told(points, not waits, max(settled, after))


def _waits(job: Mapping[str, Any], row: Mapping[str, Any], evaluated: Mapping[int, float], latest: float) -> bool:
    """Tell whether devices may still report evaluations of a round's weights, which they do in mode iteration."""
    settings, every = job["settings"], job["settings"]["device_evaluation"]
    if settings["training"]["mode"] != "iteration" or not every or row["number"] % every:
        return False
    if row["closed"] is None:
        return job["state"] != _ENDED
    asked = row["tasks"].get("accepted", 0)
    return evaluated.get(row["number"], 0) < asked and time.time() < row["closed"] + latest


def _late(administrator: Administrator, sink: Sink, job: Mapping[str, Any]) -> int:
    """Read what devices of an ended job report after its last step."""
    until, sent = time.monotonic() + _LATEST, 0
    while not (known := told(administrator, job)).is_all and time.monotonic() < until:
        sent += send(sink, known.points)
        time.sleep(_LOOK)
    return sent + send(sink, told(administrator, job, latest=0.0).points)


def _rounds(administrator: Administrator, where: str, after: int) -> Iterator[dict[str, Any]]:
    asked = {"limit": _PAGE, "after": after}
    while page := administrator.get(f"{where}/rounds", **asked):
        yield from page
        asked["before"] = page[-1]["number"]
