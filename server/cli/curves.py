"""`spry job export`: a job's curves where others look at theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from server.cli.common import CaOption, JsonOption, NameArgument, ServerOption, TokenOption, connect, say, show_json
from server.cli.connection import Administrator, part
from server.sinks.sink import SINKS, Curves, Point, open_sink, send

_PAGE = 1000
_ENDED = "ended"
ToOption = Annotated[str, typer.Option(help=f"Where to: {', '.join(SINKS)}, and the place behind a colon.")]


def export(
    job: NameArgument,
    to: ToOption,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job ends.")] = False,
    server: ServerOption = None,
    admin_token: TokenOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a job's metrics to TensorBoard or MLflow: those that are not there yet, so that it may be repeated.

    Example: spry job export news --to tensorboard:runs/ --follow
    """
    with connect(server, admin_token, ca) as administrator:
        standing = administrator.get(f"/v1/jobs/{part(job)}")
        sink = open_sink(to, Curves(standing["id"], standing["name"], standing["settings"]))
        sent = send(sink, points_of(administrator, standing))
        if follow:
            with administrator.events(job) as events:
                for text in events:
                    standing = json.loads(text)
                    sent += send(sink, points_of(administrator, standing))
        if standing["state"] == _ENDED:
            sink.end()
    if as_json:
        show_json({"to": to, "sent": sent, "state": standing["state"]})
    else:
        say(f"{sent} new points of {standing['name']} are in {to}")


def points_of(administrator: Administrator, job: dict[str, Any]) -> Iterator[Point]:
    """With the times at which their rounds were over; what is known before the first, when the job was made."""
    where = f"/v1/jobs/{part(job['id'])}"
    metrics = administrator.get(f"{where}/metrics")
    ends = {row["number"]: row["closed"] for row in _rounds(administrator, where) if row["closed"] is not None}
    for row in metrics:
        yield Point(row["round"], row["name"], row["value"], ends.get(row["round"], job["created"]))


def _rounds(administrator: Administrator, where: str) -> Iterator[dict[str, Any]]:
    before: dict[str, int] = {}
    while page := administrator.get(f"{where}/rounds", limit=_PAGE, **before):
        yield from page
        before = {"before": page[-1]["number"]}
